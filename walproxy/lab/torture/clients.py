"""Clients that commit, each at its own pace, and write down what they were told.

They run on an event loop in a thread of their own; the nemesis has the main thread. A client that loses its connection
makes a new one and goes on with another transaction: it never repeats one, so each is acknowledged ("ok"), certainly
not committed ("fail": COMMIT was not sent, or answered with ROLLBACK), or "unknown".

A client that waits for too long hangs up. It never cancels: PostgreSQL answers a cancelled wait for its standbys with
COMMIT and a warning, although no standby has it. The session that it leaves behind waits on, and may commit later;
before the tables are read, such sessions are waited for (`run.py`).
"""

import asyncio
import itertools
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import asyncpg
from psycopg.conninfo import conninfo_to_dict

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import Lsn, parse_lsn
from walproxy.lab.demo.workload import CONNECTION_ERRORS
from walproxy.lab.torture.record import Operation, Outcome
from walproxy.lab.torture.workloads import Attempt, Workload

APPLICATION_NAME = "walproxy torture"

_CONNECT_TIMEOUT_S = 2.0
_RECONNECT_PAUSE_S = 0.1
_HANGS_UP_AFTER_S = 20.0

Clock = Callable[[], float]
"""Seconds since the run began."""


class Clients:
    """`count` connections that try transactions of the workloads in turn, by chance.

    Attributes:
        history: what has come to an end so far; entries are only ever appended, in the order of their ends.
        acknowledged_lsn: the log must reach beyond it wherever all that was acknowledged is.
        last_ok_begun_s: when the youngest transaction that was acknowledged had begun.
        problem: why a client last had to connect anew.

    Args:
        conninfo: libpq's connection string of the primary.
        rate: transactions a second of all clients together, while nothing makes them wait.
    """

    def __init__(
        self, conninfo: str, count: int, rate: float, workloads: Sequence[Workload], seed: int, clock: Clock
    ) -> None:
        self.history: list[Operation] = []
        self.acknowledged_lsn: Lsn = 0
        self.last_ok_begun_s = -1.0
        self.problem = ""
        self._where = asyncpg_options(conninfo)
        self._count = count
        self._interval_s = count / rate
        self._workloads = workloads
        self._seed = seed
        self._clock = clock
        self._numbers = itertools.count(1)
        self._connections: set[asyncpg.Connection] = set()
        self._thread = threading.Thread(target=self._run, name="clients of the torture", daemon=True)
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._death: BaseException | None = None

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def stop(self, timeout_s: float = 30.0) -> None:
        """Let every client finish its transaction, and end; those that still wait after `timeout_s` hang up.

        Raises:
            WalproxyError: a client has ended by an error of its own, or does not end.
        """
        for action in (self._stopping.set, self._hang_up):
            if self._thread.is_alive():
                self._loop.call_soon_threadsafe(action)
                self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise WalproxyError(f"clients of the torture do not end; the last problem was: {self.problem}")
        self.check()

    def check(self) -> None:
        """Do nothing while the clients do what they should.

        Raises:
            WalproxyError: one has ended by an error of its own.
        """
        if self._death is not None:
            raise WalproxyError(f"a client of the torture has ended: {self.problem}") from self._death

    def _hang_up(self) -> None:
        for connection in list(self._connections):
            connection.terminate()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._run_clients())
            except Exception as error:
                self.problem = f"{type(error).__name__}: {error}"
                self._death = error

    async def _run_clients(self) -> None:
        async with asyncio.TaskGroup() as group:
            for client in range(1, self._count + 1):
                group.create_task(self._run_client(client, random.Random(f"{self._seed}/client {client}")))

    async def _run_client(self, client: int, chance: random.Random) -> None:
        while not self._stopping.is_set():
            try:
                connection = await asyncpg.connect(**self._where, timeout=_CONNECT_TIMEOUT_S)
            except CONNECTION_ERRORS as error:
                self.problem = f"{type(error).__name__}: {error}"
                await asyncio.sleep(_RECONNECT_PAUSE_S)
                continue
            self._connections.add(connection)
            try:
                while not self._stopping.is_set():
                    begun_s = self._clock()
                    await self._try(client, connection, chance)
                    await asyncio.sleep(max(0.0, self._interval_s - (self._clock() - begun_s)))
            except CONNECTION_ERRORS as error:
                self.problem = f"{type(error).__name__}: {error}"
            finally:
                self._connections.discard(connection)
                connection.terminate()

    async def _try(self, client: int, connection: asyncpg.Connection, chance: random.Random) -> None:
        """Try one transaction, and write down what has become of it.

        Raises:
            one of CONNECTION_ERRORS: the connection is of no use any more.
        """
        workload = chance.choice(self._workloads)
        attempt = workload.attempt(next(self._numbers), chance)
        begun_s = self._clock()
        outcome: Outcome = "fail"
        hang_up = self._loop.call_later(_HANGS_UP_AFTER_S, connection.terminate)
        try:
            lsn = await _carry_out(attempt, connection)
            # From here on nobody knows what has become of it, until it is answered.
            outcome = "unknown"
            answer = await connection.execute("COMMIT")
            outcome = "ok" if answer == "COMMIT" else "fail"
            if outcome == "ok":
                self.acknowledged_lsn = max(self.acknowledged_lsn, lsn)
                self.last_ok_begun_s = max(self.last_ok_begun_s, begun_s)
        finally:
            hang_up.cancel()
            self.history.append(Operation(client, workload.name, begun_s, self._clock(), outcome, str(attempt)))


async def _carry_out(attempt: Attempt, connection: asyncpg.Connection) -> Lsn:
    """Do all but COMMIT; return where the log ended then: the commit's record begins there or behind it."""
    await attempt.carry_out(connection)
    return parse_lsn(await connection.fetchval("SELECT pg_current_wal_insert_lsn()::text"))


def asyncpg_options(conninfo: str) -> dict[str, Any]:
    """Return a libpq connection string as asyncpg wants it."""
    words = conninfo_to_dict(conninfo)
    return {
        "host": words["host"],
        "port": int(words.get("port") or 5432),
        "user": words["user"],
        "password": words.get("password"),
        "database": words.get("dbname") or words["user"],
        "ssl": False,
        "server_settings": {"application_name": APPLICATION_NAME},
    }
