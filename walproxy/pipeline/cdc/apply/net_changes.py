"""Many changes of one table to at most one for each row: what is left of them. Pure.

A row is told by its key, as text. Changes come in order; the last one of a row counts, so a batch of changes becomes
one merge. An update that changes the key removes the old row and makes a new one.

A value that lies out of line and was not touched is not sent: it is the one that the row had before. If that is not
among the changes, it is in the table, under the key that the row had there: its *home*.
"""

from typing import NamedTuple

from safekeeper.errors import RemoteProtocolError
from safekeeper.lsn import format_lsn
from walproxy.pipeline.cdc.changes import Change
from walproxy.pipeline.cdc.pgoutput import UNCHANGED, Tuple, Value

Key = tuple[Value, ...]


class Row(NamedTuple):
    """The new content of a row.

    Attributes:
        home: the key under which the table has the values that are UNCHANGED; None if there are none.
    """

    values: Tuple
    home: Key | None


class NetChanges:
    """What is left of the changes of one table, all of one layout.

    Attributes:
        truncated: all rows that the table has are gone.
        rows: for each key that was touched its new row, or None if there is no such row any more.
        appended: new rows of a table without key.
        size: bytes that the server sent for what is held.
    """

    def __init__(self, key: tuple[int, ...]) -> None:
        self._key = key
        self.truncated = False
        self.rows: dict[Key, Row | None] = {}
        self.appended: list[Tuple] = []
        self.size = 0

    def __bool__(self) -> bool:
        return self.truncated or bool(self.rows) or bool(self.appended)

    def add(self, change: Change) -> None:
        """Take the next change.

        Raises:
            RemoteProtocolError: it cannot be: an update or delete without a key, or of a row that is gone.
        """
        self.size += change.size
        if change.kind == "truncate":
            self.truncated = True
            self.rows.clear()
            self.appended.clear()
        elif change.kind == "insert":
            self._insert(change)
        elif change.kind == "update":
            self._update(change)
        elif change.kind == "delete":
            assert change.old is not None  # by pgoutput.decode
            self.rows[self._key_of(change, change.old)] = None

    def _insert(self, change: Change) -> None:
        assert change.after is not None  # by pgoutput.decode
        if self._key:
            self.rows[self._key_of(change, change.after)] = Row(change.after, None)
        else:
            self.appended.append(change.after)

    def _update(self, change: Change) -> None:
        after = change.after
        assert after is not None  # by pgoutput.decode
        if not change.old_is_key and change.old is not None and UNCHANGED in after:
            after = [old if new is UNCHANGED else new for old, new in zip(change.old, after, strict=True)]
        new_key = self._key_of(change, [old if new is UNCHANGED else new for old, new in _pairs(change.old, after)])
        old_key = new_key if change.old is None else self._key_of(change, change.old)
        row = self._completed(change, after, old_key)
        if old_key != new_key:
            self.rows[old_key] = None
        self.rows[new_key] = row

    def _completed(self, change: Change, after: Tuple, old_key: Key) -> Row:
        """Fill in what was not sent from the row as it was before, as far as that is known here."""
        if UNCHANGED not in after:
            return Row(after, None)
        if old_key not in self.rows:
            if self.truncated:
                raise self._impossible(change, "its row is gone with a truncate")
            return Row(after, old_key)
        before = self.rows[old_key]
        if before is None:
            raise self._impossible(change, "its row was deleted before")
        values = [old if new is UNCHANGED else new for old, new in zip(before.values, after, strict=True)]
        return Row(values, before.home if UNCHANGED in values else None)

    def _key_of(self, change: Change, values: Tuple) -> Key:
        key = tuple(values[index] for index in self._key)
        if not key or None in key or UNCHANGED in key:
            raise self._impossible(change, "it does not say which row it is")
        return key

    @staticmethod
    def _impossible(change: Change, reason: str) -> RemoteProtocolError:
        relation = change.relation
        name = f"{relation.schema}.{relation.name}" if relation is not None else "?"
        return RemoteProtocolError(
            f"the {change.kind} of {name} at {format_lsn(change.lsn)} cannot be applied: {reason}; copy the table again"
        )


def _pairs(old: Tuple | None, new: Tuple) -> list[tuple[Value, Value]]:
    return [(value, value) for value in new] if old is None else list(zip(old, new, strict=True))
