// What the charts and the lags in seconds are made of: the last ten minutes, one sample for each tick, and no more.

export const SAMPLES_MAX = 600;
const SPAN_S = 600;

/** Values over time for a chart: `rows[0]` are times in seconds since 1970, the others one series each. */
export class Samples {
  constructor() {
    this.rows = [[]];
    this.names = [];
  }

  /** Add the values by name at a time; a name that is new begins without values, one that is missing has none. */
  add(at, values) {
    for (const name of Object.keys(values)) {
      if (this.names.includes(name)) continue;
      this.names.push(name);
      this.rows.push(this.rows[0].map(() => null));
    }
    this.rows[0].push(at);
    this.names.forEach((name, index) => this.rows[index + 1].push(values[name] ?? null));
    while (this.rows[0].length > SAMPLES_MAX || this.rows[0][0] < at - SPAN_S) this.rows.forEach((row) => row.shift());
    this.names
      .filter((name) => !(name in values) && this.rows[this.names.indexOf(name) + 1].every((value) => value === null))
      .forEach((name) => {
        this.rows.splice(this.names.indexOf(name) + 1, 1);
        this.names.splice(this.names.indexOf(name), 1);
      });
  }

  clear() {
    this.rows = [[]];
    this.names = [];
  }

  last(name) {
    const row = this.rows[this.names.indexOf(name) + 1] ?? [];
    return row[row.length - 1] ?? null;
  }
}

/** A position over time: how long ago it passed another one. */
export class Passed {
  constructor() {
    this.samples = [];
  }

  add(at, lsn) {
    const last = this.samples[this.samples.length - 1];
    if (last && lsn < last.lsn) this.samples = []; // Another log, or a promotion: its positions say nothing of this one.
    if (last && lsn === last.lsn) return;
    this.samples.push({ at, lsn });
    if (this.samples.length > SAMPLES_MAX) this.samples.shift();
  }

  clear() {
    this.samples = [];
  }

  /** Seconds since this position went beyond `lsn`, with whether it did so before the first sample. */
  since(lsn, now) {
    const index = this.samples.findIndex((sample) => sample.lsn > lsn);
    if (index < 0) return { seconds: 0, atLeast: false };
    return { seconds: Math.max(0, now - this.samples[index].at), atLeast: index === 0 };
  }
}

/** The increase of a position a second between ticks. */
export class Rate {
  constructor() {
    this.last = null;
  }

  clear() {
    this.last = null;
  }

  add(at, value) {
    const before = this.last;
    this.last = { at, value };
    if (!before || at <= before.at || at - before.at > 10 || value < before.value) return null;
    return (value - before.value) / (at - before.at);
  }
}
