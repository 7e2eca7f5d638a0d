"""Tables of WAL, kept up to date: `walproxy pipeline run`.

    input --latestOffset--> Spark's stream of pieces --tasks--> one Parquet file a table --driver--> commit

One streaming query, whose rows are only the pieces of WAL to read. Its tasks read and decode each piece once and
write one file for each table; the driver commits them to the tables, and WAL never passes through the JVM.

**Exactly once.** A table's commit holds, in the same atomic step as the rows, up to which LSN it has them: the number
of a batch is the LSN at its end. That is all that a restart goes by. It begins at the lowest LSN of its tables, and a
table is given no record before its own. So a batch can be repeated, cut differently, or be committed to some of the
tables only when the process is killed: what is missing is added, and nothing twice. Each commit names the position that
the table is believed to have (rule X1): if another run has changed it, this one ends. A table that is new is filled
from the beginning, while the others wait. Spark's own checkpoint is created again at each start.

**Stop.** The batch that runs is finished, and no other one is begun. That takes `drain_timeout_s` at most, even if
Spark does not respond: then its JVM is killed, the batch is dropped, and the next run repeats it.

`_run/run.json` in the folder of the tables has the system whose WAL they contain and their position on its timelines,
and `_run/lock` is held as long as a run, or the JVM that it has started, is there.
"""

import contextlib
import functools
import logging
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from safekeeper.base.errors import ArchiveUnavailable, ConfigurationError
from safekeeper.base.lsn import Lsn, format_lsn
from walproxy.pipeline.choices import DEFAULT_TABLES, TableFormat
from walproxy.pipeline.input.wal_input import WalInput
from walproxy.pipeline.jobs.run_folder import RunFolder
from walproxy.pipeline.jobs.table_files import FILES_SCHEMA, TablePart, TaskPlan, write_pieces
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.opening import open_lake_table
from walproxy.pipeline.lake.parquet_files import DataFile
from walproxy.pipeline.lake.position import After
from walproxy.pipeline.lake.probe import require_single_winner
from walproxy.pipeline.lake.table import LakeTable
from walproxy.pipeline.schemas import arrow_schema, optional_columns, spark_ddl
from walproxy.pipeline.source.options import PIECES, SourceOptions
from walproxy.pipeline.source.stream import Offset
from walproxy.pipeline.source.tasks import input_of
from walproxy.pipeline.spark_errors import SparkFailed, WorkerLate, spark_errors
from walproxy.pipeline.spark_session import check_java, spark_session
from walproxy.wal_sources.source import LogPath, SourceUnavailable

_log = logging.getLogger(__name__)
_WAIT_S: Final = 0.2
_RETRY_S_MIN: Final = 1.0
_RETRY_S_MAX: Final = 30.0
# How often a run that ends is begun again on a machine that is too slow for Spark's limit.
_LATE_MAX: Final = 20
_SILENCE_S: Final = 10.0


class RunConfig(NamedTuple):
    """The options of a run.

    Attributes:
        source: the input, as `open_input` takes it.
        tables_at: where the tables are.
        format: of new tables; None for the one that is usual there.
        options: further options of the source `pgwal`, such as `archive.endpoint`, `timeline` or `allowGaps`.
        once: end when what is there now is in the tables.
        interval_s: how often the input is checked for new WAL.
        batch_bytes_max: how much WAL a batch has at most.
        start: where to begin when there are no tables yet, an LSN; None for where the WAL begins.
        checkpoint: the folder of Spark's own checkpoint, created again at each start; None for beside the tables.
        drain_timeout_s: after a request to stop, the time until the batch that runs is dropped.
        cores: how many to use; None for all.
        memory: of Spark's JVM.
        master: the URL of a cluster's master; None for this machine.
        spark_settings: further settings of Spark.
    """

    source: str
    tables_at: LakeLocation
    format: TableFormat | None
    tables: tuple[str, ...] = DEFAULT_TABLES
    options: tuple[tuple[str, str], ...] = ()
    once: bool = False
    interval_s: float = 1.0
    batch_bytes_max: int = 256 << 20
    start: Lsn | None = None
    checkpoint: Path | None = None
    drain_timeout_s: float = 45.0
    cores: int | None = None
    memory: str = "1g"
    master: str | None = None
    spark_settings: tuple[tuple[str, str], ...] = ()


class BatchDone(NamedTuple):
    """A batch is in the tables.

    Attributes:
        begin_lsn, end_lsn: its WAL.
        available_lsn: where the WAL of the input ends.
        rows: added to each table.
        seconds: from its beginning until it was committed.
    """

    begin_lsn: Lsn
    end_lsn: Lsn
    available_lsn: Lsn
    rows: dict[str, int]
    seconds: float

    @property
    def lag_bytes(self) -> int:
        """The amount of WAL that is available and not yet in the tables."""
        return max(self.available_lsn - self.end_lsn, 0)


class Waiting(NamedTuple):
    """The input does not answer, or a process of Spark did not start in time; it is repeated.

    Attributes:
        reason: one line.
    """

    reason: str


class RunEnd(NamedTuple):
    """The run is over.

    Attributes:
        lsn: the tables have everything before it.
        batches, rows: what this run has added.
    """

    lsn: Lsn
    batches: int
    rows: int


Report = Callable[[BatchDone | Waiting | RunEnd], None]


def run(config: RunConfig, report: Report, stop: threading.Event) -> None:
    """Add what the input has to the tables, and go on doing so until `stop` is set.

    Args:
        report: called with what happens, also by other threads.
        stop: the batch that runs is finished, no other one begun; within `drain_timeout_s`.

    Raises:
        ConfigurationError: the tables hold something else, another run is at work, or there is no Java.
        TableMoved: another run has written to a table meanwhile.
        WalMissing, SourceCorrupt: the input does not have what comes next.
        SourceUnavailable, ArchiveUnavailable: with `once`, it does not answer.
    """
    check_java()
    for name in config.tables:
        arrow_schema(name)
    folder = RunFolder(config.tables_at)
    with folder.locked() as lock_fd, contextlib.ExitStack() as stack:
        job = _Job(config, folder, report, stop)
        stack.callback(job.close)
        job.open()
        session = spark_session(
            "walproxy pipeline run",
            master=config.master or f"local[{config.cores or '*'}]",
            memory=config.memory,
            quick=True,
            settings=dict(config.spark_settings),
            inherited_fds=(lock_fd,),
            stop=stop,
            stop_timeout_s=config.drain_timeout_s,
        )
        try:
            with session as spark:
                job.work(spark)
        except SparkFailed as error:
            if not stop.is_set():
                raise
            _log.warning("stopped without waiting for Spark; the next run repeats an unfinished batch: %s", error)
        report(RunEnd(job.lsn, job.batches, job.rows))


class _Job:
    """A run at work.

    Attributes:
        lsn: every table holds the WAL before it.
        batches, rows: what was added so far.
    """

    def __init__(self, config: RunConfig, folder: RunFolder, report: Report, stop: threading.Event) -> None:
        self.config = config
        self.lsn: Lsn = 0
        self.batches = 0
        self.rows = 0
        self._folder = folder
        self._report = report
        self._stop = stop
        self._options = self._source_options(None)
        self._input: WalInput = input_of(self._options.path, self._options.archive_options)
        self._tables: dict[str, LakeTable[Any]] = {}
        self._committed: dict[str, Lsn | None] = {}  # What each table has, None for nothing (rule X1).
        self._held: dict[str, Lsn] = {}
        self._committing = threading.Lock()
        self._moved_s = 0.0

    def _source_options(self, start: Lsn | None) -> SourceOptions:
        return SourceOptions.parse(self._spark_options(start))

    def _spark_options(self, start: Lsn | None) -> dict[str, str]:
        return {
            **dict(self.config.options),
            "path": self.config.source,
            "view": PIECES,
            "maxBytesPerTrigger": str(self.config.batch_bytes_max),
            **({"startLsn": format_lsn(start)} if start is not None else {}),
            **({"cores": str(self.config.cores)} if self.config.cores is not None else {}),
        }

    @property
    def _writer(self) -> str:
        return f"walproxy-{self._input.origin().system_id}"

    def open(self) -> None:
        """Open the tables, and see whether what they hold goes together with the input."""
        path = self._input.log_path(self._options.tli)
        place = self.config.tables_at
        if place.folder is None and not place.catalog:
            require_single_winner(place.object_store())
        self._folder.check(self._input, path)
        for name in self.config.tables:
            self._tables[name] = open_lake_table(
                place,
                name,
                self.config.format,
                arrow_schema(name),
                optional=optional_columns(name),
                omitted=("blocks",) if name == "records" and "blocks" in self.config.tables else (),
            )
        self._check_references()
        self._read_positions()
        if self.config.start is not None and self.lsn < self.config.start:
            raise ConfigurationError(
                f"the tables in {self.config.tables_at} have the WAL up to {format_lsn(self.lsn)}: beginning at "
                f"{format_lsn(self.config.start)} would leave a gap; leave --start out, or name another folder"
            )
        self._folder.remember(Offset.of(self._input.origin().system_id, path, self.lsn))

    def _check_references(self) -> None:
        """See that the block references of all records are written, in one of two tables (ADR 0080)."""
        records = self._tables.get("records")
        if records is not None and "blocks" not in records.schema.names and "blocks" not in self._tables:
            raise ConfigurationError(
                f"the table {records.location} has its block references in the table blocks: name both in --tables"
            )

    def _read_positions(self) -> None:
        """Read what each table has: a commit whose reply was lost may be in."""
        for name, table in self._tables.items():
            self._committed[name] = table.last_batch(self._writer)
            self._held[name] = self._committed[name] or self.config.start or 0
        self.lsn = min(self._held.values())

    def close(self) -> None:
        """Close the tables."""
        for table in self._tables.values():
            table.close()

    def work(self, spark: SparkSession) -> None:
        """Run the stream, and begin it again when the input did not answer for a while, or Spark was too slow."""
        retry_s, late = _RETRY_S_MIN, 0
        while not self._stop.is_set():
            before_lsn = self.lsn
            try:
                self._read_positions()
                self._stream(spark)
                return
            except (SourceUnavailable, ArchiveUnavailable) as error:
                if self.config.once:
                    raise
                self._report(Waiting(str(error)))
            except WorkerLate as error:
                late += 1
                if self.config.once and late == _LATE_MAX:
                    raise
                self._report(Waiting(str(error)))
            retry_s = _RETRY_S_MIN if self.lsn > before_lsn else min(2 * retry_s, _RETRY_S_MAX)
            self._stop.wait(retry_s)

    def _stream(self, spark: SparkSession) -> None:
        start = self.lsn or None
        # A folder of ours in the one that was named: it is removed with all that is in it.
        checkpoint = (self.config.checkpoint or self._folder.folder) / "walproxy-checkpoint"
        shutil.rmtree(checkpoint, ignore_errors=True)
        reader = spark.readStream.format("pgwal").options(**self._spark_options(start))
        with spark_errors():
            writer = reader.load().writeStream.foreachBatch(self._batch)
            writer = writer.option("checkpointLocation", checkpoint.absolute().as_uri())
            if self.config.once:
                writer = writer.trigger(availableNow=True)
            else:
                writer = writer.trigger(processingTime=f"{round(self.config.interval_s * 1000)} milliseconds")
            self._wait(writer.start())

    def _wait(self, query: StreamingQuery) -> None:
        self._moved_s = time.monotonic()
        while not query.awaitTermination(_WAIT_S):
            if self._stop.is_set():
                self._finish_batch()
                query.stop()
                return
            if not self.config.once and time.monotonic() > self._moved_s + _SILENCE_S:
                self._moved_s = time.monotonic()
                self._ask_why()

    def _finish_batch(self) -> None:
        """Return when the batch that runs is in the tables.

        The lock must not be held while the query is stopped: Spark waits until its call of `_batch` has returned, and
        one that came a moment ago waits for the lock. No batch begins when the lock is free again: `_stop` is set.

        Raises:
            SparkFailed: it takes too long.
        """
        if not self._committing.acquire(timeout=self.config.drain_timeout_s):
            raise SparkFailed(f"the batch did not end within {self.config.drain_timeout_s:g} s")
        self._committing.release()

    def _ask_why(self) -> None:
        """No new WAL has come for a while: report it if the reason is that the input does not answer."""
        try:
            self._input.extents(self._input.log_path(self._options.tli))
        except (SourceUnavailable, ArchiveUnavailable) as error:
            self._report(Waiting(str(error)))

    def _batch(self, pieces: DataFrame, number: int) -> None:
        """Carry out one batch. Called by Spark, in a thread of its own."""
        with self._committing:
            if self._stop.is_set():
                return
            began_s = time.monotonic()
            path = self._input.log_path(self._options.tli)
            parts = [
                TablePart(name, tuple(table.schema.names), table.new_file(), self._held[name])
                for name, table in self._tables.items()
            ]
            plan = TaskPlan(
                self._options.path, self._options.archive_options, path, self._options.check_crc, tuple(parts)
            )
            written = pieces.mapInArrow(functools.partial(write_pieces, plan), spark_ddl(FILES_SCHEMA)).toArrow()
            if written.num_rows:
                self._commit(path, written.to_pylist(), began_s)

    def _commit(self, path: LogPath, written: Sequence[dict[str, Any]], began_s: float) -> None:
        """Commit the files that the tasks have written, to each table those that are its."""
        begin_lsn = max(min(row["begin_lsn"] for row in written), self.lsn)
        end_lsn = max(row["end_lsn"] for row in written)
        rows = {}
        for name, table in self._tables.items():
            if self._held[name] >= end_lsn:
                continue
            files = [
                DataFile(row["path"], row["rows"], row["bytes"])
                for row in written
                if row["table"] == name and row["path"] is not None
            ]
            properties = {"begin_lsn": format_lsn(max(begin_lsn, self._held[name]))}
            after = After(self._committed[name], format_lsn)
            table.commit(self._writer, end_lsn, files, properties, after)
            self._committed[name] = self._held[name] = end_lsn
            rows[name] = sum(file.rows for file in files)
        self.lsn = min(self._held.values())
        self._folder.remember(Offset.of(self._input.origin().system_id, path, self.lsn))
        available_lsn = end_lsn
        with contextlib.suppress(SourceUnavailable, ArchiveUnavailable):
            available_lsn = self._input.extents(path)[-1].end_lsn
        self._moved_s = time.monotonic()
        self.batches += 1
        self.rows += sum(rows.values())
        self._report(BatchDone(begin_lsn, end_lsn, available_lsn, rows, time.monotonic() - began_s))
