"""Tables of a folder in DuckDB: one view for each table, in a connection that reads this folder and nothing else.

The table itself reports which Parquet files it consists of now (`Table.live_files`), and a view reads exactly these. So
Delta and Iceberg need no extension of DuckDB, and files that were removed, or never committed, are in no view. A view
shows one version of its table; two views can differ by the batches that were committed between them.

Besides the tables there are

- `lsn('5/40000000')` and `lsn_text(22548578304)`, from PostgreSQL's text of an LSN to the tables' number and back;
- `blocks`, where there are `records`: one row for each block reference of a record;
- `transaction_sizes`, where there are `transactions` and `transaction_volume`: each commit and abort with the WAL that
  its transaction has written, subtransactions included. Transaction numbers are used again after four billion: a row
  of `transaction_volume` belongs to the first end of its transaction number at or after it. What was rolled back to a
  savepoint has an end of its own.

DuckDB loads no extension, writes only into its temporary folder, and accepts no change of its settings.
`check_statement` refuses statements that are not queries: DuckDB could write into the folder that it may read.
"""

import contextlib
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
from duckdb import DuckDBPyConnection, StatementType

from safekeeper.base.errors import ConfigurationError, StorageFailed, WalproxyError
from safekeeper.base.logs import one_line
from walproxy.pipeline.tables import find_tables, open_table

BLOCKS: Final = "blocks"
TRANSACTION_SIZES: Final = "transaction_sizes"
_MADE_FROM: Final = {BLOCKS: ("records",), TRANSACTION_SIZES: ("transactions", "transaction_volume")}
"""Views that are made of tables, unless the folder has a table of this name."""

_SETTINGS: Final = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
}
_MACROS: Final = (
    """lsn(written) AS
        (('0x' || split_part(written, '/', 1))::BIGINT << 32) + ('0x' || split_part(written, '/', 2))::BIGINT""",
    "lsn_text(number) AS printf('%X/%X', (number)::BIGINT >> 32, (number)::BIGINT & 4294967295)",
)
_QUERIES: Final = (StatementType.SELECT, StatementType.MULTI)  # PIVOT is several statements.
_EXPLAIN: Final = re.compile(r"\s*explain\s+(?:analyze\s+)?(?:\([^)]*\)\s*)?", re.IGNORECASE)
_MISSING_TABLE: Final = re.compile(r"Table with name (.+?) does not exist!")
_LENGTH_MAX: Final = 300

# Ends of transactions and rows of volume are laid in one order for each transaction number; each row of volume then
# belongs to the next end. A commit is the last record of its transaction, so that at one LSN the volume comes first.
_QUERIES_OF_VIEWS: Final = {
    BLOCKS: "SELECT lsn, end_lsn, rmgr, operation, xid, unnest(blocks, max_depth := 2) FROM records",
    TRANSACTION_SIZES: """
        WITH finished AS (SELECT * FROM transactions WHERE outcome <> 'prepare'),
        members AS (
            SELECT unnest(list_prepend(xid, subxids)) AS member_xid, lsn AS finish_lsn, lsn AS place, 1 AS step,
                0 AS records, 0 AS wal_bytes, 0 AS image_bytes, NULL::BIGINT AS first_lsn
            FROM finished
        ),
        events AS (
            SELECT * FROM members
            UNION ALL
            SELECT xid, NULL, last_lsn, 0, records, wal_bytes, image_bytes, first_lsn
            FROM transaction_volume WHERE xid <> 0
        ),
        owned AS (
            SELECT records, wal_bytes, image_bytes, first_lsn, first_value(finish_lsn IGNORE NULLS) OVER (
                PARTITION BY member_xid ORDER BY place, step ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING
            ) AS finish_lsn FROM events
        ),
        sizes AS (
            SELECT finish_lsn, sum(records)::BIGINT AS records, sum(wal_bytes)::BIGINT AS wal_bytes,
                sum(image_bytes)::BIGINT AS image_bytes, min(first_lsn) AS first_lsn
            FROM owned WHERE finish_lsn IS NOT NULL GROUP BY finish_lsn
        )
        SELECT finished.*, sizes.first_lsn, sizes.records, sizes.wal_bytes, sizes.image_bytes
        FROM finished JOIN sizes ON sizes.finish_lsn = finished.lsn
    """,
}


class QueryFailed(WalproxyError):
    """DuckDB could not carry out a statement, although it is right."""


def tables_of(folder: Path) -> list[str]:
    """Return the names of the tables of a folder.

    Raises:
        ConfigurationError: there are none.
        StorageFailed: the folder cannot be read.
    """
    found = [table.name for table in find_tables(folder)]
    if not found:
        raise ConfigurationError(f"{folder} has no tables: walproxy pipeline run writes some")
    return found


@contextlib.contextmanager
def connect(
    folder: Path, *, threads: int | None = None, memory_bytes: int | None = None
) -> Iterator[DuckDBPyConnection]:
    """Open DuckDB for the tables below `folder`, without any view, for this block.

    Args:
        folder: absolute.
        threads: as many as the machine has cores by default.
        memory_bytes: limit; what needs more is written to a temporary folder. The default is DuckDB's, most of the
            machine's memory.
    """
    with tempfile.TemporaryDirectory(prefix="walproxy-duckdb-", ignore_cleanup_errors=True) as temporary:
        config: dict[str, str | bool | int | float | list[str]] = {**_SETTINGS, "temp_directory": temporary}
        if threads is not None:
            config["threads"] = threads
        if memory_bytes is not None:
            config["memory_limit"] = f"{memory_bytes}B"
        with duckdb_errors(), duckdb.connect(config=config) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            for macro in _MACROS:
                connection.execute(f"CREATE MACRO {macro}")
            connection.execute(f"SET allowed_directories = [{literal(str(folder))}]")
            connection.execute("SET enable_external_access = false")
            connection.execute("SET lock_configuration = true")
            yield connection


def add_views(
    connection: DuckDBPyConnection, folder: Path, names: Iterable[str], schemas: Mapping[str, pa.Schema] | None = None
) -> None:
    """Make views of tables, as they are now, and of what is made of tables, with these in that case.

    Args:
        schemas: what the columns of tables must be.

    Raises:
        ConfigurationError: there is no such table, or it has other columns.
        StorageFailed: one cannot be read.
    """
    wanted = list(dict.fromkeys(names))
    found = {table.name for table in find_tables(folder)} if _MADE_FROM.keys() & set(wanted) else set(wanted)
    made = [name for name in wanted if name in _MADE_FROM and name not in found]
    tables = dict.fromkeys([*(name for name in wanted if name not in made), *(t for m in made for t in _MADE_FROM[m])])
    with duckdb_errors():
        for name in tables:
            _add_table(connection, folder, name, (schemas or {}).get(name))
        for name in made:
            connection.execute(f"CREATE VIEW {identifier(name)} AS {_QUERIES_OF_VIEWS[name]}")


def _add_table(connection: DuckDBPyConnection, folder: Path, name: str, schema: pa.Schema | None) -> None:
    with open_table(folder, name, schema=schema, create=False) as table:
        paths = [file.path for file in table.live_files()]
        schema = table.schema
    if not paths:
        connection.register(name, schema.empty_table())
        return
    files = ", ".join(map(literal, paths))
    connection.execute(
        f"CREATE VIEW {identifier(name)} AS SELECT * FROM read_parquet([{files}], hive_partitioning = false)"
    )


def named_in(statement: str, tables: Iterable[str]) -> list[str]:
    """Return the tables, and views made of them, that a statement may refer to; all of them if it names none.

    Opening a table takes time, for Iceberg seconds. A statement that names none, such as SHOW TABLES, is about all.
    """
    found = list(tables)
    possible = [
        *found,
        *(view for view, sources in _MADE_FROM.items() if view not in found and set(sources) <= set(found)),
    ]
    lower = statement.lower()
    return [name for name in possible if name.lower() in lower] or possible


def check_statement(statement: str) -> None:
    """Check that a statement is one query, and nothing that could write.

    Raises:
        ConfigurationError: it is not.
    """
    with duckdb_errors():
        statements = duckdb.extract_statements(statement)
        if len(statements) == 1 and statements[0].type == StatementType.EXPLAIN:
            statements = duckdb.extract_statements(_EXPLAIN.sub("", statement, count=1))
    if len(statements) != 1:
        raise ConfigurationError(f"one SQL statement is needed, not {len(statements)}")
    if statements[0].type not in _QUERIES:
        raise ConfigurationError("only queries are possible here: begin with SELECT, WITH, FROM, DESCRIBE or EXPLAIN")


def literal(text: str) -> str:
    """Return a text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """Return a name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


@contextlib.contextmanager
def duckdb_errors(tables: Iterable[str] = ()) -> Iterator[None]:
    """Raise what DuckDB raises as an error of one line.

    Args:
        tables: those that there are, for the line about one that is missing.

    Raises:
        ConfigurationError: the statement is wrong.
        StorageFailed: a file cannot be read.
        QueryFailed: of anything else, such as memory.
    """
    try:
        yield
    except duckdb.Error as error:
        text = str(error).partition("\n\nLINE ")[0]
        missing = _MISSING_TABLE.search(text)
        if missing is not None and isinstance(error, duckdb.CatalogException):
            raise ConfigurationError(f"the folder has no table {missing[1]}, but {', '.join(tables)}") from error
        line = one_line(" ".join(text.split()))[:_LENGTH_MAX]
        if isinstance(error, duckdb.OutOfMemoryException):
            raise QueryFailed(f"{line}: set a larger --memory") from error
        if isinstance(error, duckdb.IOException):
            raise StorageFailed(line) from error
        if isinstance(error, duckdb.OperationalError | duckdb.InternalError):
            raise QueryFailed(line) from error
        raise ConfigurationError(line) from error
