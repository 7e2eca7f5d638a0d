"""Which pieces a task reads, and how it reads them: shared by the batch source, the stream and the jobs."""

import functools
import os
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from safekeeper.base.lsn import Lsn
from walproxy.pipeline.input.opening import open_input
from walproxy.pipeline.input.pieces import PlannedPiece
from walproxy.pipeline.input.wal_input import WalInput
from walproxy.pipeline.source.options import PIECES, PIECES_SCHEMA, SourceOptions
from walproxy.wal_sources.source import LogPath

if TYPE_CHECKING:
    from walproxy.pipeline.decoder.decode import Workspace

T = TypeVar("T")

# A task costs Spark 75 to 95 ms; 128 MiB of WAL take a core from 0.1 s up to a second.
_TASK_BYTES_MIN: Final = 128 << 20
_TASK_BYTES_MAX: Final = 256 << 20
_TASKS_PER_CORE: Final = 2


class WalPartition(InputPartition):
    """The WAL that one task reads.

    Attributes:
        path: the log.
        pieces: parts of it, ascending.
        first_lsn: records before it, on the page where the first piece begins, are left out.
    """

    def __init__(self, path: LogPath, pieces: tuple[PlannedPiece, ...], first_lsn: Lsn) -> None:
        super().__init__(None)
        self.path = path
        self.pieces = pieces
        self.first_lsn = first_lsn


def partitions_of(
    path: LogPath, pieces: Sequence[PlannedPiece], options: SourceOptions, first_lsn: Lsn | None
) -> list[WalPartition]:
    """Return the tasks that read the records of `pieces` that begin at or after `first_lsn`."""
    groups = grouped(pieces, options.segments_per_task, options.cores or os.cpu_count() or 1)
    return [WalPartition(path, group, first_lsn or 0) for group in groups]


def grouped(
    pieces: Sequence[PlannedPiece], segments_per_task: int | None, cores: int
) -> list[tuple[PlannedPiece, ...]]:
    """Return pieces in groups, in order: so large that a task is worth its start, so small that no core is idle."""
    if segments_per_task is not None:
        count = segments_per_task
        return [tuple(pieces[index : index + count]) for index in range(0, len(pieces), count)]
    total = sum(piece.end_lsn - piece.begin_lsn for piece in pieces)
    wanted = max(total / (_TASKS_PER_CORE * cores), min(_TASK_BYTES_MIN, total / cores))
    wanted = min(wanted, _TASK_BYTES_MAX)
    groups: list[list[PlannedPiece]] = []
    taken = 0
    for piece in pieces:
        # A group is closed when the sum of all before has passed its share: sizes even out over the groups.
        if not groups or taken >= wanted * len(groups):
            groups.append([])
        groups[-1].append(piece)
        taken += piece.end_lsn - piece.begin_lsn
    return [tuple(group) for group in groups]


@functools.lru_cache(maxsize=4)
def input_of(path: str, archive_options: tuple[tuple[str, str], ...]) -> WalInput:
    """Return the input of these options; a worker that does one task after the other opens it once."""
    return open_input(path, dict(archive_options))


@functools.lru_cache(maxsize=1)
def workspace() -> "Workspace":
    """Return the memory in which this process decodes."""
    from walproxy.pipeline.decoder.decode import Workspace

    return Workspace()


def read_partition(partition: WalPartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, a batch for each piece."""
    if options.view == PIECES:
        yield pieces_batch(partition)
    else:
        yield from prefetched(_decoded_rows(partition, options))


def pieces_batch(partition: WalPartition) -> pa.RecordBatch:
    """Return the rows of the view `pieces`."""
    rows = [(*piece, partition.path.tli) for piece in partition.pieces]
    columns = [pa.array(column, pa.int64()) for column in zip(*rows, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=PIECES_SCHEMA)


def _decoded_rows(partition: WalPartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    from walproxy.pipeline.decoder.views import Piece, view_batch
    from walproxy.pipeline.input.pieces import decode_piece
    from walproxy.pipeline.source.bounds import without_records_before

    wal_input = input_of(options.path, options.archive_options)
    for piece in partition.pieces:
        decoded = decode_piece(wal_input, partition.path, piece, check_crc=options.check_crc, workspace=workspace())
        begin_lsn = max(piece.begin_lsn, partition.first_lsn)
        if piece.begin_lsn < begin_lsn:
            decoded = without_records_before(decoded, begin_lsn)
        yield view_batch(options.view, decoded, Piece(begin_lsn, piece.end_lsn), options.columns)


class _Failed(NamedTuple):
    error: BaseException


_END: Final = object()


def prefetched(items: Iterable[T]) -> Iterator[T]:
    """Yield the items; the next one is made in a thread of its own while the present one is used.

    What makes them waits for disks and networks and calls compiled code, which let other threads run meanwhile.
    """
    ready: queue.Queue[object] = queue.Queue(1)
    stopped = threading.Event()

    def put(item: object) -> bool:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.5)
            except queue.Full:
                continue
            return True
        return False

    def make() -> None:
        try:
            for item in items:
                if not put(item):
                    return
            put(_END)
        except BaseException as error:  # It is raised where the items are used.
            put(_Failed(error))

    thread = threading.Thread(target=make, name="prefetch", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not _END:
            if isinstance(item, _Failed):
                raise item.error
            yield item  # type: ignore[misc]
    finally:
        stopped.set()
        thread.join()
