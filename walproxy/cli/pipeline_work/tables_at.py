"""The tables of a folder or a URL, for commands that read them with DuckDB."""

from collections.abc import Mapping

from walproxy.pipeline.duck import FolderTables, QueriedTables
from walproxy.pipeline.lake.names import APPLY_JOB_FILE, local_folder


def tables_at(place: str, options: Mapping[str, str], catalog: Mapping[str, str]) -> QueriedTables:
    """Return the tables of a place.

    Args:
        options, catalog: of an object store, and of Iceberg tables there.

    Raises:
        ConfigurationError: it is not a place of tables, or an option is not valid.
    """
    is_folder = not options and not catalog and ("://" not in place or place.lower().startswith("file://"))
    tables: QueriedTables
    if is_folder:
        folder = local_folder(place)
        tables = FolderTables(folder)
        if not (folder / APPLY_JOB_FILE).exists():
            return tables
    # Libraries of object stores, and those of row changes, take longer than a query of a folder.
    from walproxy.pipeline.cdc.apply.duck import followed_tables
    from walproxy.pipeline.lake.duck import LakeTables
    from walproxy.pipeline.lake.location import LakeLocation

    location = LakeLocation.parse(place, options, catalog)
    if not is_folder:
        tables = LakeTables(location)
    return followed_tables(location, tables) or tables
