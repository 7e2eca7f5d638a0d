"""Tasks write files, the driver commits them.

The writers are made in a process of the driver's, which makes the table if it is missing, and are sent to the tasks.
A task returns what it has written. The file of a task that was killed is an orphan (`LakeTable.remove_orphans`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.opening import open_lake_table
from walproxy.pipeline.lake.parquet_files import DataFile
from walproxy.pipeline.lake.table import LakeTable
from walproxy.pipeline.sink.options import SinkOptions


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
