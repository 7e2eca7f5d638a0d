// What both pages share: the state of the connection, the button that pauses, the headline, and what screen readers are told.

import { byId, h, render } from "/web/dom.js";
import { Live } from "/web/live.js";
import { mark } from "/web/marks.js";
import { clock, seconds } from "/web/units.js";

// A screen reader is given a changed headline, but not more often than this.
const ANNOUNCE_MS = 10000;
const CONNECTION = {
  live: ["ok", "live"],
  connecting: ["warn", "connecting"],
  stale: ["bad", "no data"],
  paused: ["idle", "paused"],
};

/**
 * Call `draw(parts, tick)` for each tick of the server, or for the last one of those that came since the last frame, and
 * `replay(samples)` with the last ten minutes when the stream begins.
 */
export function start(draw, replay) {
  let drawnAt = "";
  let next = null;
  const frame = () => {
    const { parts, tick } = next;
    next = null;
    drawnAt = tick.at;
    draw(parts, tick);
    render(byId("failed"), tick.failed.length ? `Not shown: ${tick.failed.join(", ")}. The log of the server has the reason.` : "");
  };
  const live = new Live(
    replay,
    (parts, tick) => {
      if (next === null) requestAnimationFrame(frame);
      next = { parts: { ...parts }, tick };
    },
    (state, age) => {
      const [level, word] = CONNECTION[state];
      const since = state === "live" || age === null ? "" : ` for ${seconds(Math.round(age))}`;
      render(byId("connection"), mark(level), ` ${word}${since}`, drawnAt ? `, as of ${clock(drawnAt)}` : "");
      document.body.classList.toggle("old", state === "stale" || (state === "paused" && age !== null));
    },
  );
  const button = byId("pause");
  button.addEventListener("click", () => {
    live.pause(!live.paused);
    button.setAttribute("aria-pressed", String(live.paused));
  });
}

export class Headline {
  constructor() {
    this.announced = "";
    this.wanted = "";
    this.announcedAt = -Infinity;
    this.timer = null;
  }

  /** Show what is the case, its details, and why; `text` is also announced when it changes. */
  show(level, text, details) {
    render(byId("headline"), mark(level), h("span", {}, text));
    render(byId("details"), details.filter(Boolean).map((each) => h("li", {}, each)));
    byId("now").className = level;
    document.title = `${text} – ${byId("title").textContent}`;
    this.wanted = text;
    const wait = this.announcedAt + ANNOUNCE_MS - performance.now();
    if (text !== this.announced && this.timer === null) this.timer = setTimeout(() => this.announce(), Math.max(0, wait));
  }

  announce() {
    this.timer = null;
    if (this.wanted === this.announced) return;
    this.announced = this.wanted;
    this.announcedAt = performance.now();
    byId("announcement").textContent = this.wanted;
  }
}
