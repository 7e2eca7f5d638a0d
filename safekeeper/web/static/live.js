// The stream of the server: parts by name, and a call for each tick. It is closed while the page is hidden or paused, so that a
// forgotten tab costs nothing, and opened again afterwards.

const PARTS = ["status", "limbo", "events"];
const STALE_MS = 4000;
const RETRY_MS = 5000;

/**
 * Call `onHistory(samples)` with the last ten minutes when the stream begins, `onTick(parts, tick)` for each tick, and `onState(state, ageSeconds)` once a second, with the state "live",
 * "connecting", "stale" or "paused", and the age of the last tick (null: there was none).
 */
export class Live {
  constructor(onHistory, onTick, onState) {
    this.onHistory = onHistory;
    this.onTick = onTick;
    this.onState = onState;
    this.parts = {};
    this.paused = false;
    this.tickedAt = null;
    this.source = null;
    this.retry = null;
    document.addEventListener("visibilitychange", () => this.follow());
    setInterval(() => this.report(), 1000);
    this.follow();
  }

  pause(paused) {
    this.paused = paused;
    this.follow();
  }

  follow() {
    const wanted = !this.paused && !document.hidden;
    if (wanted && !this.source) this.open();
    if (!wanted && this.source) this.close();
    this.report();
  }

  open() {
    clearTimeout(this.retry);
    this.parts = {};
    this.source = new EventSource("/live");
    for (const name of PARTS) {
      this.source.addEventListener(name, (event) => {
        this.parts[name] = JSON.parse(event.data);
      });
    }
    this.source.addEventListener("history", (event) => this.onHistory(JSON.parse(event.data)));
    this.source.addEventListener("tick", (event) => {
      this.tickedAt = performance.now();
      this.onTick(this.parts, JSON.parse(event.data));
      this.report();
    });
    this.source.addEventListener("error", () => {
      // A browser connects again by itself, but not after an answer that is an error.
      if (this.source.readyState === EventSource.CLOSED) {
        this.close();
        this.retry = setTimeout(() => this.follow(), RETRY_MS);
      }
      this.report();
    });
  }

  close() {
    clearTimeout(this.retry);
    this.source.close();
    this.source = null;
  }

  report() {
    const age = this.tickedAt === null ? null : (performance.now() - this.tickedAt) / 1000;
    let state = "connecting";
    if (this.paused) state = "paused";
    else if (age !== null) state = age * 1000 < STALE_MS ? "live" : "stale";
    this.onState(state, age);
  }
}
