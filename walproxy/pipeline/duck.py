"""Tables in DuckDB: one view for each table of a folder, in a connection that reads this folder and nothing else.

Tables of an object store are in `lake/duck.py`. A table itself reports which Parquet files it consists of now
(`LakeTable.live_files`), and a view reads exactly these. So Delta and Iceberg need no extension of DuckDB, and files
that were removed, or never committed, are in no view. A view shows one version of its table; two views can differ by
the batches that were committed between them.

Besides the tables there are

- `lsn('5/40000000')` and `lsn_text(22548578304)`, from PostgreSQL's text of an LSN to the tables' number and back;
- `blocks`, where there are `records`: one row for each block reference of a record;
- `transaction_sizes`, where there are `transactions` and `transaction_volume`: each commit and abort with the WAL that
  its transaction has written, subtransactions included. Transaction numbers are used again after four billion: a row
  of `transaction_volume` belongs to the first end of its transaction number at or after it. What was rolled back to a
  savepoint has an end of its own.

DuckDB loads no extension, writes only into its temporary folder, and accepts no change of its settings.
`check_statement` refuses statements that are not queries: DuckDB could write into the folder that it may read. The type
of a statement is not sufficient for that: a WITH clause can contain COPY, a PIVOT that must find its values is several
statements, one of which can be COPY, and table functions execute SQL that is in a string. So DuckDB's parser returns
the tree of the query, and only known nodes and table functions are accepted in it.
"""

import contextlib
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import duckdb
import pyarrow as pa
from duckdb import DuckDBPyConnection, StatementType

from safekeeper.base.errors import ConfigurationError, StorageFailed, WalproxyError
from safekeeper.base.logs import one_line
from walproxy.pipeline.lake.disk import storage_errors
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.opening import find_names, open_lake_table
from walproxy.pipeline.view_queries import DEFINITION_CHANGES_QUERY, TRANSACTION_CHANGES_QUERY, TRANSACTION_SIZES_QUERY

BLOCKS: Final = "blocks"
TRANSACTION_SIZES: Final = "transaction_sizes"
TRANSACTION_CHANGES: Final = "transaction_changes"
DEFINITION_CHANGES: Final = "definition_changes"
_MADE_FROM: Final = {
    BLOCKS: ("records",),
    TRANSACTION_SIZES: ("transactions", "transaction_volume"),
    TRANSACTION_CHANGES: ("transactions", "transaction_relations"),
    DEFINITION_CHANGES: ("catalog_changes", "transactions"),
}
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
# Options are words: a comment or a string in them could hide where they end.
_EXPLAIN: Final = re.compile(r"\s*explain\s+(?:analyze\s+|\([\w\s,]*\)\s*)?", re.IGNORECASE | re.ASCII)
_TREE: Final = """
    SELECT json_extract_string(tree, '$..type'), json_extract_string(tree, '$..function.function_name')
    FROM (SELECT json_serialize_sql($1) AS tree)
"""
_NODES: Final = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
_TABLE_FUNCTIONS: Final = re.compile(
    "range|generate_series|repeat|repeat_row|unnest|glob|json_each|json_tree|"
    r"read_(?:csv|json|ndjson|parquet|text|blob)\w*|(?:parquet|duckdb)_\w+"
)
_MISSING_TABLE: Final = re.compile(r"Table with name (.+?) does not exist!")
_LENGTH_MAX: Final = 300

_BLOCKS_QUERY: Final = """
    WITH referring AS (
        SELECT lsn, end_lsn, rmgr, operation, xid, blocks, generate_subscripts(blocks, 1) AS number,
            total_length - list_sum([each.image_bytes + each.data_bytes FOR each IN blocks]) AS rest
        FROM records
    ),
    singled AS (SELECT * EXCLUDE blocks, blocks[number] AS block FROM referring)
    SELECT lsn, end_lsn, rmgr, operation, xid, unnest(block), number = 1 AS is_first,
        (block.image_bytes + block.data_bytes + CASE WHEN number = 1 THEN rest ELSE 0 END)::INTEGER AS wal_bytes
    FROM singled
"""
_QUERIES_OF_VIEWS: Final = {
    BLOCKS: _BLOCKS_QUERY,
    TRANSACTION_SIZES: TRANSACTION_SIZES_QUERY,
    TRANSACTION_CHANGES: TRANSACTION_CHANGES_QUERY,
    DEFINITION_CHANGES: DEFINITION_CHANGES_QUERY,
}


_FETCHED_ROWS: Final = 10_000
_BATCH_ROWS: Final = 100_000


class QueryFailed(WalproxyError):
    """DuckDB could not carry out a statement, although it is right."""


class QueriedTables(Protocol):
    """The tables that are queried."""

    @property
    def folder(self) -> Path | None:
        """The folder that DuckDB may read; None: no file at all."""

    def names(self) -> list[str]:
        """Return the names of the tables.

        Raises:
            StorageFailed, ArchiveError: they cannot be read.
        """

    def add(
        self, connection: DuckDBPyConnection, name: str, schema: pa.Schema | None, optional: Collection[str] = ()
    ) -> pa.Schema:
        """Make a table known to DuckDB, as it is now; return its columns.

        Args:
            schema: what they must be.
            optional: those of them that it may lack.

        Raises:
            ConfigurationError: there is no such table, or it has other columns.
            StorageFailed, ArchiveError: it cannot be read.
        """

    def file(self, name: str) -> bytes | None:
        """Return the content of a small file beside the tables, None if it does not exist.

        Raises:
            StorageFailed, ArchiveError: it cannot be read.
        """

    def failure(self, error: duckdb.Error) -> WalproxyError | None:
        """Return what stands for an error of DuckDB that reading these tables has caused; None if it has not."""


class FolderTables(NamedTuple):
    """The tables of a folder, which is an absolute path."""

    folder: Path

    def names(self) -> list[str]:
        return find_names(LakeLocation(str(self.folder)))

    def add(
        self, connection: DuckDBPyConnection, name: str, schema: pa.Schema | None, optional: Collection[str] = ()
    ) -> pa.Schema:
        location = LakeLocation(str(self.folder))
        with open_lake_table(location, name, schema=schema, create=False, optional=optional) as table:
            paths = [f"{table.location}/{file.path}" for file in table.live_files()]
            columns = table.schema
        if not paths:
            connection.register(name, columns.empty_table())
            return columns
        files = ", ".join(map(literal, paths))
        connection.execute(
            f"CREATE VIEW {identifier(name)} AS SELECT * FROM read_parquet([{files}], hive_partitioning = false)"
        )
        return columns

    def file(self, name: str) -> bytes | None:
        path = self.folder / name
        with storage_errors(f"read {path}"):
            return path.read_bytes() if path.exists() else None

    def failure(self, error: duckdb.Error) -> WalproxyError | None:
        return StorageFailed(_line(error)) if isinstance(error, duckdb.IOException) else None

    def __str__(self) -> str:
        return str(self.folder)


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
def connect(
    tables: QueriedTables | None = None, *, threads: int | None = None, memory_bytes: int | None = None
) -> Iterator[DuckDBPyConnection]:
    """Open DuckDB for tables, without any view, for this block.

    Args:
        tables: those whose files it may read; without them it reads no file.
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
        with duckdb_errors(tables), duckdb.connect(config=config) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            for macro in _MACROS:
                connection.execute(f"CREATE MACRO {macro}")
            if tables is not None and tables.folder is not None:
                connection.execute(f"SET allowed_directories = [{literal(str(tables.folder))}]")
            connection.execute("SET enable_external_access = false")
            connection.execute("SET lock_configuration = true")
            yield connection


def add_views(
    connection: DuckDBPyConnection, tables: QueriedTables, names: Iterable[str], existing: Collection[str]
) -> None:
    """Make views of tables, as they are now, and of what is made of tables, with these in that case.

    Args:
        existing: the names of all tables.

    Raises:
        ConfigurationError: there is no such table.
        StorageFailed, ArchiveError: one cannot be read.
    """
    wanted = list(dict.fromkeys(names))
    made = [name for name in wanted if name in _MADE_FROM and name not in existing]
    needed = [*(name for name in wanted if name not in made), *(source for name in made for source in _MADE_FROM[name])]
    with duckdb_errors(tables):
        for name in dict.fromkeys(needed):
            tables.add(connection, name, None)
        for name in made:
            add_made_view(connection, name)


def add_made_view(connection: DuckDBPyConnection, name: str) -> None:
    """Make a view that is made of tables, BLOCKS or TRANSACTION_SIZES; there are views of these."""
    connection.execute(f"CREATE VIEW {identifier(name)} AS {_QUERIES_OF_VIEWS[name]}")


@contextlib.contextmanager
def query(
    tables: QueriedTables, statement: str, *, threads: int | None = None, memory_bytes: int | None = None
) -> Iterator[Result]:
    """Give the rows that a statement about tables returns, for this block.

    Args:
        threads, memory_bytes: limits of DuckDB, see `connect`.

    Raises:
        ConfigurationError: it is wrong, or there are no tables; perhaps while rows are read.
        StorageFailed, ArchiveError: a table cannot be read.
        QueryFailed: it cannot be carried out.
    """
    with _ready(tables, statement, threads, memory_bytes) as (connection, existing), duckdb_errors(tables, existing):
        connection.execute(statement)
        described = connection.description or []
        rows = iter(lambda: connection.fetchmany(_FETCHED_ROWS), [])
        columns, types = [str(each[0]) for each in described], [str(each[1]) for each in described]
        yield Result(columns, types, (row for fetched in rows for row in fetched))


@contextlib.contextmanager
def query_arrow(
    tables: QueriedTables, statement: str, *, threads: int | None = None, memory_bytes: int | None = None
) -> Iterator[pa.RecordBatchReader]:
    """Give the rows that a statement about tables returns, for Arrow, for this block. See `query`."""
    with _ready(tables, statement, threads, memory_bytes) as (connection, existing), duckdb_errors(tables, existing):
        yield connection.sql(statement).to_arrow_reader(_BATCH_ROWS)


@contextlib.contextmanager
def _ready(
    tables: QueriedTables, statement: str, threads: int | None, memory_bytes: int | None
) -> Iterator[tuple[DuckDBPyConnection, list[str]]]:
    """Give a connection that can carry out a statement, and the names of all tables."""
    existing = tables.names()
    if not existing:
        raise ConfigurationError(f"{tables} has no tables: walproxy pipeline run writes some")
    with connect(tables, threads=threads, memory_bytes=memory_bytes) as connection:
        check_statement(connection, statement)
        add_views(connection, tables, named_in(statement, existing), existing)
        yield connection, existing


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
    # `public.orders` may be written "public"."orders".
    return [name for name in possible if all(part in lower for part in name.lower().split("."))] or possible


def check_statement(connection: DuckDBPyConnection, statement: str) -> None:
    """Check that a statement is one query, and nothing that could write.

    Raises:
        ConfigurationError: it is not.
    """
    with duckdb_errors():
        statements = connection.extract_statements(statement)
    if len(statements) != 1:
        raise ConfigurationError(f"one SQL statement is needed, not {len(statements)}")
    (kind,) = (each.type for each in statements)
    if kind == StatementType.MULTI:
        raise ConfigurationError("only queries are possible here; PIVOT is one if it names its values: ON ... IN (...)")
    query = statement
    if kind == StatementType.EXPLAIN and (explain := _EXPLAIN.match(statement)) is not None:
        query = statement[explain.end() :]
    with duckdb_errors():
        types, functions = connection.execute(_TREE, [query]).fetchall()[0]
    nodes = {each for each in types if each.endswith("_NODE")}  # None if it is not a SELECT.
    if not nodes or not nodes <= _NODES:
        raise ConfigurationError("only queries are possible here: begin with SELECT, WITH, FROM, DESCRIBE or EXPLAIN")
    for name in functions:
        if not _TABLE_FUNCTIONS.fullmatch(name):
            raise ConfigurationError(f"only queries are possible here, without the function {one_line(name)}")


def literal(text: str) -> str:
    """Return a text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """Return a name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


@contextlib.contextmanager
def duckdb_errors(tables: QueriedTables | None = None, existing: Iterable[str] = ()) -> Iterator[None]:
    """Raise what DuckDB raises as an error of one line.

    Args:
        tables: what is read.
        existing: the names of all tables, for the line about one that is missing.

    Raises:
        ConfigurationError: the statement is wrong.
        StorageFailed, ArchiveError: a file cannot be read.
        QueryFailed: of anything else, such as memory.
    """
    try:
        yield
    except duckdb.Error as error:
        failure = tables.failure(error) if tables is not None else None
        if failure is not None:
            raise failure from error
        missing = _MISSING_TABLE.search(str(error))
        if missing is not None and isinstance(error, duckdb.CatalogException):
            raise ConfigurationError(f"{tables} has no table {missing[1]}, but {', '.join(existing)}") from error
        if isinstance(error, duckdb.OutOfMemoryException):
            raise QueryFailed(f"{_line(error)}: set a larger query_memory") from error
        if isinstance(error, duckdb.OperationalError | duckdb.InternalError):
            raise QueryFailed(_line(error)) from error
        raise ConfigurationError(_line(error)) from error


def _line(error: duckdb.Error) -> str:
    """Return the message of an error without the statement that DuckDB repeats."""
    return one_line(" ".join(str(error).partition("\n\nLINE ")[0].split()))[:_LENGTH_MAX]
