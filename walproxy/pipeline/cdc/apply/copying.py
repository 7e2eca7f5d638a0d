"""Tables as of a position in the WAL.

Making a logical slot gives a snapshot that shows exactly the transactions whose commit record begins below the slot's
first position. Such a slot is made for this alone, temporary, and dropped as soon as the snapshot is in use; the tables
are read in one transaction with it. The slot from which changes are read is not touched: it stands at or below that
position, and what was committed between the two is passed over by the table's own position.

Forms of ALTER TABLE that rewrite a table leave it empty for older snapshots, so a table is locked before it is copied,
and its fingerprint within the snapshot must still be the present one.
"""

import contextlib
import uuid
from collections.abc import Iterator, Sequence, Set
from typing import Final, NamedTuple

import psycopg
import pyarrow as pa
from psycopg import sql

from safekeeper.base.lsn import Lsn, parse_lsn
from walproxy.pipeline.cdc.column_types import text_to_arrow
from walproxy.pipeline.cdc.published_tables import PublishedTable, published_tables
from walproxy.pipeline.cdc.server import (
    Connection,
    SourceRefused,
    SourceUnavailable,
    connect,
    one_line_errors,
    one_value,
    require_server,
    server_start,
    source_error,
)

_LOCK_TIMEOUT_S: Final = 10
_BATCH_ROWS: Final = 16_384
_BATCH_CHARACTERS: Final = 16 << 20


class SnapshotDelayed(SourceUnavailable):
    """Transactions in progress do not end."""


class Snapshot(NamedTuple):
    """The tables of the publications as they were at a position.

    Attributes:
        lsn: transactions whose commit record begins below it are in.
        unix_us: when it was taken, by the server's clock.
    """

    lsn: Lsn
    unix_us: int
    connection: Connection
    tables: list[PublishedTable]

    def lock(self, table: PublishedTable) -> None:
        """Keep others from altering the table until the snapshot is closed.

        Raises:
            SourceRefused: another session has locked it for long, or it is gone.
            SourceUnavailable: the connection broke.
        """
        try:
            with self.connection.transaction():
                self.connection.execute(
                    sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(sql.Identifier(*table.table))
                )
        except psycopg.errors.LockNotAvailable:
            raise SourceRefused(
                f"{table.table} could not be copied: another session has locked it for {_LOCK_TIMEOUT_S} s"
            ) from None
        except psycopg.Error as error:
            raise source_error(error, f"lock {table.table}") from error

    def rows(
        self, table: PublishedTable, schema: pa.Schema, *, null_if_bad: Set[str] = frozenset()
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a table with the columns of `schema`, in batches of bounded size.

        Args:
            null_if_bad: columns of which values become null that their type cannot hold.

        Raises:
            BadValue: a value cannot be one of its column's type.
            SourceRefused: we may not read the table.
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
                    yield _batch(texts, table, schema, null_if_bad)
                    texts, characters = [], 0
        if texts:
            yield _batch(texts, table, schema, null_if_bad)


@contextlib.contextmanager
def snapshot(
    conninfo: str, publications: Sequence[str], server: Connection, *, wait_s: float | None = None
) -> Iterator[Snapshot]:
    """Give a snapshot, as long as the block runs. The server waits for the end of all transactions under way first.

    Args:
        server: a connection to the server of which it must be: the one that is asked for the quorum's position.
        wait_s: how long it waits for each of them; None: as long as it takes.

    Raises:
        SnapshotDelayed: one did not end in time.
        SourceUnavailable: `conninfo` led to another server; or as usual.
        SourceRefused.
    """
    start = server_start(server)
    with contextlib.closing(connect(conninfo, application_name="walproxy copy")) as connection:
        with contextlib.closing(connect(conninfo, application_name="walproxy copy", replication=True)) as replication:
            require_server(connection, start)
            require_server(replication, start)
            name = f"walproxy_copy_{uuid.uuid4().hex[:16]}"
            with one_line_errors("make a snapshot of the tables"):
                replication.execute(f"SET lock_timeout = {round((wait_s or 0) * 1000)}".encode())
                try:
                    row = replication.execute(
                        f"CREATE_REPLICATION_SLOT {name} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT".encode()
                    ).fetchone()
                except psycopg.errors.LockNotAvailable:
                    raise SnapshotDelayed(
                        f"a copy waits for the end of all transactions in progress, and one is open for more than "
                        f"{wait_s:g} s"
                    ) from None
                if row is None or not row[2]:
                    raise SourceUnavailable("could not make a snapshot of the tables: the server returned none")
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(row[2])))
                # A verification keeps the snapshot while the tables follow up to it.
                connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
                connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(f"{_LOCK_TIMEOUT_S}s"))
        unix_us = one_value(
            connection, "SELECT (extract(epoch FROM now()) * 1000000)::bigint", doing="read the server's clock"
        )
        yield Snapshot(parse_lsn(row[1]), unix_us, connection, published_tables(connection, publications))


def _copy_query(table: PublishedTable, columns: Sequence[str]) -> sql.Composed:
    """Text, not binary: it is what the slot sends. A child's rows are its own, a partition's are those of the whole."""
    condition = sql.SQL(" WHERE {}").format(sql.SQL(table.row_filter)) if table.row_filter else sql.SQL("")
    return sql.SQL("COPY (SELECT {columns} FROM {only} {table}{condition}) TO STDOUT").format(
        columns=sql.SQL(", ").join(sql.Identifier(name) for name in columns),
        only=sql.SQL("" if table.is_partitioned else "ONLY"),
        table=sql.Identifier(*table.table),
        condition=condition,
    )


def _batch(
    texts: list[tuple[str | None, ...]], table: PublishedTable, schema: pa.Schema, null_if_bad: Set[str]
) -> pa.RecordBatch:
    columns = zip(*texts, strict=True) if schema.names else ()
    arrays = [
        text_to_arrow(
            pa.array(column, pa.string()),
            field.type,
            f"{table.table}.{field.name}",
            bad_as_null=field.name in null_if_bad,
        )
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
