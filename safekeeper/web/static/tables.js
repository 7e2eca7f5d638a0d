// Tables, lists of facts, and sections that are shown only if there is something in them.

import { byId, h, render } from "/web/dom.js";
import { mark } from "/web/marks.js";

/** Fill the table in the element `id`. A cell is a text, or {text, class, level}; the first one heads its row. */
export function table(id, caption, headings, rows, empty) {
  const cell = (value, index) => {
    const { text, level, ...rest } = typeof value === "object" && value !== null ? value : { text: value };
    const attributes = { ...(rest.class ? { class: rest.class } : {}), ...(index === 0 ? { scope: "row" } : {}) };
    return h(index === 0 ? "th" : "td", attributes, level ? [mark(level), " "] : null, text ?? "–");
  };
  render(byId(id),
    rows.length === 0
      ? h("p", { class: "empty" }, empty)
      : h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
          h("table", {},
            h("caption", { class: "unseen" }, caption),
            h("thead", {}, h("tr", {}, headings.map((heading) => h("th", { scope: "col" }, heading)))),
            h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell)))))));
}

/** Fill a list of facts: pairs of a name and a text; those without a text are left out. */
export function facts(id, pairs) {
  render(byId(id), pairs.filter(([, text]) => text !== null && text !== undefined && text !== "")
    .map(([name, text]) => h("div", {}, h("dt", {}, name), h("dd", {}, text))));
}

export function shown(id, isShown) {
  byId(id).hidden = !isShown;
}

/** A cell for positions and numbers. */
export function figure(text) {
  return { text, class: "figure" };
}
