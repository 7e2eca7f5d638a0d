"""The stream: WAL as it arrives, batch after batch, each record in exactly one of them.

Spark asks `latestOffset` for the end of the next batch, writes it into the checkpoint, and then asks for the tasks of
the batch. After a crash it asks for the same batch again, and gets the same rows: a batch has the records that begin in
it, and ends where one of them ends (`safe_end`), or at a page's boundary after which the last one is known to be
there. So a batch never waits in its midst for WAL to come, and the last commit of a quiet server is not left out.

The newest timeline is followed: WAL is read through the forks of its ancestors. A position on a timeline which the
newest one does not contain is refused (`Offset`).
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from safekeeper.base.errors import ArchiveUnavailable, ConfigurationError
from safekeeper.base.lsn import Lsn, format_lsn, parse_lsn
from safekeeper.waldecode.format import PAGE_SIZE
from walproxy.pipeline.input.pieces import plan_pieces, safe_end
from walproxy.pipeline.input.wal_input import SAFEKEEPER_SCHEME, WalInput
from walproxy.pipeline.source.bounds import bounds_of
from walproxy.pipeline.source.options import SourceOptions
from walproxy.pipeline.source.tasks import WalPartition, input_of, partitions_of, read_partition
from walproxy.wal_sources.source import Extent, LogPath, SourceUnavailable, WalMissing


class Offset(NamedTuple):
    """A position in a log: `lsn` is the end of a record, or a page's boundary."""

    system_id: int
    tli: int
    lsn: Lsn

    @classmethod
    def of(cls, system_id: int, path: LogPath, lsn: Lsn) -> "Offset":
        """Return the offset of `lsn` on `path`."""
        return cls(system_id, path.tli_of(max(lsn - 1, 0)), lsn)

    @classmethod
    def parse(cls, content: dict[str, Any]) -> "Offset":
        """Return the offset that a checkpoint holds.

        Raises:
            ConfigurationError: it holds no offset of ours.
        """
        try:
            return cls(int(content["system_id"]), int(content["tli"]), parse_lsn(content["lsn"]))
        except (KeyError, TypeError, ValueError, ConfigurationError):
            raise ConfigurationError(
                f"the checkpoint's offset {content} is not one of pgwal: begin again with another checkpoint folder"
            ) from None

    def content(self) -> dict[str, Any]:
        """Return what the checkpoint holds. Numbers of 64 bits are text: not every reader of JSON keeps them whole."""
        return {"system_id": str(self.system_id), "tli": self.tli, "lsn": format_lsn(self.lsn)}

    def check(self, wal_input: WalInput, path: LogPath, holder: str = "the checkpoint") -> None:
        """Make sure that this is a position of the log `path`.

        Args:
            holder: what has this offset, for messages.

        Raises:
            ConfigurationError: it is one of other WAL.
        """
        otherwise = "or begin again in another folder"
        system_id = wal_input.origin().system_id
        if system_id != self.system_id:
            raise ConfigurationError(
                f"{holder} is of the system {self.system_id}, and {wal_input.name} has the WAL of {system_id}: name "
                f"the input that it was made from, {otherwise}"
            )
        tli = path.tli_of(max(self.lsn - 1, 0))
        if tli != self.tli:
            ends = dict(path.lineage)
            left = f", which left it at {format_lsn(ends[self.tli])}" if self.tli in ends else ""
            raise ConfigurationError(
                f"{holder} reaches {format_lsn(self.lsn)} on timeline {self.tli}, which is not a part of timeline "
                f"{path.tli} of {wal_input.name}{left}: continue with timeline {self.tli}, {otherwise}"
            )


_log = logging.getLogger(__name__)


class PgwalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads one view of the WAL as it grows."""

    def __init__(self, options: SourceOptions) -> None:
        if options.end_time is not None:
            raise ConfigurationError("a stream has no endTime: give endLsn, or read a batch")
        self._options = options
        self._input = input_of(options.path, options.archive_options)
        self._target_lsn: Lsn | None = None  # Of the trigger AvailableNow: what comes later is not read.

    def initialOffset(self) -> dict[str, Any]:
        path = self._input.log_path(self._options.tli)
        extents = self._input.extents(path)
        if not extents:
            raise WalMissing(f"{self._input.name} has no WAL of timeline {path.tli} yet: begin once there is some")
        begin_lsn, _ = bounds_of(self._options, self._input, path, extents)
        if begin_lsn is None:
            begin_lsn = extents[0].begin_lsn
        return self._offset(path, begin_lsn)

    def getDefaultReadLimit(self) -> ReadLimit:
        size = self._options.max_bytes_per_trigger
        return ReadAllAvailable() if size is None else ReadMaxBytes(size)

    def prepareForTriggerAvailableNow(self) -> None:
        path = self._input.log_path(self._options.tli)
        extents = self._input.extents(path)
        self._target_lsn = safe_end(self._input, path, *extents[-1]) if extents else 0

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        offset = Offset.parse(start)
        try:
            path = self._input.log_path(self._options.tli)
            end_lsn = self._end_of_batch(offset, path, limit)
        except (SourceUnavailable, ArchiveUnavailable) as error:
            if self._target_lsn is not None:
                raise
            _log.warning("%s; retrying with the next batch", error)
            return start
        return start if end_lsn <= offset.lsn else self._offset(path, end_lsn)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        try:
            path = self._input.log_path(self._options.tli)
            extents = self._input.extents(path)
        except (SourceUnavailable, ArchiveUnavailable):
            return None
        return self._offset(path, extents[-1].end_lsn) if extents else None

    def _end_of_batch(self, offset: Offset, path: LogPath, limit: ReadLimit) -> Lsn:
        """Return where the next batch ends, at or before `offset` if there is nothing new."""
        offset.check(self._input, path)
        extent = self._extent_of(offset, path, self._input.extents(path))
        if extent is None:
            return offset.lsn
        begin_lsn = max(offset.lsn, extent.begin_lsn)
        page_lsn = begin_lsn - begin_lsn % PAGE_SIZE
        end_lsn = safe_end(self._input, path, begin_lsn, extent.end_lsn)
        if self._options.end_lsn is not None:
            end_lsn = min(end_lsn, -(-self._options.end_lsn // PAGE_SIZE) * PAGE_SIZE)
        if self._target_lsn is not None:
            end_lsn = min(end_lsn, self._target_lsn)
        if isinstance(limit, ReadMaxBytes):
            end_lsn = min(end_lsn, page_lsn + max(limit.max_bytes // PAGE_SIZE, 1) * PAGE_SIZE)
        return end_lsn

    def _extent_of(self, offset: Offset, path: LogPath, extents: Sequence[Extent]) -> Extent | None:
        """Return the WAL that the stream reads on in; None if there is nothing after its position yet.

        Raises:
            WalMissing: there is something, but not what comes next.
            ConfigurationError: all WAL ends before that position.
        """
        found = next((extent for extent in extents if extent.end_lsn > offset.lsn), None)
        if found is None:
            reach_lsn = extents[-1].end_lsn if extents else 0
            # A safekeeper may lag behind the previous one; an archive never goes back.
            if reach_lsn < offset.lsn and not self._options.path.startswith(f"{SAFEKEEPER_SCHEME}:"):
                raise ConfigurationError(
                    f"the stream is at {format_lsn(offset.lsn)}, and the WAL of {self._input.name} ends at "
                    f"{format_lsn(reach_lsn)}: name the archive that its checkpoint was made from"
                )
        elif found.begin_lsn > offset.lsn and not self._options.allow_gaps:
            plan_pieces(path, extents, offset.lsn, found.begin_lsn + 1)  # Its error names what is missing.
        return found

    def _offset(self, path: LogPath, lsn: Lsn) -> dict[str, Any]:
        return Offset.of(self._input.origin().system_id, path, lsn).content()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, reach = Offset.parse(start), Offset.parse(end)
        if reach.lsn <= begin.lsn:
            return []  # Spark carries out a first batch even if there is nothing in it.
        path = self._input.log_path(self._options.tli)
        begin.check(self._input, path)
        reach.check(self._input, path)
        extents = self._input.extents(path)
        end_lsn = reach.lsn if self._options.end_lsn is None else min(reach.lsn, self._options.end_lsn)
        pieces = plan_pieces(
            path, extents, begin.lsn, end_lsn, allow_gaps=self._options.allow_gaps, whole_until_lsn=reach.lsn
        )
        return partitions_of(path, pieces, self._options, begin.lsn)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, WalPartition)  # by partitions() above
        yield from read_partition(partition, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: reading WAL does not remove it."""
