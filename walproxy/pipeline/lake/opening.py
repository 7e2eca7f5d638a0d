"""A table by its location and name, and which tables a location has.

Tables in a folder are those of `walproxy/pipeline/tables`, in every format. Tables in an object store are Iceberg
tables if the location has a catalog, otherwise Delta tables. pyiceberg, whose import takes two seconds, is imported
only then.
"""

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

import pyarrow as pa

from safekeeper.base.errors import ConfigurationError
from walproxy.pipeline.choices import TableFormat
from walproxy.pipeline.lake.delta import DeltaLake
from walproxy.pipeline.lake.files import NewLakeFile
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.table import LakeTable
from walproxy.pipeline.tables import After, DataFile, NewFile, find_tables, open_table
from walproxy.pipeline.tables.compaction import TARGET_BYTES, Compaction
from walproxy.pipeline.tables.parquet_files import LiveFile, normal_schema, schema_difference
from walproxy.pipeline.tables.table import Removal
from walproxy.pipeline.tables.table_folder import check_table_name


class AppendedTable(Protocol):
    """A table that batches are added to, wherever it is. See `Table` and `LakeTable`."""

    @property
    def format(self) -> TableFormat: ...

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> pa.Schema: ...

    def new_file(self, stem: str = "part") -> NewFile | NewLakeFile: ...

    def last_batch(self, writer: str) -> int | None: ...

    def commit(
        self,
        writer: str | None,
        batch: int | None,
        files: Sequence[DataFile],
        properties: Mapping[str, str] | None = None,
        after: After | None = None,
    ) -> bool: ...

    def live_files(self) -> list[LiveFile]: ...

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table: ...

    def compact(
        self,
        target_bytes: int = TARGET_BYTES,
        *,
        dry_run: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Compaction: ...

    def expire(self, keep_s: float, *, dry_run: bool = False) -> Removal: ...

    def remove_orphans(self, older_than_s: float, *, dry_run: bool = False) -> Removal: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


def open_lake_table(
    location: LakeLocation, name: str, format: TableFormat | None = None, schema: pa.Schema | None = None
) -> AppendedTable:
    """Open a table of a location.

    Args:
        format: what the table must be; None: whatever it is.
        schema: make the table if it is not there; its columns must be these.

    Raises:
        ConfigurationError: there is no such table, it has another format or other columns, or another program made it.
            Nothing was written.
        ArchiveError, StorageFull, StorageFailed.
    """
    if location.folder is not None:
        return open_table(location.url, name, format, schema, create=schema is not None)
    check_table_name(name)
    check_format(location, format)
    place = location.below(name)
    table = find_lake_table(place, schema)
    if table is None:
        raise ConfigurationError(f"{location} has no table {name!r}: create it by writing to it")
    difference = schema_difference(table.schema, normal_schema(schema)) if schema is not None else None
    if difference is not None:
        table.close()
        raise ConfigurationError(f"the table {place} has other columns: {difference}; write to another table")
    return table


def find_lake_table(place: LakeLocation, schema: pa.Schema | None = None) -> LakeTable[Any] | None:
    """Open the table at a place in an object store; None if there is none.

    Args:
        schema: make the table if it is not there, with these columns, to write to it.

    Raises:
        ConfigurationError: the format has no type for a column, or another program made the table that is to be
            written.
        ArchiveError, StorageFailed.
    """
    if place.catalog:
        from walproxy.pipeline.lake.iceberg import IcebergLake

        return IcebergLake.open(place, schema)
    table = DeltaLake.open(place, schema)
    if table is not None and schema is not None and not table.is_ours:
        raise ConfigurationError(f"{place} is a Delta table that another program made: name another folder or table")
    return table


def find_names(location: LakeLocation) -> list[str]:
    """Return the names of the tables of a location, sorted. Raises ConfigurationError, StorageFailed, ArchiveError."""
    if location.folder is not None:
        return [table.name for table in find_tables(location.folder)]
    if location.catalog:
        from walproxy.pipeline.lake.iceberg import table_names

        return table_names(location)
    return [name for name in sorted(location.store().entries()[0]) if not name.startswith("_")]


def check_format(location: LakeLocation, format: TableFormat | None) -> None:
    """See that tables of a location in an object store can have a format, None: any. Raises ConfigurationError."""
    if format == "iceberg" and not location.catalog:
        raise ConfigurationError(
            f"Iceberg tables in {location} need a catalog: set --iceberg-catalog to "
            "uri=postgresql+psycopg://HOST/NAME, to uri=https://HOST (REST), or to name=NAME of ~/.pyiceberg.yaml, or "
            "leave --format out for Delta"
        )
    if format == "delta" and location.catalog:
        raise ConfigurationError(f"Delta tables in {location} have no catalog: remove --iceberg-catalog")
    if format == "parquet":
        raise ConfigurationError(
            "tables in an object store have the format delta, or iceberg with --iceberg-catalog, not parquet: leave "
            "--format out, or name a folder"
        )
