"""Tables of an object store in DuckDB, without an extension of DuckDB: `walproxy/pipeline/duck.py` queries them.

DuckDB reads each table as an Arrow dataset, whose files delta-rs finds and fetches: it gets only the columns that the
statement names, and only the files whose bounds can match. It reads no file and no URL by itself.
"""

from collections.abc import Collection
from typing import NamedTuple

import duckdb
import pyarrow as pa
from duckdb import DuckDBPyConnection

from safekeeper.base.errors import ConfigurationError, ObjectMissing, StorageFailed, WalproxyError
from walproxy.pipeline.lake.errors import lake_error
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.opening import find_lake_table, find_names
from walproxy.pipeline.lake.parquet_files import schema_difference


class LakeTables(NamedTuple):
    """The tables of a location in an object store. See `QueriedTables`."""

    location: LakeLocation

    @property
    def folder(self) -> None:
        return None

    def names(self) -> list[str]:
        return find_names(self.location)

    def add(
        self, connection: DuckDBPyConnection, name: str, schema: pa.Schema | None, optional: Collection[str] = ()
    ) -> pa.Schema:
        place = self.location.below(name)
        table = find_lake_table(place)
        if table is None:
            way_out = "" if place.catalog else ": if it is an Iceberg table, set iceberg_catalog"
            raise ConfigurationError(f"{place} has no {'Iceberg' if place.catalog else 'Delta'} table{way_out}")
        with table:
            difference = schema_difference(table.schema, schema, optional) if schema is not None else None
            if difference is not None:
                raise ConfigurationError(f"the table {place} has other columns: {difference}")
            connection.register(name, table.dataset())
            return table.schema

    def file(self, name: str) -> bytes | None:
        try:
            return self.location.store().get(name)
        except ObjectMissing:
            return None

    def failure(self, error: duckdb.Error) -> WalproxyError | None:
        failure = lake_error(error, f"read the tables in {self.location}", self.location)
        return None if isinstance(failure, StorageFailed) else failure  # The store did not cause it.

    def __str__(self) -> str:
        return str(self.location)
