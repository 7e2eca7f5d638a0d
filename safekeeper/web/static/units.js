// Numbers as text, as PostgreSQL writes them where it does.

/** An LSN such as 16/B374D848 as a number, exact below 2^53. */
export function parseLsn(text) {
  const [high, low] = text.split("/");
  return parseInt(high, 16) * 2 ** 32 + parseInt(low, 16);
}

export function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let value = count;
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) [value, unit] = [value / 1024, unit + 1];
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

export function seconds(value) {
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.floor(value / 60)} min`;
  if (value < 172800) return `${Math.floor(value / 3600)} h`;
  return `${Math.floor(value / 86400)} days`;
}

export function milliseconds(value) {
  return value >= 1000 ? `${(value / 1000).toFixed(1)} s` : `${value >= 10 ? Math.round(value) : value.toFixed(1)} ms`;
}

export function count(value) {
  return value >= 100 ? Math.round(value).toLocaleString("en-US") : String(Math.round(value * 10) / 10);
}

export function plural(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

/** Day and time of an ISO time, in UTC. */
export function moment(iso) {
  return iso.slice(5, 19).replace("T", " ");
}

/** The time of day of an ISO time, in UTC, as the log has it. */
export function clock(iso) {
  return `${new Date(iso).toISOString().slice(11, 19)} UTC`;
}
