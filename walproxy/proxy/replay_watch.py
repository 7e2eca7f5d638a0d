"""Which standbys receive WAL and do not replay it: paused, delayed, or blocked by a query.

Such a standby has every acknowledged commit, and is still unfit for a failover until somebody acts: it shows old data,
and cannot be promoted while its settings are lower than its WAL needs (walproxy/postgres/replay_state.py). Positions
alone show it: its replay position stays the same for a while, below its flush position, and its flush position advances
meanwhile. If it does not advance, as when the primary has died, the rest may be an incomplete record. Pure.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from safekeeper.base.lsn import Lsn
from walproxy.proposer.standbys import StandbyRow

# One record may take that long, e.g. of a large file that is copied or removed.
STALLED_S = 10.0


class _Seen(NamedTuple):
    apply_lsn: Lsn
    waits: bool  # It has WAL that it has not replayed.
    flush_lsn: Lsn  # when that was first seen
    since: float
    is_more: bool = False  # It has received more WAL since, so what it has is not only an incomplete record.


class ReplayWatch:
    """The last movement of each standby's replay."""

    def __init__(self) -> None:
        self._seen: Mapping[str, _Seen] = {}

    def observe(self, rows: Iterable[StandbyRow], now: float) -> None:
        """Take a look at all standbys, at least every few seconds."""
        seen = {}
        for row in rows:
            standby = row.standby
            before = self._seen.get(standby.name)
            waits = row.connected and 0 < standby.apply_lsn < standby.flush_lsn
            if before is None or (before.apply_lsn, before.waits) != (standby.apply_lsn, waits):
                before = _Seen(standby.apply_lsn, waits, standby.flush_lsn, now)
            elif standby.flush_lsn > before.flush_lsn:
                before = before._replace(is_more=True)
            seen[standby.name] = before
        self._seen = seen

    def stalled_s(self, name: str, now: float) -> float | None:
        """Return for how long a standby has replayed nothing although it receives WAL; None if it replays."""
        seen = self._seen.get(name)
        stalled_s = now - seen.since if seen is not None and seen.waits and seen.is_more else 0.0
        return stalled_s if stalled_s >= STALLED_S else None
