"""The end of a recovery, and whether it may begin: decided before anything is written.

A recovery that ends early looks like one that has succeeded. So the WAL from the backup's start to the target must be
available without a hole, along the timelines that PostgreSQL will follow; an error names the missing WAL and the range
that cannot be recovered. PostgreSQL itself refuses a target that it does not reach, at the end of a recovery that may
take hours.
"""

import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import Lsn, format_lsn, parse_segment_name, segment_start
from safekeeper.base.timelines import lists_no_parent, parse_timeline_history
from walproxy.recovery.base_backup import BackupFacts
from walproxy.recovery.fetcher import Fetcher
from walproxy.recovery.record_times import Scanned, TimedCommit, scan
from walproxy.wal_sources.ranges import extents_of_files, reach_of
from walproxy.wal_sources.source import Extent, LogPath

LATEST, CURRENT = "latest", "current"
_SCANNED_SEGMENTS_MAX = 16
_PIECE_BYTES = 1 << 20


class RecoveryTarget(NamedTuple):
    """Where recovery is to end: at most one of the three; the end of the WAL if none is given.

    Attributes:
        timeline: `latest`, `current` or a TLI, as PostgreSQL's recovery_target_timeline.
        action: the action of PostgreSQL there.
    """

    time: datetime | None = None
    lsn: Lsn | None = None
    name: str | None = None
    timeline: str = LATEST
    action: str = "promote"

    @property
    def is_end(self) -> bool:
        """Whether all existing WAL is to be replayed."""
        return self.time is None and self.lsn is None and self.name is None


class Plan(NamedTuple):
    """A recovery that may begin.

    Attributes:
        path: the timelines that it follows.
        reach_lsn: the end of the WAL that can be replayed.
        last_commit: the last one in it, None if none was found near its end.
        last_record_lsn: where the last complete record in it begins, 0 if unknown.
        hole_lsn: where the WAL continues after a hole, None if there is none.
        needs_own_wal: the backup's own pg_wal has WAL that no source has.
    """

    path: LogPath
    reach_lsn: Lsn
    last_commit: TimedCommit | None
    last_record_lsn: Lsn
    hole_lsn: Lsn | None
    needs_own_wal: bool


def make_plan(fetcher: Fetcher, backup: BackupFacts, own_wal: Mapping[str, int], target: RecoveryTarget) -> Plan:
    """Return the plan of a recovery.

    Args:
        own_wal: names and sizes of the files in the backup's own pg_wal.

    Raises:
        ConfigurationError: it cannot reach its target; the message contains what is missing.
        SourceUnavailable, SourceCorrupt, ArchiveRefused: see Fetcher.
    """
    path = choose_path(fetcher, backup, target.timeline)
    begin_lsn = segment_start(backup.start_lsn, path.segment_size)
    own = _own_extents(own_wal, path, backup.end_lsn)
    reach_lsn, hole_lsn, needs_own_wal = reach_of_all(fetcher, path, begin_lsn, own)
    if reach_lsn <= backup.start_lsn or reach_lsn < backup.end_lsn:
        raise ConfigurationError(
            f"WAL segment {path.name_of(reach_lsn)} is in no source, and the backup needs the WAL from "
            f"{format_lsn(backup.start_lsn)}{f' to {format_lsn(backup.end_lsn)}' if backup.end_lsn else ' on'}: it "
            "cannot be restored; use a later backup, or add another source"
        )
    tail = scan_tail(fetcher, path, begin_lsn, reach_lsn)
    plan = Plan(path, reach_lsn, tail.last, tail.last_record_lsn, hole_lsn, needs_own_wal)
    _check_target(plan, backup, target)
    return plan


def choose_path(fetcher: Fetcher, backup: BackupFacts, timeline: str) -> LogPath:
    """Return the timelines that PostgreSQL follows for this recovery_target_timeline.

    Raises:
        ConfigurationError: there is no such timeline, or it does not contain the backup.
    """
    segment_size = fetcher.origin().segment_size
    tli = backup.start_tli
    if timeline == LATEST:
        while fetcher.history(tli + 1) is not None:
            tli += 1
    elif timeline != CURRENT:
        tli = int(timeline)
    content = fetcher.history(tli) if tli > 1 else b""
    if content is None and tli == backup.start_tli:
        return LogPath(tli, (), segment_size)
    if content is None or (tli > 1 and lists_no_parent(content)):
        raise ConfigurationError(f"no source has the history of timeline {tli}: correct --target-timeline")
    path = LogPath(tli, parse_timeline_history(tli, content), segment_size)
    if path.tli_of(backup.checkpoint_lsn) != backup.start_tli:
        raise ConfigurationError(
            f"timeline {tli} does not contain this backup, which is of timeline {backup.start_tli} at "
            f"{format_lsn(backup.checkpoint_lsn)}: correct --target-timeline (current, or another one)"
        )
    return path


def scan_tail(fetcher: Fetcher, path: LogPath, begin_lsn: Lsn, end_lsn: Lsn) -> Scanned:
    """Find the last record, and the last commit if it is near, before `end_lsn`.

    Args:
        begin_lsn: the lower limit of the search.
    """
    last = Scanned(None, None, 0, 0, "")
    segment_lsn = segment_start(end_lsn - 1, path.segment_size)
    with tempfile.TemporaryDirectory(prefix="walproxy-scan-") as folder:
        for _ in range(_SCANNED_SEGMENTS_MAX):
            found = _scan_segment(fetcher, path, segment_lsn, end_lsn, Path(folder) / "segment")
            if found is None:
                break
            record_lsn = last.last_record_lsn or found.last_record_lsn
            last = Scanned(found.first, found.last, record_lsn, last.end_lsn or found.end_lsn, "")
            segment_lsn -= path.segment_size
            if last.last is not None or segment_lsn < begin_lsn:
                break
    return last


def _scan_segment(fetcher: Fetcher, path: LogPath, segment_lsn: Lsn, end_lsn: Lsn, file: Path) -> Scanned | None:
    """Scan one segment up to `end_lsn`; None if no source has it."""
    size = fetch_part(fetcher, path, segment_lsn, end_lsn, file)
    return scan(pieces_of(file, size), segment_lsn, path.segment_size) if size is not None else None


def fetch_part(fetcher: Fetcher, path: LogPath, segment_lsn: Lsn, end_lsn: Lsn, file: Path) -> int | None:
    """Write a segment to `file`; return the number of its bytes that belong to the path and are below `end_lsn`.

    None if no source has it.
    """
    for tli, useful_end_lsn in path.names(segment_lsn):
        delivered = fetcher.fetch_segment(tli, segment_lsn, file, find_holes=False)
        if delivered is not None:
            return min(delivered.end_lsn, useful_end_lsn, end_lsn) - segment_lsn
    return None


def pieces_of(file: Path, size: int) -> Iterator[bytes]:
    """Yield the first `size` bytes of a file."""
    with file.open("rb") as stream:
        for offset in range(0, size, _PIECE_BYTES):
            yield stream.read(min(_PIECE_BYTES, size - offset))


def reach_of_all(fetcher: Fetcher, path: LogPath, begin_lsn: Lsn, own: list[Extent]) -> tuple[Lsn, Lsn | None, bool]:
    """Return how far the WAL of all sources together reaches.

    Returns:
        its end; where WAL exists again after a hole, None if there is no hole; and whether the backup's own WAL was
        needed.
    """
    reach_lsn, needs_own_wal = begin_lsn, False
    while True:
        longest_lsn = fetcher.reach(path, reach_lsn)
        if longest_lsn <= reach_lsn:
            longest_lsn = reach_of(own, reach_lsn)
            needs_own_wal = needs_own_wal or longest_lsn > reach_lsn
        if longest_lsn <= reach_lsn:
            hole_lsn = fetcher.next_after(path, reach_lsn)
            if hole_lsn != reach_lsn:
                return reach_lsn, hole_lsn, needs_own_wal
            continue  # A source has received more in the meantime: the cluster runs on, and archives.
        reach_lsn = longest_lsn


def _own_extents(own_wal: Mapping[str, int], path: LogPath, end_lsn: Lsn) -> list[Extent]:
    """Return the WAL in the backup. Its last segment is filled with zeros, so it counts up to end_lsn."""
    segment_size = path.segment_size
    names = {name: parse_segment_name(name, segment_size) for name, size in own_wal.items() if size == segment_size}
    segments = sorted(parsed for parsed in names.values() if parsed is not None)
    last_lsn = max((begin_lsn for _, begin_lsn in segments), default=0)
    ends = {
        (tli, begin_lsn): begin_lsn + segment_size if begin_lsn < last_lsn else max(end_lsn, begin_lsn)
        for tli, begin_lsn in segments
    }
    return extents_of_files(path, ends)


def _check_target(plan: Plan, backup: BackupFacts, target: RecoveryTarget) -> None:
    """Refuse a target that cannot be reached.

    Raises:
        ConfigurationError: with the reason.
    """
    reached = f"recovery can reach {format_lsn(plan.reach_lsn)}"
    if plan.last_commit is not None:
        reached += f", its last commit is of {format_time(plan.last_commit.time)}"
    if target.lsn is not None:
        if backup.end_lsn and target.lsn < backup.end_lsn:
            raise ConfigurationError(
                f"--target-lsn {format_lsn(target.lsn)} is before the end of the backup, {format_lsn(backup.end_lsn)}"
                ": use an earlier backup"
            )
        if target.lsn > (plan.last_record_lsn or plan.reach_lsn):
            raise ConfigurationError(
                f"--target-lsn {format_lsn(target.lsn)} cannot be reached: {_missing(plan)}; {reached}, where the last "
                f"record begins at {format_lsn(plan.last_record_lsn)}"
            )
    elif target.time is not None:
        if plan.last_commit is not None and target.time > plan.last_commit.time:
            raise ConfigurationError(
                f"--target-time {format_time(target.time)} cannot be reached: {_missing(plan)}; {reached}; without a "
                "target all WAL up to there is recovered"
            )
    elif plan.hole_lsn is not None:
        raise ConfigurationError(f"{_missing(plan)}; {reached}: add another source{_advised(plan, backup)}")


def _advised(plan: Plan, backup: BackupFacts) -> str:
    if plan.last_record_lsn < max(backup.end_lsn, 1):
        return ""
    return f", or recover what can be with --target-lsn {format_lsn(plan.last_record_lsn)}"


def _missing(plan: Plan) -> str:
    name = plan.path.name_of(plan.reach_lsn)
    if plan.hole_lsn is None:
        return f"no source has WAL from {format_lsn(plan.reach_lsn)} on ({name})"
    return (
        f"WAL segment {name} is in no source, or not completely: no WAL from {format_lsn(plan.reach_lsn)} on can be "
        f"recovered, although WAL exists from {format_lsn(plan.hole_lsn)} on"
    )


def format_time(time: datetime) -> str:
    """Return a time as PostgreSQL reads it, in UTC."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f+00")
