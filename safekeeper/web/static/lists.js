// The tables that both programs have: terms and timelines, and events.

import { figure, shown, table } from "/web/tables.js";
import { moment } from "/web/units.js";

export function drawTerms(history) {
  table("terms", "Terms and timelines, the newest first", ["term", "timeline", "begins at", "remark"],
    [...history].reverse().slice(0, 20).map((entry, index, entries) => [
      figure(String(entry.term)),
      figure(String(entry.tli)),
      figure(entry.start_lsn),
      [
        entries[index + 1] && entries[index + 1].tli !== entry.tli ? `timeline ${entry.tli} begins` : "",
        entry.floor && (!entries[index + 1] || entries[index + 1].floor !== entry.floor) ? `sealed up to timeline ${entry.floor}` : "",
        entry.gives_up ? "gave up WAL that may have been committed" : "",
      ].filter(Boolean).join("; "),
    ]),
    "No term is known.");
}

export function drawEvents(part) {
  shown("events-section", Boolean(part));
  if (!part) return;
  table("events", "Events, the newest first", ["time", "what happened", "event", "source"],
    [...part.events].reverse().map((each) => [figure(moment(each.at)), { text: each.text, class: "text" }, each.event, each.source]),
    "No event yet.");
}
