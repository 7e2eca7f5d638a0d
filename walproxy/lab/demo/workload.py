"""Concurrent clients that transfer money and write down what they were told.

They run on an event loop in a thread of their own, so that the story can kill processes and wait, step by step, in the
main thread. A client that loses its connection makes a new one and goes on with its next transfer; it never repeats
one, so a transfer is acknowledged, in doubt, or was never committed.
"""

import asyncio
import itertools
import random
import threading
import time

import asyncpg

from safekeeper.base.errors import WalproxyError
from walproxy.lab.demo.bank import ACCOUNTS, Transfer
from walproxy.lab.demo.ledger import Acknowledgement, Ledger

APPLICATION_NAME = "walproxy demo"

_CONNECT_TIMEOUT_S = 2.0
_RECONNECT_PAUSE_S = 0.05
_AMOUNT_MAX = 100
# What asyncpg raises when the server is gone, goes away, or is not there yet. It calls it an error of its own when the
# server's last words came between two statements.
CONNECTION_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)


class Workload:
    """`clients` connections to the server at a port of the loopback interface, all transferring as fast as they can.

    Their transfers have other ids than those in `ledger`.
    """

    def __init__(self, port: int, clients: int, ledger: Ledger) -> None:
        self.clients = clients
        self._port = port
        self._ledger = ledger
        self._ids = itertools.count(ledger.last_id() + 1)
        self._thread = threading.Thread(target=self._run, name="workload", daemon=True)
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._deaths: list[str] = []

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def move_to(self, port: int) -> None:
        """Let clients that connect anew do it at another port: the server there is the primary now."""
        self._port = port

    def stop(self, timeout_s: float = 10.0) -> None:
        """Let every client finish its transfer, and end.

        Raises:
            WalproxyError: commits still wait after `timeout_s`; their clients are cut off, the transfers in doubt. Or a
                client has ended by an error of its own.
        """
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._cancel)
            self._thread.join(timeout_s)
            raise WalproxyError(f"commits of the load still waited after {timeout_s:g} s: look at the proxy's log")
        if self._deaths:
            raise WalproxyError(f"{len(self._deaths)} clients of the load ended: {self._deaths[0]}")

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._run_clients())

    async def _run_clients(self) -> None:
        self._tasks = [asyncio.create_task(self._run_client()) for _ in range(self.clients)]
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run_client(self) -> None:
        while not self._stopping.is_set():
            try:
                connection = await asyncpg.connect(
                    host="127.0.0.1",
                    port=self._port,
                    user="postgres",
                    database="postgres",
                    ssl=False,
                    timeout=_CONNECT_TIMEOUT_S,
                    server_settings={"application_name": APPLICATION_NAME},
                )
                try:
                    await self._transfer_until_stopped(connection)
                finally:
                    connection.terminate()
            except CONNECTION_ERRORS as error:
                self._ledger.last_error = f"{type(error).__name__}: {error}"
                await asyncio.sleep(_RECONNECT_PAUSE_S)
            except Exception as error:
                self._ledger.last_error = f"{type(error).__name__}: {error}"
                self._deaths.append(self._ledger.last_error)
                raise

    async def _transfer_until_stopped(self, connection: asyncpg.Connection) -> None:
        while not self._stopping.is_set():
            source, target = random.sample(range(1, ACCOUNTS + 1), 2)
            transfer = Transfer(next(self._ids), source, target, random.randint(1, _AMOUNT_MAX))
            begun_at = time.monotonic()
            await connection.execute(transfer.statements())
            try:
                answer = await connection.execute("COMMIT")
            except BaseException:
                # Cut off as well: from here on nobody knows what has become of it.
                self._ledger.in_doubt.append(transfer)
                raise
            if answer == "COMMIT":
                self._ledger.acknowledged.append(Acknowledgement(transfer, begun_at, time.monotonic()))
