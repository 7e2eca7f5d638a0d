"""The transactions that clients try, their table, and their statements.

All are SERIALIZABLE, so PostgreSQL itself promises a serial order that agrees with real time on one server; the check
is whether it still holds over crashes and failovers. A transaction that only reads does not wait for the quorum at its
COMMIT, and promises nothing after a failover; so here it also writes a logical message, and then its COMMIT waits for
all that it has read (an xid without WAL would not do: PostgreSQL waits only if the transaction has written WAL).

A list is a row, used for a few hundred transactions and then left, so that lists stay short.
"""

from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple

from walproxy.lab.list_append.transactions import Append, ListTransaction, Read, Step

TABLE: Final = "append_lists"
CREATE_TABLE: Final = f"CREATE TABLE {TABLE} (key bigint PRIMARY KEY, items bigint[] NOT NULL)"
BEGIN: Final = "BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE"
CONFIRM: Final = "SELECT pg_logical_emit_message(true, 'walproxy', ''::text)"
READ_ALL: Final = f"SELECT key, items FROM {TABLE}"

_LISTS_AT_A_TIME: Final = 8
_TRANSACTIONS_A_LIST: Final = 50
_STEPS_MAX: Final = 4
_VALUES_A_TRANSACTION: Final = 8


class WishedStatement(NamedTuple):
    """A statement that a client is to try: an append of `value` to the list `key`, or a read of it with None."""

    key: int
    value: int | None

    def statement(self) -> str:
        """Return it as SQL. A read returns no row before the first append."""
        if self.value is None:
            return f"SELECT items FROM {TABLE} WHERE key = {self.key}"
        return (
            f"INSERT INTO {TABLE} VALUES ({self.key}, ARRAY[{self.value}]::bigint[]) "
            f"ON CONFLICT (key) DO UPDATE SET items = {TABLE}.items || EXCLUDED.items"
        )

    def step(self, items: list[int] | None) -> Step:
        """Return what it came to; `items` is what a read has returned."""
        return Read(self.key, tuple(items or ())) if self.value is None else Append(self.key, self.value)


def draw(number: int, chance: Random) -> tuple[WishedStatement, ...]:
    """Return the statements of a transaction; no other one of the run has this number."""
    first = number // _TRANSACTIONS_A_LIST
    wishes = []
    for place in range(chance.randint(1, _STEPS_MAX)):
        key = first + chance.randrange(_LISTS_AT_A_TIME)
        wishes.append(WishedStatement(key, number * _VALUES_A_TRANSACTION + place if chance.random() < 0.5 else None))
    return tuple(wishes)


def is_read_only(wishes: tuple[WishedStatement, ...]) -> bool:
    """Return whether a transaction appends nothing, so that CONFIRM must be sent before its COMMIT."""
    return all(wish.value is None for wish in wishes)


def read_at_the_end(history: Sequence[ListTransaction], lists: dict[int, tuple[int, ...]]) -> ListTransaction:
    """Return a transaction that began after all others, and has read every list.

    Args:
        lists: their items; a list that is missing is empty.
    """
    keys = {step.key for transaction in history for step in transaction.steps} | lists.keys()
    now = max((max(each.begun_at, each.ended_at) for each in history), default=0.0) + 1.0
    steps = tuple(Read(key, lists.get(key, ())) for key in sorted(keys))
    return ListTransaction("the read at the end", now, now, "ok", steps)
