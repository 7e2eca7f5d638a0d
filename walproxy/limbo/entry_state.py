"""The state of an entry of the limbo, the members that lack it, and the level of its session: derived when asked. Pure.

Nothing is stored for an entry, so a position that advances costs the same with one entry and with 10,000, an
acknowledgement that precedes the decoder is not lost, and an entry may be confirmed as soon as it is read. A changed
quorum changes commit_lsn, and with it the state of every entry.
"""

from collections.abc import Mapping
from typing import Final

from safekeeper.base.lsn import Lsn
from walproxy.limbo.transactions import ABORT

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
