"""Tasks write files, the driver commits them; and a query's options about the table that it writes to.

The writers are made in a process of the driver's, which makes the table if it is missing, and are sent to the tasks.
A task returns what it has written. The file of a task that was killed is an orphan (`LakeTable.remove_orphans`).

A stream's batches are numbered by Spark, and the numbers are kept in the stream's checkpoint. So the writer's name must
belong to the checkpoint: by default it is the id that Spark has written into it. A stream that begins again with
another checkpoint is another writer, whose batch 0 is not taken for one that is in the table already.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from safekeeper.base.errors import ConfigurationError
from walproxy.pipeline.choices import TABLE_FORMATS, TableFormat
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.names import local_folder
from walproxy.pipeline.lake.opening import open_lake_table
from walproxy.pipeline.lake.parquet_files import DataFile
from walproxy.pipeline.lake.table import LakeTable

OPTIONS: Final = {
    "path": "the folder of the tables",
    "table": "the table's name",
    "tableFormat": "delta or iceberg, of a new table; by default delta",
    "writer": "name of the writer; for a stream by default the id in its checkpoint",
    "batch": "number of the batch, for a batch query with a writer: written once, however often the query runs",
    "checkpointLocation": "of the stream: read for the default of writer",
}


class SinkOptions(NamedTuple):
    """The table to write to, and the writer's name.

    Attributes:
        writer: None for rows that are added without a look at what was added before.
        batch: of a batch query with a writer.
    """

    path: str
    table: str
    format: TableFormat | None
    writer: str | None
    batch: int | None

    @classmethod
    def parse(cls, options: Mapping[str, str], *, overwrite: bool, streaming: bool = False) -> "SinkOptions":
        """Return the parsed options of Spark. The names of options are taken in any case.

        Raises:
            ConfigurationError: an option is missing, unknown or makes no sense.
        """
        given = {name.lower(): value for name, value in options.items()}
        known = {name.lower() for name in OPTIONS}
        unknown = sorted(given.keys() - known)
        if unknown:
            raise ConfigurationError(f"pgtable has no option {unknown[0]!r}: it has {', '.join(OPTIONS)}")
        if overwrite:
            raise ConfigurationError("pgtable only adds rows: use mode('append')")
        for name in ("path", "table"):
            if not given.get(name):
                raise ConfigurationError(f"pgtable needs the option {name!r}: {OPTIONS[name]}")
        table_format = given.get("tableformat")
        if table_format is not None and table_format not in TABLE_FORMATS:
            raise ConfigurationError(f"unknown table format {table_format!r}: use one of {', '.join(TABLE_FORMATS)}")
        writer, batch = given.get("writer") or None, _number(given.get("batch"))
        if streaming:
            if batch is not None:
                raise ConfigurationError("a stream numbers its batches itself: leave out the option 'batch'")
            writer = writer or _writer_of_checkpoint(given.get("checkpointlocation"))
        elif (writer is None) != (batch is None):
            raise ConfigurationError("a batch query has both options 'writer' and 'batch', or neither")
        local_folder(given["path"])
        return cls(given["path"], given["table"], table_format, writer, batch)


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal():
        raise ConfigurationError(f"the option 'batch' is {text!r}, not a number")
    return int(text)


def _writer_of_checkpoint(location: str | None) -> str:
    """Return the name of the writer whose batches a checkpoint numbers."""
    if not location:
        raise ConfigurationError(
            "a stream needs the option 'writer' or 'checkpointLocation', given to the stream itself"
        )
    path = local_folder(location) / "metadata"
    try:
        identity = json.loads(path.read_text())["id"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"the stream's id cannot be read from {path}: {error}; name the writer by the option 'writer'"
        ) from error
    return f"spark-{identity}"


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The file that a task has written; none if it had no rows."""

    file: DataFile | None


class _Writer:
    """The common part of batches and streams."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        with self._open(to_arrow_schema(schema, timezone="UTC")) as table:
            self._new_file = table.new_file()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task. Runs in the task."""
        schema = self._new_file.schema
        return Written(self._new_file.write(batch.cast(schema) for batch in iterator))

    def _open(self, schema: pa.Schema | None) -> LakeTable[Any]:
        options = self._options
        return open_lake_table(LakeLocation.parse(options.path), options.table, options.format, schema)

    def _commit(self, messages: Iterable[WriterCommitMessage | None], batch: int | None) -> None:
        with self._open(None) as table:
            table.commit(self._options.writer, batch, _files(messages))

    def _abort(self, messages: Iterable[WriterCommitMessage | None]) -> None:
        with self._open(None) as table:
            table.discard(_files(messages))


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Writes the rows of a batch query."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages, self._options.batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the batches of a stream."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._abort(messages)


def _files(messages: Iterable[WriterCommitMessage | None]) -> Sequence[DataFile]:
    return [message.file for message in messages if isinstance(message, Written) and message.file is not None]
