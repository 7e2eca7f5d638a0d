"""Serializable transactions of appends to several lists and reads of them: walproxy/lab/list_append checks them.

The history has what each transaction has read, so that also stale reads and reads of what was lost later show, and
orders of transactions that contradict each other.
"""

from collections.abc import Iterable, Sequence
from random import Random
from typing import Final

import asyncpg
import psycopg

from walproxy.lab.list_append.check import find_anomalies
from walproxy.lab.list_append.transactions import Append, ListTransaction, Read, Step
from walproxy.lab.list_append.workload import (
    BEGIN,
    CONFIRM,
    CREATE_TABLE,
    READ_ALL,
    WishedStatement,
    draw,
    is_read_only,
    read_at_the_end,
)
from walproxy.lab.load.transactions import commit_block
from walproxy.lab.torture.record import Violation
from walproxy.lab.torture.workloads.interface import Try, shortened

# Another order of the transactions would help the first one, so it is not committed.
_REFUSALS: Final = (
    *(asyncpg.SerializationError, asyncpg.DeadlockDetectedError),
    *(psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected),
)


class ListsAttempt:
    """A transaction that a client tries.

    Attributes:
        done: the steps that have had a reply.
    """

    def __init__(self, wishes: Sequence[WishedStatement]) -> None:
        self._wishes = tuple(wishes)
        self.done: list[Step] = []
        self._is_refused = False

    async def carry_out(self, connection: asyncpg.Connection) -> None:
        await connection.execute(BEGIN)
        try:
            for wish in self._wishes:
                self.done.append(wish.step(await connection.fetchval(wish.statement())))
            if is_read_only(self._wishes):
                await connection.execute(CONFIRM)
        except _REFUSALS:
            # An empty block, so that the client can go on with its connection.
            self._is_refused = True
            await connection.execute("ROLLBACK")
            await connection.execute("BEGIN")

    async def commit(self, connection: asyncpg.Connection) -> bool:
        try:
            return await commit_block(connection) and not self._is_refused
        except _REFUSALS:
            return False

    @property
    def steps(self) -> tuple[Step, ...]:
        """Its steps: the reads that have had a reply, and all appends."""
        wished = self._wishes[len(self.done) :]
        return (*self.done, *(Append(each.key, each.value) for each in wished if each.value is not None))

    def __str__(self) -> str:
        done = [*self.done, *self._wishes[len(self.done) :]]
        return "; ".join(map(_described, done))


class Lists:
    """Transactions of appends and reads."""

    name = "lists"
    tables = CREATE_TABLE

    def attempt(self, number: int, chance: Random) -> ListsAttempt:
        return ListsAttempt(draw(number, chance))

    async def read(self, connection: asyncpg.Connection) -> dict[int, tuple[int, ...]]:
        return {row["key"]: tuple(row["items"]) for row in await connection.fetch(READ_ALL)}

    def check(self, state: dict[int, tuple[int, ...]], tries: Iterable[Try]) -> list[Violation]:
        history = [_transaction(each) for each in tries]
        found = find_anomalies([*history, read_at_the_end(history, state)])
        kinds = dict.fromkeys(anomaly.kind for anomaly in found)
        messages = {kind: [each.message for each in found if each.kind == kind] for kind in kinds}
        return [violation for kind, these in messages.items() for violation in shortened(kind, these)]


def _described(step: Step | WishedStatement) -> str:
    if isinstance(step, Read):
        return f"read {step.key}: {','.join(map(str, step.items)) or '-'}"
    return f"read {step.key}: ?" if step.value is None else f"append {step.value} to {step.key}"


def _transaction(each: Try) -> ListTransaction:
    operation = each.operation
    ended_s = operation.begun_s if operation.ended_s is None else operation.ended_s
    name = f"client {operation.client} at {operation.begun_s:.3f} s"
    return ListTransaction(name, operation.begun_s, ended_s, operation.outcome, each.attempt.steps)
