"""The class that Spark finds under the name `pgcdc`: row changes of a PostgreSQL database.

Spark imports this module in short-lived processes, again for each query: it imports nothing but Spark's own classes,
and what does the work is imported where it is used.
"""

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType


class PgcdcDataSource(DataSource):
    """Changes of rows, as walproxy/pipeline/cdc/rows.py describes them; options: walproxy/pipeline/cdc/options.py."""

    @classmethod
    def name(cls) -> str:
        return "pgcdc"

    def schema(self) -> StructType:
        from walproxy.pipeline.cdc.options import CdcOptions
        from walproxy.pipeline.cdc.spark_readers import spark_schema

        return spark_schema(CdcOptions.parse(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from walproxy.pipeline.cdc.options import CdcOptions
        from walproxy.pipeline.cdc.spark_readers import PgcdcReader

        return PgcdcReader(CdcOptions.parse(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from walproxy.pipeline.cdc.options import CdcOptions
        from walproxy.pipeline.cdc.spark_readers import PgcdcStreamReader

        return PgcdcStreamReader(CdcOptions.parse(self.options))
