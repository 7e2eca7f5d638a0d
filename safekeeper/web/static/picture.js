// The picture: boxes in columns from left to right, or one below the other where the page is narrow, and the lines between them.
//
// A node is {id, column, level, title, state, lines, problem, parent}: `parent` is the id of the node that feeds it, and
// `link` the level of the line from there. Everything in the picture is also in the tables below it.

import { h, render } from "/web/dom.js";
import { markAt } from "/web/marks.js";

const LINE = 19;
const PAD = 12;
const GAP = 16;
const NARROW = 760;
const PROBLEM_LINES_MAX = 4;

export class Picture {
  constructor(container) {
    this.container = container;
    this.pen = document.createElement("canvas").getContext("2d");
    this.described = null;
    new ResizeObserver(() => this.draw()).observe(container);
  }

  show(nodes) {
    const summary = nodes.map((node) => `${node.title}: ${[node.state, ...node.lines, node.problem].filter(Boolean).join(", ")}.`).join(" ");
    this.described = { nodes, summary };
    this.draw();
  }

  draw() {
    if (!this.described) return;
    const { nodes, summary } = this.described;
    const width = Math.floor(this.container.clientWidth);
    if (width < 100) return;
    this.pen.font = getComputedStyle(this.container).font;
    const boxes = width < NARROW ? this.stacked(nodes, width) : this.inColumns(nodes, width);
    const height = Math.max(...boxes.map((box) => box.y + box.height)) + 2;
    const byId = new Map(boxes.map((box) => [box.node.id, box]));
    const lines = boxes.flatMap((box) => {
      const from = byId.get(box.node.parent);
      return from ? [width < NARROW ? elbow(from, box) : curve(from, box)] : [];
    });
    render(
      this.container,
      h("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": summary },
        h("g", { class: "links" }, lines),
        boxes.map(drawBox)),
    );
  }

  inColumns(nodes, width) {
    const columns = Math.max(...nodes.map((node) => node.column)) + 1;
    const between = Math.max(36, Math.min(90, width * 0.055));
    const boxWidth = (width - between * (columns - 1) - 2) / columns;
    const boxes = nodes.map((node) => this.box(node, 1 + node.column * (boxWidth + between), 0, boxWidth));
    const heightOf = (column) => {
      const inside = boxes.filter((box) => box.node.column === column);
      return inside.reduce((sum, box) => sum + box.height + GAP, -GAP);
    };
    const highest = Math.max(...Array.from({ length: columns }, (_, column) => heightOf(column)));
    for (let column = 0; column < columns; column += 1) {
      let y = 1 + (highest - heightOf(column)) / 2;
      for (const box of boxes.filter((each) => each.node.column === column)) {
        box.y = y;
        y += box.height + GAP;
      }
    }
    return boxes;
  }

  stacked(nodes, width) {
    const boxes = [];
    let y = 1;
    const place = (node, depth) => {
      const x = 1 + depth * 18;
      const box = this.box(node, x, y, width - x - 1);
      boxes.push(box);
      y += box.height + 12;
      nodes.filter((each) => each.parent === node.id).forEach((each) => place(each, depth + 1));
    };
    const ids = new Set(nodes.map((node) => node.id));
    nodes.filter((node) => !ids.has(node.parent)).forEach((node) => place(node, 0));
    return boxes;
  }

  box(node, x, y, width) {
    const problem = node.problem ? this.wrapped(node.problem, width - 2 * PAD, PROBLEM_LINES_MAX) : [];
    const lines = node.lines.map((line) => this.wrapped(line, width - 2 * PAD, 1)[0]);
    // The name is bold, so that it is a little wider than what the pen measures.
    const name = this.cut(node.title, (width - 2 * PAD - 34 - this.pen.measureText(node.state).width) / 1.1, false);
    return { node, x, y, width, name, lines, problem, height: 2 * PAD + LINE * (1 + lines.length + problem.length) - 2 };
  }

  /** Break a text into lines of a width in pixels; the last one ends with an ellipsis if the text goes on. */
  wrapped(text, width, linesMax) {
    const lines = [];
    let line = "";
    for (const word of text.slice(0, 400).split(/(?<=[\s/:,])/)) {
      if (line && this.pen.measureText(line + word.trimEnd()).width > width) {
        lines.push(line.trimEnd());
        line = "";
      }
      line += word;
    }
    lines.push(line.trimEnd());
    const shown = lines.slice(0, linesMax);
    return shown.map((each, index) => this.cut(each, width, index === linesMax - 1 && lines.length > linesMax));
  }

  cut(line, width, goesOn) {
    let shown = goesOn ? `${line} …` : line;
    while (this.pen.measureText(shown).width > width && shown.length > 2) shown = `${shown.replace(/ ?…$/, "").slice(0, -1)}…`;
    return shown;
  }
}

function drawBox({ node, x, y, width, height, name, lines, problem }) {
  const textX = x + PAD;
  const lineY = (index) => y + PAD + LINE * index + 13;
  return h("g", { class: `node ${node.level}`, "data-id": node.id, "data-state": node.state, "data-lsn": node.lsn ?? "" },
    h("title", {}, [node.title, node.state, ...node.lines, node.problem].filter(Boolean).join("\n")),
    h("rect", { class: "box", x, y, width, height, rx: 8 }),
    markAt(node.level, textX, y + PAD),
    h("text", { class: "name", x: textX + 24, y: lineY(0) }, name),
    h("text", { class: "state", x: x + width - PAD, y: lineY(0), "text-anchor": "end" }, node.state),
    lines.map((line, index) => h("text", { class: "line", x: textX, y: lineY(1 + index) }, line)),
    problem.map((line, index) => h("text", { class: "problem", x: textX, y: lineY(1 + lines.length + index) }, line)));
}

function curve(from, to) {
  const [x1, y1] = [from.x + from.width, from.y + from.height / 2];
  const [x2, y2] = [to.x, to.y + to.height / 2];
  const middle = (x1 + x2) / 2;
  return link(to, `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2 - 7} ${y2}`, middle, (y1 + y2) / 2, x2, y2);
}

function elbow(from, to) {
  const x = from.x + 9;
  const y = to.y + PAD + 8;
  return link(to, `M${x} ${from.y + from.height}V${y - 6}Q${x} ${y} ${x + 3} ${y}H${to.x - 2}`, null, null, to.x, y);
}

/** A line, with an arrow if it carries WAL, and broken with a cross if it does not. */
function link(to, path, crossX, crossY, endX, endY) {
  const level = to.node.link ?? to.node.level;
  const parts = [h("path", { class: "line", d: path })];
  if (level === "bad" && crossX !== null) {
    parts.push(h("path", { class: "cross", d: `M${crossX - 5} ${crossY - 5}l10 10m0 -10l-10 10` }));
  } else if (crossX !== null) {
    parts.push(h("path", { class: "arrow", d: `M${endX} ${endY}l-9 -4.5v9Z` }));
  }
  return h("g", { class: `link ${level}` }, parts);
}
