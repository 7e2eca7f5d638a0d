"""The tail of an old primary: transactions of every kind after a point, and what a report of them must contain.

`write_tail` lets clients commit with synchronous_commit = local, keeps a book of what they did, and kills the server.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg

from safekeeper.base.lsn import Lsn, parse_lsn
from tests.cluster_templates import cluster_template, init_by_copying
from walproxy.failover.discarded import DiscardedTransaction, Kind, is_catalog
from walproxy.failover.discarded_report import DiscardedReport, commit_time
from walproxy.postgres.binaries import ServerBinaries
from walproxy.postgres.local_server import LocalPostgres

SETTINGS = {
    "autovacuum": "off",
    "fsync": "off",
    "max_prepared_transactions": "10",
    "max_wal_size": "1GB",
    "shared_buffers": "16MB",
    "track_commit_timestamp": "on",
    "wal_keep_size": "1GB",
}
_TIMED = (Kind.COMMIT, Kind.COMMIT_PREPARED)  # The server keeps the time of these.
Rows = dict[str, tuple[int, int, int]]


@dataclass
class Booked:
    """A transaction as its client has seen it. `rows` are by table, and `relfilenodes` are those of the tables."""

    kind: str
    xid: int
    rows: Rows = field(default_factory=dict)
    subtransactions: int = 0
    gid: str = ""
    ddl: bool = False
    messages: int = 0
    sequences: int = 0
    dropped: tuple[str, ...] = ()
    began_before: bool = False
    time: datetime | None = None


@dataclass
class Book:
    """What the clients did after the point.

    Attributes:
        from_lsn: the point.
        long_ago_lsn: before the beginning of the oldest transaction.
        tables: by relfilenode, also those that a table had before it was rewritten.
        aborted: transaction ids whose rollback is in the tail, of subtransactions too.
        open: the number of transactions that were open at the end.
    """

    from_lsn: Lsn
    long_ago_lsn: Lsn
    transactions: list[Booked] = field(default_factory=list)
    tables: dict[int, str] = field(default_factory=dict)
    aborted: list[int] = field(default_factory=list)
    open: int = 0
    database: int = 0


def found_in(report: DiscardedReport, tables: dict[int, str]) -> list[Booked]:
    """Return the transactions of a report in the form of a book: tables that the book does not have are left out."""
    return [_booked(each, report.from_lsn, tables) for each in report.tail.transactions]


def _booked(each: DiscardedTransaction, from_lsn: Lsn, tables: dict[int, str]) -> Booked:
    rows = {
        tables[relation.relfilenode]: tuple(counts)
        for relation, counts in each.rows.items()
        if not is_catalog(relation) and relation.relfilenode in tables
    }
    dropped = tuple(tables[relation.relfilenode] for relation in each.dropped if relation.relfilenode in tables)
    began_before = each.first_lsn < from_lsn
    time = commit_time(each.time_us)
    arguments = (rows, each.subtransactions, each.gid, each.changes_catalogs, each.messages)
    arguments += (len(each.sequences), dropped, began_before, time if each.kind in _TIMED else None)
    return Booked(each.kind.value, each.xid, *arguments)  # type: ignore[arg-type]


class _Client:
    """A session in autocommit mode that commits locally."""

    def __init__(self, server: LocalPostgres) -> None:
        conninfo = server.conninfo(options="-c synchronous_commit=local")
        self._connection = psycopg.connect(conninfo, autocommit=True)

    def run(self, *statements: str) -> None:
        for statement in statements:
            self._connection.execute(statement.encode())

    def value(self, statement: str) -> Any:
        row = self._connection.execute(statement.encode()).fetchone()
        assert row is not None
        return row[0]

    def xid(self) -> int:
        """Return the id of the present transaction; it has one from now on."""
        return int(self.value("SELECT txid_current()")) & 0xFFFFFFFF

    def close(self) -> None:
        self._connection.close()


@contextmanager
def _clients(server: LocalPostgres) -> Iterator[Any]:
    made: list[_Client] = []

    def make() -> _Client:
        made.append(_Client(server))
        return made[-1]

    yield make
    for client in made:
        client.close()


def write_tail(server: LocalPostgres, *, big_rows: int = 12_000) -> Book:
    """Write the tail and kill the server.

    Args:
        big_rows: of the biggest transaction, which spans several segments of 1 MiB.
    """
    with _clients(server) as client:
        one, long, prepared_a, prepared_b, never = client(), client(), client(), client(), client()
        one.run(
            "CREATE TABLE plain (id int PRIMARY KEY, v int)",
            "CREATE TABLE filler (t text)",
            "CREATE TABLE wide (id int, t text)",
            "ALTER TABLE wide ALTER t SET STORAGE external",
            "CREATE TABLE doomed (id int)",
            "CREATE TABLE doomed_later (id int)",
            "CREATE TABLE emptied (id int)",
            "CREATE TABLE nested (n int)",
            "CREATE SEQUENCE numbers",
            "INSERT INTO plain SELECT n, 0 FROM generate_series(1, 100) n",
            "INSERT INTO emptied SELECT 1 FROM generate_series(1, 10) n",
            "CHECKPOINT",
        )
        book = Book(0, parse_lsn(one.value("SELECT pg_current_wal_insert_lsn()")))
        book.database = int(one.value("SELECT oid FROM pg_database WHERE datname = current_database()"))

        def name_tables(*names: str) -> None:
            for name in names:
                book.tables[int(one.value(f"SELECT pg_relation_filenode('{name}')"))] = name

        name_tables("plain", "filler", "wide", "doomed", "doomed_later", "emptied", "nested")

        def book_of(who: _Client, kind: str, *statements: str, **expected: Any) -> Booked:
            who.run("BEGIN")
            xid = who.xid()
            who.run(*statements)
            who.run("COMMIT")
            booked = Booked(kind, xid, **expected)
            book.transactions.append(booked)
            return booked

        # Before the point: transactions that are open or prepared at it, and WAL of several segments after they began.
        long.run("BEGIN", "INSERT INTO plain SELECT -n, 1 FROM generate_series(1, 7) n")
        long_xid = long.xid()
        prepared_xids = {}
        for who, gid in ((prepared_a, "before-committed"), (prepared_b, "before-rolled-back")):
            who.run("BEGIN", "SAVEPOINT s", "INSERT INTO nested VALUES (1), (2)", "RELEASE s")
            prepared_xids[gid] = who.xid()
            who.run("INSERT INTO nested VALUES (3)", f"PREPARE TRANSACTION '{gid}'")
        one.run("INSERT INTO filler SELECT repeat('f', 200) FROM generate_series(1, 20000)", "CHECKPOINT")
        one.run("INSERT INTO filler SELECT repeat('g', 200) FROM generate_series(1, 300)")
        book.from_lsn = parse_lsn(one.value("SELECT pg_current_wal_insert_lsn()"))

        # After it.
        book_of(one, "commit", "INSERT INTO plain VALUES (1001, 1), (1002, 1)", rows={"plain": (2, 0, 0)})
        book_of(
            *(one, "commit"),
            "UPDATE plain SET v = 5 WHERE id <= 40",
            "DELETE FROM plain WHERE id BETWEEN 41 AND 45",
            rows={"plain": (0, 40, 5)},
        )
        # A conflict of two sessions: the row that is inserted too early is not one.
        upsert = "INSERT INTO plain VALUES (1, 1), (1003, 1) ON CONFLICT (id) DO UPDATE SET v = 6"
        book_of(one, "commit", upsert, rows={"plain": (1, 1, 0)})
        one.run("BEGIN")
        booked = Booked("commit", one.xid(), {"nested": (12, 0, 0)}, 12)  # ROLLBACK TO begins another one.
        for number in range(11):
            one.run(f"SAVEPOINT s{number}", "INSERT INTO nested VALUES (1)")
        one.run("SAVEPOINT dropped", "INSERT INTO nested VALUES (9), (9)")
        book.aborted.append(int(one.value("SELECT xmax::text FROM (SELECT max(xmin::text::int) xmax FROM nested) x")))
        one.run("ROLLBACK TO dropped", "INSERT INTO nested VALUES (2)", "COMMIT")
        book.transactions.append(booked)
        one.run("SELECT pg_logical_emit_message(false, 'p', 'outside')")
        book_of(one, "commit", "SELECT nextval('numbers')", sequences=1)
        book_of(
            *(one, "commit", "SELECT pg_logical_emit_message(true, 'p', 'inside')"),
            "INSERT INTO plain VALUES (1004, 1)",
            rows={"plain": (1, 0, 0)},
            messages=1,
        )
        one.run("BEGIN")
        book.aborted.append(one.xid())
        one.run("INSERT INTO plain VALUES (2000, 1)", "ROLLBACK")
        created = Booked("commit", 0, {"made": (3, 0, 0)}, ddl=True)
        one.run("BEGIN", "CREATE TABLE made (id int)", "INSERT INTO made VALUES (1), (2), (3)")
        created.xid = one.xid()
        one.run("COMMIT")
        name_tables("made")
        book.transactions.append(created)
        book_of(one, "commit", "DROP TABLE doomed", ddl=True, dropped=("doomed",))
        book_of(one, "commit", "TRUNCATE emptied", ddl=True, dropped=("emptied",))
        name_tables("emptied")
        one.run("SELECT pg_switch_wal()")
        big = f"INSERT INTO filler SELECT repeat('b', 200) FROM generate_series(1, {big_rows})"
        book_of(one, "commit", big, rows={"filler": (big_rows, 0, 0)})
        toast = "INSERT INTO wide SELECT 1, string_agg(md5(n::text), '') FROM generate_series(1, 1000) n"
        book_of(one, "commit", toast, rows={"wide": (1, 0, 0)})

        one.run("COMMIT PREPARED 'before-committed'")
        xid = prepared_xids["before-committed"]
        book.transactions.append(Booked("commit prepared", xid, {"nested": (3, 0, 0)}, 1, "before-committed"))
        one.run("ROLLBACK PREPARED 'before-rolled-back'")
        xid = prepared_xids["before-rolled-back"]
        book.transactions.append(Booked("rollback prepared", xid, {"nested": (3, 0, 0)}, 1, "before-rolled-back"))
        for gid, end in (("both", "COMMIT PREPARED 'both'"), ("kept", ""), ("gone", "ROLLBACK PREPARED 'gone'")):
            one.run("BEGIN", "INSERT INTO nested VALUES (4)")
            xid = one.xid()
            dropped = ("doomed_later",) if gid == "kept" else ()
            if dropped:
                one.run("SAVEPOINT s", "DROP TABLE doomed_later", "RELEASE s")
            one.run(f"PREPARE TRANSACTION '{gid}'")
            if end:
                one.run(end)
            if gid == "gone":
                book.aborted.append(xid)
            else:
                kind = "commit prepared" if end else "prepare"
                book.transactions.append(
                    Booked(kind, xid, {"nested": (1, 0, 0)}, len(dropped), gid, bool(dropped), dropped=dropped)
                )
        with one._connection.cursor() as cursor, cursor.copy("COPY plain FROM STDIN") as copy:
            for number in range(500):
                copy.write_row((5000 + number, 0))
        copied = int(one.value("SELECT xmin::text FROM plain WHERE id = 5000"))
        book.transactions.append(Booked("commit", copied, {"plain": (500, 0, 0)}))
        long.run("UPDATE plain SET v = 2 WHERE id BETWEEN -3 AND -1", "COMMIT")
        book.transactions.append(Booked("commit", long_xid, {"plain": (7, 3, 0)}))
        never.run("BEGIN", "INSERT INTO plain VALUES (9999, 1)")
        book.open = 1
        for booked in book.transactions:
            if booked.kind.startswith("commit"):
                booked.time = one.value(f"SELECT pg_xact_commit_timestamp('{booked.xid}')")
            booked.began_before = booked.xid in (long_xid, *prepared_xids.values())
        # The open transaction's record reaches the disk with a later commit.
        last = Booked("commit", 0, {"plain": (1, 0, 0)})
        one.run("BEGIN", "INSERT INTO plain VALUES (3000, 1)")
        last.xid = one.xid()
        one.run("COMMIT")
        last.time = one.value(f"SELECT pg_xact_commit_timestamp('{last.xid}')")
        book.transactions.append(last)
        server.kill9()
    return book


def make_server(binaries: ServerBinaries, folder: Path, wal_level: str) -> LocalPostgres:
    """Make and start a server with segments of 1 MiB."""
    server = LocalPostgres(binaries, folder / "data", settings={**SETTINGS, "wal_level": wal_level})
    return init_by_copying(server, cluster_template(binaries, 1)).start()


def by_xid(transactions: list[Booked]) -> dict[int, Booked]:
    return {each.xid: each for each in transactions}


def verify_report(report: DiscardedReport, book: Book) -> None:
    """Check that a report contains what the book does, and nothing else."""
    assert by_xid(found_in(report, book.tables)) == by_xid(book.transactions)
    assert len(report.tail.transactions) == len(book.transactions) == report.transactions
    assert [each.xid for each in report.tail.aborted] == book.aborted
    assert (report.tail.open, report.tail.messages) == (book.open, 1)
    assert all(each.is_complete for each in report.tail.transactions)
    assert report.notes == ()
    created = {book.tables.get(relation.relfilenode) for relation in report.tail.created}
    assert {"made", "emptied"} <= created and not {"plain", "filler", "nested"} & created
