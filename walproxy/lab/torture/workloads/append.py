"""Lists by key that only grow: each append learns its position, so what is lost or comes in another order shows.

An append reads the length of the list and adds one under a lock of its row, as any counter in a database does. So who
begins when another append has ended must get a higher position; a commit that was lost in between would give
its position away once more.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from random import Random
from typing import NamedTuple

import asyncpg

from safekeeper.base.errors import ConfigurationError
from walproxy.lab.load.transactions import Block
from walproxy.lab.torture.record import Operation, Violation
from walproxy.lab.torture.workloads.interface import CHANGED, LOST, REORDERED, STRANGER, TWICE, Attempt, shortened

KEYS = 40
_WHAT = re.compile(r"append (\d+) to list (\d+): position (\d+|\?)")


class Appended(NamedTuple):
    """`value` at `position` of the list `key`; the position is None as long as the client has no reply."""

    key: int
    position: int | None
    value: int


class ListContent(NamedTuple):
    """The tables' content: the length of each list, and its elements."""

    lengths: dict[int, int]
    elements: list[Appended]


class AppendAttempt(Block):
    """An append that a client tries."""

    def __init__(self, key: int, value: int) -> None:
        self._key = key
        self._value = value
        self._position: int | None = None

    async def carry_out(self, connection: asyncpg.Connection) -> None:
        await connection.execute("BEGIN")
        self._position = await connection.fetchval(
            "UPDATE list SET length = length + 1 WHERE key = $1 RETURNING length", self._key
        )
        await connection.execute("INSERT INTO element VALUES ($1, $2, $3)", self._key, self._position, self._value)

    def __str__(self) -> str:
        position = "?" if self._position is None else self._position
        return f"append {self._value} to list {self._key}: position {position}"


class AppendWorkload:
    """Numbers are appended to lists."""

    name = "append"
    tables = f"""
        CREATE TABLE list (key int PRIMARY KEY, length int NOT NULL);
        CREATE TABLE element (key int NOT NULL, position int NOT NULL, value bigint NOT NULL);
        INSERT INTO list SELECT n, 0 FROM generate_series(1, {KEYS}) n
    """

    def attempt(self, number: int, chance: Random) -> Attempt:
        return AppendAttempt(chance.randint(1, KEYS), number)

    async def read(self, connection: asyncpg.Connection) -> ListContent:
        lengths = await connection.fetch("SELECT key, length FROM list")
        elements = await connection.fetch("SELECT key, position, value FROM element")
        return ListContent({row["key"]: row["length"] for row in lengths}, [Appended(*row) for row in elements])

    def check(self, state: ListContent, operations: Iterable[Operation]) -> list[Violation]:
        tried = [
            (operation, parse_append(operation.what)) for operation in operations if operation.workload == self.name
        ]
        acknowledged = [(operation, element) for operation, element in tried if operation.outcome == "ok"]
        found = set(state.elements)
        values = {element.value: element for element in state.elements}
        lost = [
            f"{operation.what}: acknowledged at {operation.ended_s:.3f} s, and not in the list"
            for operation, element in acknowledged
            if element.value not in values
        ]
        changed = [
            f"{operation.what}: the list {values[element.value].key} has it at {values[element.value].position}"
            for operation, element in acknowledged
            if element.value in values and element not in found
        ]
        return [
            *shortened(LOST, lost),
            *shortened(CHANGED, changed),
            *shortened(TWICE, _twice(state)),
            *shortened(STRANGER, _strangers(state, tried)),
            *shortened(REORDERED, _reordered(acknowledged)),
            *shortened(LOST, _gaps(state)),
        ]


def parse_append(what: str) -> Appended:
    """Return the append of a line of the history.

    Raises:
        ConfigurationError: it has none.
    """
    match = _WHAT.fullmatch(what)
    if match is None:
        raise ConfigurationError(f"{what!r} in the history is not an append")
    return Appended(int(match[2]), None if match[3] == "?" else int(match[3]), int(match[1]))


def _twice(state: ListContent) -> Iterable[str]:
    values: set[int] = set()
    places: set[tuple[int, int | None]] = set()
    for key, position, value in state.elements:
        if value in values:
            yield f"{value} is in the lists more than once, also at position {position} of list {key}"
        if (key, position) in places:
            yield f"list {key} has more than one element at position {position}, {value} for instance"
        values.add(value)
        places.add((key, position))


def _strangers(state: ListContent, tried: Iterable[tuple[Operation, Appended]]) -> Iterable[str]:
    outcomes = {element.value: operation.outcome for operation, element in tried}
    for key, position, value in state.elements:
        if outcomes.get(value, "fail") == "fail":
            why = "its append had failed" if value in outcomes else "no client has appended it"
            yield f"{value} is at position {position} of list {key}, and {why}"


def _gaps(state: ListContent) -> Iterable[str]:
    counts: dict[int, int] = defaultdict(int)
    for element in state.elements:
        counts[element.key] += 1
    for key in sorted(state.lengths.keys() | counts.keys()):
        length = state.lengths.get(key)
        if length != counts[key]:
            yield f"list {key} has {counts[key]} elements, and should have {length} by its length"


def _reordered(acknowledged: Iterable[tuple[Operation, Appended]]) -> Iterable[str]:
    """In each list an append that began after the end of another one has a higher position.

    By begin, everything that has ended before is passed over once, so a list of n appends takes n log n steps.
    """
    by_key: dict[int, list[tuple[Operation, Appended]]] = defaultdict(list)
    for operation, element in acknowledged:
        by_key[element.key].append((operation, element))
    for appends in by_key.values():
        by_end = sorted(appends, key=lambda each: each[0].ended_s or 0.0)
        ended = 0
        highest: tuple[int, Operation] | None = None
        for operation, element in sorted(appends, key=lambda each: each[0].begun_s):
            while ended < len(by_end) and (by_end[ended][0].ended_s or 0.0) < operation.begun_s:
                earlier, earlier_element = by_end[ended]
                if highest is None or (earlier_element.position or 0) > highest[0]:
                    highest = (earlier_element.position or 0, earlier)
                ended += 1
            if highest is not None and (element.position or 0) <= highest[0]:
                yield (
                    f"{operation.what}: begun at {operation.begun_s:.3f} s, after {highest[1].what} "
                    f"was acknowledged at {highest[1].ended_s:.3f} s"
                )
