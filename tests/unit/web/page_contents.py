"""Contents of the JSON pages as the page gets them, with texts that a browser must not take for anything but text."""

from typing import Any

EVIL = "</script><img src=x onerror=alert(1)><b onclick=stop()>\u202e\x1b[31m\x00 &amp; 'a'"
LSN = "0/5A3C9F8"


def member(number: int, state: str = "streaming", problem: str | None = None) -> dict[str, Any]:
    lost = state == "disconnected"
    return {
        "id": number,
        "state": state,
        "write_lsn": LSN,
        "flush_lsn": "0/5A00000" if lost else LSN,
        "lag_bytes": 0x3C9F8 if lost else 0,
        "last_response_s": 42.5 if lost else 0.012,
        "address": f"10.0.0.{number}:5454",
        "problem": problem,
        "member": True,
        "pull_end_lsn": None,
        "pulled_bytes": 0,
    }


def standby(name: str, safekeeper: int) -> dict[str, Any]:
    return {
        "name": name,
        "safekeeper": safekeeper,
        "write_lsn": LSN,
        "flush_lsn": LSN,
        "apply_lsn": "0/5A3C000",
        "lag_bytes": 0,
        "apply_lag_bytes": 0x9F8,
        "stalled_s": None,
        "designated": True,
        "has_everything": True,
        "connected": True,
    }


def proxy_status(*members: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a /status of the proxy with these safekeepers; it streams unless `changes` has something else."""
    streaming = sum(each["state"] == "streaming" for each in members)
    return {
        "state": "streaming",
        "term": 5,
        "system_id": "7440000000000000001",
        "tli": 2,
        "received_lsn": LSN,
        "write_lsn": LSN,
        "flush_lsn": LSN,
        "apply_lsn": LSN,
        "commit_lsn": LSN,
        "quorum": 2,
        "safekeepers": list(members),
        "run": "2824b18000000000",
        "spare": False,
        "state_since_s": 4000.0,
        "members": [each["id"] for each in members],
        "members_streaming": streaming,
        "history": [
            {"term": 1, "start_lsn": "0/1000000", "tli": 1, "gives_up": False, "floor": 0},
            {"term": 4, "start_lsn": "0/3000000", "tli": 1, "gives_up": False, "floor": 0},
            {"term": 5, "start_lsn": "0/5000000", "tli": 2, "gives_up": False, "floor": 1},
        ],
        "window_bytes": 16 << 20,
        "backpressure": False,
        "gate": {"state": "gated", "reason": None, "hangs": False, "exempt": None},
        "quorum_lost": None,
        "apply_problem": None,
        "archive": {"archiver": 2, "archived_lsn": "0/5000000", "lag_bytes": 0xA3C9F8, "problem": ""},
        "standbys": [standby("standby1", 1), standby("standby2", 3)],
        "primary": {
            "connected": True,
            "streams": True,
            "problem": "",
            "hosts": [{"host": "db1:5432", "state": "connected", "problem": None}],
        },
        "times": {"quorum": {"count": 10, "p50_s": 0.0021, "p99_s": 0.0094}, "members": {}},
    } | changes


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
