"""What the pages of an agent and `walproxy cluster` show: the agents, the log, the shared settings. Pure.

The report of an agent that has stopped is old, and so is an agent's own state while its loop is blocked: neither counts
as a leader then.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from safekeeper.base.lsn import Lsn, format_lsn
from walproxy.agent.report import AgentReport, AgentSettings, Order, PrimaryChange
from walproxy.agent.server_look import ServerState
from walproxy.agent.sight import AgentSight, SeenReport

# An agent that has not reported for longer is not shown: safekeepers keep its report until they restart.
SHOWN_FOR_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class LogPositions:
    """The log as the safekeepers that replied have it; 0 where nothing is known.

    Attributes:
        floor: the highest timeline that is sealed.
    """

    tli: int = 0
    floor: int = 0
    term: int = 0
    commit_lsn: Lsn = 0
    flush_lsn: Lsn = 0


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster at one moment, as an exchange with the safekeepers has shown it.

    Attributes:
        sent_at: when it began, by the clock of the caller.
        cluster_id: "" if no safekeeper has one.
        has_quorum: whether a quorum of safekeepers replied.
        is_new: a quorum of the listed safekeepers replies, and none of them has a cluster.
        leader_silent_s: for how long, at least, no quorum has received from a proxy with a primary; None without a
            quorum.
        problem: why the safekeepers that did not reply did not, one line; "" if all replied.
        system_id: of the log; 0 for an empty one.
        agents: by name, with the age of each report.
    """

    sent_at: float = 0.0
    cluster_id: str = ""
    has_quorum: bool = False
    is_new: bool = False
    leader_silent_s: float | None = None
    problem: str = ""
    system_id: int = 0
    log: LogPositions = LogPositions()
    settings: AgentSettings = field(default_factory=AgentSettings)
    agents: tuple[SeenReport, ...] = ()

    @property
    def leader(self) -> AgentReport | None:
        """The agent of the primary through which commits succeed; None if none reports that it is."""
        leading = [seen.report for seen in self.agents if seen.report.is_leader and is_fresh(seen)]
        return max(leading, key=lambda report: report.tli, default=None)

    def agent(self, name: str) -> SeenReport | None:
        """Return an agent by its name."""
        return next((seen for seen in self.agents if seen.report.name == name), None)

    def is_sealed_off(self, tli: int) -> bool:
        """Return whether a primary on `tli` may commit no more: a failover has sealed that, or the log has left it."""
        return tli <= self.log.floor or tli < self.log.tli


@dataclass(frozen=True, slots=True)
class AgentState:
    """What an agent has found in its last round, for its pages.

    Attributes:
        own: the report that it has made then.
        view: of the safekeepers' replies; what is in it of this agent itself is ignored.
        made_at: the beginning of that round, on a monotonic clock, in seconds.
        started_at: the start of the agent, in seconds since 1970.
        quorum_seen_at: when a quorum of safekeepers last replied, in seconds since 1970; 0 for never.
    """

    own: AgentReport
    view: ClusterView
    made_at: float
    started_at: float = 0.0
    quorum_seen_at: float = 0.0

    def view_at(self, now: float) -> ClusterView:
        """Return the view with this agent in it, and with the ages of all reports now (on the clock of `made_at`)."""
        passed_s = max(0.0, now - self.made_at)
        others = [
            SeenReport(seen.report, seen.age_s + passed_s)
            for seen in self.view.agents
            if seen.report.name != self.own.name
        ]
        return replace(self.view, agents=_shown([SeenReport(self.own, passed_s), *others]))


def view_of(sight: AgentSight, settings: AgentSettings | None = None) -> ClusterView:
    """Return what an exchange with the safekeepers has found.

    Args:
        settings: instead of the shared ones; None for those.

    Raises:
        RemoteProtocolError: the shared settings cannot be read.
    """
    newest = sight.log()
    positions = LogPositions()
    if newest is not None:
        commit_lsn = max(timed.view.commit_lsn for timed in sight.views.values())
        positions = LogPositions(newest.log_tli, newest.floor, newest.last_term, commit_lsn, newest.flush_lsn)
    return ClusterView(
        sent_at=sight.began_at,
        cluster_id=sight.cluster.id if sight.cluster is not None else "",
        has_quorum=sight.has_quorum(),
        is_new=sight.is_new(),
        leader_silent_s=sight.leader_silent_s(),
        problem=sight.missing(),
        system_id=sight.system_id(),
        log=positions,
        settings=sight.shared() if settings is None else settings,
        agents=_shown(sight.reports().values()),
    )


def is_fresh(seen: SeenReport) -> bool:
    """Return whether an agent reports: its last report is not older than what a lost leader is allowed."""
    return seen.age_s <= seen.report.dead_after_s


def is_standby(report: AgentReport) -> bool:
    """Return whether the server is a standby that replies."""
    return report.state == ServerState.STANDBY.value


def is_copying(report: AgentReport) -> bool:
    """Return whether an agent makes its data folder a copy of the leader's."""
    return report.doing.startswith(("rebuilding", "rejoining"))


def lag_bytes(report: AgentReport, log: LogPositions) -> int | None:
    """Return the committed WAL that a standby has not replayed; None for other servers, or if it is unknown."""
    if not is_standby(report) or not report.replayed_lsn or not log.commit_lsn:
        return None
    return max(0, log.commit_lsn - report.replayed_lsn)


def role_of(report: AgentReport, leader: AgentReport | None) -> str:
    """Return "leader", or "primary" for one through which commits do not succeed, or "replica", or "" if unknown."""
    if leader is not None and report.name == leader.name:
        return "leader"
    return {ServerState.PRIMARY.value: "primary", ServerState.STANDBY.value: "replica"}.get(report.state, "")


def cluster_content(view: ClusterView) -> dict[str, Any]:
    """Return a view as JSON: GET /status, and `walproxy cluster show --json`."""
    leader = view.leader
    return {
        "cluster_id": view.cluster_id or None,
        "term": view.log.term,
        "tli": view.log.tli,
        "commit_lsn": format_lsn(view.log.commit_lsn),
        "flush_lsn": format_lsn(view.log.flush_lsn),
        "quorum": view.has_quorum,
        "problem": view.problem or None,
        "paused": view.settings.is_paused,
        "leader": leader.name if leader is not None else None,
        "order": order_content(view.settings.order),
        "agents": [agent_content(seen, view) for seen in view.agents],
    }


def agent_content(seen: SeenReport, view: ClusterView) -> dict[str, Any]:
    """Return an agent as JSON: its report, and what follows from it."""
    content = msgspec.structs.asdict(seen.report)
    del content["is_leader"]  # `role` has it, if the report is fresh.
    positions = ("written_lsn", "received_lsn", "replayed_lsn")
    texts = ("doing", "problem", "order_done", "order_result")
    return {
        **content,
        **{name: format_lsn(content[name]) for name in positions},
        **{name: content[name] or None for name in texts},
        "system_id": str(seen.report.system_id),
        "role": role_of(seen.report, view.leader) or None,
        "is_fresh": is_fresh(seen),
        "age_s": round(seen.age_s, 3),
        "lag_bytes": lag_bytes(seen.report, view.log),
    }


def order_content(order: Order | None) -> dict[str, Any] | None:
    """Return an order as JSON."""
    return None if order is None else {**msgspec.structs.asdict(order), "agent": order.agent or None}


def change_content(change: PrimaryChange) -> dict[str, Any]:
    """Return a change of the primary as JSON."""
    return {**msgspec.structs.asdict(change), "fork_lsn": format_lsn(change.fork_lsn)}


def _shown(agents: Iterable[SeenReport]) -> tuple[SeenReport, ...]:
    kept = (seen for seen in agents if seen.age_s <= SHOWN_FOR_S)
    return tuple(sorted(kept, key=lambda seen: seen.report.name))
