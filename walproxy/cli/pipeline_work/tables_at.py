"""The tables of a folder or a URL, for commands that read them with DuckDB."""

from collections.abc import Mapping

from walproxy.pipeline.duck import FolderTables, Tables
from walproxy.pipeline.tables.table_folder import local_folder


def tables_at(place: str, options: Mapping[str, str], catalog: Mapping[str, str]) -> Tables:
    """Return the tables of a place.

    Args:
        options, catalog: of an object store, and of Iceberg tables there.

    Raises:
        ConfigurationError: it is not a place of tables, or an option is not valid.
    """
    if not options and not catalog and ("://" not in place or place.lower().startswith("file://")):
        return FolderTables(local_folder(place))
    from walproxy.pipeline.lake.duck import LakeTables  # Its libraries take longer than a query of a folder.
    from walproxy.pipeline.lake.location import LakeLocation

    return LakeTables(LakeLocation.parse(place, options, catalog))
