"""The input of a report: the tables of a folder, and the range of WAL in them."""

from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from duckdb import DuckDBPyConnection

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import Lsn, parse_lsn
from walproxy.pipeline.duck import FolderTables, add_views, identifier
from walproxy.pipeline.schemas import arrow_schema
from walproxy.pipeline.tables import find_tables

USED_TABLES: Final = (
    "records",
    "transactions",
    "transaction_volume",
    "relation_volume",
    "page_versions",
    "tuple_stats",
)


class Position(NamedTuple):
    """An end of the range that is looked at: a time in microseconds since 1970, or an LSN."""

    time_us: int | None
    lsn: Lsn | None


def parse_position(text: str) -> Position:
    """Return the position that a text has: an LSN, or a time of ISO 8601.

    Raises:
        ConfigurationError: it is neither.
    """
    if "/" in text:
        return Position(None, parse_lsn(text))
    try:
        time = datetime.fromisoformat(text).astimezone()  # One without a zone is of this machine's.
    except ValueError:
        raise ConfigurationError(
            f"{text!r} is neither an LSN like 16/B374D848 nor a time like 2026-11-21T14:16:05+01:00"
        ) from None
    return Position(round(time.timestamp() * 1_000_000), None)


class FoundTables(NamedTuple):
    """Tables of a folder that a report can use."""

    folder: Path
    names: list[str]


def look_for_tables(folder: Path) -> FoundTables:
    """Return which tables there are.

    Raises:
        ConfigurationError: there are none.
        StorageFailed: the folder cannot be read.
    """
    names = [found.name for found in find_tables(folder) if found.name in USED_TABLES]
    if not names:
        raise ConfigurationError(
            f"{folder} has none of the tables that a report needs ({', '.join(USED_TABLES)}): "
            "walproxy pipeline run writes them; correct --tables"
        )
    return FoundTables(folder, names)


def read_tables(connection: DuckDBPyConnection, found: FoundTables) -> dict[str, str]:
    """Make views of the tables; return what stands after FROM for each.

    Raises:
        ConfigurationError: one has other columns.
        StorageFailed: one cannot be read.
    """
    schemas = {name: arrow_schema(name) for name in found.names}
    add_views(connection, FolderTables(found.folder), found.names, found.names, schemas)
    return {name: identifier(name) for name in found.names}
