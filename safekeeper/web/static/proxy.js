// The page of the proxy: what /status, /limbo and /events of it contain.

import { Headline, start } from "/web/app.js";
import { BYTE_STEPS, Chart } from "/web/charts.js";
import { byId } from "/web/dom.js";
import { drawEvents, drawTerms } from "/web/lists.js";
import { Picture } from "/web/picture.js";
import { Passed, Rate, Samples } from "/web/samples.js";
import { facts, figure, shown, table } from "/web/tables.js";
import { bytes, count, milliseconds, parseLsn, plural, seconds } from "/web/units.js";

const LEVELS = {
  streaming: "ok", recovering: "warn", electing: "warn", connecting: "warn",
  waiting_for_quorum: "bad", waiting_for_primary: "bad", fenced: "bad",
};
const MEMBER_LEVELS = {
  streaming: "ok", catching_up: "warn", learner: "warn", waiting: "warn", greeting: "warn",
  disconnected: "bad", refused: "bad", storage_full: "bad",
};
const GATE_PROBLEMS = {
  "not gated": "Commits do not wait for the quorum.",
  hangs: "Commits wait for another standby.",
  "gated with others": "Commits may return without the quorum:",
  unknown: "It is unknown whether commits wait for the quorum:",
};
const NO_LSN = "0/0";

const headline = new Headline();
const picture = new Picture(byId("picture"));
const received = new Passed();
const commitRate = new Rate();
export const walSamples = new Samples();
const confirmSamples = new Samples();
const timeSamples = new Samples();
const lagSamples = new Samples();
const walChart = new Chart(byId("charts"), "Committed WAL per second", bytes, BYTE_STEPS);
const confirmChart = new Chart(byId("charts"), "Commits per second", count);
const timeChart = new Chart(byId("charts"), "Time from WAL's arrival to the quorum", milliseconds);
const lagChart = new Chart(byId("charts"), "Lag of the safekeepers", bytes, BYTE_STEPS);

function draw({ status, limbo, events }, tick) {
  if (!status) return;
  const at = Date.parse(tick.at) / 1000;
  addSamples(status, limbo, at);
  drawHeadline(status);
  drawFacts(status);
  picture.show(nodesOf(status, at));
  drawCharts();
  drawLimbo(limbo);
  drawMembers(status, at);
  drawStandbys(status, at);
  drawTerms(status.history);
  drawEvents(events);
}

function drawHeadline(status) {
  const lost = status.quorum_lost;
  const missing = status.safekeepers.filter((each) => each.state !== "streaming" && each.member !== false);
  const members = (status.members ?? status.safekeepers).length;
  const problems = missing.map((each) => `Safekeeper ${each.id} is ${inWords(each.state)}${each.problem ? `: ${each.problem}` : ""}.`);
  const quorum = `${status.members_streaming} of ${plural(members, "member")} stream; a commit needs ${status.quorum}.`;
  let level = LEVELS[status.state] ?? "warn";
  let text = `The proxy is ${inWords(status.state)}.`;
  const details = [];
  if (status.spare) {
    [level, text] = ["idle", "This proxy is a spare: another proxy serves."];
  } else if (lost) {
    text = "Commits wait: there is no quorum.";
    details.push(`For ${seconds(lost.for_s)}: ${lost.present} of ${plural(members, "member")} take part, ${lost.needed} are needed.`);
    if (lost.waiting_sessions !== null) details.push(`${plural(lost.waiting_sessions, "session")} wait for it.`);
    else if (lost.waiting_problem) details.push(`The number of waiting sessions is unknown: ${lost.waiting_problem}.`);
  } else if (status.state === "streaming") {
    text = missing.length ? "Commits succeed, but members are missing." : "Commits succeed.";
    if (missing.length) level = "warn";
    details.push(quorum);
  } else if (status.state === "waiting_for_primary") {
    text = "The proxy waits for the primary.";
    details.push(status.primary.problem);
  }
  const { gate } = status;
  if (gate) {
    const problem = GATE_PROBLEMS[gate.hangs ? "hangs" : gate.state];
    if (gate.state === "not gated" || gate.hangs) [level, text] = ["bad", problem];
    else if (gate.reason && level === "ok") level = "warn";
    if (gate.reason) details.unshift(`${problem} ${gate.reason}.`);
    if (gate.exempt) details.push(`${gate.exempt}.`);
  }
  if (!status.spare) details.push(...problems);
  if (status.apply_problem) details.push(`remote_apply is blocked: ${status.apply_problem}.`);
  if (status.archive?.problem) details.push(`The archive: ${status.archive.problem}.`);
  if (status.backpressure) details.push("Replication from the primary is paused: the window is full.");
  headline.show(level, text, details);
}

function drawFacts(status) {
  facts("facts", [
    ["state", `${status.state}, for ${seconds(status.state_since_s)}`],
    ["commits are", status.gate?.state ?? ""],
    ["term", status.term || "none"],
    ["timeline", status.tli ?? "unknown"],
    ["received", status.received_lsn],
    ["committed", status.commit_lsn],
    ["commit needs", `${status.quorum} of ${(status.members ?? status.safekeepers).length}`],
    ["window", bytes(status.window_bytes)],
    ["system", status.system_id],
    ["run", status.run.slice(0, 8)],
  ]);
}

/** A lag in bytes and in seconds. The seconds are those since the primary's WAL went beyond the position. */
function lagOf(lagBytes, lsn, at) {
  if (lagBytes === null || lagBytes === undefined) return "lag unknown";
  if (lagBytes === 0) return "no lag";
  const { seconds: behind, atLeast } = received.since(parseLsn(lsn), at);
  return `lag ${bytes(lagBytes)}, ${atLeast ? "more than " : ""}${behind < 1 ? "less than 1 s" : seconds(behind)}`;
}

function nodesOf(status, at) {
  const { primary } = status;
  const host = primary.hosts.find((each) => each.state === "connected") ?? primary.hosts[0];
  const nodes = [{
    id: "primary", column: 0, title: `primary ${host?.host ?? ""}`.trim(), lsn: status.received_lsn,
    level: primary.streams ? "ok" : primary.connected ? "warn" : "bad",
    state: primary.streams ? "streams" : primary.connected ? "connected" : "not connected",
    lines: [`timeline ${status.tli ?? "unknown"}`, `sent ${status.received_lsn}`],
    problem: primary.streams ? "" : primary.problem,
  }, {
    id: "proxy", column: 1, parent: "primary", title: "proxy", lsn: status.commit_lsn,
    level: status.spare ? "idle" : LEVELS[status.state] ?? "warn", link: primary.streams ? "ok" : "bad",
    state: status.spare ? "spare" : inWords(status.state),
    lines: [`term ${status.term || "none"}`, `committed ${status.commit_lsn}`,
      `${status.members_streaming} of ${(status.members ?? status.safekeepers).length} stream, ${status.quorum} needed`],
    problem: status.backpressure ? "replication from the primary is paused: the window is full" : "",
  }];
  for (const each of status.safekeepers) {
    const level = MEMBER_LEVELS[each.state] ?? "warn";
    nodes.push({
      id: `safekeeper-${each.id}`, column: 2, parent: "proxy", level, lsn: each.flush_lsn,
      title: `safekeeper ${each.id}`, state: inWords(each.state),
      lines: [
        each.flush_lsn === NO_LSN ? "position unknown" : `on disk ${each.flush_lsn}`,
        lagOf(each.lag_bytes, each.flush_lsn, at),
        ...(each.member === false ? ["not a member"] : []),
        ...(level !== "ok" && each.last_response_s !== null ? [`last reply ${seconds(each.last_response_s)} ago`] : []),
        ...(each.pull_end_lsn ? [`pulls WAL up to ${each.pull_end_lsn}`] : []),
      ],
      problem: each.problem,
    });
  }
  for (const each of status.standbys) {
    nodes.push({
      id: `standby-${each.name}`, column: 3, parent: `safekeeper-${each.safekeeper}`, lsn: each.apply_lsn,
      level: each.connected ? "ok" : each.designated ? "bad" : "warn",
      title: each.name, state: each.connected ? "connected" : "gone",
      lines: [`replayed ${each.apply_lsn}`, lagOf(each.apply_lag_bytes, each.apply_lsn, at),
        ...(each.designated ? ["remote_apply waits for it"] : [])],
      problem: "",
    });
  }
  if (status.archive) {
    const { archive } = status;
    nodes.push({
      id: "archive", column: 3, parent: `safekeeper-${archive.archiver}`, lsn: archive.archived_lsn,
      level: archive.problem ? "bad" : archive.archiver ? "ok" : "warn",
      title: "archive", state: archive.archiver ? `by safekeeper ${archive.archiver}` : "no archiver",
      lines: [archive.archived_lsn === NO_LSN ? "position unknown" : `archived ${archive.archived_lsn}`,
        archive.lag_bytes === null ? "lag unknown" : `not archived ${bytes(archive.lag_bytes)}`],
      problem: archive.problem,
    });
  }
  // In the order of those that feed them, so that lines do not cross.
  const order = new Map(nodes.map((node, index) => [node.id, index]));
  return nodes.sort((one, other) => one.column - other.column || (one.column === 3 ? order.get(one.parent) - order.get(other.parent) : 0));
}

function replay(samples) {
  for (const each of [received, commitRate, walSamples, confirmSamples, timeSamples, lagSamples]) each.clear();
  for (const each of samples) addSamples(each.status, each.limbo, each.at);
}

function addSamples(status, limbo, at) {
  received.add(at, parseLsn(status.received_lsn));
  walSamples.add(at, { "": commitRate.add(at, parseLsn(status.commit_lsn)) });
  if (limbo) confirmSamples.add(at, { "": limbo.confirms_per_s });
  const { quorum } = status.times;
  const ms = (value) => (value === null ? null : value * 1000);
  timeSamples.add(at, { p50: ms(quorum.p50_s), p99: ms(quorum.p99_s) });
  lagSamples.add(at, Object.fromEntries(status.safekeepers.map((each) => [`safekeeper ${each.id}`, each.lag_bytes])));
}

function drawCharts() {
  walChart.show(walSamples);
  confirmChart.show(confirmSamples);
  timeChart.show(timeSamples);
  lagChart.show(lagSamples);
}

function drawLimbo(limbo) {
  shown("limbo-section", Boolean(limbo));
  if (!limbo) return;
  facts("limbo-facts", [
    ["transactions", count(limbo.entries)],
    ["WAL", bytes(limbo.bytes)],
    ["the oldest waits for", limbo.oldest_s === null ? "" : seconds(limbo.oldest_s)],
    ["confirmed", `${count(limbo.confirms_per_s ?? 0)} per second`],
    ["shown", limbo.listed < limbo.entries ? `the oldest ${limbo.listed}` : ""],
    ["problem", limbo.problem],
  ]);
  table("limbo", "Transactions that wait for a quorum, the oldest first",
    ["xid", "waits", "state", "missing", "kind", "level", "end", "session", "query"],
    limbo.transactions.map((each) => [
      figure(String(each.xid)),
      figure(seconds(each.waits_s)),
      { text: each.state, level: each.state === "confirmed" ? "ok" : each.state === "waiting" || each.state === "received" ? "warn" : "bad" },
      each.missing.length ? `safekeeper ${each.missing.join(", ")}` : "none",
      each.gid ? `${inWords(each.kind)} ${each.gid}` : inWords(each.kind),
      each.level ?? "unknown",
      figure(each.end_lsn),
      { class: "session", text: each.session ? [`pid ${each.session.pid}`, each.session.user, each.session.application, each.session.client].filter(Boolean).join(", ") : "unknown" },
      { text: each.session?.query ?? "", class: "query" },
    ]),
    "No transaction waits.");
}

function drawMembers(status, at) {
  shown("members-section", true);
  table("members", "Safekeepers", ["safekeeper", "state", "on disk", "received", "lag", "last reply", "address", "problem"],
    status.safekeepers.map((each) => [
      `${each.id}${each.member === false ? " (not a member)" : ""}`,
      { text: each.state, level: MEMBER_LEVELS[each.state] ?? "warn" },
      figure(each.flush_lsn),
      figure(each.write_lsn),
      figure(lagOf(each.lag_bytes, each.flush_lsn, at).replace(/^lag /, "")),
      figure(each.last_response_s === null ? "none" : `${seconds(each.last_response_s)} ago`),
      each.address,
      { text: each.problem ?? "none", class: "text" },
    ]),
    "No safekeeper is configured.");
}

function drawStandbys(status, at) {
  shown("standbys-section", status.standbys.length > 0);
  table("standbys", "Standbys", ["standby", "state", "streams from", "on disk", "replayed", "lag of replay", "remote_apply", "has every commit"],
    status.standbys.map((each) => [
      each.name,
      { text: each.connected ? "connected" : "gone", level: each.connected ? "ok" : each.designated ? "bad" : "warn" },
      each.safekeeper ? `safekeeper ${each.safekeeper}` : "unknown",
      figure(each.flush_lsn),
      figure(each.apply_lsn),
      figure(lagOf(each.apply_lag_bytes, each.apply_lsn, at).replace(/^lag /, "")),
      each.designated ? "waits for it" : "does not wait for it",
      each.has_everything === null ? "unknown" : each.has_everything ? "yes" : "no",
    ]),
    "No standby.");
}

function inWords(state) {
  return state.replaceAll("_", " ");
}

start(draw, replay);
