"""The class that Spark finds under the name `pgwal`.

Spark imports this module in short-lived processes, again for each query: it imports nothing but Spark's own classes,
and what does the work is imported where it is used.
"""

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType


class PgwalDataSource(DataSource):
    """WAL of an archive, of safekeepers or of a folder, as one of the views of walproxy/pipeline/schemas.py."""

    @classmethod
    def name(cls) -> str:
        return "pgwal"

    def schema(self) -> str:
        from walproxy.pipeline.source.options import SourceOptions

        return SourceOptions.parse(self.options).ddl()

    def reader(self, schema: StructType) -> DataSourceReader:
        from walproxy.pipeline.source.batch import PgwalReader
        from walproxy.pipeline.source.options import SourceOptions

        return PgwalReader(SourceOptions.parse(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from walproxy.pipeline.source.options import SourceOptions
        from walproxy.pipeline.source.stream import PgwalStreamReader

        return PgwalStreamReader(SourceOptions.parse(self.options))
