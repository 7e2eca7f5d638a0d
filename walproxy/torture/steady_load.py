"""A load that stays the same for hours: clients that commit rows at a steady rate, and keep the table at its size.

Most commits are small; one in two hundred of a client brings a quarter of a megabyte, and removes what is old. Each
client has its own connection and times of its own, evenly spread; a commit that takes longer than its share delays the
next one, and nothing is caught up on. What every commit came to is written down as an operation.
"""

import asyncio
import os
import threading
import time
from types import TracebackType
from typing import Final, Self

import psycopg

from safekeeper.errors import WalproxyError
from safekeeper.logs import one_line
from walproxy.torture.record import Operation, Outcome

WORKLOAD: Final = "steady inserts"
_APPLICATION_NAME: Final = "walproxy soak"
_TABLE: Final = """
    CREATE TABLE IF NOT EXISTS steady (client int, number bigint, payload bytea, PRIMARY KEY (client, number));
    ALTER TABLE steady ALTER payload SET STORAGE EXTERNAL
"""
_INSERT: Final = "INSERT INTO steady VALUES (%s, %s, %s)"
_DELETE: Final = "DELETE FROM steady WHERE client = %s AND number <= %s"
_SMALL_BYTES: Final = 300
_LARGE_BYTES: Final = 256 << 10
_LARGE_EVERY: Final = 200
_ROWS_KEPT: Final = 2000
_RECONNECT_PAUSE_S: Final = 0.5
_END_TIMEOUT_S: Final = 10.0


class SteadyLoad:
    """The load, while it is entered.

    Attributes:
        operations: every commit, in the order of their ends.
        last_error: what a client was last told that is not an answer to a commit.

    Args:
        conninfo: of the primary, for libpq.
        clients: how many connections.
        commits_per_s: of all of them together.
        begun_at: when the run began, on the clock of `time.monotonic`.
    """

    def __init__(self, conninfo: str, clients: int, commits_per_s: float, begun_at: float) -> None:
        self.operations: list[Operation] = []
        self.last_error = ""
        self._conninfo = psycopg.conninfo.make_conninfo(conninfo, application_name=_APPLICATION_NAME)
        self._clients = clients
        self._interval_s = clients / commits_per_s
        self._begun_at = begun_at
        self._loop = asyncio.new_event_loop()
        self._ends = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._thread = threading.Thread(target=self._run, name="steady load", daemon=True)

    def __enter__(self) -> Self:
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            connection.execute(_TABLE)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._ends.set)
        self._thread.join(_END_TIMEOUT_S)
        if self._thread.is_alive():
            # Commits that nobody answers: cut off, their outcome is unknown.
            self._loop.call_soon_threadsafe(self._cancel)
            self._thread.join(_END_TIMEOUT_S)

    def check_is_running(self) -> None:
        """See that the clients live.

        Raises:
            WalproxyError: they have ended, by an error that is no server's.
        """
        if not self._thread.is_alive():
            raise WalproxyError(f"the clients of the load have ended: {self.last_error or 'no error is known'}")

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._run_clients())

    async def _run_clients(self) -> None:
        self._tasks = [asyncio.create_task(self._run_client(client)) for client in range(1, self._clients + 1)]
        for ended in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                self.last_error = f"{type(ended).__name__}: {one_line(str(ended))}"

    async def _run_client(self, client: int) -> None:
        number = 0
        due = time.monotonic() + self._interval_s * client / self._clients
        while not self._ends.is_set():
            try:
                async with await psycopg.AsyncConnection.connect(self._conninfo, connect_timeout=5) as connection:
                    while not await self._is_over_at(due):
                        due = max(due + self._interval_s, time.monotonic())
                        number += 1
                        await self._commit(connection, client, number)
            except psycopg.Error as error:
                self.last_error = one_line(str(error))
                await self._is_over_at(time.monotonic() + _RECONNECT_PAUSE_S)

    async def _is_over_at(self, moment: float) -> bool:
        """Wait until then; return whether the load ends by then."""
        try:
            await asyncio.wait_for(self._ends.wait(), max(moment - time.monotonic(), 0))
        except TimeoutError:
            return False
        return True

    async def _commit(self, connection: psycopg.AsyncConnection, client: int, number: int) -> None:
        """Commit one row, and write down what came of it.

        Raises:
            psycopg.Error: the connection is of no use any more.
        """
        is_large = number % _LARGE_EVERY == 0
        begun_s = time.monotonic() - self._begun_at
        outcome: Outcome = "fail"
        ended_s: float | None = None
        try:
            await connection.execute(_INSERT, (client, number, os.urandom(_LARGE_BYTES if is_large else _SMALL_BYTES)))
            if is_large:
                await connection.execute(_DELETE, (client, number - _ROWS_KEPT))
            outcome = "unknown"  # From here on, until COMMIT is answered.
            await connection.commit()
            outcome = "ok"
            ended_s = time.monotonic() - self._begun_at
        except psycopg.Error:
            ended_s = time.monotonic() - self._begun_at
            raise
        finally:
            self.operations.append(Operation(client, WORKLOAD, begun_s, ended_s, outcome, f"row {number}"))
