"""Measure the cost of readers of a safekeeper's WAL for commits: any visible cost is a defect.

Three safekeepers whose disks are 2 ms slower than this machine's, one load, and alternately: no readers; one slow
reader; ten readers; one that has stopped reading; all of them on one safekeeper, which a quorum does not need, or the
same on each, where a quorum cannot go round it. Reported is the median of each case's commit time over that without
readers in the same round.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import parse_lsn, segment_start
from walproxy.lab.bench import commit_load
from walproxy.lab.bench.commit_cases import CommitCell, CommitFigures, CommitTurn
from walproxy.lab.bench.reader_process import ReaderProcess
from walproxy.lab.bench.wal_readers import READING, SLOW, STOPPED
from walproxy.lab.cluster.local_cluster import LocalCluster

# A slow or stopped reader begins that far back, or at the log's base: there must be WAL that it does not read.
_BACKLOG_BYTES = 32 << 20
NOBODY = "nobody"


class Case(NamedTuple):
    """The readers: `readers` of a kind at each of the safekeepers."""

    kind: str
    readers: int
    safekeepers: tuple[int, ...]


CASES = {
    NOBODY: Case(READING, 0, ()),
    "one slow": Case(SLOW, 1, (1,)),
    "ten": Case(READING, 10, (1,)),
    "one stopped": Case(STOPPED, 1, (1,)),
    "one slow on each": Case(SLOW, 1, (1, 2, 3)),
    "one on each": Case(READING, 1, (1, 2, 3)),
    "one stopped on each": Case(STOPPED, 1, (1, 2, 3)),
}


class ReaderTurn(CommitTurn, frozen=True):
    """The measurements of one turn; `read_bytes` is the WAL that each reader got."""

    read_bytes: list[int]


class ReaderResult(msgspec.Struct, frozen=True):
    """The medians of one case; `to_nobody` is that of the rounds' ratios of `p50_ms`, between `low` and `high`.

    `p99_to_nobody` is the same of `p99_ms`.
    """

    case: str
    clients: int
    tps: float
    p50_ms: float
    p99_ms: float
    to_nobody: float | None
    low: float | None
    high: float | None
    p99_to_nobody: float | None


def take_turn(cluster: LocalCluster, number: int, cell: CommitCell, seconds: float) -> ReaderTurn:
    """Let the case's readers stream, and measure the load.

    Raises:
        WalproxyError: a reader that was to read has lost its safekeeper.
    """
    case = CASES[cell.case]
    if not case.readers:
        times = commit_load.measure(cluster.postgres, cell.clients, seconds)
        return ReaderTurn(number, *cell, *times, [])
    with _readers(cluster, case) as readers:
        times = commit_load.measure(cluster.postgres, cell.clients, seconds)
        read_bytes = readers.end()
    return ReaderTurn(number, *cell, *times, read_bytes)


def compare_readers(turns: Sequence[ReaderTurn]) -> list[ReaderResult]:
    """Return the medians of each case, by clients and then in the order of CASES."""
    figures = CommitFigures(turns, CASES)
    return [ReaderResult(cell.case, cell.clients, *figures.against(cell, NOBODY)) for cell in figures.cells]


def _readers(cluster: LocalCluster, case: Case) -> ReaderProcess:
    end_lsn = cluster.commit_lsn()
    statuses = [status for i in case.safekeepers if (status := cluster.safekeepers[i].status()) is not None]
    if len(statuses) < len(case.safekeepers):
        raise WalproxyError("a safekeeper of the benchmark does not answer")
    log_begin_lsn = max(parse_lsn(status["wal_begin_lsn"]) for status in statuses)
    back_bytes = 0 if case.kind == READING else _BACKLOG_BYTES
    begin_lsn = segment_start(max(end_lsn - back_bytes, log_begin_lsn), statuses[0]["segment_size"])
    conninfos = [cluster.standby_conninfo(i) for i in case.safekeepers]
    return ReaderProcess(case.kind, case.readers, conninfos, begin_lsn, end_lsn)
