"""Rows of many sizes, each inserted once: none is missing, none is there twice, and none is damaged.

What a row holds follows from its number, so that the checker can compute it again. One in twenty is so large
that PostgreSQL spreads it over several pages. No constraint makes numbers unique: that is what the check is for.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

import asyncpg

from walproxy.lab.load.transactions import Block
from walproxy.lab.torture.record import Violation
from walproxy.lab.torture.workloads.interface import CHANGED, TWICE, Attempt, Try, find_lost, find_strangers, shortened

_LARGE_ONE_IN = 20
_LARGE_PIECES = 300
Rows = list[tuple[int, str]]
"""The rows in the table: their number, and the MD5 digest of what they hold."""


def payload(number: int) -> str:
    """Return what the row of that number holds: text that hardly compresses."""
    pieces = _LARGE_PIECES if number % _LARGE_ONE_IN == 0 else 1 + number % 3
    return "".join(hashlib.sha256(f"{number} {piece}".encode()).hexdigest() for piece in range(pieces))


@dataclass(frozen=True)
class InsertAttempt(Block):
    """An insert that a client tries."""

    number: int

    async def carry_out(self, connection: asyncpg.Connection) -> None:
        await connection.execute("BEGIN")
        await connection.execute("INSERT INTO inserted VALUES ($1, $2)", self.number, payload(self.number))

    def __str__(self) -> str:
        return f"insert {self.number}"


class Unique:
    """Rows are inserted."""

    name = "unique"
    tables = "CREATE TABLE inserted (number bigint NOT NULL, payload text NOT NULL)"

    def attempt(self, number: int, chance: Random) -> Attempt:
        return InsertAttempt(number)

    async def read(self, connection: asyncpg.Connection) -> Rows:
        rows = await connection.fetch("SELECT number, md5(payload) AS digest FROM inserted")
        return [(row["number"], row["digest"]) for row in rows]

    def check(self, state: Rows, tries: Iterable[Try]) -> list[Violation]:
        tried = {each.attempt.number: each for each in tries}
        counts = Counter(number for number, _ in state)
        changed = (
            f"{InsertAttempt(number)}: the row does not have the inserted values"
            for number, digest in state
            if hashlib.md5(payload(number).encode()).hexdigest() != digest
        )
        twice = (f"{InsertAttempt(number)}: {count} rows of it" for number, count in counts.items() if count > 1)
        return [
            *find_lost(tried, counts, "the table"),
            *shortened(CHANGED, changed),
            *shortened(TWICE, twice),
            *find_strangers(tried, {number: InsertAttempt(number) for number in counts}, "the table"),
        ]
