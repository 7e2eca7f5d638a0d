// The charts: uPlot, with the colours of the page, made again when those change or a series comes or goes.

import { h, render } from "/web/dom.js";

const HEIGHT = 140;
// The distances of ticks on an axis of bytes: 1 B to 2^50 B.
export const BYTE_STEPS = Array.from({ length: 51 }, (_, power) => 2 ** power);
const DASHES = [[], [6, 4], [2, 3], [10, 3, 2, 3], [1, 5], [12, 6], [4, 2, 1, 2]];
const dark = matchMedia("(prefers-color-scheme: dark)");

export class Chart {
  /** `unit` writes a value of the vertical axis, `steps` are the distances of its ticks, undefined for decimal ones. */
  constructor(container, title, unit, steps) {
    this.unit = unit;
    this.steps = steps;
    this.title = title;
    this.heading = document.createElement("figcaption");
    this.plot = document.createElement("div");
    this.plot.setAttribute("role", "img");
    const figure = document.createElement("figure");
    figure.append(this.heading, this.plot);
    container.append(figure);
    this.figure = figure;
    this.chart = null;
    this.names = "";
    new ResizeObserver(() => this.resize()).observe(this.plot);
    dark.addEventListener("change", () => this.forget());
  }

  /** Draw samples; without any series the chart is hidden. */
  show(samples) {
    this.figure.hidden = samples.names.length === 0;
    if (this.figure.hidden) return;
    const now = samples.names.map((name) => {
      const last = samples.last(name);
      return { name, text: last === null ? "unknown" : this.unit(last) };
    });
    render(this.heading, h("strong", {}, this.title), h("span", { class: "values" }, now.map((each, index) =>
      h("span", { class: "value" }, swatch(index), each.name ? `${each.name}: ${each.text}` : each.text))));
    this.plot.setAttribute("aria-label",
      `${this.title}, the last ten minutes. Now: ${now.map((each) => `${each.name} ${each.text}`.trim()).join(", ")}`);
    const names = samples.names.join("\n");
    if (!this.chart || names !== this.names) this.make(samples, names);
    else this.chart.setData(samples.rows);
  }

  make(samples, names) {
    this.forget();
    const width = this.plot.clientWidth;
    if (!width) return;
    this.names = names;
    const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const grid = { stroke: colour("--line"), width: 1 };
    const font = `12px ${getComputedStyle(document.body).fontFamily}`;
    this.chart = new uPlot({
      width,
      height: HEIGHT,
      legend: { show: false },
      cursor: { show: false },
      select: { show: false },
      scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max(high || 0, 1e-9) * 1.1] } },
      axes: [
        { stroke: colour("--quiet"), grid, ticks: grid, font, size: 34, space: 70, values: (_, times) => times.map(timeOfDay) },
        { stroke: colour("--quiet"), grid, ticks: grid, font, size: 62, space: 26, ...(this.steps ? { incrs: this.steps } : {}),
          values: (_, values) => values.map((value) => this.unit(value)) },
      ],
      series: [{}, ...samples.names.map((name, index) => ({
        label: name,
        stroke: colour(`--series-${index % 4}`),
        width: 1.5,
        dash: DASHES[index % DASHES.length],
        fill: samples.names.length === 1 ? colour("--area") : undefined,
        points: { show: false },
        spanGaps: false,
      }))],
    }, samples.rows, this.plot);
  }

  resize() {
    const width = this.plot.clientWidth;
    if (this.chart && width && width !== this.chart.width) this.chart.setSize({ width, height: HEIGHT });
  }

  forget() {
    this.chart?.destroy();
    this.chart = null;
  }
}

function timeOfDay(at) {
  return new Date(at * 1000).toISOString().slice(11, 19);
}

function swatch(index) {
  return h("svg", { class: `swatch series-${index % 4}`, viewBox: "0 0 26 8", "aria-hidden": "true" },
    h("path", { d: "M0 4H26", "stroke-dasharray": DASHES[index % DASHES.length].join(" ") || "none" }));
}
