"""A table by its folder and name, and which tables a folder holds.

The formats' libraries are imported only when a table of theirs is opened: pyiceberg takes two seconds.
"""

from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from safekeeper.base.errors import ConfigurationError
from walproxy.pipeline.choices import TableFormat
from walproxy.pipeline.tables.disk import Disk, storage_errors
from walproxy.pipeline.tables.parquet_files import normal_schema
from walproxy.pipeline.tables.table import Table
from walproxy.pipeline.tables.table_folder import (
    FORMATS,
    Identity,
    check_identity,
    folder_of,
    identity_of,
    local_folder,
    read_identity,
    what_is_in,
    write_identity,
)

_FOREIGN: Final = frozenset("%?")
"""Characters of paths that the libraries take for parts of a URL."""


class FoundTable(NamedTuple):
    """A table of a folder."""

    name: str
    format: TableFormat


def open_table(
    url_or_folder: str | Path,
    name: str,
    format: TableFormat | None = None,
    schema: pa.Schema | None = None,
    *,
    create: bool = True,
) -> Table:
    """Open a table; what another process left unfinished is finished with the first use.

    Args:
        format: what the table must be; None: whatever it is.
        schema: what its columns must be; None: whatever they are.
        create: make the table if it is not there; then format and schema are needed.

    Raises:
        ConfigurationError: there is no such table, it has another format or other columns, or the folder has other
            content. Nothing was written.
        StorageFull, StorageFailed.
    """
    folder = folder_of(url_or_folder, name)
    if format is not None and format not in FORMATS:
        raise ConfigurationError(f"unknown table format {format!r}: use one of {', '.join(FORMATS)}")
    with storage_errors(f"open the table {folder}"):
        identity = read_identity(folder) or _made(folder, name, format, schema, create=create)
        check_identity(folder, identity, format, schema)
        table = _table_class(identity.format)(folder, identity.schema())
        table.prepare()
        return table


def _made(folder: Path, name: str, format: TableFormat | None, schema: pa.Schema | None, *, create: bool) -> Identity:
    """Give a folder the identity of a new table, unless another process is faster."""
    foreign = what_is_in(folder)
    if foreign is not None:
        identity = read_identity(folder)  # Another process may have made the table just now.
        if identity is None:
            raise ConfigurationError(f"{folder} has no table of walproxy, but {foreign}: name another folder or table")
        return identity
    if not create or format is None or schema is None:
        raise ConfigurationError(f"{folder.parent} has no table {name!r}: create it by writing to it")
    if format != "parquet" and set(str(folder)) & _FOREIGN:
        raise ConfigurationError(
            f"the path {folder} has a '%' or '?', which {format}'s libraries misinterpret: name another folder"
        )
    schema = normal_schema(schema)
    _table_class(format).check_schema(schema)
    return write_identity(Disk(), folder, identity_of(format, schema))


def _table_class(table_format: TableFormat) -> type[Table]:
    if table_format == "parquet":
        from walproxy.pipeline.tables.parquet_table import ParquetTable

        return ParquetTable
    if table_format == "delta":
        from walproxy.pipeline.tables.delta_table import DeltaLakeTable

        return DeltaLakeTable
    from walproxy.pipeline.tables.iceberg_table import IcebergTable

    return IcebergTable


def find_tables(url_or_folder: str | Path) -> list[FoundTable]:
    """Return the tables of a folder, by name; none if there is no such folder.

    Raises:
        ConfigurationError: a table's identity cannot be understood.
        StorageFailed: the folder cannot be read.
    """
    folder = local_folder(url_or_folder)
    with storage_errors(f"read the folder {folder}"):
        paths = sorted(folder.iterdir()) if folder.is_dir() else []
        found = [(path, read_identity(path)) for path in paths]
    return [FoundTable(path.name, identity.format) for path, identity in found if identity is not None]
