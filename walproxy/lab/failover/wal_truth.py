"""The transactions that an old primary has committed and the new one lacks, by PostgreSQL's own pg_waldump.

The two timelines' paths are compared, and the old one's WAL is read from the fork on. This uses neither the agent's
fork nor its decoder: it is what its report is compared with.
"""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import Lsn, format_lsn, parse_lsn, segment_name, segment_start
from safekeeper.base.timelines import Lineage, parse_timeline_history, timeline_history_name

_COMMIT = re.compile(
    r"rmgr: Transaction .* tx:\s+(?P<xid>\d+), lsn: (?P<lsn>[0-9A-F]+/[0-9A-F]+), .*"
    r"desc: COMMIT (?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}) UTC"
)
_ENDS = ("error in WAL record at", "could not find a valid record after", "could not find file")
_TIMEOUT_S = 60.0


@dataclass(frozen=True, order=True)
class CommittedTransaction:
    """A transaction that has committed.

    Attributes:
        lsn: where its commit record begins.
        xid: without the epoch.
        time: as "2026-01-02 03:04:05.123456", in UTC.
    """

    lsn: Lsn
    xid: int
    time: str


@dataclass(frozen=True)
class Stretch:
    """A part of a timeline: [begin_lsn, end_lsn); end_lsn is None for its last one, to the end of its WAL."""

    tli: int
    begin_lsn: Lsn
    end_lsn: Lsn | None


def stretches_after_fork(old_tli: int, old: Lineage, new_tli: int, new: Lineage) -> list[Stretch]:
    """Return the parts of the old server's path that are not on the new one's; none if the new one has the whole path.

    Args:
        old, new: the ancestors of both timelines.

    Raises:
        WalproxyError: they have no common timeline.
    """
    old_path: list[tuple[int, Lsn | None]] = [*old, (old_tli, None)]
    new_path: list[tuple[int, Lsn | None]] = [*new, (new_tli, None)]
    begin_lsn: Lsn | None = None
    for index, ((tli, end_lsn), (other, other_end_lsn)) in enumerate(zip(old_path, new_path, strict=False)):
        if tli != other:
            break
        if end_lsn == other_end_lsn:
            begin_lsn = end_lsn
            if end_lsn is None:
                return []
            continue
        # Here they part, at the lower of the two ends.
        fork_lsn = min(lsn for lsn in (end_lsn, other_end_lsn) if lsn is not None)
        if fork_lsn == end_lsn:
            return _stretches(old_path[index + 1 :], fork_lsn)
        return _stretches(old_path[index:], fork_lsn)
    else:
        raise WalproxyError(f"timelines {old_tli} and {new_tli} have the same ancestors, and are not the same")
    if begin_lsn is None:
        raise WalproxyError(f"timelines {old_tli} and {new_tli} have no common ancestor")
    return _stretches(old_path[index:], begin_lsn)


def _stretches(path: list[tuple[int, Lsn | None]], begin_lsn: Lsn) -> list[Stretch]:
    found = []
    for tli, end_lsn in path:
        found.append(Stretch(tli, begin_lsn, end_lsn))
        begin_lsn = end_lsn if end_lsn is not None else begin_lsn
    return found


def newest_tli(folder: Path) -> int:
    """Return the newest timeline of which a copy of pg_wal has a segment.

    Raises:
        WalproxyError: it has none.
    """
    tlis = [int(path.name[:8], 16) for path in folder.iterdir() if re.fullmatch("[0-9A-F]{24}", path.name)]
    if not tlis:
        raise WalproxyError(f"{folder} has no segment of WAL")
    return max(tlis)


def lineage_in(folder: Path, tli: int) -> Lineage:
    """Return the ancestors of a timeline by the history file in a copy of pg_wal.

    Raises:
        OSError: it is missing.
    """
    return () if tli == 1 else parse_timeline_history(tli, (folder / timeline_history_name(tli)).read_bytes())


def read_commits(pg_waldump: Path, folder: Path, stretch: Stretch, segment_size: int) -> list[CommittedTransaction]:
    """Return the commits of a stretch.

    Raises:
        WalproxyError: the WAL of its beginning is missing, or pg_waldump cannot read it.
    """
    first = segment_name(stretch.tli, segment_start(stretch.begin_lsn, segment_size), segment_size)
    if not (folder / first).exists():
        raise WalproxyError(f"{folder} lacks {first}, which has the fork at {format_lsn(stretch.begin_lsn)}")
    words = [str(pg_waldump), "-p", str(folder), "-t", str(stretch.tli), "-s", format_lsn(stretch.begin_lsn)]
    if stretch.end_lsn is not None:
        words += ["-e", format_lsn(stretch.end_lsn)]
    answer = subprocess.run(
        [*words, "-r", "Transaction"],
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
        env={**os.environ, "TZ": "UTC", "LC_ALL": "C"},
    )
    # It always ends with an error where the WAL ends.
    if answer.returncode != 0 and not any(end in answer.stderr for end in _ENDS):
        raise WalproxyError(f"pg_waldump failed: {' '.join(answer.stderr.split())}")
    return parse_commits(answer.stdout)


def parse_commits(text: str) -> list[CommittedTransaction]:
    """Return the commits that pg_waldump has printed."""
    found = (_COMMIT.match(line) for line in text.splitlines())
    return [
        CommittedTransaction(parse_lsn(each["lsn"]), int(each["xid"]), each["time"])
        for each in found
        if each is not None
    ]
