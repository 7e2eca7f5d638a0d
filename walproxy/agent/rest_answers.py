"""The answers of an agent's REST as functions of its state. Pure, but for the version of the installed package.

They are Patroni's, so that its users' load balancers and monitoring work unchanged: the same paths, status codes and
fields of JSON (https://patroni.readthedocs.io/en/latest/rest_api.html). docs/reference/rest.md lists the differences.
"""

import contextlib
import datetime
import functools
import importlib.metadata
import re
from collections.abc import Callable
from typing import Any

from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.base.settings import address as parse_address
from safekeeper.net.http_server import Answer, Query, Text
from walproxy.agent.report import AgentReport, PrimaryChange
from walproxy.agent.server_look import ServerState
from walproxy.agent.sight import SeenReport
from walproxy.agent.state import (
    AgentState,
    ClusterView,
    LogPositions,
    cluster_content,
    is_copying,
    is_fresh,
    is_standby,
)

# Patroni's defaults of ttl and maximum_lag_on_failover.
LIVENESS_S = 30.0
READY_LAG_BYTES = 1 << 20

_UNITS = {"": 1, "B": 1, "kB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
# Patroni reads 010 as 8, as PostgreSQL does; here it is refused.
_SIZE = re.compile(
    r"(?:0[xX](?P<hex>[0-9a-fA-F]{1,15})|(?P<whole>0|[1-9][0-9]{0,17})(?P<part>\.[0-9]{0,17})?)\s*(?P<unit>[A-Za-z]*)"
)
_RUNNING = (ServerState.PRIMARY.value, ServerState.STANDBY.value)
_STATES = {
    ServerState.STARTING.value: "starting",
    ServerState.STOPPING.value: "stopping",
    ServerState.STOPPED.value: "stopped",
}

Page = Callable[[Query, AgentState, float], Answer]


class BadQuery(ValueError):
    """A value in the query of a request is not valid."""


def answer(page: Page, query: Query, state: AgentState, now: float) -> Answer:
    """Return the answer of one of `PAGES`.

    Args:
        now: on the clock of `state.made_at`.
    """
    try:
        return page(query, state, now)
    except BadQuery as error:
        return 400, Text("text/plain; charset=utf-8", f"400: {error}".encode())


def parse_size(written: str) -> int:
    """Return a number of bytes that is written as Patroni and PostgreSQL do: 16MB, 1048576, 1.5 kB, 0x400kB.

    Raises:
        BadQuery: it is not a size.
    """
    match = _SIZE.fullmatch(written.strip())
    if match is None or match["unit"] not in _UNITS:
        raise BadQuery(f"{written[:30]!r} is not a size: write a number of bytes, or one with kB, MB, GB or TB")
    unit = _UNITS[match["unit"]]
    if match["hex"]:
        return int(match["hex"], 16) * unit
    return int(match["whole"]) * unit + round(float(f"0{match['part'] or ''}") * unit)


def is_live(state: AgentState, now: float) -> bool:
    """Return whether the agent's loop runs, or need not."""
    limit_s = LIVENESS_S * (1 if state.own.state == ServerState.PRIMARY.value else 2)
    return state.view.settings.is_paused or now - state.made_at <= limit_s


def leads(state: AgentState, now: float) -> bool:
    """Return whether commits succeed through this server.

    No longer if its agent's loop is blocked, or if a later primary leads.
    """
    leader = state.view_at(now).leader
    own_is_fresh = is_fresh(SeenReport(state.own, now - state.made_at))
    return state.own.is_leader and own_is_fresh and leader is not None and leader.tli <= state.own.tli


def replica_obstacle(query: Query, state: AgentState, now: float) -> str:
    """Return why this server is not a standby as a request wants it; empty if it is.

    Raises:
        BadQuery: a value is not valid.
    """
    lag_max = parse_size(query["lag"]) if "lag" in query else None
    report, commit_lsn = state.own, state.view.log.commit_lsn
    if not is_standby(report) or now - state.made_at > 2 * LIVENESS_S:
        return "it is not a running standby"
    if lag_max is not None and commit_lsn > report.replayed_lsn + lag_max:
        return f"it has not replayed {commit_lsn - report.replayed_lsn} bytes of committed WAL"
    if "replication_state" in query and query["replication_state"] != _replication_state(report):
        return "it is not in that replication state"
    return ""


def not_ready_reason(query: Query, state: AgentState, now: float) -> str:
    """Return why GET /readiness fails; empty if it does not.

    Raises:
        BadQuery: a value is not valid.
    """
    lag_max = parse_size(query["lag"]) if "lag" in query else READY_LAG_BYTES
    mode = query.get("mode", "apply")
    if mode not in ("apply", "write"):
        raise BadQuery(f"mode={mode[:30]!r} is neither apply nor write")
    if leads(state, now):
        return ""
    report, commit_lsn = state.own, state.view.log.commit_lsn
    if not _runs(state, now):
        return "PostgreSQL is not running"
    if not report.is_streaming:
        return "PostgreSQL is not streaming"
    if not commit_lsn:
        return "no safekeeper has replied"
    lag = commit_lsn - (report.received_lsn if mode == "write" else report.replayed_lsn)
    return f"the {mode} lag of {lag} bytes exceeds {lag_max}" if lag > lag_max else ""


def tags_of(report: AgentReport) -> dict[str, Any]:
    """Return the tags of an agent, by Patroni's names."""
    return {"nofailover": not report.may_lead, "failover_priority": report.priority}


def patroni_status(state: AgentState, now: float) -> dict[str, Any]:
    """Return the content of GET /patroni and of the health checks."""
    report, view = state.own, state.view_at(now)
    state_name = _state(report, _own_is_known(state, now))
    content: dict[str, Any] = {"state": state_name, "role": _role(report)}
    if state_name == "running":
        content |= {"server_version": report.server_version, "xlog": _xlog(report), "timeline": report.tli}
        if _replication_state(report):
            content["replication_state"] = _replication_state(report)
    if view.settings.is_paused:
        content["pause"] = True
    if view.leader is None:
        content["cluster_unlocked"] = True
    content["dcs_last_seen"] = int(state.quorum_seen_at)
    content["tags"] = tags_of(report)
    if report.system_id:
        content["database_system_identifier"] = str(report.system_id)
    content["patroni"] = {"version": _version(), "scope": view.cluster_id, "name": report.name}
    content["walproxy"] = {
        "is_leader": leads(state, now),
        "doing": report.doing or None,
        "problem": report.problem or None,
    }
    return content


def patroni_cluster(view: ClusterView) -> dict[str, Any]:
    """Return the content of GET /cluster."""
    leader = view.leader
    content: dict[str, Any] = {
        "members": [_member(seen, leader, view.log) for seen in view.agents],
        "scope": view.cluster_id,
    }
    if view.settings.is_paused:
        content["pause"] = True
    return content


def patroni_history(changes: tuple[PrimaryChange, ...]) -> list[list[Any]]:
    """Return the content of GET /history: the timeline that ended, where, why, when, and the new primary's agent."""
    lines: list[list[Any]] = []
    before = 0
    for change in changes:
        ended = change.old_tli or before or change.tli - 1
        at = datetime.datetime.fromtimestamp(change.at, datetime.UTC).isoformat(timespec="seconds")
        lines.append([ended, change.fork_lsn, change.kind, at, change.agent])
        before = change.tli
    return lines


def _health(is_healthy: Callable[[Query, AgentState, float], bool], *, reads_tags: bool = True) -> Page:
    """Return a health check: a status code, and the status of this server."""

    def page(query: Query, state: AgentState, now: float) -> Answer:
        healthy = is_healthy(query, state, now) and (not reads_tags or _has_tags(query, state.own))
        return (200 if healthy else 503), patroni_status(state, now)

    return page


def _reads(query: Query, state: AgentState, now: float) -> bool:
    obstacle = replica_obstacle(query, state, now)  # Also of a leader: a query that is not valid is refused.
    return leads(state, now) or not obstacle


def _runs(state: AgentState, now: float) -> bool:
    return _state(state.own, _own_is_known(state, now)) == "running"


def _liveness(query: Query, state: AgentState, now: float) -> Answer:
    age_s = now - state.made_at
    return (200 if is_live(state, now) else 503), {"ok": is_live(state, now), "last_round_s": round(age_s, 3)}


def _readiness(query: Query, state: AgentState, now: float) -> Answer:
    reason = not_ready_reason(query, state, now)
    return (503, {"ok": False, "reason": reason}) if reason else (200, {"ok": True})


def _status(query: Query, state: AgentState, now: float) -> Answer:
    return 200, {
        "name": state.own.name,
        "started_at": state.started_at,
        "last_round_s": round(now - state.made_at, 3),
        "quorum_seen_at": state.quorum_seen_at or None,
        **cluster_content(state.view_at(now)),
    }


_LEADER = _health(lambda query, state, now: leads(state, now), reads_tags=False)
_REPLICA = _health(lambda query, state, now: not replica_obstacle(query, state, now))
# The primary, or a synchronous standby, which no server is.
_LEADER_OR_SYNCHRONOUS = _health(lambda query, state, now: leads(state, now))
_NEVER = _health(lambda query, state, now: False)

# All pages but /metrics, by path.
PAGES: dict[str, Page] = {
    "/": _LEADER,
    "/primary": _LEADER,
    "/master": _LEADER,
    "/read-write": _LEADER,
    "/leader": _LEADER,
    "/replica": _REPLICA,
    "/asynchronous": _REPLICA,
    "/async": _REPLICA,
    "/read-only": _health(_reads),
    "/read-only-sync": _LEADER_OR_SYNCHRONOUS,
    "/read-only-synchronous": _LEADER_OR_SYNCHRONOUS,
    "/read-only-quorum": _LEADER_OR_SYNCHRONOUS,
    "/synchronous": _NEVER,
    "/sync": _NEVER,
    "/quorum": _NEVER,
    "/standby-leader": _NEVER,
    "/standby_leader": _NEVER,
    "/health": _health(lambda query, state, now: _runs(state, now)),
    "/liveness": _liveness,
    "/readiness": _readiness,
    "/patroni": lambda query, state, now: (200, patroni_status(state, now)),
    "/cluster": lambda query, state, now: (200, patroni_cluster(state.view_at(now))),
    "/history": lambda query, state, now: (200, patroni_history(state.view.settings.changes)),
    "/status": _status,
}


HEALTH_CHECKS = frozenset(PAGES) - {"/patroni", "/cluster", "/history", "/status"}
"""The pages whose status code is what is asked for."""


@functools.cache
def _version() -> str:
    return importlib.metadata.version("walproxy")


def _own_is_known(state: AgentState, now: float) -> bool:
    return now - state.made_at <= 2 * LIVENESS_S


def _state(report: AgentReport, is_known: bool) -> str:
    """Return Patroni's name of the state of a server."""
    if not is_known:
        return "unknown"
    if report.state in _RUNNING:
        return "running"
    if report.state == ServerState.MISSING.value:
        return "creating replica" if is_copying(report) else "stopped"
    return _STATES.get(report.state, "unknown")


def _role(report: AgentReport) -> str:
    if report.state == ServerState.MISSING.value:
        return "uninitialized"
    return "primary" if report.state == ServerState.PRIMARY.value else "replica"


def _replication_state(report: AgentReport) -> str:
    return "streaming" if is_standby(report) and report.is_streaming else ""


def _xlog(report: AgentReport) -> dict[str, Any]:
    if not is_standby(report):
        return {"location": report.written_lsn}
    return {"received_location": report.reached_lsn, "replayed_location": report.replayed_lsn}


def _member(seen: SeenReport, leader: AgentReport | None, log: LogPositions) -> dict[str, Any]:
    report = seen.report
    is_leader = leader is not None and report.name == leader.name
    state_name = _state(report, is_fresh(seen))
    if state_name == "running" and not is_leader:
        state_name = _replication_state(report) or state_name
    member: dict[str, Any] = {
        "name": report.name,
        "role": "leader" if is_leader else "replica",
        "state": state_name,
        "api_url": f"{report.url.rstrip('/')}/patroni",
    }
    with contextlib.suppress(ValueError):  # Another agent may report anything.
        member["host"], member["port"] = parse_address(report.address)
    if report.tli:
        member["timeline"] = report.tli
    member["tags"] = tags_of(report)
    if not is_leader:
        positions: dict[str, Lsn] = {
            "receive_": report.reached_lsn,
            "replay_": report.replayed_lsn,
            "": max(report.written_lsn, report.reached_lsn),
        }
        for name, lsn in positions.items():
            member[f"{name}lag"] = max(0, log.commit_lsn - lsn) if lsn and log.commit_lsn else "unknown"
            member[f"{name}lsn"] = format_lsn(lsn) if lsn else "unknown"
    return member


def _has_tags(query: Query, report: AgentReport) -> bool:
    tags = {name: str(value).lower() for name, value in tags_of(report).items()}
    return all(tags.get(key[4:]) == value for key, value in query.items() if key.startswith("tag_"))
