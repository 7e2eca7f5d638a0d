"""The timeline up to which a standby has replayed WAL, by the files of its pg_wal.

While no walreceiver runs, SQL has it only as of the last restartpoint: a standby that has followed a promotion since
would look like one that has not.
"""

from pathlib import Path

from safekeeper.base.lsn import Lsn, segment_name
from safekeeper.base.timelines import timeline_history_name

_TLI_DIGITS = 8


def replayed_tli(pg_wal: Path, replayed_lsn: Lsn, segment_size: int) -> int:
    """Return the highest timeline with a segment of the last byte that was replayed, and a history; 0 if unknown.

    A promotion that crashed may have left a segment without a history: nothing was replayed on that timeline.
    """
    try:
        names = {path.name for path in pg_wal.iterdir()}
    except OSError:
        return 0
    if replayed_lsn == 0:
        return 0
    place = segment_name(1, replayed_lsn - 1, segment_size)[_TLI_DIGITS:]
    found = (int(name[:_TLI_DIGITS], 16) for name in names if name[_TLI_DIGITS:] == place)
    return max((tli for tli in found if tli == 1 or timeline_history_name(tli) in names), default=0)
