"""The class that Spark finds under the name `pgtable`.

Spark imports this module in short-lived processes, again for each query: it imports nothing but Spark's own classes,
and what does the work is imported where it is used.
"""

from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType


class PgtableDataSource(DataSource):
    """A table in Delta or Iceberg, to be appended to.

    stream.writeStream.format("pgtable").option("path", "/data/tables").option("table", "records")
        .option("tableFormat", "delta").option("checkpointLocation", "/data/checkpoints/records").start()
    """

    @classmethod
    def name(cls) -> str:
        return "pgtable"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from walproxy.pipeline.sink.writers import BatchWriter, SinkOptions

        return BatchWriter(SinkOptions.parse(self.options, overwrite=overwrite), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from walproxy.pipeline.sink.writers import SinkOptions, StreamWriter

        return StreamWriter(SinkOptions.parse(self.options, overwrite=overwrite, streaming=True), schema)
