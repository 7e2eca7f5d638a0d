"""Servers that decode logically, and a database of its own for each test."""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tests.cluster_templates import cluster_template, init_by_copying
from tests.scratch import scratch_folder
from walproxy.pipeline.cdc.changes import Change
from walproxy.pipeline.cdc.publication import create_publication, parse_table
from walproxy.pipeline.cdc.reading import SlotReader
from walproxy.pipeline.cdc.safe_lsn import NO_QUORUM, SafeLsn
from walproxy.pipeline.cdc.server import Connection, connect
from walproxy.pipeline.cdc.slot import create_slot
from walproxy.postgres.binaries import ServerBinaries
from walproxy.postgres.local_server import LocalPostgres, find_servers

SETTINGS = {
    "wal_level": "logical",
    "logical_decoding_work_mem": "64kB",
    "max_replication_slots": "20",
    "shared_buffers": "16MB",
    "fsync": "off",
    "autovacuum": "off",
}
_numbers = itertools.count()


@contextmanager
def logical_server(
    major: int | None = None, servers: Mapping[int, ServerBinaries] | None = None
) -> Iterator[LocalPostgres]:
    """Give a server of a major version, of the newest if none is said; of those of this machine by default."""
    servers = servers or find_servers()
    with (
        scratch_folder() as folder,
        LocalPostgres(servers[major or max(servers)], folder / "data", settings=SETTINGS) as server,
    ):
        yield init_by_copying(server, cluster_template(server.binaries)).start()


def client(conninfo: str) -> Connection:
    """Return a session as the product has it, which may write, and in which tables need no schema."""
    connection = connect(conninfo, writes=True)
    connection.execute("SET search_path = public")
    return connection


class Source:
    """A database with a publication "my pub" and a slot of its own, whose name is that of the database."""

    def __init__(self, server: LocalPostgres, options: str = "") -> None:
        self.server = server
        self.name = self.slot = f"source{next(_numbers)}"
        server.execute(f"CREATE DATABASE {self.name} {options}")
        self.conninfo = server.conninfo(dbname=self.name)
        self.connection = client(self.conninfo)
        self.asking = client(self.conninfo)
        self.publication = "my pub"
        self.begin_lsn = 0

    def close(self) -> None:
        """Leave nothing behind."""
        self.connection.close()
        self.asking.close()
        # The server may not yet have noticed that who streamed from a slot is gone.
        used = "SELECT 1 FROM pg_replication_slots WHERE database = %s AND active"
        wait_until(lambda: not self.server.execute(used, self.name))
        for (slot,) in self.server.execute("SELECT slot_name FROM pg_replication_slots WHERE database = %s", self.name):
            self.server.execute("SELECT pg_drop_replication_slot(%s)", slot)
        self.server.execute(f"DROP DATABASE {self.name} WITH (FORCE)")

    def run(self, *statements: str) -> None:
        """Run statements, each of them a transaction of its own."""
        for statement in statements:
            self.connection.execute(statement.encode())

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return self.connection.execute(query.encode()).fetchall()

    def publish(self, *tables: str) -> None:
        """Make the publication, and then the slot."""
        create_publication(self.connection, self.publication, [parse_table(table) for table in tables])
        self.begin_lsn = create_slot(self.connection, self.slot)

    def end_lsn(self) -> int:
        """Return the end of the WAL."""
        return SafeLsn(NO_QUORUM).read(self.connection)

    def reader(self, safe_lsn: SafeLsn | None = None, **options: Any) -> SlotReader:
        """Return what reads the slot."""
        return SlotReader(self.slot, [self.publication], safe_lsn or SafeLsn(NO_QUORUM), **options)

    def changes(self, **options: Any) -> list[Change]:
        """Return all changes since the slot was made."""
        return list(self.reader(**options).read(self.connection, self.asking, self.begin_lsn, self.end_lsn()))


def places(changes: Sequence[Change]) -> list[tuple[int, int]]:
    """Return what tells changes apart."""
    return [(change.transaction.commit_lsn, change.sequence) for change in changes]


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
