"""A /status of a proxy: that of one that streams to three members, as far as a test does not change it."""

from typing import Any

from safekeeper.base.status_fields import HistoryTerm, RecentTimes
from walproxy.proxy.status_fields import (
    CommitLatencies,
    ElectionCounts,
    GateStatus,
    LimboTotals,
    ListedHost,
    ListedSafekeeper,
    ListedStandby,
    PrimaryStatus,
    ProxyStatus,
    QuorumLoss,
    ReconnectCounts,
    VoteCounts,
)

LSN = "0/5A3C9F8"


def status(**changes: Any) -> ProxyStatus:
    """Return a status; a field that `changes` does not have is as where all is well."""
    fields: dict[str, Any] = {
        "state": "streaming",
        "term": 5,
        "system_id": "7440000000000000001",
        "tli": 2,
        **dict.fromkeys(("received_lsn", "write_lsn", "flush_lsn", "apply_lsn", "commit_lsn", "truncate_lsn"), LSN),
        "quorum": 2,
        "safekeepers": [listed_safekeeper(1), listed_safekeeper(2), listed_safekeeper(3)],
        "run": "2824b18000000000",
        "spare": False,
        "state_since_s": 4000.0,
        "not_ready_s": None,
        "members": [1, 2, 3],
        "members_streaming": 3,
        "learners": 0,
        "members_change": None,
        "elect_quorum": 2,
        "generation": 1,
        "cluster_id": "c" * 32,
        "term_start_lsn": "0/5000000",
        "history": [
            HistoryTerm(term=1, start_lsn="0/1000000", tli=1, gives_up=False, floor=0, given=1),
            HistoryTerm(term=4, start_lsn="0/3000000", tli=1, gives_up=False, floor=0, given=1),
            HistoryTerm(term=5, start_lsn="0/5000000", tli=2, gives_up=False, floor=1, given=2),
        ],
        "window_bytes": 16 << 20,
        "backpressure": False,
        "gate": gate("gated"),
        "quorum_lost": None,
        "limbo": LimboTotals(bytes=0, oldest_s=None, timeouts={}, read_only=False, discarded=0),
        "apply_rule": "",
        "apply_problem": None,
        "archive": None,
        "standbys": [],
        "primary": PrimaryStatus(
            connected=True,
            streams=True,
            problem="",
            sql_problem=None,
            hosts=[ListedHost(host="db1:5432", state="connected", problem=None)],
        ),
        "times": CommitLatencies(quorum=times(), write=times(), apply=times(), members={}, oldest_s=None),
        "elections": ElectionCounts(won=1, lost=0, declined=0, term_s=4000.0),
        "votes": VoteCounts(granted=2, refused=0),
        "refusals": {},
        "reconnects": ReconnectCounts(primary=0, safekeepers={}),
    }
    return ProxyStatus(**fields | changes)


def listed_safekeeper(
    number: int, state: str = "streaming", problem: str | None = None, **changes: Any
) -> ListedSafekeeper:
    fields: dict[str, Any] = {
        "write_lsn": LSN,
        "flush_lsn": LSN,
        "lag_bytes": 0,
        "last_response_s": 0.012,
        "address": f"10.0.0.{number}:5454",
        "member": True,
        "pull_end_lsn": None,
        "pulled_bytes": 0,
    }
    return ListedSafekeeper(id=number, state=state, problem=problem, **fields | changes)


def standby(name: str, safekeeper: int = 1, **changes: Any) -> ListedStandby:
    fields: dict[str, Any] = {
        "write_lsn": LSN,
        "flush_lsn": LSN,
        "apply_lsn": LSN,
        "lag_bytes": 0,
        "apply_lag_bytes": 0,
        "designated": True,
        "has_everything": True,
        "connected": True,
        "stalled_s": None,
    }
    return ListedStandby(name=name, safekeeper=safekeeper, **fields | changes)


def gate(
    state: str, reason: str | None = None, *, hangs: bool = False, exempt: str | None = None, is_by_level: bool = False
) -> GateStatus:
    return GateStatus(state=state, reason=reason, hangs=hangs, exempt=exempt, is_by_level=is_by_level, checked_s=0.5)


def lost(**changes: Any) -> QuorumLoss:
    fields: dict[str, Any] = {"for_s": 63.0, "present": 1, "needed": 2, "waiting_sessions": 5}
    return QuorumLoss(**fields | {"waiting_problem": None, "missing": []} | changes)


def times(p50_s: float | None = None, p99_s: float | None = None) -> RecentTimes:
    count = 0 if p50_s is None else 9
    return RecentTimes(count=count, recent_count=count, p50_s=p50_s, p99_s=p99_s)
