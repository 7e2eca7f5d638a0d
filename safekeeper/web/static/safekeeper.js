// The page of a safekeeper: what its /status and /events contain.

import { Headline, start } from "/web/app.js";
import { BYTE_STEPS, Chart } from "/web/charts.js";
import { byId } from "/web/dom.js";
import { drawEvents, drawTerms } from "/web/lists.js";
import { Picture } from "/web/picture.js";
import { Rate, Samples } from "/web/samples.js";
import { facts, figure, shown, table } from "/web/tables.js";
import { bytes, parseLsn, seconds } from "/web/units.js";

const LEVELS = { following: "ok", idle: "idle", learner: "warn", empty: "warn" };
const HEADLINES = {
  following: "This safekeeper receives WAL from a proxy.",
  idle: "This safekeeper is a member, and no proxy sends it WAL.",
  learner: "This safekeeper is a learner: it does not count for a quorum.",
  empty: "This safekeeper is empty: it waits for a proxy that makes it a member.",
};

const QUORUM_EVENTS = ["quorum-lost", "quorum-back", "term-begun"];
// A commit takes some milliseconds; a member that waits for its disk, seconds.
const PENDING_S = 5;
let pending = { commit_lsn: "", since: 0 };

const headline = new Headline();
const picture = new Picture(byId("picture"));
const rate = new Rate();
const walSamples = new Samples();
const pendingSamples = new Samples();
const freeSamples = new Samples();
const walChart = new Chart(byId("charts"), "WAL written per second", bytes, BYTE_STEPS);
const pendingChart = new Chart(byId("charts"), "Not yet known to be committed", bytes, BYTE_STEPS);
const freeChart = new Chart(byId("charts"), "Free disk space", bytes, BYTE_STEPS);

function draw({ status, events }, tick) {
  if (!status) return;
  const at = Date.parse(tick.at) / 1000;
  byId("title").textContent = `safekeeper ${status.id}`;
  const quorum = quorumProblem(status, events, at);
  drawHeadline(status, quorum);
  facts("facts", [
    ["state", status.state],
    ["term", status.term],
    ["timeline", status.tli],
    ["on disk", status.flush_lsn],
    ["received", status.write_lsn],
    ["committed", status.commit_lsn],
    ["begin of WAL", status.wal_begin_lsn],
    ["on every member", status.truncate_lsn],
    ["members", status.members.join(", ")],
    ["system", status.system_id],
  ]);
  picture.show(nodesOf(status, quorum));
  addSamples(status, at);
  walChart.show(walSamples);
  pendingChart.show(pendingSamples);
  freeChart.show(freeSamples);
  drawReaders(status);
  drawSlots(status);
  drawTerms(status.history);
  drawEvents(events);
}

function replay(samples) {
  for (const each of [rate, walSamples, pendingSamples, freeSamples]) each.clear();
  for (const each of samples) addSamples(each.status, each.at);
}

function addSamples(status, at) {
  walSamples.add(at, { "": rate.add(at, parseLsn(status.flush_lsn)) });
  pendingSamples.add(at, { "": Math.max(0, parseLsn(status.flush_lsn) - parseLsn(status.commit_lsn)) });
  if (status.disk.free_bytes !== null) freeSamples.add(at, { "": status.disk.free_bytes });
}

/** Why commits wait, as far as a safekeeper can find out: what its proxy has reported, or WAL that stays uncommitted. */
function quorumProblem(status, events, at) {
  const isPending = parseLsn(status.flush_lsn) > parseLsn(status.commit_lsn);
  if (!isPending || status.commit_lsn !== pending.commit_lsn) pending = { commit_lsn: status.commit_lsn, since: at };
  if (!status.follows) return "";
  const last = (events?.events ?? []).findLast((each) => QUORUM_EVENTS.includes(each.event));
  if (last?.event === "quorum-lost") return last.text;
  return isPending && at - pending.since > PENDING_S ? `WAL on its disk has not been committed for ${seconds(Math.round(at - pending.since))}` : "";
}

function diskProblem({ disk }) {
  return Object.values(disk.no_room_for).join("; ") || (disk.busy_s > 1 ? `the disk has been busy for ${seconds(disk.busy_s)}` : "")
    || (disk.low ? "little free space" : "");
}

function drawHeadline(status, quorum) {
  const disk = diskProblem(status);
  const level = disk && LEVELS[status.state] === "ok" ? "warn" : LEVELS[status.state] ?? "warn";
  const text = HEADLINES[status.state] ?? `This safekeeper is ${status.state}.`;
  headline.show(quorum ? "bad" : level, quorum ? "Commits wait: the proxy has no quorum." : text, [
    quorum ? `${quorum}.` : "",
    status.follows ? `It follows run ${status.follows.slice(0, 8)} in term ${status.term}.` : "",
    disk ? `The disk: ${disk}.` : "",
    status.archive?.problem ? `The archive: ${status.archive.problem}.` : "",
    status.pull ? `It pulls WAL up to ${status.pull.end_lsn} from safekeeper ${status.pull.source ?? "unknown"}.` : "",
  ]);
}

function nodesOf(status, quorum) {
  const leader = status.follows;
  const disk = diskProblem(status);
  const nodes = [{
    id: "leader", column: 0, level: quorum ? "bad" : leader ? "ok" : "idle", title: leader ? `proxy ${leader.slice(0, 8)}` : "no proxy",
    state: quorum ? "no quorum" : leader ? "leads" : "not connected", lines: [`term ${status.term}`, `committed ${status.commit_lsn}`],
    problem: "",
    lsn: status.commit_lsn,
  }, {
    id: "safekeeper", column: 1, parent: "leader", level: LEVELS[status.state] ?? "warn", link: leader ? "ok" : "bad",
    title: `safekeeper ${status.id}`, state: status.state, lsn: status.flush_lsn,
    lines: [`on disk ${status.flush_lsn}`, `timeline ${status.tli}`, status.votes ? "counts for a quorum" : "does not count"],
    problem: "",
  }, {
    id: "disk", column: 2, parent: "safekeeper", level: disk ? "bad" : "ok", title: "disk", state: disk ? "problem" : "good",
    lines: [`WAL ${bytes(status.disk.wal_bytes)}`,
      status.disk.free_bytes === null ? "free space unknown" : `free ${bytes(status.disk.free_bytes)} of ${bytes(status.disk.total_bytes)}`],
    problem: disk,
  }];
  for (const each of status.readers) {
    nodes.push({
      id: `reader-${each.connection}`, column: 2, parent: "safekeeper", level: each.state === "streaming" ? "ok" : "warn",
      title: each.application_name || each.address, state: each.state, lsn: each.sent_lsn,
      lines: [`sent ${each.sent_lsn}`, `not sent or on its disk ${bytes(each.lag_bytes)}`], problem: "",
    });
  }
  if (status.archive) {
    nodes.push({
      id: "archive", column: 2, parent: "safekeeper", lsn: status.archive.archived_lsn,
      level: status.archive.problem ? "bad" : status.archive.archiver ? "ok" : "idle", title: "archive",
      state: status.archive.archiver ? "archives" : "another one archives",
      lines: [`archived ${status.archived_lsn}`, `not archived ${bytes(status.archive.lag_bytes)}`],
      problem: status.archive.problem,
    });
  }
  return nodes;
}

function drawReaders(status) {
  shown("readers-section", Boolean(status.addresses.pg));
  table("readers", "Readers", ["reader", "state", "sent", "on disk", "replayed", "lag", "last reply", "user", "slot", "address"],
    status.readers.map((each) => [
      each.application_name || `connection ${each.connection}`,
      { text: each.state, level: each.state === "streaming" ? "ok" : "warn" },
      figure(each.sent_lsn), figure(each.flush_lsn), figure(each.apply_lsn),
      figure(bytes(each.lag_bytes)),
      figure(`${seconds(each.last_reply_s)} ago`),
      each.user, each.slot, each.address,
    ]),
    "No client streams from this safekeeper.");
}

function drawSlots(status) {
  shown("slots-section", status.slots.length > 0);
  table("slots", "Replication slots", ["slot", "state", "retains from", "retained", "unused for"],
    status.slots.map((each) => [
      each.name,
      { text: `${each.active ? "active" : "inactive"}${each.temporary ? ", temporary" : ""}`, level: each.active ? "ok" : "warn" },
      figure(each.restart_lsn ?? "nothing"),
      figure(bytes(each.retained_bytes)),
      figure(each.active ? "in use" : seconds(each.idle_s)),
    ]),
    "No slot.");
}

start(draw, replay);
