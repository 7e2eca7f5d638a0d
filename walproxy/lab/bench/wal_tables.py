"""Measure how fast WAL is decoded and written as tables, compared with pg_waldump on the same files.

    waldump-stats, waldump-text   pg_waldump, one process
    decode                        the decoder with checksums, one thread
    lsn, flat, records            Spark's rows of the view `records`: one column, all but `blocks`, all columns
    table                         `pipeline run` with the table `records`, the block references nested in it
    two-tables                    `pipeline run` with the tables `records` and `blocks`, as it makes them by default
    relation_volume, ...          views that are summed up in the tasks
    next-query                    a query of a session that is warm, in seconds, whatever the WAL's size

Everything reads the same folder of segments, which the page cache holds. Figures are per second of WAL, in megabytes
of 10**6 bytes. The session is warm: its start, and the compiling that a first query takes, are not in them.
"""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any, NamedTuple

import msgspec

from safekeeper.base.errors import WalproxyError
from safekeeper.base.logs import one_line
from safekeeper.base.lsn import format_lsn
from walproxy.lab.bench.rounds import ratio
from walproxy.lab.bench.wal_folder import WalFolder
from walproxy.lab.bench.wal_runs import write_tables

STATS, TEXT, NEXT_QUERY = "waldump-stats", "waldump-text", "next-query"
_AGGREGATED = ("relation_volume", "page_versions", "transactions", "tuple_stats")
_TABLES = {"table": ("records",), "two-tables": ("records", "blocks")}
CASES = (STATS, TEXT, "decode", "lsn", "flat", "records", *_TABLES, *_AGGREGATED, NEXT_QUERY)


class TableCell(NamedTuple):
    """The case that is measured once a round: one of CASES."""

    case: str


class TableTurn(msgspec.Struct, frozen=True):
    """The measurements of one turn."""

    round: int
    case: str
    seconds: float
    wal_bytes: int


class TableResult(msgspec.Struct, frozen=True):
    """The medians of one case over the rounds.

    Attributes:
        seconds: of a turn.
        mb_s: megabytes of WAL a second, between `low` and `high`; None where it is not about the WAL's size.
        to_stats, to_text: median of the rounds' ratios of speed to that of pg_waldump.
    """

    case: str
    seconds: float
    mb_s: float | None
    low: float | None
    high: float | None
    to_stats: float | None
    to_text: float | None


class Subject:
    """The input of turns: WAL, and a Spark session that is warm.

    Attributes:
        records: how many there are in the WAL.
    """

    def __init__(self, wal: WalFolder, spark: Any, directory: Path) -> None:
        self.records = _decode(wal)
        self._wal = wal
        self._spark = spark
        self._directory = directory

    def take_turn(self, number: int, case: str) -> TableTurn:
        """Measure one case.

        Raises:
            WalproxyError: what was started failed.
        """
        return TableTurn(number, case, self._measure(case), self._wal.wal_bytes)

    def warm_up(self) -> None:
        """Let everything be compiled and started once."""
        for case in CASES:
            if case not in (STATS, TEXT):
                self._measure(case)

    def _measure(self, case: str) -> float:
        if case in (STATS, TEXT):
            return _timed(lambda: _waldump(self._wal, ("--stats",) if case == STATS else ()))
        if case == "decode":
            return _timed(lambda: _decode(self._wal))
        if case in _TABLES:
            return write_tables(self._wal.folder, self._directory / "tables", _TABLES[case])
        if case == NEXT_QUERY:
            return _timed(self._query)
        view = case if case in _AGGREGATED else "records"
        return _timed(lambda: self._read(view, _columns(case)))

    def _read(self, view: str, columns: str) -> None:
        """Let Spark read all rows of a view, and do nothing with them."""
        reader = self._spark.read.format("pgwal").option("path", str(self._wal.folder)).option("view", view)
        if columns:
            reader = reader.option("columns", columns)
        reader.load().write.format("noop").mode("overwrite").save()

    def _query(self) -> None:
        """Ask a question about a little WAL."""
        reader = self._spark.read.format("pgwal").option("path", str(self._wal.folder))
        reader = reader.option("view", "relation_volume").option("endLsn", format_lsn(self._wal.begin_lsn + (1 << 20)))
        if not reader.load().groupBy("rmgr").sum("wal_bytes").collect():
            raise WalproxyError("a query of the first MiB of WAL has found no record")


@contextmanager
def warm_session(wal: WalFolder, directory: Path) -> Iterator[Subject]:
    """Yield what turns are taken with, everything compiled and started.

    Raises:
        ConfigurationError: there is no Java, or a library is missing.
    """
    from walproxy.pipeline.spark_session import spark_session

    with spark_session("walproxy bench") as spark:
        subject = Subject(wal, spark, directory)
        subject.warm_up()
        yield subject


def compare_tables(turns: Sequence[TableTurn]) -> list[TableResult]:
    """Return the medians, in the order of CASES."""
    speeds = {(turn.round, TableCell(turn.case)): turn.wal_bytes / 1e6 / turn.seconds for turn in turns}
    results = []
    for case in CASES:
        mine = [turn for turn in turns if turn.case == case]
        if not mine:
            continue
        seconds = median(turn.seconds for turn in mine)
        if case == NEXT_QUERY:
            results.append(TableResult(case, seconds, None, None, None, None, None))
            continue
        own = [speed for (_, cell), speed in speeds.items() if cell.case == case]
        to_stats, to_text = (ratio(speeds, TableCell(case), TableCell(base)) for base in (STATS, TEXT))
        results.append(
            TableResult(
                case,
                seconds,
                median(own),
                min(own),
                max(own),
                to_stats.median if to_stats is not None else None,
                to_text.median if to_text is not None else None,
            )
        )
    return results


def _columns(case: str) -> str:
    """Return the columns that Spark reads in a case, none for all of them."""
    from walproxy.pipeline.schemas import arrow_schema

    if case == "flat":
        return ",".join(name for name in arrow_schema("records").names if name != "blocks")
    return "lsn" if case == "lsn" else ""


def _timed(work: Callable[[], object]) -> float:
    began_at = monotonic()
    work()
    return monotonic() - began_at


def _waldump(wal: WalFolder, options: Sequence[str]) -> None:
    command = [str(wal.binaries.path("pg_waldump")), "--path", str(wal.folder), *options]
    command += ["--start", format_lsn(wal.begin_lsn), "--end", format_lsn(wal.end_lsn)]
    answer = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if answer.returncode:
        raise WalproxyError(f"pg_waldump failed: {one_line(answer.stderr[-500:])}")


def _decode(wal: WalFolder) -> int:
    """Decode all segments with what the tasks use; return how many records there are."""
    from walproxy.pipeline.input.opening import open_input
    from walproxy.pipeline.input.pieces import decode_piece, plan_pieces
    from walproxy.pipeline.source.tasks import workspace

    wal_input = open_input(str(wal.folder), {})
    path = wal_input.log_path()
    pieces = plan_pieces(path, wal_input.extents(path), wal.begin_lsn, wal.end_lsn)
    return sum(decode_piece(wal_input, path, piece, workspace=workspace()).count for piece in pieces)
