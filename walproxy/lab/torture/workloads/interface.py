"""The interface of a workload for clients and checkers, and words that all workloads use."""

from collections.abc import Collection, Iterable, Mapping
from random import Random
from typing import Any, NamedTuple, Protocol

import asyncpg

from walproxy.lab.load.transactions import Transaction
from walproxy.lab.torture.record import Operation, Violation

LOST = "Lost"
"""A commit that was acknowledged is not there."""
CHANGED = "Changed"
"""A commit is there with other values than its client sent."""
TWICE = "Twice"
"""A commit is there more than once."""
STRANGER = "Stranger"
"""There is something that no client has tried to commit, or whose client received a failure."""
BALANCE = "Balance"
"""The total of all balances has changed."""

_SHOWN = 10


class Attempt(Transaction, Protocol):
    """One transaction that a client is to try. `str()` of it goes into the history, also before it was carried out."""

    def __str__(self) -> str:
        """Return the line for the history."""
        ...


class Try(NamedTuple):
    """An attempt, and what it came to."""

    operation: Operation
    attempt: Any


class Workload(Protocol):
    """One kind of transaction, its tables, and its promises.

    Attributes:
        name: as in `Operation.workload`.
        tables: SQL that makes its tables.
    """

    name: str
    tables: str

    def attempt(self, number: int, chance: Random) -> Attempt:
        """Return the next transaction; no other one of the run has this number."""
        ...

    async def read(self, connection: asyncpg.Connection) -> Any:
        """Return what the tables hold, for `check`."""
        ...

    def check(self, state: Any, tries: Iterable[Try]) -> list[Violation]:
        """Compare what the tables hold with all tries of this workload."""
        ...


def find_lost(tried: Mapping[int, Try], there: Collection[int], where: str) -> list[Violation]:
    """Return the violations that acknowledged attempts are not in a table.

    Args:
        tried: by number.
        there: the numbers in the table.
        where: the table's name in messages.
    """
    return shortened(
        LOST,
        (
            f"{operation.what}: acknowledged at {operation.ended_s:.3f} s, and not in {where}"
            for number, (operation, _) in tried.items()
            if operation.outcome == "ok" and number not in there
        ),
    )


def find_strangers(tried: Mapping[int, Try], there: Mapping[int, object], where: str) -> list[Violation]:
    """Return the violations that a table has what no client has tried to commit, or what had failed; see `find_lost`.

    Args:
        there: by number, what describes it.
    """
    return shortened(
        STRANGER,
        (
            f"{each}: in {where}, and {'it had failed' if number in tried else 'no client tried it'}"
            for number, each in there.items()
            if number not in tried or tried[number].operation.outcome == "fail"
        ),
    )


def shortened(rule: str, messages: Iterable[str]) -> list[Violation]:
    """Return a violation for each message, the first few of many: the last one has the number of the others."""
    violations = [Violation(rule, message) for message in messages]
    left_out = len(violations) - _SHOWN
    if left_out <= 0:
        return violations
    return [*violations[:_SHOWN], Violation(rule, f"{left_out} more like these")]
