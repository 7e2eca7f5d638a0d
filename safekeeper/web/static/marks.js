// The marks of the four levels: each has a shape and a word of its own, so that colour is not needed to tell them apart.

import { h } from "/web/dom.js";

const SHAPES = {
  ok: [
    ["circle", { cx: 8, cy: 8, r: 7, class: "fill" }],
    ["path", { d: "M4.5 8.3 7 10.8 11.6 5.6", class: "cut" }],
  ],
  warn: [
    ["path", { d: "M8 1.2 15.4 14.6H.6Z", class: "fill" }],
    ["path", { d: "M8 6v4.2M8 12.2v.9", class: "cut" }],
  ],
  bad: [
    ["rect", { x: 1, y: 1, width: 14, height: 14, rx: 2, class: "fill" }],
    ["path", { d: "M5 5l6 6M11 5l-6 6", class: "cut" }],
  ],
  idle: [["circle", { cx: 8, cy: 8, r: 6, class: "ring" }]],
};
export const WORDS = { ok: "good", warn: "attention", bad: "failure", idle: "idle" };

/** The mark of a level at a position of a picture. */
export function markAt(level, x, y) {
  return h("g", { class: `mark ${level}`, transform: `translate(${x} ${y})` }, shapes(level));
}

/** The mark of a level in a text. */
export function mark(level) {
  return h("svg", { class: `mark ${level}`, viewBox: "0 0 16 16", role: "img", "aria-label": WORDS[level] }, shapes(level));
}

function shapes(level) {
  return SHAPES[level].map(([tag, attributes]) => h(tag, attributes));
}
