"""WAL in pg_wal that is not of the new primary's history: a rewound server must not replay it.

pg_rewind keeps the local segments from the last common checkpoint to the fork, the one with the fork whole. PostgreSQL
replays that to its end, also beyond the fork, unless it finds the segment of the new timeline, which a new primary that
is a base backup itself does not have.
"""

import os
from pathlib import Path

from safekeeper.base.lsn import parse_segment_name
from walproxy.agent.agent_settings import sync_folder
from walproxy.agent.rejoin_plan import TimelineLineage


def remove_foreign_wal(pg_wal: Path, history: TimelineLineage, segment_size: int) -> None:
    """Remove all segments that have no WAL of a history; in those with the end of a timeline zero what is after it."""
    ends = {tli: end for tli, _, end in history.with_ends()}
    for path in sorted(pg_wal.iterdir()):
        parsed = parse_segment_name(path.name, segment_size)
        if parsed is None:
            continue
        tli, begin = parsed
        end = ends.get(tli, 0)
        if end is None or end >= begin + segment_size:
            continue
        if end <= begin:
            path.unlink()
        else:
            _zero(path, end - begin, segment_size)
    sync_folder(pg_wal)


def _zero(path: Path, offset: int, size: int) -> None:
    """Zero a segment from an offset on, durably."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(bytes(size - offset))
        file.flush()
        os.fsync(file.fileno())
