"""Clients that append to lists and read them, over failovers: walproxy/lab/list_append checks what they have seen.

They are connected as the other clients are, and so also to an old primary that still serves. What they read there does
not count: their COMMIT is not acknowledged.
"""

import contextlib
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import psycopg

from walproxy.lab.failover.clients import RoamingClients
from walproxy.lab.failover.host import Host, Place
from walproxy.lab.list_append.check import find_anomalies
from walproxy.lab.list_append.transactions import ListTransaction, Step
from walproxy.lab.list_append.workload import BEGIN, CONFIRM, READ_ALL, draw, is_read_only, read_at_the_end
from walproxy.lab.load.history import HistoryOperation, Outcome

APPLICATION_NAME = "failover lists"
# Another order of the transactions would help the first one, so it is not committed.
_REFUSALS = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
_SHOWN = 5


@dataclass(slots=True)
class TriedTransaction:
    """A transaction: its server, and the steps that have a result."""

    server: str
    steps: list[Step] = field(default_factory=list)


class ListClients(RoamingClients[TriedTransaction]):
    """Clients that try one transaction of appends and reads after the other."""

    def __init__(self, places: Sequence[Place], chance: Random, *, count: int = 4, rate: float = 40.0) -> None:
        super().__init__(places, count=count, rate=rate, name=APPLICATION_NAME)
        self._chance = chance
        self._numbers = itertools.count(1)

    async def _try(self, client: int, connection: psycopg.AsyncConnection[Any], server: str) -> None:
        wishes = draw(next(self._numbers), self._chance)
        tried = TriedTransaction(server)
        outcome: Outcome = "fail"
        hang_up = self.hang_up_later(client, connection)
        begun_at = time.monotonic()
        try:
            await connection.execute(BEGIN.encode())
            for wish in wishes:
                cursor = await connection.execute(wish.statement().encode())
                row = await cursor.fetchone() if cursor.description else None
                tried.steps.append(wish.step(row[0] if row else None))
            if is_read_only(wishes):
                await connection.execute(CONFIRM.encode())
            outcome = "unknown"
            await connection.execute(b"COMMIT")
            outcome = "ok"
        except _REFUSALS:
            outcome = "fail"
            await connection.execute(b"ROLLBACK")
        finally:
            hang_up.cancel()
            self.book.add(HistoryOperation(client, tried, begun_at, time.monotonic(), outcome))


def find_violations(operations: Sequence[HistoryOperation[TriedTransaction]], leader: Host) -> list[str]:
    """Return the anomalies of a history, with what the primary has at its end.

    Args:
        operations: of clients that have ended.

    Raises:
        psycopg.Error: the primary does not reply.
    """
    history = as_history(operations)
    with contextlib.closing(leader.connect()) as connection:
        connection.execute(BEGIN.encode())
        rows = connection.execute(READ_ALL.encode()).fetchall()
        connection.execute(CONFIRM.encode())
        connection.execute(b"COMMIT")
    lists = {int(key): tuple(items) for key, items in rows}
    found = find_anomalies([*history, read_at_the_end(history, lists)])
    lines = [f"lists: {anomaly.kind}: {anomaly.message}" for anomaly in found[:_SHOWN]]
    return [*lines, f"lists: {len(found) - _SHOWN} more anomalies"] if len(found) > _SHOWN else lines


def as_history(operations: Sequence[HistoryOperation[TriedTransaction]]) -> list[ListTransaction]:
    """Return the history of the operations; transactions are named by client, server and time since the first one."""
    first = min((each.begun_at for each in operations), default=0.0)
    return [
        ListTransaction(
            f"transaction {number} (client {each.client} at {each.transaction.server}, {each.begun_at - first:.3f} s)",
            each.begun_at,
            each.ended_at,
            each.outcome,
            tuple(each.transaction.steps),
        )
        for number, each in enumerate(operations, 1)
    ]
