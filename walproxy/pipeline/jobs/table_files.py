"""A task of the run job: read and decode pieces of WAL once, and write one file for each table.

Each file is written in a thread of its own: pyarrow encodes and compresses outside of Python's lock, so that a task
decodes the next piece meanwhile. The files are no part of a table until the driver commits them.
"""

import queue
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self

import pyarrow as pa

from safekeeper.base.lsn import Lsn
from walproxy.pipeline.decoder.views import Piece, view_batch
from walproxy.pipeline.input.pieces import PlannedPiece, decode_piece
from walproxy.pipeline.lake.files import NewLakeFile
from walproxy.pipeline.lake.parquet_files import DataFile
from walproxy.pipeline.source.bounds import without_records_before
from walproxy.pipeline.source.tasks import input_of, workspace
from walproxy.wal_sources.source import LogPath

FILES_SCHEMA: Final = pa.schema(
    [
        pa.field("table", pa.string(), False),
        pa.field("path", pa.string(), True),
        pa.field("rows", pa.int64(), False),
        pa.field("bytes", pa.int64(), False),
        pa.field("begin_lsn", pa.int64(), False),
        pa.field("end_lsn", pa.int64(), False),
    ]
)
"""A task's report to the driver: a row for each table, without a path if it has no file, and the WAL that was read."""


class TablePart(NamedTuple):
    """One table, for a task.

    Attributes:
        columns: of the table, in the order of the view.
        held_lsn: the table holds everything before it already.
    """

    view: str
    columns: tuple[str, ...]
    new_file: NewLakeFile
    held_lsn: Lsn


class TaskPlan(NamedTuple):
    """The input of every task of a batch, besides its pieces. Can be pickled."""

    source: str
    archive_options: tuple[tuple[str, str], ...]
    path: LogPath
    check_crc: bool
    parts: tuple[TablePart, ...]


def write_pieces(plan: TaskPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the files of the pieces that `batches`, of the view `pieces`, describe; yield rows of FILES_SCHEMA."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    if not rows:
        return
    pieces = [PlannedPiece(row["begin_lsn"], row["end_lsn"], row["available_lsn"]) for row in rows]
    files = _written(plan, rows[0]["tli"], pieces)
    written = [
        {
            "table": part.view,
            "path": file.path if file is not None else None,
            "rows": file.rows if file is not None else 0,
            "bytes": file.bytes if file is not None else 0,
            "begin_lsn": pieces[0].begin_lsn,
            "end_lsn": pieces[-1].end_lsn,
        }
        for part, file in zip(plan.parts, files, strict=True)
    ]
    yield pa.RecordBatch.from_pylist(written, FILES_SCHEMA)


def _written(plan: TaskPlan, tli: int, pieces: Sequence[PlannedPiece]) -> list[DataFile | None]:
    """Return the file of each table."""
    wal_input = input_of(plan.source, plan.archive_options)
    # A timeline may have begun since the pieces were planned.
    path = plan.path if plan.path.tli == tli else wal_input.log_path(tli)
    with _Files(plan.parts) as files:
        for piece in pieces:
            parts = [part for part in plan.parts if part.held_lsn < piece.end_lsn]
            if not parts:
                continue
            decoded = decode_piece(wal_input, path, piece, check_crc=plan.check_crc, workspace=workspace())
            for part in parts:
                begin_lsn, wanted = piece.begin_lsn, decoded
                if begin_lsn < part.held_lsn:
                    begin_lsn = part.held_lsn
                    wanted = without_records_before(decoded, begin_lsn)
                bounds = Piece(begin_lsn, piece.end_lsn)
                files.put(part.view, view_batch(part.view, wanted, bounds, part.columns, dictionaries=True))
        return files.finish()


class _Files:
    """The files of a task, one for each table. Left without `finish`, none of them stays."""

    def __init__(self, parts: Sequence[TablePart]) -> None:
        self._writers = {part.view: _Writer(part.new_file) for part in parts}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            for writer in self._writers.values():
                writer.give_up()

    def put(self, view: str, batch: pa.RecordBatch) -> None:
        """Add rows to the file of a table."""
        self._writers[view].put(batch)

    def finish(self) -> list[DataFile | None]:
        """Return the file of each table, durably written; None where there are no rows."""
        return [writer.finish() for writer in self._writers.values()]


class _GivenUp(Exception):
    """Tells a writer that its task has failed."""


class _Writer:
    """One file, written by a thread."""

    def __init__(self, new_file: NewLakeFile) -> None:
        self._batches: queue.Queue[pa.RecordBatch | _GivenUp | None] = queue.Queue(1)
        self._file: DataFile | None = None
        self._error: BaseException | None = None
        self._new_file = new_file
        self._thread = threading.Thread(target=self._write, args=(new_file,), name="table file", daemon=True)
        self._thread.start()

    def _write(self, new_file: NewLakeFile) -> None:
        try:
            self._file = new_file.write(self._taken())
        except _GivenUp:
            return
        except BaseException as error:  # It is raised in `put` or `finish`; no thread must wait until then.
            self._error = error
            while isinstance(self._batches.get(), pa.RecordBatch):
                pass

    def _taken(self) -> Iterator[pa.RecordBatch]:
        while (batch := self._batches.get()) is not None:
            if isinstance(batch, _GivenUp):
                raise batch
            yield batch

    def put(self, batch: pa.RecordBatch) -> None:
        if self._error is not None:
            raise self._error
        self._batches.put(batch)

    def finish(self) -> DataFile | None:
        self._batches.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._file

    def give_up(self) -> None:
        """End the thread, and let its file not stay."""
        if self._thread.is_alive():
            self._batches.put(_GivenUp())
            self._thread.join()
        if self._file is not None:
            self._new_file.remove(self._file)
