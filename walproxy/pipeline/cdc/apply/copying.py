"""Tables as of a position in the WAL.

Making a logical slot gives a snapshot that shows exactly the transactions whose commit record begins below the slot's
first position. Such a slot is made for this alone, temporary, and dropped as soon as the snapshot is in use; the tables
are read in one transaction with it. The slot from which changes are read is not touched: it stands at or below that
position, and what was committed between the two is passed over by the table's own position.
"""

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
from psycopg import sql

from safekeeper.lsn import Lsn, parse_lsn
from walproxy.pipeline.cdc.column_types import text_to_arrow
from walproxy.pipeline.cdc.publication import PublishedTable, published_tables
from walproxy.pipeline.cdc.server import Connection, SourceUnavailable, connect, one_line_errors

_BATCH_ROWS: Final = 16_384
_BATCH_CHARACTERS: Final = 16 << 20


class Snapshot(NamedTuple):
    """The tables of the publications as they were at a position.

    Attributes:
        lsn: transactions whose commit record begins below it are in.
    """

    lsn: Lsn
    connection: Connection
    tables: list[PublishedTable]

    def rows(self, table: PublishedTable, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a table with the columns of `schema`, in batches of bounded size.

        Raises:
            SourceRefused: a value cannot be one of its column's type, or we may not read the table.
            SourceUnavailable: the connection broke.
        """
        texts: list[tuple[str | None, ...]] = []
        characters = 0
        query = _copy_query(table, schema.names)
        with one_line_errors(f"copy {table.table}"), self.connection.cursor() as cursor, cursor.copy(query) as copy:
            for row in copy.rows():
                texts.append(row)
                characters += sum(len(value) for value in row if value is not None)
                if len(texts) >= _BATCH_ROWS or characters >= _BATCH_CHARACTERS:
                    yield _batch(texts, table, schema)
                    texts, characters = [], 0
        if texts:
            yield _batch(texts, table, schema)


@contextlib.contextmanager
def snapshot(conninfo: str, publications: Sequence[str]) -> Iterator[Snapshot]:
    """Give a snapshot, as long as the block runs. The server waits for the end of all transactions under way first.

    Raises:
        SourceRefused, SourceUnavailable.
    """
    with contextlib.closing(connect(conninfo, application_name="walproxy copy")) as connection:
        with contextlib.closing(connect(conninfo, application_name="walproxy copy", replication=True)) as replication:
            name = f"walproxy_copy_{uuid.uuid4().hex[:16]}"
            with one_line_errors("make a snapshot of the tables"):
                row = replication.execute(
                    f"CREATE_REPLICATION_SLOT {name} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT".encode()
                ).fetchone()
                if row is None or not row[2]:
                    raise SourceUnavailable("could not make a snapshot of the tables: the server gave none")
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(row[2])))
        yield Snapshot(parse_lsn(row[1]), connection, published_tables(connection, publications))


def _copy_query(table: PublishedTable, columns: Sequence[str]) -> sql.Composed:
    """Text, not binary: it is what the slot sends. A child's rows are its own, a partition's are those of the whole."""
    condition = sql.SQL(" WHERE {}").format(sql.SQL(table.row_filter)) if table.row_filter else sql.SQL("")
    return sql.SQL("COPY (SELECT {columns} FROM {only} {table}{condition}) TO STDOUT").format(
        columns=sql.SQL(", ").join(sql.Identifier(name) for name in columns),
        only=sql.SQL("" if table.is_partitioned else "ONLY"),
        table=sql.Identifier(*table.table),
        condition=condition,
    )


def _batch(texts: list[tuple[str | None, ...]], table: PublishedTable, schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*texts, strict=True) if schema.names else ()
    arrays = [
        text_to_arrow(pa.array(column, pa.string()), field.type, f"{table.table}.{field.name}")
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
