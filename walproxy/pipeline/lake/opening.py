"""A table by its location and name, and which tables a location has.

Tables in a folder are those of `walproxy/pipeline/tables`, in every format; tables in an object store are Delta tables.
"""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa

from safekeeper.base.errors import ConfigurationError
from walproxy.pipeline.choices import STORE_FORMAT, TableFormat
from walproxy.pipeline.lake.delta import DeltaLake
from walproxy.pipeline.lake.files import NewLakeFile
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.tables import After, DataFile, NewFile, open_table
from walproxy.pipeline.tables.parquet_files import normal_schema, schema_difference
from walproxy.pipeline.tables.table_folder import check_table_name


class AppendedTable(Protocol):
    """What a job needs of a table that it adds batches to, wherever it is. See `Table` and `LakeTable`."""

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

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table: ...

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
    if format not in (None, STORE_FORMAT):
        raise ConfigurationError(
            f"tables in an object store have the format {STORE_FORMAT}, not {format}: leave --format out, or name a "
            "folder"
        )
    place = location.below(name)
    table = DeltaLake.open(place, schema)
    if table is None:
        raise ConfigurationError(f"{location} has no table {name!r}: create it by writing to it")
    if schema is not None:
        if not table.is_ours:
            raise ConfigurationError(
                f"{place} is a Delta table that another program made: name another folder or table"
            )
        difference = schema_difference(table.schema, normal_schema(schema))
        if difference is not None:
            raise ConfigurationError(f"the table {place} has other columns: {difference}; write to another table")
    return table
