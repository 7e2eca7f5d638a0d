"""What replay up to the target will do outside of the data folder, and which settings it needs: found in all its WAL.

A recovery must not begin that would write into the files of a live server. So all WAL from the backup's start to the
target is read once before anything is written, several segments at a time: what recovery will fetch again.
"""

import functools
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import Lsn, format_lsn, segment_start
from walproxy.recovery.base_backup import BackupFacts
from walproxy.recovery.fetcher import Fetcher
from walproxy.recovery.notable_records import (
    NotableRecords,
    ParametersChanged,
    RestorePoint,
    TablespaceCreated,
    Undecodable,
)
from walproxy.recovery.plan import Plan, RecoveryTarget, fetch_part, pieces_of, scan_tail
from walproxy.recovery.record_times import scan

_FETCHED_AHEAD = 4


class ReplaySurvey(NamedTuple):
    """The findings.

    Attributes:
        tablespaces: those that replay will create outside of the data folder.
        raised: each setting that the WAL raises above the backup's: the record that does, and the highest value.
    """

    tablespaces: list[TablespaceCreated]
    raised: dict[str, tuple[Lsn, int]]


def survey_replay(
    fetcher: Fetcher,
    plan: Plan,
    backup: BackupFacts,
    target: RecoveryTarget,
    own_wal: Path | None,
    progress: Callable[[int], None],
) -> ReplaySurvey:
    """Read the WAL that the recovery will replay.

    Args:
        own_wal: a folder with the backup's own WAL, if the plan needs that.
        progress: called with the number of bytes read.

    Raises:
        ConfigurationError: a segment is missing meanwhile, or cannot be decoded.
        SourceUnavailable, SourceCorrupt, ArchiveRefused: see Fetcher.
    """
    records = NotableRecords(plan.path.segment_size)
    found = ReplaySurvey([], {})
    for begin_lsn, file, size in _segments(fetcher, plan, backup, own_wal):
        is_last = _is_last(file, size, begin_lsn, plan, backup, target)
        for record in records.of_segment(begin_lsn, functools.partial(pieces_of, file, size)):
            if record.record_lsn < backup.start_lsn and not isinstance(record, Undecodable):
                continue
            if _is_beyond(fetcher, plan, backup, target, record.previous_lsn):
                return found
            if isinstance(record, TablespaceCreated) and record.path.startswith("/"):
                found.tablespaces.append(record)
            elif isinstance(record, ParametersChanged):
                _note_raised(found.raised, record, backup)
            elif isinstance(record, RestorePoint) and record.name == target.name:
                return found
            elif isinstance(record, Undecodable):
                raise ConfigurationError(
                    f"{record.problem}: whether replay of this WAL is safe for other servers of this machine cannot be "
                    f"determined; use another source{_advised(record.previous_lsn, backup)}; nothing was written"
                )
        progress(size)
        if is_last:
            break
    return found


def _segments(
    fetcher: Fetcher, plan: Plan, backup: BackupFacts, own_wal: Path | None
) -> Iterator[tuple[Lsn, Path, int]]:
    """Yield each segment of the recovery: its start, a file, and the number of its bytes that count."""
    segment_size = plan.path.segment_size
    begins = iter(range(segment_start(backup.start_lsn, segment_size), plan.reach_lsn, segment_size))
    with tempfile.TemporaryDirectory(prefix="walproxy-survey-") as folder, ThreadPoolExecutor(_FETCHED_AHEAD) as pool:

        def fetch(begin_lsn: Lsn) -> tuple[Lsn, Path, int]:
            file = Path(folder, f"{begin_lsn:016X}")
            size = fetch_part(fetcher, plan.path, begin_lsn, plan.reach_lsn, file)
            if size is None:
                file, size = _own_part(plan, begin_lsn, own_wal)
            return begin_lsn, file, size

        ahead = deque(pool.submit(fetch, each) for _, each in zip(range(_FETCHED_AHEAD), begins, strict=False))
        try:
            while ahead:
                begin_lsn, file, size = ahead.popleft().result()
                yield begin_lsn, file, size
                if file.parent == Path(folder):
                    file.unlink()
                ahead.extend(pool.submit(fetch, each) for each in _next_of(begins))
        finally:
            for job in ahead:
                job.cancel()


def _next_of(begins: Iterator[Lsn]) -> list[Lsn]:
    begin_lsn = next(begins, None)
    return [] if begin_lsn is None else [begin_lsn]


def _own_part(plan: Plan, begin_lsn: Lsn, own_wal: Path | None) -> tuple[Path, int]:
    name = plan.path.name_of(begin_lsn)
    file = own_wal / name if own_wal is not None else None
    if file is None or not file.is_file():
        raise ConfigurationError(f"WAL segment {name} is in no source now, and was a moment ago: run the command again")
    return file, min(file.stat().st_size, plan.reach_lsn - begin_lsn)


def _is_last(file: Path, size: int, begin_lsn: Lsn, plan: Plan, backup: BackupFacts, target: RecoveryTarget) -> bool:
    """Return whether the recovery ends in this segment at the latest, as far as can be found cheaply."""
    if target.lsn is not None:
        return begin_lsn > target.lsn  # The first record from the target on may begin in the segment after it.
    if target.time is None:
        return False
    # Recovery replays no commit before the backup's start, whatever its time.
    pieces, segment_size = pieces_of(file, size), plan.path.segment_size
    first = scan(pieces, begin_lsn, segment_size, first_only=True, since_lsn=backup.start_lsn).first
    return first is not None and first.time > target.time


def _is_beyond(fetcher: Fetcher, plan: Plan, backup: BackupFacts, target: RecoveryTarget, previous_lsn: Lsn) -> bool:
    """Return whether recovery ends with the record at `previous_lsn`, or before it."""
    if target.lsn is not None:
        return previous_lsn >= target.lsn  # The first record that begins there, or later, is the last one replayed.
    if target.time is None:
        return False
    begin_lsn = segment_start(backup.start_lsn, plan.path.segment_size)
    last = scan_tail(fetcher, plan.path, begin_lsn, previous_lsn + 1).last
    return last is not None and last.start_lsn >= backup.start_lsn and last.time > target.time


def _note_raised(raised: dict[str, tuple[Lsn, int]], record: ParametersChanged, backup: BackupFacts) -> None:
    for name, value in record.values.items():
        before = raised[name][1] if name in raised else backup.parameters.get(name, value)
        if value > before:
            raised[name] = record.record_lsn, value


def _advised(lsn: Lsn, backup: BackupFacts) -> str:
    """Return the advice to recover up to `lsn` only, empty if that is not possible."""
    if lsn < max(backup.start_lsn, backup.end_lsn, 1):
        return ""
    return f", or recover less, with --target-lsn {format_lsn(lsn)}"


def refuse_live_tablespaces(tablespaces: list[TablespaceCreated], backup: BackupFacts) -> None:
    """Refuse a recovery that would write into a tablespace that exists on this machine.

    PostgreSQL writes into a folder of its version within the tablespace. Whatever else is there it leaves alone.

    Raises:
        ConfigurationError: with the first such tablespace, and what to do.
    """
    for each in tablespaces:
        occupant = occupant_of(Path(each.path), backup.major)
        if occupant:
            raise ConfigurationError(
                f"the WAL at {format_lsn(each.record_lsn)} creates the tablespace {each.oid} in {each.path}, {occupant}"
                ": replay would write to that folder, and destroy the data of the server that uses it; restore on "
                "another machine, or in a container or mount namespace where that folder is empty"
                f"{_advised(each.previous_lsn, backup)}; nothing was written"
            )


def occupant_of(path: Path, major: int) -> str:
    """Return what a tablespace's folder has on this machine that replay could write to; empty if nothing."""
    try:
        found = sorted(each.name for each in path.iterdir() if each.name.startswith(f"PG_{major}_"))
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return f"which cannot be read here ({error.strerror})"
    return f"where {found[0]} exists on this machine" if found else ""


def preparations(survey: ReplaySurvey, backup: BackupFacts, target: Path) -> list[str]:
    """Return a line for each thing to do before the restored server is started."""
    lines = [
        f"the WAL at {format_lsn(each.record_lsn)} creates the tablespace {each.oid} in {each.path}: before the start, "
        "make this folder, empty and with the server's user as its owner, or recovery stops there"
        for each in survey.tablespaces
    ]
    lines += [
        f"the WAL at {format_lsn(lsn)} raises {name} from {backup.parameters[name]} to {value}: before the start, "
        f"append {name} = {value} to {target}/postgresql.auto.conf, or recovery stops or pauses there"
        for name, (lsn, value) in survey.raised.items()
    ]
    return lines
