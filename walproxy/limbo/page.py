"""The content of GET /limbo: totals, and the oldest transactions. Reads the limbo, changes nothing.

The statements are shown without their literals, unless `Limbo.shows_literals`. The list is bounded, and `entries` and
`listed` show that. A session without a record in memory has no positions: its WAL is committed and not applied yet
(`remote_apply`), or was not received by this proxy.

The state of an entry, the members that lack it, and the level of its session are derived when asked. Nothing is stored
for an entry, so a position that advances costs the same with one entry and with 10,000, an acknowledgement that
precedes the decoder is not lost, and an entry may be confirmed as soon as it is read. A changed quorum changes
commit_lsn, and with it the state of every entry.
"""

import functools
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final, NamedTuple

from safekeeper.base.lsn import Lsn, format_lsn
from walproxy.limbo.facts import Facts, WaitingSession
from walproxy.limbo.limbo import Limbo
from walproxy.limbo.literals import mask_literals
from walproxy.limbo.transactions import ABORT, Entry

RECEIVED: Final = "received"
"""It is in the proxy's memory, and it is unknown whether a session waits, or none does."""
WAITING: Final = "waiting"
"""A session waits for it."""
CONFIRMED: Final = "confirmed"
"""A quorum has it."""
DETACHED: Final = "detached"
"""A session waited for it and no longer does, although no quorum has it: cancelled or terminated."""
DISCARDED: Final = "discarded"
"""Another timeline has replaced it."""

LISTED_MAX: Final = 100
QUERY_CHARACTERS_MAX: Final = 1000
_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
# The page at / has the same statements every second while they wait.
_masked = functools.lru_cache(maxsize=4 * LISTED_MAX)(mask_literals)


def limbo_as_last_read(limbo: Limbo, facts: Facts) -> dict[str, Any]:
    """Return the same content without `Limbo.refresh`: it costs nothing, and shows what the watch has read last.

    While no commit is slow, the watch reads nothing; a sample of sessions is forgotten after SAMPLE_AGE_S_MAX.
    """
    content = limbo_page(limbo, facts)
    return content if limbo.is_slow else {**content, "problem": None}


def confirms_per_s(limbo: Limbo) -> float | None:
    """Return this value of the content alone."""
    rate = limbo.commits_per_s()
    return round(rate, 1) if rate is not None else None


class _Row(NamedTuple):
    waits_s: float | None
    content: dict[str, Any]


def limbo_page(limbo: Limbo, facts: Facts) -> dict[str, Any]:
    """Return the content of GET /limbo; `Limbo.refresh` was called."""
    now, queue = limbo.now(), limbo.queue
    oldest = list(islice(queue, LISTED_MAX))
    arrived = limbo.arrived(oldest)
    rows = [_of_entry(limbo, facts, entry, at, now) for entry, at in zip(oldest, arrived, strict=True)]
    known = {entry.xid for entry in queue} if limbo.sessions else set()
    others = [_of_session(limbo, facts, key, each, now) for key, each in limbo.sessions.items() if key not in known]
    # Both are in order already, and a row without a time keeps its place.
    rows = sorted([*others, *rows], key=lambda row: -(row.waits_s or 0.0))[:LISTED_MAX]
    listed = [row.content for row in rows]
    listed += [_of_discarded(limbo, facts, entry) for entry in islice(queue.discarded, LISTED_MAX - len(listed))]
    return {
        "owner": {"proposer": facts.proposer_id, "term": facts.term} if facts.term else None,
        "state": facts.state,
        "quorum": facts.quorum,
        "received_lsn": format_lsn(facts.received_lsn),
        "commit_lsn": format_lsn(facts.positions.commit_lsn),
        "entries": len(queue) + len(others),
        "bytes": max(0, facts.received_lsn - facts.positions.reported_lsn) if facts.positions.reported_lsn else 0,
        "oldest_s": _rounded(max((row.waits_s for row in rows if row.waits_s is not None), default=None)),
        "confirms_per_s": confirms_per_s(limbo),
        "discarded": queue.discarded_total,
        "on_timeout": {"timeout_s": limbo.policy.timeout_s or None, "action": limbo.policy.action},
        "problem": limbo.problem() or None,
        "listed": len(listed),
        "transactions": listed,
    }


def _of_entry(limbo: Limbo, facts: Facts, entry: Entry, arrived_at: float | None, now: float) -> _Row:
    session = limbo.sessions.get(entry.xid)
    has_waited = entry.xid in limbo.seen_since
    sampled_at = limbo.sampled_at
    waits: bool | None = None
    if session is not None:
        waits = True
    elif sampled_at is not None and arrived_at is not None and sampled_at > arrived_at:
        waits = False
    waits_s = now - arrived_at if arrived_at is not None else None
    content = _content(limbo, entry, waits_s, session)
    content["level"] = level_of(entry.kind, waits=waits, has_waited=has_waited)
    content["state"] = state_of(entry.end_lsn, facts.positions.commit_lsn, waits=waits, has_waited=has_waited)
    content["missing"] = missing_members(entry.end_lsn, facts.flush_lsns)
    return _Row(waits_s, content)


def _of_session(limbo: Limbo, facts: Facts, key: int, session: WaitingSession, now: float) -> _Row:
    """A session whose record is not in memory."""
    waits_s = now - limbo.seen_since.get(key, now)
    # All received WAL was reported as durable: only the apply position can be waited for.
    positions = facts.positions
    is_apply = positions.leads and positions.applied_lsn < positions.reported_lsn == facts.received_lsn
    kind = "commit"
    if session.gid:
        kind = "commit_prepared" if "commit" in session.query.lower() else "abort_prepared"
    content: dict[str, Any] = {
        "xid": session.xid or None,
        "kind": kind,
        "gid": session.gid,
        "start_lsn": None,
        "end_lsn": None,
        "committed_at": None,
        "waits_s": _rounded(waits_s),
        "level": "remote_apply" if is_apply else None,
        "state": WAITING,
        "missing": [],
        "session": _session(limbo, session),
    }
    return _Row(waits_s, content)


def _of_discarded(limbo: Limbo, facts: Facts, entry: Entry) -> dict[str, Any]:
    content = _content(limbo, entry, None, None)
    return {**content, "state": DISCARDED, "missing": missing_members(entry.end_lsn, facts.flush_lsns)}


def _content(limbo: Limbo, entry: Entry, waits_s: float | None, session: WaitingSession | None) -> dict[str, Any]:
    return {
        "xid": entry.xid,
        "kind": entry.kind,
        "gid": entry.gid or (session.gid if session is not None else ""),
        "start_lsn": format_lsn(entry.start_lsn),
        "end_lsn": format_lsn(entry.end_lsn),
        "committed_at": _time(entry.time_us),
        "waits_s": _rounded(waits_s),
        "level": None,
        "state": "",
        "missing": [],
        "session": _session(limbo, session) if session is not None else None,
    }


def _session(limbo: Limbo, session: WaitingSession) -> dict[str, Any]:
    query = session.query[:QUERY_CHARACTERS_MAX]
    return {
        "pid": session.pid,
        "user": session.user,
        "application": session.application,
        "client": session.client,
        "query": query if limbo.shows_literals else _masked(query)[:QUERY_CHARACTERS_MAX],
    }


def _time(time_us: int) -> str | None:
    try:
        return (_EPOCH + timedelta(microseconds=time_us)).isoformat(timespec="milliseconds")
    except OverflowError:  # The record's checksum is right, its time is not one of this calendar.
        return None


def _rounded(seconds: float | None) -> float | None:
    return round(seconds, 3) if seconds is not None else None


def state_of(end_lsn: Lsn, commit_lsn: Lsn, *, waits: bool | None, has_waited: bool) -> str:
    """Return the state of an entry.

    Args:
        waits: whether a session waits for it now; None if that is unknown.
        has_waited: whether one was seen to wait for it.
    """
    if end_lsn <= commit_lsn:
        return CONFIRMED
    if waits:
        return WAITING
    return DETACHED if waits is False and has_waited else RECEIVED


def missing_members(end_lsn: Lsn, flush_lsns: Mapping[int, Lsn]) -> list[int]:
    """Return the members that have not acknowledged the WAL up to `end_lsn`, by their positions."""
    return sorted(i for i, flush_lsn in flush_lsns.items() if flush_lsn < end_lsn)


def level_of(kind: str, *, waits: bool | None, has_waited: bool) -> str | None:
    """Return `none` if no session waits for such an entry, else None: PostgreSQL does not show a session's setting."""
    is_unwaited = kind == ABORT or (waits is False and not has_waited)
    return "none" if is_unwaited else None
