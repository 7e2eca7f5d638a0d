"""Spark's readers of a slot: once (a batch, which does not move the slot) or as a stream.

A stream's offset is a position: everything that was committed below it has been read. The range between two offsets
gives the same rows whenever it is read, as long as the slot is not moved beyond its beginning; so a batch that is
repeated after a crash is the same batch. The slot is moved only in `commit`, which Spark calls when a batch is in its
checkpoint, after the sink has it. Whoever writes to a table of his own must have it there by then.

One task reads a range: a slot serves one reader at a time.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from safekeeper.base.errors import ConfigurationError, WalproxyError
from safekeeper.base.lsn import Lsn, format_lsn, parse_lsn
from walproxy.pipeline.cdc.column_types import arrow_type
from walproxy.pipeline.cdc.options import CdcOptions
from walproxy.pipeline.cdc.published_tables import PublishedTable, published_tables
from walproxy.pipeline.cdc.reading import SlotReader
from walproxy.pipeline.cdc.rows import CHANGES_SCHEMA, TypedTable, change_batches, typed_batches, typed_schema
from walproxy.pipeline.cdc.safe_lsn import SafeLsn
from walproxy.pipeline.cdc.server import Connection, SourceRefused, SourceUnavailable, connect, system_id
from walproxy.pipeline.cdc.slot import advance

_log = logging.getLogger(__name__)


class RangePartition(InputPartition):
    """The transactions whose commit record begins in [begin_lsn, end_lsn)."""

    def __init__(self, begin_lsn: Lsn, end_lsn: Lsn) -> None:
        super().__init__(None)
        self.begin_lsn = begin_lsn
        self.end_lsn = end_lsn


def spark_schema(options: CdcOptions) -> StructType:
    """Return the columns of the rows; of one table, as the publication has them now.

    Raises:
        SourceRefused: the table is not in the publication.
        SourceUnavailable: the server does not answer.
    """
    typed = _typed_table(options)
    schema = CHANGES_SCHEMA if typed is None else typed_schema(typed)
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def fields_of(
    table: PublishedTable, text_columns: frozenset[str] = frozenset(), *, lists: bool = False
) -> tuple[pa.Field, ...]:
    """Return the columns of a table with their Arrow types; what is declared as an array of several dimensions is text.

    Args:
        lists: arrays of built-in types are lists.
    """
    return tuple(
        pa.field(
            column.name,
            pa.string()
            if column.name in text_columns
            else arrow_type(column.type_oid, column.type_modifier, lists=lists and column.dimensions <= 1),
        )
        for column in table.columns
    )


def _typed_table(options: CdcOptions) -> TypedTable | None:
    if options.table is None:
        return None
    with closing(connect(options.conninfo)) as connection:
        tables = {each.table: each for each in published_tables(connection, options.publications)}
    if options.table not in tables:
        raise SourceRefused(
            f"{options.table} is not in publication {', '.join(options.publications)}: add it with ALTER PUBLICATION, "
            "or name one of its tables"
        )
    known = {column.name for column in tables[options.table].columns}
    for name in options.text_columns - known:
        raise ConfigurationError(f"textColumns: {options.table} has no column {name!r}")
    return TypedTable(options.table, fields_of(tables[options.table], options.text_columns, lists=options.lists))


class _Reader:
    """The common part of a batch and a stream. Spark pickles it for its tasks: connections are made where needed."""

    def __init__(self, options: CdcOptions) -> None:
        self._options = options
        self._typed = _typed_table(options)

    def _slot_reader(self) -> SlotReader:
        options = self._options
        return SlotReader(
            options.slot,
            options.publications,
            SafeLsn(options.status),
            options.stream,
            options.memory_bytes,
            quorum_timeout_s=options.quorum_timeout_s,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)  # by partitions() of both
        conninfo = self._options.conninfo
        with closing(connect(conninfo)) as connection, closing(connect(conninfo)) as asking:
            changes = self._slot_reader().read(connection, asking, partition.begin_lsn, partition.end_lsn)
            if self._typed is None:
                yield from change_batches(changes)
            else:
                yield from typed_batches(changes, self._typed)

    def _begin_lsn(self, connection: Connection) -> Lsn:
        """Return where to begin without an offset."""
        confirmed_lsn = self._slot_reader().check(connection)
        start_lsn = self._options.start_lsn
        if start_lsn is None:
            return confirmed_lsn
        if start_lsn < confirmed_lsn:
            raise SourceRefused(
                f"startLsn is {format_lsn(start_lsn)}, slot {self._options.slot!r} no longer has changes below "
                f"{format_lsn(confirmed_lsn)}: begin there, or leave startLsn out"
            )
        return start_lsn


class PgcdcReader(_Reader, DataSourceReader):
    """Reads what a slot has now, and leaves it there."""

    def partitions(self) -> Sequence[InputPartition]:
        with closing(connect(self._options.conninfo)) as connection:
            begin_lsn = self._begin_lsn(connection)
            end_lsn = self._slot_reader().safe_lsn.read(connection)
        if self._options.end_lsn is not None:
            end_lsn = min(end_lsn, self._options.end_lsn)
        # Spark asks for rows even when there is no partition.
        return [RangePartition(begin_lsn, max(begin_lsn, end_lsn))]


class PgcdcStreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a slot as it grows, and moves it after what is in Spark's checkpoint."""

    def __init__(self, options: CdcOptions) -> None:
        if options.end_lsn is not None:
            raise ConfigurationError("a stream has no endLsn: read a batch, or use the trigger availableNow")
        super().__init__(options)
        self._target_lsn: Lsn | None = None  # of the trigger AvailableNow: what comes later is not read
        self._connection: Connection | None = None

    def initialOffset(self) -> dict[str, Any]:
        connection = self._connected()
        return self._offset(system_id(connection), self._begin_lsn(connection))

    def getDefaultReadLimit(self) -> ReadLimit:
        size = self._options.max_bytes_per_trigger
        return ReadAllAvailable() if size is None else ReadMaxBytes(size)

    def prepareForTriggerAvailableNow(self) -> None:
        connection = self._connected()
        self._slot_reader().check(connection)
        self._target_lsn = self._slot_reader().safe_lsn.read(connection)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        identity, begin_lsn = self._parse(start)
        try:
            connection = self._connected()
            if system_id(connection) != identity:
                raise SourceRefused(
                    f"the checkpoint is of the cluster {identity}, the server is of {system_id(connection)}: name the "
                    "server that the checkpoint was made from, or begin with a new checkpoint"
                )
            self._slot_reader().check(connection)
            end_lsn = self._slot_reader().safe_lsn.read(connection)
        except SourceUnavailable as error:
            self.stop()
            if self._target_lsn is not None:
                raise
            _log.warning("%s; retrying with the next batch", error)
            return start
        if self._target_lsn is not None:
            end_lsn = min(end_lsn, self._target_lsn)
        if isinstance(limit, ReadMaxBytes):
            end_lsn = min(end_lsn, begin_lsn + limit.max_bytes)
        return start if end_lsn <= begin_lsn else self._offset(identity, end_lsn)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        try:
            connection = self._connected()
            return self._offset(system_id(connection), self._slot_reader().safe_lsn.read(connection))
        except WalproxyError:
            return None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin_lsn, end_lsn = self._parse(start)[1], self._parse(end)[1]
        return [RangePartition(begin_lsn, end_lsn)] if begin_lsn < end_lsn else []

    def commit(self, end: dict[str, Any]) -> None:
        try:
            advance(self._connected(), self._options.slot, self._parse(end)[1])
        except SourceUnavailable as error:
            self.stop()
            _log.warning("%s; retrying with the next batch", error)

    def stop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None}

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._options.conninfo)
        return self._connection

    def _offset(self, identity: int, lsn: Lsn) -> dict[str, Any]:
        return {"system_id": str(identity), "slot": self._options.slot, "lsn": format_lsn(lsn)}

    def _parse(self, offset: dict[str, Any]) -> tuple[int, Lsn]:
        """Return (system id, position) of an offset; one of another slot may have been read there only in part."""
        try:
            identity, slot, lsn = int(offset["system_id"]), offset["slot"], parse_lsn(offset["lsn"])
        except (KeyError, TypeError, ValueError, ConfigurationError):
            raise ConfigurationError(f"the checkpoint has no offset of pgcdc, but {offset}: use another one") from None
        if slot != self._options.slot:
            raise ConfigurationError(
                f"the checkpoint is of slot {slot!r}, not {self._options.slot!r}: name that slot, or another checkpoint"
            )
        return identity, lsn
