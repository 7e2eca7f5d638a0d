"""Writers to one server directly, through its Unix socket, which no partition cuts.

A `Probe` is at each server all the time, and commits with synchronous_commit = on whenever the server accepts writes:
what is acknowledged on two servers at the same time, these see. A `LocalWriter` commits with synchronous_commit = local
on the primary of a round, so that it has rows which no quorum may have.

Each is a thread that may wait in PostgreSQL for as long as that hangs; it ends when its server's processes do.
"""

import contextlib
import threading
import time

import psycopg

from walproxy.lab.failover.host import Host
from walproxy.lab.failover.rows import Book, RowIds, Writer, insert
from walproxy.lab.load.history import HistoryOperation, Outcome

_PROBE_PAUSE_S = 0.1
_LOCAL_PAUSE_S = 0.002
_LOCAL_PAUSE_LATER_S = 0.05
_RETRY_S = 0.2
_ENDS_WITHIN_S = 5.0


class DirectWriter:
    """Writes row after row to one server.

    Args:
        book: the rows are kept there.
        setup: run at the beginning of each session.
    """

    writer: Writer = "probe"
    setup = "SET synchronous_commit = on"

    def __init__(self, host: Host, rows: RowIds, book: Book) -> None:
        self._host = host
        self._rows = rows
        self._book = book
        self._has_begun = False
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{self.writer} {host.name}", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def stop(self, timeout_s: float = _ENDS_WITHIN_S) -> bool:
        """Let it end after the present row; return whether it has, or still waits in PostgreSQL."""
        self._ends.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def pause_s(self) -> float:
        """Return the time between two rows."""
        return _PROBE_PAUSE_S

    def _run(self) -> None:
        while not self._ends.is_set():
            try:
                with contextlib.closing(self._host.connect(f"failover {self.writer}")) as connection:
                    connection.execute(self.setup.encode())
                    while not self._ends.is_set():
                        self._try(connection)
                        self._ends.wait(self.pause_s())
            except psycopg.Error as error:
                self._book.problem = f"{self._host.name}: {error}"
                self._ends.wait(_RETRY_S)

    def _try(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        """Try to write one row. On a server that accepts no writes nothing is kept."""
        row = self._rows.next(self.writer, self._host.name)
        outcome: Outcome = "fail"
        begun_at = time.monotonic()
        try:
            cursor = connection.execute(insert(row).encode())
            while cursor.nextset():
                pass
            xid, tli = cursor.fetchone() or (0, 0)
            row.xid, row.tli = int(str(xid)), int(str(tli))
            outcome = "unknown"
            connection.execute(b"COMMIT")
            outcome = "ok"
        except psycopg.errors.ReadOnlySqlTransaction:
            connection.execute(b"ROLLBACK")
            self._ends.wait(_RETRY_S)
        except psycopg.errors.FeatureNotSupported:
            self._ends.wait(_RETRY_S)  # A standby, where BEGIN READ WRITE fails.
        finally:
            self._has_begun = True
            if row.xid:
                self._book.add(HistoryOperation(0, row, begun_at, time.monotonic(), outcome))


class Probe(DirectWriter):
    """Commits synchronously."""


class LocalWriter(DirectWriter):
    """Commits locally: many rows at first, few from `slow_down` on."""

    writer: Writer = "local"
    setup = "SET synchronous_commit = local"

    def __init__(self, host: Host, rows: RowIds, book: Book) -> None:
        super().__init__(host, rows, book)
        self._pause_s = _LOCAL_PAUSE_S

    def wait_for_first(self, timeout_s: float) -> bool:
        """Wait until it has tried a row; return whether that was in time."""
        return self._book.wait_for(lambda: self._has_begun, timeout_s)

    def slow_down(self) -> None:
        """Write few rows from now on."""
        self._pause_s = _LOCAL_PAUSE_LATER_S

    def pause_s(self) -> float:
        return self._pause_s
