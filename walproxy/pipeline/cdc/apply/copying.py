"""Tables as of a position in the WAL.

Making a logical slot gives a snapshot that shows exactly the transactions whose commit record begins below the slot's
first position. Such a slot is made for this alone, temporary, and dropped as soon as the snapshot is in use; the tables
are read in one transaction with it. The slot from which changes are read is not touched: it stands at or below that
position, and what was committed between the two is passed over by the table's own position.

Forms of ALTER TABLE that rewrite a table leave it empty for older snapshots, so a table is locked before it is copied,
and its fingerprint within the snapshot must still be the present one.

Further sessions can read the same snapshot, as long as the first one lives: `session`. Its transaction also holds the
locks; after other sessions have read, `check` shows that it still does.
"""

import contextlib
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence, Set
from typing import Final, NamedTuple

import psycopg
import pyarrow as pa
from psycopg import sql

from safekeeper.base.lsn import Lsn, parse_lsn
from walproxy.pipeline.cdc.apply.copy_ranges import horizon, whole_of
from walproxy.pipeline.cdc.column_types import bytes_to_arrow
from walproxy.pipeline.cdc.copy_text import columns_of_lines
from walproxy.pipeline.cdc.publication import TableName
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
    system_id,
)

_LOCK_TIMEOUT_S: Final = 10
_BATCH_ROWS: Final = 65_536
_BATCH_BYTES: Final = 16 << 20
_APPLICATION: Final = "walproxy copy"
_TIMELINE: Final = "SELECT left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)"


class SnapshotDelayed(SourceUnavailable):
    """Transactions in progress do not end."""


class Snapshot(NamedTuple):
    """The tables of the publications as they were at a position.

    Attributes:
        lsn: transactions whose commit record begins below it are in.
        unix_us: when it was taken, by the server's clock.
        connection: the first session, in the transaction that has the snapshot and the locks.
        open_session: opens another session to the same server.
        name: under which other sessions import the snapshot.
        origin: cluster, timeline and database.
        horizon_xid: the oldest transaction that is not over for the snapshot, with its epoch.
    """

    lsn: Lsn
    unix_us: int
    connection: Connection
    tables: list[PublishedTable]
    open_session: Callable[[], Connection]
    name: str
    origin: str
    horizon_xid: int

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
        """Yield the rows of a table with the columns of `schema`, in batches of bounded size. The first session reads.

        Args:
            null_if_bad: columns of which values become null that their type cannot hold.

        Raises:
            BadValue: a value cannot be one of its column's type.
            SourceRefused: we may not read the table.
            SourceUnavailable: the connection broke.
        """
        whole = whole_of(table)
        condition = whole.condition(table.row_filter)
        return copied_rows(self.connection, whole.source(), condition, table.table, schema, null_if_bad)

    def session(self) -> Connection:
        """Return another session, in a transaction with this snapshot. Close it.

        Raises:
            SourceUnavailable: no connection, or the first session is gone.
            SourceRefused.
        """
        connection = self.open_session()
        try:
            with one_line_errors("use the snapshot in another session"):
                _begin(connection, self.name)
                connection.execute("SET LOCAL max_parallel_workers_per_gather = 0")
        except SourceRefused as error:
            connection.close()
            # The server knows a snapshot as long as the session lives that has exported it.
            raise SourceUnavailable(str(error)) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def check(self) -> None:
        """See that the snapshot and its locks are held. Raises SourceUnavailable.

        Without the lock, a table that was rewritten after the snapshot looks empty to it.
        """
        one_value(self.connection, "SELECT 1", doing="look at the session that has the snapshot")


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

    def session(*, replication: bool = False) -> Connection:
        made = connect(conninfo, application_name=_APPLICATION, replication=replication)
        try:
            require_server(made, start)
        except BaseException:
            made.close()
            raise
        return made

    with contextlib.closing(session()) as connection:
        with contextlib.closing(session(replication=True)) as replication:
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
                _begin(connection, row[2])
        # The name of the slot's snapshot was valid as long as that session did nothing else.
        exported = one_value(connection, "SELECT pg_export_snapshot()", doing="export the snapshot")
        unix_us = one_value(
            connection, "SELECT (extract(epoch FROM now()) * 1000000)::bigint", doing="read the server's clock"
        )
        timeline = one_value(connection, _TIMELINE, doing="look at the WAL")
        yield Snapshot(
            parse_lsn(row[1]),
            unix_us,
            connection,
            published_tables(connection, publications),
            session,
            exported,
            f"{system_id(connection)}/{timeline}/{connection.info.dbname}",
            horizon(connection),
        )


def _begin(connection: Connection, name: str) -> None:
    """Begin a transaction with an exported snapshot."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(name)))
    # A verification keeps the snapshot while the tables follow up to it, a copy while other sessions read.
    connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
    connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(f"{_LOCK_TIMEOUT_S}s"))


def copied_rows(
    connection: Connection,
    relation: sql.Composable,
    condition: sql.Composable | None,
    table: TableName,
    schema: pa.Schema,
    null_if_bad: Set[str],
) -> Generator[pa.RecordBatch]:
    """Yield rows with the columns of `schema`, in batches of bounded size, by a COPY on a connection.

    Args:
        relation: after FROM.
        condition: after WHERE; None: all rows.
        table: whose rows they are, for errors.
        null_if_bad: columns of which values become null that their type cannot hold.

    Raises:
        BadValue: a value cannot be one of its column's type.
        SourceRefused: we may not read the table.
        SourceUnavailable: the connection broke.
    """
    # Text, not binary: it is what the slot sends.
    query = sql.SQL("COPY (SELECT {columns} FROM {relation}{condition}) TO STDOUT").format(
        columns=sql.SQL(", ").join(sql.Identifier(name) for name in schema.names),
        relation=relation,
        condition=sql.SQL("") if condition is None else sql.SQL(" WHERE {}").format(condition),
    )
    lines: list[bytes] = []
    size = 0
    with one_line_errors(f"copy {table}"), connection.cursor() as cursor, cursor.copy(query) as copy:
        for line in copy:
            lines.append(bytes(line))
            size += len(line)
            if len(lines) >= _BATCH_ROWS or size >= _BATCH_BYTES:
                yield _batch(b"".join(lines), table, schema, null_if_bad)
                lines, size = [], 0
    if lines:
        yield _batch(b"".join(lines), table, schema, null_if_bad)


def _batch(lines: bytes, table: TableName, schema: pa.Schema, null_if_bad: Set[str]) -> pa.RecordBatch:
    columns = columns_of_lines(lines, len(schema)) if len(schema) else ()
    arrays = [
        bytes_to_arrow(column, field.type, f"{table}.{field.name}", bad_as_null=field.name in null_if_bad)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
