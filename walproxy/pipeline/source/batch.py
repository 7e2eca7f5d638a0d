"""The batch reader: what is there now, or the part of it that the options name."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from walproxy.pipeline.source.options import SourceOptions
from walproxy.pipeline.source.tasks import WalPartition


class PgwalReader(DataSourceReader):
    """Reads one view of the WAL between two LSNs."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        from walproxy.pipeline.input.pieces import plan_pieces
        from walproxy.pipeline.source.bounds import bounds_of
        from walproxy.pipeline.source.tasks import input_of, partitions_of

        options = self._options
        wal_input = input_of(options.path, options.archive_options)
        path = wal_input.log_path(options.tli)
        extents = wal_input.extents(path)
        begin_lsn, end_lsn = bounds_of(options, wal_input, path, extents)
        if options.end_time is not None and end_lsn is not None and (begin_lsn or extents[0].begin_lsn) >= end_lsn:
            return []  # Nothing happened in that time.
        pieces = plan_pieces(path, extents, begin_lsn, end_lsn, allow_gaps=options.allow_gaps)
        return partitions_of(path, pieces, options, begin_lsn)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from walproxy.pipeline.source.tasks import read_partition

        if isinstance(partition, WalPartition):  # Spark makes one of its own where there are none.
            yield from read_partition(partition, self._options)
