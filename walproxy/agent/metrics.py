"""The metrics of an agent, for Prometheus: GET /metrics.

LSNs are bytes since the beginning of the WAL: their differences are lags. `walproxy_agent_leader` is 1 at one agent.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from safekeeper.net.listener import Listener
from safekeeper.net.metrics_page import Metrics
from walproxy.agent.rest_answers import leads
from walproxy.agent.server_look import ServerState
from walproxy.agent.state import AgentState, lag_bytes

_METRICS = Metrics("walproxy_agent")
_gauge = _METRICS.gauge


@dataclass(eq=False)
class AgentCollector(Collector):
    """Collect the metrics of one agent.

    Attributes:
        state: returns what the agent has found in its last round.
        listeners: by name.
        clock: that of `AgentState.made_at`.
    """

    state: Callable[[], AgentState]
    listeners: Mapping[str, Listener[Any]]
    clock: Callable[[], float]

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        state, now = self.state(), self.clock()
        own, view = state.own, state.view_at(now)
        yield _METRICS.build_info()
        yield from _METRICS.listeners(self.listeners)
        yield _gauge("leader", "1 if commits succeed through this server", leads(state, now))
        yield _gauge("cluster_has_leader", "1 if an agent reports that it leads", view.leader is not None)
        yield _gauge("quorum", "1 if a quorum of safekeepers replied in the last round", view.has_quorum)
        yield _gauge("paused", "1 while the agents change nothing by themselves", view.settings.is_paused)
        states = ((state.value, state.value == own.state) for state in ServerState)
        yield _METRICS.gauges("server_state", "1 for the present state", "state", states)
        yield _gauge("tli", "Timeline of the server", own.tli)
        yield _gauge("log_tli", "Timeline of the log", view.log.tli)
        yield _gauge("log_term", "Last term of the log", view.log.term)
        yield _gauge("commit_lsn_bytes", "WAL below it is durable on a quorum", view.log.commit_lsn)
        yield _gauge("written_lsn_bytes", "End of the WAL of a primary or of a stopped server", own.written_lsn)
        yield _gauge("received_lsn_bytes", "End of the WAL that a standby has received", own.received_lsn)
        yield _gauge("replayed_lsn_bytes", "End of the WAL that a standby has replayed", own.replayed_lsn)
        lag = lag_bytes(own, view.log)
        if lag is not None:
            yield _gauge("lag_bytes", "Committed WAL that a standby has not replayed; absent if unknown", lag)
        yield _gauge("streaming", "1 if the server is a standby whose walreceiver streams", own.is_streaming)
        yield _gauge("read_only", "1 if new transactions are read-only by default", own.is_read_only)
        yield _gauge("may_lead", "0 with no_failover", own.may_lead)
        yield _gauge("busy", "1 while the agent changes something, or waits: /status has for what", bool(own.doing))
        yield _gauge("problem", "1 if the agent cannot do what it should: /status has why", bool(own.problem))
        yield _gauge("last_round_seconds", "Time since the last round of the agent began", now - state.made_at)
        yield _gauge("start_time_seconds", "Start of the agent, in seconds since 1970", state.started_at)
        ages = ((seen.report.name, seen.age_s) for seen in view.agents)
        yield _METRICS.gauges("report_age_seconds", "Age of an agent's last report", "agent", ages)
        if view.settings.changes:
            last = view.settings.changes[-1]
            help = "Last change of the primary, in seconds since 1970; absent if none"
            yield _gauge("last_change_seconds", help, last.at)
