"""Rows that come and go, for a soak: the table keeps its size for hours, whatever is committed.

Most rows are small, one in two hundred is of a quarter of a megabyte. Whoever inserts such a one removes what is old in
the same transaction. What is not old must be there.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

import asyncpg

from safekeeper.base.errors import ConfigurationError
from walproxy.lab.load.transactions import Block
from walproxy.lab.torture.record import Operation, Violation
from walproxy.lab.torture.workloads.interface import LOST, Attempt, shortened

LARGE_ONE_IN = 200
KEPT = 8000
"""The number of the newest rows that are never removed."""

_SMALL_BYTES = 300
_LARGE_BYTES = 256 << 10
_WHAT = re.compile(r"row (\d+)")


@dataclass(frozen=True)
class RowAttempt(Block):
    """A row that a client tries to insert."""

    number: int

    async def carry_out(self, connection: asyncpg.Connection) -> None:
        is_large = self.number % LARGE_ONE_IN == 0
        await connection.execute("BEGIN")
        row = os.urandom(_LARGE_BYTES if is_large else _SMALL_BYTES)
        await connection.execute("INSERT INTO steady VALUES ($1, $2)", self.number, row)
        if is_large:
            await connection.execute("DELETE FROM steady WHERE number <= $1", self.number - KEPT)

    def __str__(self) -> str:
        return f"row {self.number}"


class Steady:
    """Rows are inserted, and old ones removed."""

    name = "steady"
    # Not compressed, and spread over pages of its own if it is large.
    tables = """
        CREATE TABLE steady (number bigint PRIMARY KEY, payload bytea NOT NULL);
        ALTER TABLE steady ALTER payload SET STORAGE EXTERNAL
    """

    def attempt(self, number: int, chance: Random) -> Attempt:
        return RowAttempt(number)

    async def read(self, connection: asyncpg.Connection) -> set[int]:
        return {row["number"] for row in await connection.fetch("SELECT number FROM steady")}

    def check(self, state: set[int], operations: Iterable[Operation]) -> list[Violation]:
        tried = {parse_row(operation.what): operation for operation in operations if operation.workload == self.name}
        newest = max(tried, default=0)
        lost = [
            f"{operation.what}: acknowledged at {operation.ended_s:.3f} s, and not in the table"
            for number, operation in tried.items()
            if operation.outcome == "ok" and number > newest - KEPT and number not in state
        ]
        return shortened(LOST, lost)


def parse_row(what: str) -> int:
    """Return the number of the row of a line of the history.

    Raises:
        ConfigurationError: it has none.
    """
    match = _WHAT.fullmatch(what)
    if match is None:
        raise ConfigurationError(f"{what!r} in the history is not a row")
    return int(match[1])
