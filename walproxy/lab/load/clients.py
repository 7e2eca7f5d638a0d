"""Clients that commit one transaction after the other, and keep what each came to.

They run on an event loop in a thread of their own, so that the caller can kill processes and wait. A client that loses
its connection makes a new one and goes on with another transaction: it never repeats one, so each is acknowledged
("ok"), certainly not committed ("fail"), or in doubt ("unknown").

A client that waits for too long hangs up. It never cancels: PostgreSQL answers a cancelled wait for its standbys with
COMMIT and a warning, although no standby has it. The session that it leaves continues to wait, and may commit later.
"""

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar
from urllib.parse import urlencode

import asyncpg
import psycopg
from psycopg.conninfo import conninfo_to_dict

from safekeeper.base.errors import WalproxyError
from safekeeper.base.logs import one_line
from walproxy.lab.load.history import History, HistoryOperation, Outcome
from walproxy.lab.load.transactions import Transaction

Connect = Callable[[str, str], AbstractAsyncContextManager[Any]]
"""Connects by a connection string of libpq and an application_name; yields what transactions are sent over."""

T = TypeVar("T", bound=Transaction)

CONNECTION_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    # What asyncpg raises when the server's last message comes between two statements.
    asyncpg.InternalClientError,
    psycopg.Error,
    OSError,
    TimeoutError,
)

_CONNECT_TIMEOUT_S: Final = 2.0
_RECONNECT_PAUSE_S: Final = 0.05, 0.05
_ENDS_WITHIN_S: Final = 30.0
_ASYNCPG_WORDS: Final = frozenset(
    {"host", "port", "user", "password", "passfile", "dbname", "sslmode", "sslrootcert", "sslcert", "sslkey"}
)


@asynccontextmanager
async def asyncpg_session(conninfo: str, application_name: str) -> AsyncIterator[asyncpg.Connection]:
    """Yield a connection of asyncpg."""
    connection = await asyncpg.connect(**asyncpg_options(conninfo, application_name), timeout=_CONNECT_TIMEOUT_S)
    try:
        yield connection
    finally:
        connection.terminate()


class Clients(Generic[T]):
    """`count` connections that try one transaction after the other, from `start` until `stop`.

    Attributes:
        history: of all transactions; may have entries of clients before these.

    Args:
        conninfo: returns libpq's connection string of the primary; called at each connect, by the clients' thread.
        next_transaction: returns the next transaction of a client, by its number; called by the clients' thread.
        application_name: of the sessions.
        rate: transactions a second of all clients together, while nothing makes them wait; as many as they can without.
        hangs_up_after_s: how long the first client waits for a transaction; without, until `stop`.
        hang_up_spread_s: how much longer the last one waits; the others are in between.
        reconnect_pause_s: a client that has lost its connection waits for a time between these.
        connect: what connects.
        measures_s: the clients begin together, once all are connected, and end by themselves after this number of
            seconds; math.inf if not before `stop`. The first problem ends them all. Without, they reconnect.
    """

    def __init__(
        self,
        conninfo: Callable[[], str],
        count: int,
        next_transaction: Callable[[int], T],
        history: History[T] | None = None,
        *,
        application_name: str = "walproxy load",
        rate: float | None = None,
        hangs_up_after_s: float | None = None,
        hang_up_spread_s: float = 0.0,
        reconnect_pause_s: tuple[float, float] = _RECONNECT_PAUSE_S,
        connect: Connect = asyncpg_session,
        measures_s: float | None = None,
    ) -> None:
        self.history: History[T] = History() if history is None else history
        self._conninfo = conninfo
        self._count = count
        self._next_transaction = next_transaction
        self._application_name = application_name
        self._interval_s = 0.0 if rate is None else count / rate
        self._hangs_up_after_s = hangs_up_after_s
        self._hang_up_spread_s = hang_up_spread_s
        self._reconnect_pause_s = reconnect_pause_s
        self._connect = connect
        self._measures_s = measures_s
        self._all_connected = asyncio.Barrier(count)
        self._connections: set[Any] = set()
        self._thread = threading.Thread(target=self._run, name=application_name, daemon=True)
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop(0.0 if error else _ENDS_WITHIN_S)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def set_rate(self, rate: float) -> None:
        """Commit at another rate from the next transaction on."""
        self._interval_s = self._count / rate

    def stop(self, timeout_s: float = _ENDS_WITHIN_S, *, hang_up: bool = True) -> int:
        """Let each client finish its transaction, and end; return how many still waited after `timeout_s`.

        Args:
            hang_up: let those that still waited hang up; otherwise they end once they are answered.

        Raises:
            WalproxyError: a client has ended by an error, or does not end.
        """
        waiting = 0
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            waiting = len(self._connections)
            if hang_up:
                self._loop.call_soon_threadsafe(self._hang_up)
                self._thread.join(_ENDS_WITHIN_S)
                if self._thread.is_alive():
                    raise WalproxyError(f"clients of the load do not end; the last problem was: {self.history.problem}")
        self.check()
        return waiting

    def finish(self) -> None:
        """Wait until clients that measure have ended by themselves.

        Raises:
            WalproxyError: a client has ended by an error.
        """
        self._thread.join()
        self.check()

    def check(self) -> None:
        """Do nothing while the clients do what they should.

        Raises:
            WalproxyError: one has ended by an error.
        """
        if self._failure is not None:
            raise WalproxyError(f"a client of the load has ended: {self.history.problem}") from self._failure

    def wait_for_commit(self, since: float, timeout_s: float = 60.0) -> HistoryOperation[T]:
        """Wait for the first acknowledged transaction that began at `since` or later, and return it.

        Raises:
            WalproxyError: there is none within `timeout_s`, or a client has ended by an error.
        """
        history = self.history
        history.wait_for(lambda: self._failure or history.first_begun_since(since), timeout_s)
        first = history.first_begun_since(since)
        if first is None:
            self.check()
            problem = history.problem or "none"
            raise WalproxyError(f"no commit was acknowledged for {timeout_s:g} s; a client's last problem: {problem}")
        return first

    def _hang_up(self) -> None:
        for connection in list(self._connections):
            connection.terminate()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._run_clients())
            except BaseException as error:
                self._note(error)
                self._failure = error
        self.history.wake()

    async def _run_clients(self) -> None:
        async with asyncio.TaskGroup() as group:
            for client in range(1, self._count + 1):
                group.create_task(self._run_client(client))

    async def _run_client(self, client: int) -> None:
        while not self._stopping.is_set():
            try:
                await self._connect_and_commit(client)
            except CONNECTION_ERRORS as error:
                if self._measures_s is not None and not self._stopping.is_set():
                    raise
                self._note(error)
                await asyncio.sleep(random.uniform(*self._reconnect_pause_s))

    async def _connect_and_commit(self, client: int) -> None:
        """Commit until the load is stopped.

        Raises:
            one of CONNECTION_ERRORS: the connection cannot be made, or is of no use any longer.
        """
        async with self._connect(self._conninfo(), self._application_name) as connection:
            self._connections.add(connection)
            try:
                await self._commit(client, connection)
            finally:
                self._connections.discard(connection)

    async def _commit(self, client: int, connection: Any) -> None:
        if self._measures_s is not None:
            await self._all_connected.wait()
            if client == 1:
                self._loop.call_later(self._measures_s, self._stopping.set)
        while not self._stopping.is_set():
            begun_at = time.monotonic()
            await self._try(client, connection)
            if self._interval_s:
                await asyncio.sleep(max(0.0, self._interval_s - (time.monotonic() - begun_at)))

    async def _try(self, client: int, connection: Any) -> None:
        """Try one transaction, and keep what it came to.

        Raises:
            one of CONNECTION_ERRORS: the connection is of no use any longer.
        """
        transaction = self._next_transaction(client)
        outcome: Outcome = "fail"
        hang_up = None
        if self._hangs_up_after_s is not None:
            after_s = self._hangs_up_after_s + self._hang_up_spread_s * (client - 1) / self._count
            hang_up = self._loop.call_later(after_s, connection.terminate)
        begun_at = time.monotonic()
        try:
            await transaction.carry_out(connection)
            outcome = "unknown"
            outcome = "ok" if await transaction.commit(connection) else "fail"
        finally:
            if hang_up is not None:
                hang_up.cancel()
            self.history.add(HistoryOperation(client, transaction, begun_at, time.monotonic(), outcome))

    def _note(self, error: BaseException) -> None:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        self.history.problem = one_line(f"{type(error).__name__}: {error}")


def asyncpg_options(conninfo: str, application_name: str) -> dict[str, Any]:
    """Return a libpq connection string as asyncpg takes it; without TLS unless the string asks for it."""
    words = {"sslmode": "disable", **conninfo_to_dict(conninfo)}
    # asyncpg reads URIs only, and sends words that it does not know to the server.
    known = {name: str(value) for name, value in words.items() if name in _ASYNCPG_WORDS}
    return {
        "dsn": f"postgresql://?{urlencode(known)}",
        "server_settings": {"application_name": application_name},
    }
