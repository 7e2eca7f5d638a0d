"""Rows that come and go, for a soak: the table keeps its size for hours, whatever is committed.

Most rows are small, one in two hundred is of a quarter of a megabyte. Whoever inserts such a one removes what is old in
the same transaction. What is not old must be there.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

import asyncpg

from walproxy.lab.load.transactions import Block
from walproxy.lab.torture.record import Violation
from walproxy.lab.torture.workloads.interface import Attempt, Try, find_lost

LARGE_ONE_IN = 200
KEPT = 8000
"""The number of the newest rows that are never removed."""

_SMALL_BYTES = 300
_LARGE_BYTES = 256 << 10


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

    def check(self, state: set[int], tries: Iterable[Try]) -> list[Violation]:
        tried = {each.attempt.number: each for each in tries}
        newest = max(tried, default=0)
        kept = {number: each for number, each in tried.items() if number > newest - KEPT}
        return find_lost(kept, state, "the table")
