"""Query the tables of a folder with SQL: `walproxy pipeline query`, on DuckDB (docs/design/adr/0068-duckdb.md)."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from walproxy.pipeline.duck import add_views, check_statement, connect, duckdb_errors, named_in, tables_of

_FETCHED_ROWS: Final = 10_000


class Result(NamedTuple):
    """The rows of a query, as they are computed.

    Attributes:
        columns: names; one can occur twice.
        types: DuckDB's words, such as `BIGINT`.
        rows: can be read once.
    """

    columns: list[str]
    types: list[str]
    rows: Iterator[tuple[Any, ...]]


@contextlib.contextmanager
def query(
    folder: Path, statement: str, *, threads: int | None = None, memory_bytes: int | None = None
) -> Iterator[Result]:
    """Give the rows that a statement about the tables of a folder returns, for this block.

    Args:
        folder: absolute.
        threads, memory_bytes: limits of DuckDB, see `connect`.

    Raises:
        ConfigurationError: it is wrong, or there are no tables; perhaps while rows are read.
        StorageFailed: a table cannot be read.
        QueryFailed: it cannot be carried out.
    """
    tables = tables_of(folder)
    check_statement(statement)
    with connect(folder, threads=threads, memory_bytes=memory_bytes) as connection:
        add_views(connection, folder, named_in(statement, tables))
        with duckdb_errors(tables):
            connection.execute(statement)
            described = connection.description or []
            rows = iter(lambda: connection.fetchmany(_FETCHED_ROWS), [])
            columns, types = [str(each[0]) for each in described], [str(each[1]) for each in described]
            yield Result(columns, types, (row for fetched in rows for row in fetched))
