"""Rows of many sizes, each inserted once: none is missing, none is there twice, and none is damaged.

What a row holds follows from its number, so that the checker can compute it again. One in twenty is so large
that PostgreSQL spreads it over several pages. No constraint makes numbers unique: that is what the check is for.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

import asyncpg

from safekeeper.base.errors import ConfigurationError
from walproxy.lab.load.transactions import Block
from walproxy.lab.torture.record import Operation, Violation
from walproxy.lab.torture.workloads.interface import CHANGED, LOST, STRANGER, TWICE, Attempt, shortened

_LARGE_ONE_IN = 20
_LARGE_PIECES = 300
_WHAT = re.compile(r"insert (\d+)")
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

    def check(self, state: Rows, operations: Iterable[Operation]) -> list[Violation]:
        tried = {parse_insert(operation.what): operation for operation in operations if operation.workload == self.name}
        counts = Counter(number for number, _ in state)
        lost = [
            f"{operation.what}: acknowledged at {operation.ended_s:.3f} s, and not in the table"
            for number, operation in tried.items()
            if operation.outcome == "ok" and number not in counts
        ]
        changed = [
            f"insert {number}: the row does not have the inserted values"
            for number, digest in state
            if hashlib.md5(payload(number).encode()).hexdigest() != digest
        ]
        twice = [f"insert {number}: {count} rows of it" for number, count in counts.items() if count > 1]
        strangers = [
            f"insert {number}: in the table, and {'it had failed' if number in tried else 'no client tried it'}"
            for number in counts
            if number not in tried or tried[number].outcome == "fail"
        ]
        return [
            *shortened(LOST, lost),
            *shortened(CHANGED, changed),
            *shortened(TWICE, twice),
            *shortened(STRANGER, strangers),
        ]


def parse_insert(what: str) -> int:
    """Return the number of the row of a line of the history.

    Raises:
        ConfigurationError: it has none.
    """
    match = _WHAT.fullmatch(what)
    if match is None:
        raise ConfigurationError(f"{what!r} in the history is not an insert")
    return int(match[1])
