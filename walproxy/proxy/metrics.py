"""The metrics of the proxy, for Prometheus: GET /metrics.

They are derived from /status (walproxy/proxy/status.py), so the two pages never differ; the buckets of the histograms,
which /status only summarises, are those of `Measurements`. LSNs are bytes since the
beginning of the WAL: their differences are lags. A spare has metrics, too; `walproxy_ready` is 1 at the proxy through
which commits succeed.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from safekeeper.base.lsn import parse_lsn
from safekeeper.net.listener import Listener
from safekeeper.net.metrics_page import (
    answer_metrics,
    build_info,
    certificate_metrics,
    histogram_metric,
    listener_metrics,
)
from safekeeper.net.tls import ClientTls, ServerTls
from walproxy.proxy.gate import GateState
from walproxy.proxy.measurements import Measurements
from walproxy.proxy.status import SAFEKEEPER_STATES

_LSNS = {
    "received": "End of the WAL that the proxy has received",
    "write": "Write position reported to PostgreSQL",
    "flush": "Flush position reported to PostgreSQL",
    "apply": "Apply position reported to PostgreSQL",
    "commit": "WAL below it is durable on a quorum",
    "truncate": "WAL below it is durable on every member",
}


class ProxyCollector(Collector):
    """Collect the metrics of one proxy.

    Args:
        status: returns the present content of /status.
        not_ready_reason: returns why the proxy is not ready, empty if it is.
        measured: its histograms and counts.

    Attributes:
        listeners: by name.
        certificates: by the name of the listener that presents it, and "safekeepers"; None without TLS.
    """

    def __init__(
        self,
        status: Callable[[], Mapping[str, Any]],
        not_ready_reason: Callable[[], str],
        measured: Measurements,
        listeners: dict[str, Listener[Any]] | None = None,
        certificates: Mapping[str, ServerTls | ClientTls | None] | None = None,
    ) -> None:
        self._status = status
        self._not_ready_reason = not_ready_reason
        self._measured = measured
        self.listeners = listeners if listeners is not None else {}
        self.certificates = certificates if certificates is not None else {}

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        status = self._status()
        yield build_info("walproxy")
        yield from listener_metrics("walproxy", self.listeners)
        yield certificate_metrics("walproxy", self.certificates)
        yield _gauge("ready", "1 if commits go through this proxy", not self._not_ready_reason())
        yield _gauge("spare", "1 if another proxy serves", status["spare"])
        yield _gauge("term", "The term that it leads or last requested", status["term"])
        yield _gauge("quorum", "Number of members that a commit needs", status["quorum"])
        yield _gauge("elect_quorum", "Number of members that elect a leader", status["elect_quorum"])
        if status["members"] is not None:
            yield _gauge("members", "Number of voting safekeepers; absent if unknown", len(status["members"]))
        yield _gauge("members_streaming", "Number of members that stream", status["members_streaming"])
        yield _gauge("learners", "Number of safekeepers that receive WAL and do not count", status["learners"])
        yield _gauge("members_change", "1 while a change of the members is under way", bool(status["members_change"]))
        yield from _of_gate(status["gate"])
        lost = status["quorum_lost"]
        yield _gauge(
            "quorum_lost_seconds",
            "Seconds since the quorum was lost; 0 if there is one",
            lost["for_s"] if lost else 0,
        )
        if lost is None or lost["waiting_sessions"] is not None:
            waiting = lost["waiting_sessions"] if lost else 0
            yield _gauge(
                "waiting_sessions",
                "Sessions that wait for a commit during a loss of the quorum; absent if unknown",
                waiting,
            )
        yield from _of_limbo(status["limbo"])
        for name, help in _LSNS.items():
            yield _gauge(f"{name}_lsn_bytes", help, parse_lsn(status[f"{name}_lsn"]))
        yield _gauge("window_bytes", "Bytes of WAL in memory", status["window_bytes"])
        yield _gauge("backpressure", "1 if replication from PostgreSQL is paused", status["backpressure"])
        yield _gauge(
            "apply_problem",
            "1 if remote_apply is blocked by standbys that do not stream",
            bool(status["apply_problem"]),
        )
        yield from _of_safekeepers(status["safekeepers"])
        yield from _of_standbys(status["standbys"])
        yield from _of_times(self._measured)
        yield from _of_elections(status["elections"], self._measured)
        yield from answer_metrics("walproxy", self._measured.answers)
        yield from _of_reconnects(status["reconnects"])


def _of_gate(gate: Mapping[str, Any] | None) -> Iterator[Metric]:
    if gate is None:
        return
    states = _labelled(
        "gate", "1 for the present state: whether commits wait for the quorum; absent for a spare", "state"
    )
    for state in GateState:
        states.add_metric([state.value], gate["state"] == state)
    yield states
    yield _gauge("gate_hangs", "1 if commits wait for another standby that is not connected", gate["hangs"])


def _of_limbo(limbo: Mapping[str, Any]) -> Iterator[Metric]:
    yield _gauge("limbo_bytes", "Bytes of received WAL that was not reported to PostgreSQL as durable", limbo["bytes"])
    yield _gauge("limbo_oldest_seconds", "Age of the oldest such WAL; 0 without any", limbo["oldest_s"] or 0)
    yield _gauge("limbo_read_only", "1 while new transactions are read-only (fence)", limbo["read_only"])
    timeouts = CounterMetricFamily(
        "walproxy_commit_timeouts", "Transactions that exceeded commit_timeout, by what was done", labels=["action"]
    )
    for action, count in limbo["timeouts"].items():
        timeouts.add_metric([action], count)
    yield timeouts
    yield CounterMetricFamily(
        "walproxy_discarded_transactions",
        "Transactions of the queue that another timeline has replaced",
        value=limbo["discarded"],
    )


def _of_safekeepers(safekeepers: list[dict[str, Any]]) -> Iterator[Metric]:
    streaming = _labelled("safekeeper_streaming", "1 if it is a member and streams", "safekeeper")
    lag = _labelled("safekeeper_lag_bytes", "Bytes of WAL that are not durable there; absent if unknown", "safekeeper")
    pulling = _labelled("safekeeper_pulling", "1 while it pulls WAL from other safekeepers", "safekeeper")
    counts = _labelled("safekeepers", "Number of safekeepers in each state", "state")
    for state in SAFEKEEPER_STATES:
        counts.add_metric([state], sum(each["state"] == state for each in safekeepers))
    for each in safekeepers:
        label = [str(each["id"])]
        pulling.add_metric(label, each["pull_end_lsn"] is not None)
        streaming.add_metric(label, each["state"] == "streaming")
        if each["lag_bytes"] is not None:
            lag.add_metric(label, each["lag_bytes"])
    yield from (counts, streaming, lag, pulling)


def _of_standbys(standbys: list[dict[str, Any]]) -> Iterator[Metric]:
    connected = _labelled("standby_connected", "1 if it streams from a safekeeper", "standby")
    lag = _labelled("standby_apply_lag_bytes", "Bytes of WAL that it has not replayed; absent if unknown", "standby")
    stalled = _labelled(
        "standby_stalled_seconds", "How long it receives WAL and has replayed nothing; 0 if it replays", "standby"
    )
    for each in standbys:
        stalled.add_metric([each["name"]], each["stalled_s"] or 0)
        connected.add_metric([each["name"]], each["connected"])
        if each["apply_lag_bytes"] is not None:
            lag.add_metric([each["name"]], each["apply_lag_bytes"])
    yield from (connected, lag, stalled)


def _of_times(measured: Measurements) -> Iterator[Metric]:
    commits = measured.commits
    positions = [("write", commits.write), ("flush", commits.commit)]
    if commits.apply.count:
        positions.append(("apply", commits.apply))
    yield histogram_metric(
        "walproxy_wal_seconds",
        "From the arrival of WAL to the position for which commits wait; apply is absent until it was measured",
        positions,
        "position",
    )
    yield histogram_metric(
        "walproxy_append_seconds",
        "From an append to the reply that its WAL is durable",
        [(str(i), histogram) for i, histogram in sorted(commits.members.items())],
        "safekeeper",
    )


def _of_elections(elections: Mapping[str, Any], measured: Measurements) -> Iterator[Metric]:
    attempts = CounterMetricFamily("walproxy_elections", "Attempts to win a term, by their outcome", labels=["outcome"])
    for outcome in ("won", "lost", "declined"):
        attempts.add_metric([outcome], elections[outcome])
    yield attempts
    yield histogram_metric(
        "walproxy_election_seconds", "Duration of elections, won or lost", [("", measured.elections.elections)]
    )
    yield histogram_metric(
        "walproxy_term_seconds", "Length of the terms that have ended", [("", measured.elections.terms)]
    )
    age_s = elections["term_s"]
    yield _gauge("term_age_seconds", "Time since the present term was won; 0 without one", age_s if age_s else 0)


def _of_reconnects(reconnects: Mapping[str, Any]) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "walproxy_primary_reconnects",
        "New replication connections to a primary after one was lost",
        value=reconnects["primary"],
    )
    links = CounterMetricFamily(
        "walproxy_safekeeper_reconnects", "New connections after one was lost", labels=["safekeeper"]
    )
    for safekeeper_id, count in reconnects["safekeepers"].items():
        links.add_metric([safekeeper_id], count)
    yield links


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(f"walproxy_{name}", help, value=value)


def _labelled(name: str, help: str, label: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"walproxy_{name}", help, labels=[label])
