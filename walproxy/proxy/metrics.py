"""The metrics of the proxy, for Prometheus: GET /metrics.

They are derived from /status, so the two pages never differ; the buckets of the histograms, which /status only
summarises, are those of `Measurements`. LSNs are bytes since the beginning of the WAL: their differences are lags. A
spare has metrics, too; `walproxy_ready` is 1 at the proxy through which commits succeed.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from safekeeper.base.lsn import parse_lsn
from safekeeper.net.listener import Listener
from safekeeper.net.metrics_page import Metrics
from safekeeper.net.tls import ClientTls, ServerTls
from walproxy.proxy.gate import GateState
from walproxy.proxy.measurements import Measurements
from walproxy.proxy.status import SAFEKEEPER_STATES
from walproxy.proxy.status_fields import (
    ElectionCounts,
    GateStatus,
    LimboTotals,
    ListedSafekeeper,
    ListedStandby,
    ProxyStatus,
    ReconnectCounts,
)

_METRICS = Metrics("walproxy")
_gauge, _gauges, _counter, _counters = _METRICS.gauge, _METRICS.gauges, _METRICS.counter, _METRICS.counters
_LSNS = {
    "received": "End of the WAL that the proxy has received",
    "write": "Write position reported to PostgreSQL",
    "flush": "Flush position reported to PostgreSQL",
    "apply": "Apply position reported to PostgreSQL",
    "commit": "WAL below it is durable on a quorum",
    "truncate": "WAL below it is durable on every member",
}


@dataclass(eq=False)
class ProxyCollector(Collector):
    """Collect the metrics of one proxy.

    Attributes:
        status: returns the present content of /status.
        not_ready_reason: returns why the proxy is not ready, empty if it is.
        measured: its histograms and counts.
        listeners: by name.
        certificates: by the name of the listener that presents it, and "safekeepers"; None without TLS.
    """

    status: Callable[[], ProxyStatus]
    not_ready_reason: Callable[[], str]
    measured: Measurements
    listeners: Mapping[str, Listener[Any]] = field(default_factory=dict)
    certificates: Mapping[str, ServerTls | ClientTls | None] = field(default_factory=dict)

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        status = self.status()
        yield _METRICS.build_info()
        yield from _METRICS.listeners(self.listeners)
        yield _METRICS.certificates(self.certificates)
        yield _gauge("ready", "1 if commits go through this proxy", not self.not_ready_reason())
        yield _gauge("spare", "1 if another proxy serves", status.spare)
        yield _gauge("term", "The term that it leads or last requested", status.term)
        yield _gauge("quorum", "Number of members that a commit needs", status.quorum)
        yield _gauge("elect_quorum", "Number of members that elect a leader", status.elect_quorum)
        if status.members is not None:
            yield _gauge("members", "Number of voting safekeepers; absent if unknown", len(status.members))
        yield _gauge("members_streaming", "Number of members that stream", status.members_streaming)
        yield _gauge("learners", "Number of safekeepers that receive WAL and do not count", status.learners)
        yield _gauge("members_change", "1 while a change of the members is under way", bool(status.members_change))
        if status.gate is not None:
            yield from _of_gate(status.gate)
        lost = status.quorum_lost
        lost_s = lost.for_s if lost is not None else 0
        yield _gauge("quorum_lost_seconds", "Seconds since the quorum was lost; 0 if there is one", lost_s)
        waiting = lost.waiting_sessions if lost is not None else 0
        if waiting is not None:
            help = "Sessions that wait for a commit during a loss of the quorum; absent if unknown"
            yield _gauge("waiting_sessions", help, waiting)
        yield from _of_limbo(status.limbo)
        for name, help in _LSNS.items():
            yield _gauge(f"{name}_lsn_bytes", help, parse_lsn(getattr(status, f"{name}_lsn")))
        yield _gauge("window_bytes", "Bytes of WAL in memory", status.window_bytes)
        yield _gauge("backpressure", "1 if replication from PostgreSQL is paused", status.backpressure)
        help = "1 if remote_apply is blocked by standbys that do not stream"
        yield _gauge("apply_problem", help, bool(status.apply_problem))
        yield from _of_safekeepers(status.safekeepers)
        yield from _of_standbys(status.standbys)
        yield from _of_times(self.measured)
        yield from _of_elections(status.elections, self.measured)
        yield from _METRICS.answers(self.measured.answers)
        yield from _of_reconnects(status.reconnects)


def _of_gate(gate: GateStatus) -> Iterator[Metric]:
    help = "1 for the present state: whether commits wait for the quorum; absent for a spare"
    yield _gauges("gate", help, "state", ((state.value, gate.state == state) for state in GateState))
    yield _gauge("gate_hangs", "1 if commits wait for another standby that is not connected", gate.hangs)


def _of_limbo(limbo: LimboTotals) -> Iterator[Metric]:
    yield _gauge("limbo_bytes", "Bytes of received WAL that was not reported to PostgreSQL as durable", limbo.bytes)
    yield _gauge("limbo_oldest_seconds", "Age of the oldest such WAL; 0 without any", limbo.oldest_s or 0)
    yield _gauge("limbo_read_only", "1 while new transactions are read-only (fence)", limbo.read_only)
    help = "Transactions that exceeded commit_timeout, by what was done"
    yield _counters("commit_timeouts", help, "action", limbo.timeouts.items())
    help = "Transactions of the queue that another timeline has replaced"
    yield _counter("discarded_transactions", help, limbo.discarded)


def _of_safekeepers(safekeepers: list[ListedSafekeeper]) -> Iterator[Metric]:
    states = [each.state for each in safekeepers]
    counts = ((state, states.count(state)) for state in SAFEKEEPER_STATES)
    yield _gauges("safekeepers", "Number of safekeepers in each state", "state", counts)
    streaming = ((str(each.id), each.state == "streaming") for each in safekeepers)
    yield _gauges("safekeeper_streaming", "1 if it is a member and streams", "safekeeper", streaming)
    help = "Bytes of WAL that are not durable there; absent if unknown"
    yield _gauges("safekeeper_lag_bytes", help, "safekeeper", ((str(each.id), each.lag_bytes) for each in safekeepers))
    pulling = ((str(each.id), each.pull_end_lsn is not None) for each in safekeepers)
    yield _gauges("safekeeper_pulling", "1 while it pulls WAL from other safekeepers", "safekeeper", pulling)


def _of_standbys(standbys: list[ListedStandby]) -> Iterator[Metric]:
    connected = ((each.name, each.connected) for each in standbys)
    yield _gauges("standby_connected", "1 if it streams from a safekeeper", "standby", connected)
    help = "Bytes of WAL that it has not replayed; absent if unknown"
    lags = ((each.name, each.apply_lag_bytes) for each in standbys)
    yield _gauges("standby_apply_lag_bytes", help, "standby", lags)
    help = "How long it receives WAL and has replayed nothing; 0 if it replays"
    stalled = ((each.name, each.stalled_s or 0) for each in standbys)
    yield _gauges("standby_stalled_seconds", help, "standby", stalled)


def _of_times(measured: Measurements) -> Iterator[Metric]:
    commits = measured.commits
    positions = [("write", commits.write), ("flush", commits.commit)]
    if commits.apply.count:
        positions.append(("apply", commits.apply))
    help = "From the arrival of WAL to the position for which commits wait; apply is absent until it was measured"
    yield _METRICS.histograms("wal_seconds", help, "position", positions)
    members = [(str(i), histogram) for i, histogram in sorted(commits.members.items())]
    help = "From an append to the reply that its WAL is durable"
    yield _METRICS.histograms("append_seconds", help, "safekeeper", members)


def _of_elections(elections: ElectionCounts, measured: Measurements) -> Iterator[Metric]:
    attempts = (("won", elections.won), ("lost", elections.lost), ("declined", elections.declined))
    yield _counters("elections", "Attempts to win a term, by their outcome", "outcome", attempts)
    times = measured.elections
    yield _METRICS.histogram("election_seconds", "Duration of elections, won or lost", times.elections)
    yield _METRICS.histogram("term_seconds", "Length of the terms that have ended", times.terms)
    yield _gauge("term_age_seconds", "Time since the present term was won; 0 without one", elections.term_s or 0)


def _of_reconnects(reconnects: ReconnectCounts) -> Iterator[Metric]:
    help = "New replication connections to a primary after one was lost"
    yield _counter("primary_reconnects", help, reconnects.primary)
    help = "New connections after one was lost"
    yield _counters("safekeeper_reconnects", help, "safekeeper", reconnects.safekeepers.items())
