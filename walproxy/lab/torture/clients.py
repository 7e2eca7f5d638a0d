"""The clients of the torture: they try transactions of the workloads by chance."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

import asyncpg

from safekeeper.base.lsn import Lsn, parse_lsn
from walproxy.lab.load import history
from walproxy.lab.load.clients import Clients
from walproxy.lab.torture.record import Operation
from walproxy.lab.torture.workloads import Attempt, Try, Workload

APPLICATION_NAME = "walproxy torture"

_HANGS_UP_AFTER_S = 20.0


class Tried:
    """An attempt at a workload's transaction.

    Attributes:
        lsn: where the log ended before its COMMIT: the commit's record begins there or after it.
    """

    # A soak keeps hundreds of thousands of them.
    __slots__ = ("attempt", "lsn", "workload")

    def __init__(self, workload: str, attempt: Attempt) -> None:
        self.workload = workload
        self.attempt = attempt
        self.lsn: Lsn = 0

    async def carry_out(self, connection: asyncpg.Connection) -> None:
        await self.attempt.carry_out(connection)
        self.lsn = parse_lsn(await connection.fetchval("SELECT pg_current_wal_insert_lsn()::text"))

    async def commit(self, connection: asyncpg.Connection) -> bool:
        return await self.attempt.commit(connection)


class TortureClients(Clients[Tried]):
    """`count` clients that try transactions of the workloads.

    Args:
        conninfo: libpq's connection string of the primary.
        rate: transactions a second of all clients together, while nothing makes them wait.
        begun_at: when the run began, on the clock of `time.monotonic`.
        options: others of Clients.
    """

    def __init__(
        self,
        conninfo: str,
        count: int,
        rate: float,
        workloads: Sequence[Workload],
        seed: int,
        begun_at: float,
        **options: Any,
    ) -> None:
        self._begun_at = begun_at
        options = {"application_name": APPLICATION_NAME, "hangs_up_after_s": _HANGS_UP_AFTER_S, **options}
        super().__init__(
            lambda: conninfo,
            count,
            _chooser(workloads, seed),
            rate=rate,
            **options,
        )

    @property
    def acknowledged_lsn(self) -> Lsn:
        """The log must reach beyond it wherever all that was acknowledged is."""
        return max((operation.transaction.lsn for operation in self.history.acknowledged), default=0)

    @property
    def last_ok_begun_s(self) -> float:
        """When the youngest transaction that was acknowledged had begun, since the run began."""
        return self.history.last_begun_at - self._begun_at

    @property
    def problem(self) -> str:
        """Why a client last had to reconnect."""
        return self.history.problem

    def ended_since(self, number: int) -> list[Operation]:
        """Return what is to be kept of the transactions that have ended, without the first `number` of them."""
        return list(_kept(self.history.operations[number:], self._begun_at))

    def tries(self) -> list[Try]:
        """Return what the workloads check: each transaction that has ended."""
        ended = self.history.operations
        return [Try(kept, each.transaction.attempt) for kept, each in zip(self.ended_since(0), ended, strict=False)]


def _chooser(workloads: Sequence[Workload], seed: int) -> Callable[[int], Tried]:
    """Return what chooses a client's next transaction: each client has a chance of its own."""
    numbers = itertools.count(1)
    chances: dict[int, Random] = {}

    def choose(client: int) -> Tried:
        chance = chances.setdefault(client, Random(f"{seed}/client {client}"))
        workload = chance.choice(workloads)
        return Tried(workload.name, workload.attempt(next(numbers), chance))

    return choose


def _kept(operations: Iterable[history.HistoryOperation[Tried]], begun_at: float) -> Iterable[Operation]:
    for each in operations:
        tried = each.transaction
        times_s = each.begun_at - begun_at, each.ended_at - begun_at
        yield Operation(each.client, tried.workload, *times_s, each.outcome, str(tried.attempt))
