"""A table by its location and name, and which tables a location has.

Tables in an object store are Iceberg tables if the location has a catalog, otherwise Delta tables. A folder can have
both: it has a catalog of its own for its Iceberg tables. pyiceberg, whose import takes two seconds, is imported only
for Iceberg.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from safekeeper.base.errors import ConfigurationError
from walproxy.pipeline.choices import TableFormat
from walproxy.pipeline.lake.delta import LOG, DeltaLake
from walproxy.pipeline.lake.disk import make_folder, storage_errors
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.names import check_table_name
from walproxy.pipeline.lake.parquet_files import schema_difference
from walproxy.pipeline.lake.table import LakeTable

_ICEBERG_METADATA: Final = "metadata"
_MISREAD: Final = frozenset("%?")
"""Characters of paths that the libraries take for parts of a URL."""


def open_lake_table(
    location: LakeLocation,
    name: str,
    format: TableFormat | None = None,
    schema: pa.Schema | None = None,
    *,
    create: bool = True,
    optional: Collection[str] = (),
    omitted: Collection[str] = (),
) -> LakeTable[Any]:
    """Open a table of a location.

    Args:
        format: what the table must be; None: whatever it is, and for a new one Delta unless the location has a catalog.
        schema: what its columns must be; None: whatever they are.
        create: make the table if it is not there and a schema is given.
        optional: columns of the schema that a table may lack.
        omitted: those of them that a new table lacks.

    Raises:
        ConfigurationError: there is no such table, it has another format or other columns, or another program made
            it. Nothing was written.
        ArchiveError, StorageFull, StorageFailed.
    """
    check_table_name(name)
    if location.folder is None:
        check_format(location, format)
    else:
        location = _of_format(location, location.folder, name, format, is_new=create and schema is not None)
    place = location.below(name)
    new_schema = None
    if create and schema is not None:
        new_schema = pa.schema([field for field in schema if field.name not in omitted])
    table = find_lake_table(place, new_schema)
    if table is None:
        raise ConfigurationError(f"{location} has no table {name!r}: create it by writing to it")
    difference = schema_difference(table.schema, schema, optional) if schema is not None else None
    if difference is not None:
        table.close()
        raise ConfigurationError(f"the table {place} has other columns: {difference}; write to another table")
    return table


def find_lake_table(place: LakeLocation, schema: pa.Schema | None = None) -> LakeTable[Any] | None:
    """Open the table at a place, an Iceberg table if that has a catalog; None if there is none.

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


def _of_format(
    location: LakeLocation, folder: Path, name: str, wanted: TableFormat | None, *, is_new: bool
) -> LakeLocation:
    """Return the location of a table in a folder, with the folder's catalog for an Iceberg table.

    Args:
        is_new: prepare the folder for a new table if it is not there.

    Raises:
        ConfigurationError: it has another format, or something else is there.
        StorageFull, StorageFailed.
    """
    place = folder / name
    with storage_errors(f"open the table {place}"):
        found = _format_in(place)
        if found is None:
            if not is_new:
                raise ConfigurationError(f"{location} has no table {name!r}: create it by writing to it")
            _check_path(place)
            make_folder(place.parent)
    if found is not None and wanted is not None and found != wanted:
        raise ConfigurationError(
            f"the table {place} has the format {found}, not {wanted}: name that one, or another folder"
        )
    return location.with_catalog_beside() if (found or wanted) == "iceberg" else location


def _check_path(place: Path) -> None:
    """See that a new table can be in a folder. Raises ConfigurationError."""
    if set(str(place)) & _MISREAD:
        raise ConfigurationError(
            f"the path {place} has a '%' or '?', which the libraries of tables misinterpret: name another folder"
        )


def _format_in(place: Path) -> TableFormat | None:
    """Return the format of the table in a folder, None if there is none.

    Raises:
        ConfigurationError: something else is there.
        OSError.
    """
    try:
        names = {path.name for path in place.iterdir()}
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise ConfigurationError(f"{place} is a file: name another folder or table") from None
    if LOG in names:
        return "delta"
    if _ICEBERG_METADATA in names:
        return "iceberg"
    if names:
        raise ConfigurationError(
            f"{place} has no table, but something else, such as {min(names)}: name another folder or table"
        )
    return None


def find_names(location: LakeLocation) -> list[str]:
    """Return the names of the tables of a location, sorted.

    Delta tables of other programs count: only opening them shows that.

    Raises:
        StorageFailed, ArchiveError.
    """
    if location.folder is None and location.catalog:
        from walproxy.pipeline.lake.iceberg import table_names

        return table_names(location)
    names = sorted(name for name in location.store().entries()[0] if not name.startswith("_"))
    return names if location.folder is None else _tables_among(names, location, location.folder)


def _tables_among(names: list[str], location: LakeLocation, folder: Path) -> list[str]:
    found = [name for name in names if (folder / name / LOG).is_dir()]
    others = {name for name in names if (folder / name / _ICEBERG_METADATA).is_dir()}
    if others and location.has_catalog_beside:
        from walproxy.pipeline.lake.iceberg import table_names

        found += others & {*table_names(location.with_catalog_beside())}
    return sorted(found)


def check_format(location: LakeLocation, format: TableFormat | None) -> None:
    """See that tables of a location in an object store can have a format, None: any. Raises ConfigurationError."""
    if format == "iceberg" and not location.catalog:
        raise ConfigurationError(
            f"Iceberg tables in {location} need a catalog: set iceberg_catalog to "
            "uri=postgresql+psycopg://HOST/NAME, to uri=https://HOST (REST), or to name=NAME of ~/.pyiceberg.yaml, or "
            "leave --format out for Delta"
        )
    if format == "delta" and location.catalog:
        raise ConfigurationError(f"Delta tables in {location} have no catalog: remove iceberg_catalog")
