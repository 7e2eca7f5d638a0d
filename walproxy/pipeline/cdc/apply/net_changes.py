"""Combine the changes of one table into at most one for each row. Pure.

A row is identified by its key, as text. Changes come in order; the last one of a row counts, so a batch of changes
becomes one merge. An update that changes the key removes the old row and makes a new one.

A value that is stored out of line and did not change is not sent: it is the one that the row had before. If that is
not among the changes, it is in the table, under the key that the row had there: its *home*.

If rows that are deleted are kept, a key that goes has the row that it had last, if the changes show it, and the time.
So the outcome does not depend on how the changes are divided into batches.
"""

from collections.abc import Sequence

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.lsn import format_lsn
from walproxy.pipeline.cdc.changes import Change
from walproxy.pipeline.cdc.messages import UNCHANGED, Tuple, Value

Key = tuple[Value, ...]


class NetChanges:
    """The combined changes of one table, all of one layout.

    Attributes:
        truncated: all rows that the table has are gone.
        truncated_us: when they went.
        rows: for each key that was changed its new row, or None if the row no longer exists.
        homes: of rows that have values UNCHANGED, the key under which the table has them.
        appended: new rows of a table without key.
        deleted_us: if rows that are deleted are kept, when each key went. Then `rows` has its last row, None if that
            is in the table.
        appended_deleted_us: the same of the first ones of `appended`.
        size: bytes that the server sent for what is held.

    Times are those of commits, as in the messages.
    """

    def __init__(self, key: tuple[int, ...], *, keeps_deleted: bool = False) -> None:
        self._key = key
        self._keeps_deleted = keeps_deleted
        self.truncated = False
        self.truncated_us = 0
        self.rows: dict[Key, Tuple | None] = {}
        self.homes: dict[Key, Key] = {}
        self.appended: list[Tuple] = []
        self.deleted_us: dict[Key, int] = {}
        self.appended_deleted_us: list[int] = []
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
            self._truncate(change.transaction.commit_time_us)
        elif change.kind == "insert":
            self._insert(change)
        elif change.kind == "update":
            self._update(change)
        elif change.kind == "delete":
            assert change.old is not None  # by pgoutput.decode
            self._remove(key_of(change, change.old, self._key), change)

    def _truncate(self, time_us: int) -> None:
        if not self.truncated:
            self.truncated, self.truncated_us = True, time_us
        if self._keeps_deleted:
            self.deleted_us = dict.fromkeys(self.rows, time_us) | self.deleted_us
            new = len(self.appended) - len(self.appended_deleted_us)
            self.appended_deleted_us += [time_us] * new
        else:
            self.rows.clear()
            self.homes.clear()
            self.appended.clear()

    def _insert(self, change: Change) -> None:
        assert change.after is not None  # by pgoutput.decode
        if UNCHANGED in change.after:
            # Of an update by which the row comes to satisfy a row filter: PostgreSQL sends an insert.
            raise impossible(change, "a value that is stored out of line was not sent")
        if self._key:
            self._put(key_of(change, change.after, self._key), change.after, None)
        else:
            self.appended.append(change.after)

    def _update(self, change: Change) -> None:
        after = change.after
        assert after is not None  # by pgoutput.decode
        if not change.old_is_key and change.old is not None and UNCHANGED in after:
            after = filled(change.old, after)
        old_key = new_key = key_of(change, after if change.old is None else filled(change.old, after), self._key)
        if change.old is not None:
            old_key = key_of(change, change.old, self._key)
        home = None
        if UNCHANGED in after:
            after, home = self._completed(change, after, old_key)
        if old_key != new_key:
            self._remove(old_key, change)
        self._put(new_key, after, home)

    def _completed(self, change: Change, after: Tuple, old_key: Key) -> tuple[Tuple, Key | None]:
        """Fill in what was not sent from the row as it was before, if that is known here; else return its home."""
        if old_key not in self.rows:
            if self.truncated:
                raise impossible(change, "its row was removed by a truncate")
            return after, old_key
        before = self.rows[old_key]
        if before is None or old_key in self.deleted_us:
            raise impossible(change, "its row was deleted before")
        after = filled(before, after)
        return after, self.homes[old_key] if UNCHANGED in after else None

    def _put(self, key: Key, row: Tuple | None, home: Key | None) -> None:
        self.rows[key] = row
        if home is not None:
            self.homes[key] = home
        elif self.homes:
            self.homes.pop(key, None)
        if self.deleted_us:
            self.deleted_us.pop(key, None)

    def _remove(self, key: Key, change: Change) -> None:
        if not self._keeps_deleted:
            self._put(key, None, None)
            return
        self.rows.setdefault(key, None)
        self.deleted_us.setdefault(key, change.transaction.commit_time_us)


def key_of(change: Change, values: Tuple, key: Sequence[int]) -> Key:
    """Return the key of a row of a change. Raises RemoteProtocolError: it does not identify its row."""
    found = tuple(values[index] for index in key)
    if not found or None in found or UNCHANGED in found:
        raise impossible(change, "it does not identify its row")
    return found


def impossible(change: Change, reason: str) -> RemoteProtocolError:
    """Return what is raised of a change that cannot be."""
    relation = change.relation
    name = f"{relation.schema}.{relation.name}" if relation is not None else "?"
    return RemoteProtocolError(
        f"the {change.kind} of {name} at {format_lsn(change.lsn)} cannot be applied: {reason}; copy the table again"
    )


def filled(old: Tuple, new: Tuple) -> Tuple:
    """Return `new`, with the old values in place of what was not sent.

    A value that is stored out of line is not null: if the old row has null there, it has the columns of the key alone,
    as that of a partition has whose own replica identity is not full.
    """
    return tuple(
        before if after is UNCHANGED and before is not None else after for before, after in zip(old, new, strict=True)
    )
