"""Contents of the JSON pages as the page gets them, with texts that a browser must not take for anything but text."""

from typing import Any

from tests.unit.proxy.statuses import LSN as LSN
from tests.unit.proxy.statuses import listed_safekeeper, standby, status, times
from walproxy.proxy.status_fields import ArchiveProgress, CommitLatencies, ListedSafekeeper, ProxyStatus

EVIL = "</script><img src=x onerror=alert(1)><b onclick=stop()>\u202e\x1b[31m\x00 &amp; 'a'"


def member(number: int, state: str = "streaming", problem: str | None = None) -> ListedSafekeeper:
    is_lost = state == "disconnected"
    lost = {"flush_lsn": "0/5A00000", "lag_bytes": 0x3C9F8, "last_response_s": 42.5} if is_lost else {}
    return listed_safekeeper(number, state, problem, **lost)


def proxy_status(*members: ListedSafekeeper, **changes: Any) -> ProxyStatus:
    """Return a /status of the proxy with these safekeepers, two standbys and an archive."""
    standbys = [standby(f"standby{i}", i, apply_lsn="0/5A3C000", apply_lag_bytes=0x9F8) for i in (1, 2)]
    fields: dict[str, Any] = {
        "safekeepers": list(members),
        "members": [each.id for each in members],
        "members_streaming": sum(each.state == "streaming" for each in members),
        "archive": ArchiveProgress(archiver=2, archived_lsn="0/5000000", lag_bytes=0xA3C9F8, problem=""),
        "standbys": standbys,
        "times": CommitLatencies(quorum=times(0.0021, 0.0094), write=times(), apply=times(), members={}, oldest_s=None),
    }
    return status(**fields | changes)


def waiting(xid: int) -> dict[str, Any]:
    return {
        "xid": xid,
        "kind": "commit",
        "gid": "",
        "start_lsn": "0/5A30000",
        "end_lsn": LSN,
        "committed_at": "2026-11-25T22:00:00.000Z",
        "waits_s": 1.2,
        "level": "on",
        "state": "waiting",
        "missing": [2, 3],
        "session": {"pid": xid, "user": "app", "application": EVIL, "client": "10.0.0.9:5000", "query": EVIL},
    }


def limbo(count: int) -> dict[str, Any]:
    """Return a /limbo with this number of waiting transactions."""
    return {
        "owner": {"proposer": "2824b18000000000", "term": 5},
        "state": "waiting_for_quorum",
        "quorum": 2,
        "received_lsn": LSN,
        "commit_lsn": "0/5A00000",
        "entries": count,
        "bytes": 0x3C9F8,
        "oldest_s": 1.2 if count else None,
        "confirms_per_s": 812.4,
        "problem": None,
        "listed": min(count, 100),
        "transactions": [waiting(771 + i) for i in range(min(count, 100))],
    }


def event(seq: int, text: str = "elected by 2 of 3") -> dict[str, Any]:
    fields = {"term": 5}
    return {"seq": seq, "at": "2026-11-25T22:00:00.000Z", "event": "term-won", "source": "walproxy"} | {
        "text": text,
        "fields": fields,
    }
