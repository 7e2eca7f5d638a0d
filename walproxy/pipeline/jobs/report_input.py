"""The input of a report: tables, names of relations, and the range of WAL in them."""

from datetime import datetime
from typing import Final, NamedTuple

from duckdb import DuckDBPyConnection

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import Lsn, parse_lsn
from walproxy.pipeline.duck import BLOCKS, QueriedTables, add_made_view, duckdb_errors, identifier
from walproxy.pipeline.jobs.catalog import NAMES_FILE, RelationNames, merge, open_names, parse_snapshot
from walproxy.pipeline.schemas import arrow_schema, optional_columns

USED_TABLES: Final = (
    "records",
    "blocks",
    "transactions",
    "transaction_volume",
    "relation_volume",
    "page_versions",
    "tuple_stats",
)


class RangeEnd(NamedTuple):
    """An end of the range that is looked at: a time in microseconds since 1970, or an LSN."""

    time_us: int | None
    lsn: Lsn | None


def parse_position(text: str) -> RangeEnd:
    """Return the position that a text has: an LSN, or a time of ISO 8601.

    Raises:
        ConfigurationError: it is neither.
    """
    if "/" in text:
        return RangeEnd(None, parse_lsn(text))
    try:
        time = datetime.fromisoformat(text).astimezone()  # One without a zone is of this machine's.
    except ValueError:
        raise ConfigurationError(
            f"{text!r} is neither an LSN like 16/B374D848 nor a time like 2026-11-21T14:16:05+01:00"
        ) from None
    return RangeEnd(round(time.timestamp() * 1_000_000), None)


class FoundTables(NamedTuple):
    """Tables that a report can use."""

    tables: QueriedTables
    names: list[str]


def look_for_tables(tables: QueriedTables) -> FoundTables:
    """Return which tables there are.

    Raises:
        ConfigurationError: there are none.
        StorageFailed, ArchiveError: they cannot be read.
    """
    names = [name for name in tables.names() if name in USED_TABLES]
    if not names:
        raise ConfigurationError(
            f"{tables} has none of the tables that a report needs ({', '.join(USED_TABLES)}): "
            "walproxy pipeline run writes them; correct --tables"
        )
    return FoundTables(tables, names)


def read_tables(connection: DuckDBPyConnection, found: FoundTables) -> dict[str, str]:
    """Make views of the tables; return what stands after FROM for each.

    `blocks` is made of `records` where that has the block references: it was made without a table `blocks`.

    Raises:
        ConfigurationError: one has other columns.
        StorageFailed, ArchiveError: one cannot be read.
    """
    columns = {}
    with duckdb_errors(found.tables):
        for name in found.names:
            if name != BLOCKS:
                columns[name] = found.tables.add(connection, name, arrow_schema(name), optional_columns(name))
        if "records" in columns and "blocks" in columns["records"].names:
            add_made_view(connection, BLOCKS)
            columns[BLOCKS] = arrow_schema(BLOCKS)
        elif BLOCKS in found.names:
            columns[BLOCKS] = found.tables.add(connection, BLOCKS, arrow_schema(BLOCKS))
    return {name: identifier(name) for name in columns}


def names_at(tables: QueriedTables, place: str | None) -> RelationNames:
    """Return the names that `place` has, and for numbers that it lacks those of NAMES_FILE beside the tables.

    Args:
        place: see `open_names`; None: only the file.

    Raises:
        ConfigurationError, CatalogFailed: see `open_names`, `merge`.
        StorageFailed, ArchiveError: the file cannot be read.
    """
    given = open_names(place) if place is not None else RelationNames()
    content = tables.file(NAMES_FILE)
    if content is None:
        return given
    kept = parse_snapshot(content, f"{tables}/{NAMES_FILE}")
    return RelationNames(merge([kept, given.snapshot]) if given.snapshot is not None else kept)
