"""A source of WAL for programs: its views, as Arrow record batches.

    open_wal(SOURCE) -> Wal --plan_pieces--> pieces --decode_piece, view_batch (threads)--> batches in order of the log

A `Wal` keeps no position: each call looks at the source again, and reads the WAL that is there then. The same decoder
and the same views serve the jobs and Spark; here nothing is between them and the caller.
"""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Final, TypeAlias

import pyarrow as pa

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import Lsn, parse_lsn
from walproxy.pipeline.decoder.decode import Workspace
from walproxy.pipeline.decoder.views import Piece, view_batch
from walproxy.pipeline.input.opening import open_input
from walproxy.pipeline.input.pieces import THREADS, PlannedPiece, cut, decode_piece, in_order, plan_pieces
from walproxy.pipeline.input.times import begin_of_time, end_of_time
from walproxy.pipeline.input.wal_input import NO_OPTIONS, WalInput
from walproxy.pipeline.schemas import arrow_schema
from walproxy.pipeline.source.bounds import without_records_before
from walproxy.wal_sources.source import Extent, LogPath

Bound: TypeAlias = Lsn | str | datetime
"""A position in the log: an LSN as a number or as PostgreSQL prints it, or a time with a time zone."""

_READ_AHEAD: Final = 1


def open_wal(
    source: str | os.PathLike[str],
    *,
    options: Mapping[str, str] = NO_OPTIONS,
    timeline: int | None = None,
    check_crc: bool = True,
    threads: int = THREADS,
) -> "Wal":
    """Return the WAL of a source. A remote one is not connected yet.

    Args:
        source: a folder, s3://, gs://, az:// or safekeeper://HOST:PORT; see docs/guide/pgwal.md.
        options: settings of the store by obstore's names, e.g. endpoint and region, or parameters of libpq.
        timeline: this one with its ancestors; by default the newest one, looked up at each call.
        check_crc: compare the checksum of each record.
        threads: the number of pieces that are decoded at once.

    Raises:
        ConfigurationError: the source, or an option, cannot be used.
    """
    if threads < 1:
        raise ConfigurationError(f"threads cannot be {threads}: write a number above zero")
    return Wal(open_input(os.fspath(source), options), timeline, check_crc, threads)


class Wal:
    """The WAL of a source. Blocking; may be used by several threads at once.

    All methods raise SourceUnavailable if the source cannot be read now, SourceCorrupt if its bytes are not valid WAL,
    and WalMissing if it lacks WAL.

    Attributes:
        name: the source, as in messages, without credentials.
    """

    def __init__(self, wal_input: WalInput, timeline: int | None, check_crc: bool, threads: int) -> None:
        self._input = wal_input
        self._timeline = timeline
        self._check_crc = check_crc
        self._threads = threads
        self.name = wal_input.name

    def __repr__(self) -> str:
        return f"<WAL of {self.name}>"

    @property
    def system_id(self) -> int:
        """The system identifier of the server that wrote the WAL."""
        return self._input.origin().system_id

    @property
    def segment_size(self) -> int:
        """The size of a segment in bytes."""
        return self._input.origin().segment_size

    def timeline(self) -> int:
        """Return the timeline that is read: the newest one, unless one was named."""
        return self._input.log_path(self._timeline).tli

    def extents(self) -> list[Extent]:
        """Return the ranges [begin_lsn, end_lsn) of WAL that are there now, ascending, with gaps between them."""
        return self._input.extents(self._input.log_path(self._timeline))

    def batches(
        self,
        view: str = "records",
        *,
        columns: Sequence[str] | None = None,
        begin: Bound | None = None,
        end: Bound | None = None,
        allow_gaps: bool = False,
    ) -> pa.RecordBatchReader:
        """Return a view of the records that begin in [begin, end), a batch for each piece, in the order of the log.

        A piece is at most one segment, and at most 16 MiB. Pieces are decoded in threads while the batches are read,
        a few ahead. Reading can end at any batch.

        Args:
            view: one of VIEWS.
            columns: only these, in the order of the view; all by default.
            begin: by default the first record that is there. A time: the first transaction that ended at or after it.
            end: by default the end of the WAL. A time: the last transaction that ended at or before it; no batch if
                there is none after `begin`.
            allow_gaps: skip WAL that is missing, and log that.

        Raises:
            ConfigurationError: there is no such view or column, a bound is not valid, or the range is empty.
        """
        schema = arrow_schema(view, columns)
        names = schema.names if columns is not None else None
        path = self._input.log_path(self._timeline)
        extents = self._input.extents(path)
        begin_lsn = self._bound(path, extents, "begin", begin)
        end_lsn = self._bound(path, extents, "end", end)
        pieces: list[PlannedPiece] = []
        if not (isinstance(end, datetime) and end_lsn is not None and end_lsn <= (begin_lsn or extents[0].begin_lsn)):
            pieces = cut(plan_pieces(path, extents, begin_lsn, end_lsn, allow_gaps=allow_gaps))
        return pa.RecordBatchReader.from_batches(schema, self._decoded(path, pieces, begin_lsn or 0, view, names))

    def table(
        self,
        view: str = "records",
        *,
        columns: Sequence[str] | None = None,
        begin: Bound | None = None,
        end: Bound | None = None,
        allow_gaps: bool = False,
    ) -> pa.Table:
        """Return what `batches` does as one table, in memory.

        Raises:
            As `batches`.
        """
        return self.batches(view, columns=columns, begin=begin, end=end, allow_gaps=allow_gaps).read_all()

    def _bound(self, path: LogPath, extents: Sequence[Extent], name: str, bound: Bound | None) -> Lsn | None:
        if isinstance(bound, str):
            return parse_lsn(bound)
        if not isinstance(bound, datetime):
            if bound is not None and bound < 0:
                raise ConfigurationError(f"{name} cannot be {bound}: an LSN is not negative")
            return bound
        if bound.tzinfo is None:
            raise ConfigurationError(f"{name} cannot be {bound.isoformat()}: a time needs a time zone")
        if not extents:
            return None
        return (begin_of_time if name == "begin" else end_of_time)(self._input, path, extents, bound)

    def _decoded(
        self, path: LogPath, pieces: Sequence[PlannedPiece], first_lsn: Lsn, view: str, names: Sequence[str] | None
    ) -> Iterator[pa.RecordBatch]:
        workspaces = threading.local()

        def read(piece: PlannedPiece) -> pa.RecordBatch:
            if not hasattr(workspaces, "own"):
                workspaces.own = Workspace()
            decoded = decode_piece(self._input, path, piece, check_crc=self._check_crc, workspace=workspaces.own)
            begin_lsn = max(piece.begin_lsn, first_lsn)
            if piece.begin_lsn < begin_lsn:
                decoded = without_records_before(decoded, begin_lsn)
            return view_batch(view, decoded, Piece(begin_lsn, piece.end_lsn), names)

        with ThreadPoolExecutor(self._threads, "pgwal") as pool:
            yield from in_order(pool, read, pieces, self._threads + _READ_AHEAD)
