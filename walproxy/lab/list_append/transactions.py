"""One transaction of appends and reads, as its client saw it; and which transactions count.

A transaction counts if its COMMIT was acknowledged, or if its outcome is unknown and a transaction that counts has read
what it appended. Of those that count, everything is checked, also what they have read: a transaction that reads an
append has its commit record after that of the append. A transaction of unknown outcome that no other one has read may
or may not be committed, and contradicts nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from walproxy.lab.load.history import Outcome


class Append(NamedTuple):
    """`value` was appended to the list `key`; no other append of the history has the value."""

    key: int
    value: int


class Read(NamedTuple):
    """The list `key` was read, with these items; empty before the first append."""

    key: int
    items: tuple[int, ...]


Step = Append | Read


@dataclass(frozen=True, slots=True)
class ListTransaction:
    """One transaction.

    Attributes:
        name: in messages.
        begun_at: not later than its BEGIN, in seconds on a clock that all clients share.
        ended_at: not earlier than the reply to its COMMIT; ignored unless the outcome is "ok".
        steps: in the order of its statements.
    """

    name: str
    begun_at: float
    ended_at: float
    outcome: Outcome
    steps: tuple[Step, ...]


def writers(history: Sequence[ListTransaction]) -> dict[int, int]:
    """Return by value the index of the transaction that has appended it.

    Raises:
        ValueError: two appends have the same value, so the history cannot be checked.
    """
    found: dict[int, int] = {}
    for index, transaction in enumerate(history):
        for step in transaction.steps:
            if isinstance(step, Append):
                if step.value in found:
                    raise ValueError(f"{transaction.name} and {history[found[step.value]].name} append {step.value}")
                found[step.value] = index
    return found


def counting(history: Sequence[ListTransaction], writer_of: dict[int, int]) -> list[int]:
    """Return the indexes of the transactions that count, ascending."""
    counts = {index for index, transaction in enumerate(history) if transaction.outcome == "ok"}
    waiting = list(counts)
    while waiting:
        for step in history[waiting.pop()].steps:
            for value in step.items if isinstance(step, Read) else ():
                writer = writer_of.get(value)
                if writer is not None and writer not in counts and history[writer].outcome == "unknown":
                    counts.add(writer)
                    waiting.append(writer)
    return sorted(counts)
