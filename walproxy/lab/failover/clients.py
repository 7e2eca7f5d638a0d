"""The load: clients of libpq that have a list of all hosts, and find the primary by target_session_attrs=read-write.

As the other load (walproxy/lab/load), they run on an event loop in a thread of their own, reconnect by themselves, and
never repeat a row: each is acknowledged, certainly not committed, or in doubt.

A client that waits for too long hangs up, as an application with a timeout does: it shuts its socket down, and never
cancels (PostgreSQL acknowledges a cancelled wait for its standbys). TCP's own timeouts are set, too: a partition ends
connections by nothing else.

libpq waits for two seconds, the least that it takes, at a host that swallows packets, and asks the other hosts before
or after. Clients that all hung up at the same instant would go on in step, and find the new primary every two seconds
only: nearly all gaps were 6.1 to 6.3 s. So their timeouts differ, as those of applications do. And they pause before
they reconnect: without that, sixteen clients open hundreds of connections a second while no server accepts writes.
"""

import asyncio
import os
import random
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar

import psycopg

from safekeeper.base.errors import WalproxyError
from safekeeper.base.logs import one_line
from walproxy.lab.failover.host import Place
from walproxy.lab.failover.rows import Row, RowIds, insert
from walproxy.lab.load.history import History, HistoryOperation, Outcome

T = TypeVar("T")

APPLICATION_NAME: Final = "failover load"

_HANG_UP_AFTER_S: Final = 1.0, 3.0
_RECONNECT_PAUSE_S: Final = 0.2, 0.6
_ENDS_WITHIN_S: Final = 30.0
_OPTIONS: Final = {
    "user": "postgres",
    "dbname": "postgres",
    "sslmode": "disable",
    "target_session_attrs": "read-write",
    "load_balance_hosts": "random",
    "connect_timeout": "2",
    "keepalives_idle": "1",
    "keepalives_interval": "1",
    "keepalives_count": "2",
    "tcp_user_timeout": "2000",
}


class RoamingClients(ABC, Generic[T]):
    """`count` clients, from `start` until `stop`.

    Attributes:
        book: of all their transactions.

    Args:
        places: all hosts.
        rate: transactions a second of all clients together, while nothing makes them wait.
        name: of the sessions.
    """

    def __init__(self, places: Sequence[Place], *, count: int, rate: float, name: str) -> None:
        self.book: History[T] = History()
        self._conninfo = psycopg.conninfo.make_conninfo(
            "",
            host=",".join(place.address for place in places),
            port=",".join(str(place.pg_port) for place in places),
            application_name=name,
            **_OPTIONS,
        )
        self._names = {(place.address, place.pg_port): place.name for place in places}
        self._count = count
        self._interval_s = count / rate
        first_s, last_s = _HANG_UP_AFTER_S
        self._hang_up_after_s = [first_s + (last_s - first_s) * number / count for number in range(count)]
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Let each client end its transaction, or hang up.

        Raises:
            WalproxyError: a client has ended by an error, or does not end.
        """
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(_ENDS_WITHIN_S)
            if self._thread.is_alive():
                raise WalproxyError(f"clients of the load do not end; the last problem was: {self.book.problem}")
        self.check()

    def check(self) -> None:
        """Do nothing while the clients do what they should.

        Raises:
            WalproxyError: one has ended by an error.
        """
        if self._failure is not None:
            raise WalproxyError(f"a client of the load has ended: {self._failure!r}") from self._failure

    def wait_for_commit(self, since: float, timeout_s: float) -> HistoryOperation[T] | None:
        """Wait for the first acknowledged transaction that began at `since` or later; None: none in time."""
        self.book.wait_for(lambda: self._failure or self.book.first_begun_since(since), timeout_s)
        self.check()
        return self.book.first_begun_since(since)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._run_clients())
            except BaseException as error:
                self._failure = error
        self.book.wake()

    async def _run_clients(self) -> None:
        async with asyncio.TaskGroup() as group:
            for client in range(1, self._count + 1):
                group.create_task(self._run_client(client))

    async def _run_client(self, client: int) -> None:
        while not self._stopping.is_set():
            try:
                await self._connect_and_commit(client)
            except (psycopg.Error, OSError) as error:
                self.book.problem = one_line(f"{type(error).__name__}: {error}")
                await asyncio.sleep(random.uniform(*_RECONNECT_PAUSE_S))

    async def _connect_and_commit(self, client: int) -> None:
        """Commit until the load is stopped.

        Raises:
            psycopg.Error, OSError: the connection cannot be made, or is of no use any longer.
        """
        connection = await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True)
        try:
            server = self._names[connection.info.hostaddr or connection.info.host, connection.info.port]
            while not self._stopping.is_set():
                begun_at = time.monotonic()
                await self._try(client, connection, server)
                await asyncio.sleep(max(0.0, self._interval_s - (time.monotonic() - begun_at)))
        finally:
            # Not close(): that waits for a transaction that is in progress.
            connection.pgconn.finish()

    def hang_up_later(self, client: int, connection: psycopg.AsyncConnection[Any]) -> asyncio.TimerHandle:
        """End a connection when its client has waited for too long, unless the handle is cancelled before."""
        after_s = self._hang_up_after_s[client - 1]
        return asyncio.get_running_loop().call_later(after_s, shut_down, connection.fileno())

    @abstractmethod
    async def _try(self, client: int, connection: psycopg.AsyncConnection[Any], server: str) -> None:
        """Try one transaction, and keep what became of it.

        Raises:
            psycopg.Error, OSError: the connection is of no use any longer.
        """


class RowClients(RoamingClients[Row]):
    """Clients that write one row after the other."""

    def __init__(self, places: Sequence[Place], rows: RowIds, *, count: int = 16, rate: float = 80.0) -> None:
        super().__init__(places, count=count, rate=rate, name=APPLICATION_NAME)
        self._rows = rows

    async def _try(self, client: int, connection: psycopg.AsyncConnection[Any], server: str) -> None:
        row = self._rows.next("client", server)
        outcome: Outcome = "fail"
        hang_up = self.hang_up_later(client, connection)
        begun_at = time.monotonic()
        try:
            cursor = await connection.execute(insert(row).encode())
            while cursor.nextset():
                pass
            row.xid, row.tli = map(int, await cursor.fetchone() or (0, 0))
            outcome = "unknown"
            await connection.execute(b"COMMIT")
            outcome = "ok"
        finally:
            hang_up.cancel()
            self.book.add(HistoryOperation(client, row, begun_at, time.monotonic(), outcome))


def shut_down(descriptor: int) -> None:
    """End the connection of a socket, whose owner then reads its end. The descriptor stays the owner's."""
    with socket.socket(fileno=os.dup(descriptor)) as shared:
        try:
            shared.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # It was no longer connected.
