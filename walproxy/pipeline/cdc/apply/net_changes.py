"""Combine the changes of one table into at most one for each row. Pure.

A row is identified by its key, as text. Changes come in order; the last one of a row counts, so a batch of changes
becomes one merge. An update that changes the key removes the old row and makes a new one.

A value that is stored out of line and did not change is not sent: it is the one that the row had before. If that is
not among the changes, it is in the table, under the key that the row had there: its *home*.
"""

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.lsn import format_lsn
from walproxy.pipeline.cdc.changes import Change
from walproxy.pipeline.cdc.messages import UNCHANGED, Tuple, Value

Key = tuple[Value, ...]


class NetChanges:
    """The combined changes of one table, all of one layout.

    Attributes:
        truncated: all rows that the table has are gone.
        rows: for each key that was changed its new row, or None if the row no longer exists.
        homes: of rows that have values UNCHANGED, the key under which the table has them.
        appended: new rows of a table without key.
        size: bytes that the server sent for what is held.
    """

    def __init__(self, key: tuple[int, ...]) -> None:
        self._key = key
        self.truncated = False
        self.rows: dict[Key, Tuple | None] = {}
        self.homes: dict[Key, Key] = {}
        self.appended: list[Tuple] = []
        self.size = 0

    def __bool__(self) -> bool:
        return self.truncated or bool(self.rows) or bool(self.appended)

    def add(self, change: Change) -> None:
        """Take the next change.

        Raises:
            RemoteProtocolError: it cannot be: an update or delete without a key, or of a row that is gone, or an
                insert without a value.
        """
        self.size += change.size
        if change.kind == "truncate":
            self.truncated = True
            self.rows.clear()
            self.homes.clear()
            self.appended.clear()
        elif change.kind == "insert":
            self._insert(change)
        elif change.kind == "update":
            self._update(change)
        elif change.kind == "delete":
            assert change.old is not None  # by pgoutput.decode
            self._put(self._key_of(change, change.old), None, None)

    def _insert(self, change: Change) -> None:
        assert change.after is not None  # by pgoutput.decode
        if UNCHANGED in change.after:
            # Of an update by which the row comes to satisfy a row filter: PostgreSQL sends an insert.
            raise self._impossible(change, "a value that is stored out of line was not sent")
        if self._key:
            self._put(self._key_of(change, change.after), change.after, None)
        else:
            self.appended.append(change.after)

    def _update(self, change: Change) -> None:
        after = change.after
        assert after is not None  # by pgoutput.decode
        if not change.old_is_key and change.old is not None and UNCHANGED in after:
            after = _filled(change.old, after)
        old_key = new_key = self._key_of(change, after if change.old is None else _filled(change.old, after))
        if change.old is not None:
            old_key = self._key_of(change, change.old)
        home = None
        if UNCHANGED in after:
            after, home = self._completed(change, after, old_key)
        if old_key != new_key:
            self._put(old_key, None, None)
        self._put(new_key, after, home)

    def _completed(self, change: Change, after: Tuple, old_key: Key) -> tuple[Tuple, Key | None]:
        """Fill in what was not sent from the row as it was before, if that is known here; else return its home."""
        if old_key not in self.rows:
            if self.truncated:
                raise self._impossible(change, "its row was removed by a truncate")
            return after, old_key
        before = self.rows[old_key]
        if before is None:
            raise self._impossible(change, "its row was deleted before")
        after = _filled(before, after)
        return after, self.homes[old_key] if UNCHANGED in after else None

    def _put(self, key: Key, row: Tuple | None, home: Key | None) -> None:
        self.rows[key] = row
        if home is not None:
            self.homes[key] = home
        elif self.homes:
            self.homes.pop(key, None)

    def _key_of(self, change: Change, values: Tuple) -> Key:
        key = tuple(values[index] for index in self._key)
        if not key or None in key or UNCHANGED in key:
            raise self._impossible(change, "it does not identify its row")
        return key

    @staticmethod
    def _impossible(change: Change, reason: str) -> RemoteProtocolError:
        relation = change.relation
        name = f"{relation.schema}.{relation.name}" if relation is not None else "?"
        return RemoteProtocolError(
            f"the {change.kind} of {name} at {format_lsn(change.lsn)} cannot be applied: {reason}; copy the table again"
        )


def _filled(old: Tuple, new: Tuple) -> Tuple:
    """Return `new`, with the old values in place of what was not sent.

    A value that is stored out of line is not null: if the old row has null there, it has the columns of the key alone,
    as that of a partition has whose own replica identity is not full.
    """
    return tuple(
        before if after is UNCHANGED and before is not None else after for before, after in zip(old, new, strict=True)
    )
