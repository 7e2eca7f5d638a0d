"""Changes of one table that wait until it is written, all of one layout, and how they get into it: a class per mode.

NetRows        at most one change for each row is merged: mode mirror
KeptRows       the same, but rows that are deleted stay, and are marked: mode soft-delete
HistoryRows    every change is a row that is added: mode append (history.py)

A table that keeps deleted rows is merged like any other: a row that goes is read from the table, and put back with its
mark. TRUNCATE marks all rows, so that the table is written again as a whole.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from safekeeper.pgwire.backend import POSTGRES_EPOCH_US
from walproxy.pipeline.cdc.apply.following import FollowingTable, Merge, Position, key_filter
from walproxy.pipeline.cdc.apply.modes import DELETED, DELETED_AT, TIME
from walproxy.pipeline.cdc.apply.net_changes import NetChanges
from walproxy.pipeline.cdc.apply.net_columns import NetColumns, combine
from walproxy.pipeline.cdc.apply.row_arrays import Lookup, RowArrays, tuples_of
from walproxy.pipeline.cdc.changes import Change, ChangedRows


class Layout(NamedTuple):
    """The columns that changes have, and positions of those of the key."""

    names: Sequence[str]
    key: tuple[int, ...]


class HeldChanges(ABC):
    """Changes that wait for their table."""

    def __init__(self, layout: Layout) -> None:
        self._names = layout.names
        self._key = layout.key

    @abstractmethod
    def __bool__(self) -> bool:
        """Return whether there are any."""

    @abstractmethod
    def add(self, change: Change) -> None:
        """Take the next change. Raises RemoteProtocolError: it cannot be."""

    @abstractmethod
    def add_rows(self, rows: ChangedRows) -> None:
        """Take the next changes of rows, not decoded."""

    @abstractmethod
    def put_into(self, arrays: RowArrays, position: Position) -> None:
        """Write all of them to the table of `arrays`, whose position becomes `position`.

        Raises:
            RemoteProtocolError: a change cannot be, or a value that was not sent is not in the table either.
            BadValue: a value cannot be one of its column's type.
            SourceRefused: a label of an enum was renamed since.
            TableMoved: another job writes to the table.
            StorageFailed, StorageFull.
        """


class NetRows(HeldChanges):
    """At most one change for each row."""

    keeps_deleted = False

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._net = NetChanges(layout.key, keeps_deleted=self.keeps_deleted)
        self._rows: list[ChangedRows] = []  # those after what `_net` has

    def __bool__(self) -> bool:
        return bool(self._net or self._rows)

    def add(self, change: Change) -> None:
        if change.kind == "truncate" and not self.keeps_deleted:
            self._rows.clear()
        self._decode_rows()
        self._net.add(change)

    def add_rows(self, rows: ChangedRows) -> None:
        self._rows.append(rows)

    def put_into(self, arrays: RowArrays, position: Position) -> None:
        merge = self._merge(arrays)
        arrays.following.merge(merge, arrays.known.key, position, expected=arrays.position)

    def _decode_rows(self) -> None:
        """Have the rows that are held taken one by one. Raises RemoteProtocolError."""
        for rows in self._rows:
            for change in rows.changes():
                self._net.add(change)
        self._rows.clear()

    def _combined(self) -> NetColumns | None:
        """Return what is held, combined by columns; None if it must be taken one by one."""
        if not self._rows or self._net.rows or self._net.appended:
            return None
        messages = [data for rows in self._rows for _, data in rows.items]
        return combine(messages, len(self._names), self._key)

    def _merge(self, arrays: RowArrays) -> Merge:
        combined = self._combined()
        if combined is None:
            self._decode_rows()
            return self._merge_of_net(arrays)
        upserts = arrays.from_texts(self._names, len(combined.rows), combined.texts)
        deleted = arrays.key_texts(combined.gone_keys)
        if len(combined.left):
            self._rows = _picked(self._rows, combined.left.tolist())
            self._decode_rows()
            left = self._merge_of_net(arrays)
            upserts = pa.concat_tables([upserts, left.upserts])
            deleted = pa.concat_tables([deleted, left.deleted])
        return Merge(self._net.truncated, upserts, deleted)

    def _merge_of_net(self, arrays: RowArrays) -> Merge:
        gone = [key for key, row in self._net.rows.items() if row is None]
        return Merge(self._net.truncated, self._rows_of_net(arrays), arrays.keys(gone))

    def _rows_of_net(self, arrays: RowArrays) -> pa.Table:
        """Return the rows that the changes show, those with a key first."""
        kept = {key: row for key, row in self._net.rows.items() if row is not None}
        rows = [*kept.values(), *self._net.appended]
        homes = {number: self._net.homes[key] for number, key in enumerate(kept) if key in self._net.homes}
        return arrays.completed(arrays.from_rows(self._names, rows), self._names, rows, homes, self._lookup(arrays))

    @staticmethod
    def _lookup(arrays: RowArrays) -> Lookup:
        return arrays.following.lookup


class KeptRows(NetRows):
    """At most one change for each row; rows that are deleted stay, with a mark."""

    keeps_deleted = True

    def put_into(self, arrays: RowArrays, position: Position) -> None:
        following, key, expected = arrays.following, arrays.known.key, arrays.position
        merge = self._merge(arrays)
        if merge.truncated:
            old = _all_marked(following, self._net.truncated_us, merge.upserts, key)
            following.rewrite(_chain(old, merge.upserts), position, expected=expected)
        else:
            following.merge(merge, key, position, expected=expected)

    def _merge(self, arrays: RowArrays) -> Merge:
        """Return all rows that change, with their marks; none is removed."""
        combined = self._combined()
        parts = []
        if combined is not None:
            live = arrays.from_texts(self._names, len(combined.rows), combined.texts)
            parts += [marked(live, [None] * live.num_rows), *self._gone_columns(combined, arrays)]
            self._rows = _picked(self._rows, combined.left.tolist())
        self._decode_rows()
        parts += self._marked_rows(arrays)
        return Merge(self._net.truncated, pa.concat_tables(parts), arrays.keys([]))

    def _marked_rows(self, arrays: RowArrays) -> list[pa.Table]:
        net = self._net
        times = [net.deleted_us.get(key) for key, row in net.rows.items() if row is not None]
        times += net.appended_deleted_us
        times += [None] * (len(net.appended) - len(net.appended_deleted_us))
        return [marked(self._rows_of_net(arrays), times), self._gone_rows(arrays)]

    def _gone_rows(self, arrays: RowArrays) -> pa.Table:
        """Return the rows that the table has of keys that went, and of which no value is among the changes."""
        gone = [key for key, row in self._net.rows.items() if row is None]
        return self._found(arrays, arrays.keys(gone), [self._net.deleted_us[key] for key in gone])

    def _gone_columns(self, combined: NetColumns, arrays: RowArrays) -> list[pa.Table]:
        """Return the rows of keys that went, with the values of the changes, or of the table."""
        if not len(combined.gone):
            return []
        changes = [(rows, index) for rows in self._rows for index in rows.indices]
        times = []
        for number in combined.gone_by.tolist():
            rows, index = changes[number]
            times.append(rows.place(index)[0].commit_time_us)
        is_known = (combined.last >= 0).tolist()
        known = arrays.from_texts(self._names, sum(is_known), combined.last_texts)
        of_known = [time_us for time_us, here in zip(times, is_known, strict=True) if here]
        elsewhere = [time_us for time_us, here in zip(times, is_known, strict=True) if not here]
        wanted = arrays.key_texts(combined.gone_keys).filter(pa.array([not here for here in is_known], pa.bool_()))
        return [marked(known, of_known), self._found(arrays, wanted, elsewhere)]

    def _found(self, arrays: RowArrays, wanted: pa.Table, times_us: Sequence[int]) -> pa.Table:
        """Return the rows that the table has under keys, marked with the time of each key."""
        if not wanted.num_rows:
            return marked(arrays.schema.empty_table(), [])
        found = self._lookup(arrays)(wanted, arrays.schema.names)
        time_of = dict(zip(tuples_of(wanted), times_us, strict=True))
        times = [time_of[key] for key in tuples_of(found.select(wanted.column_names))]
        return marked(found.select(arrays.schema.names).cast(arrays.schema), times)

    @staticmethod
    def _lookup(arrays: RowArrays) -> Lookup:
        """Only rows that are not deleted are those of the source."""

        def lookup(keys: pa.Table, columns: Sequence[str]) -> pa.Table:
            found = arrays.following.lookup(keys, [*columns, DELETED])
            return found.filter(pc.invert(found[DELETED])).drop_columns([DELETED])

        return lookup


def marked(rows: pa.Table, times_us: Sequence[int | None]) -> pa.Table:
    """Return rows with the marks of the mode soft-delete.

    Args:
        times_us: when each one was deleted, as in messages; None if it was not.
    """
    unix_us = [None if each is None else each + POSTGRES_EPOCH_US for each in times_us]
    is_deleted = pa.array([each is not None for each in times_us], pa.bool_())
    with_time = rows.add_column(0, pa.field(DELETED_AT, TIME), pa.array(unix_us, TIME))
    return with_time.add_column(0, pa.field(DELETED, pa.bool_()), is_deleted)


def mark_live(rows: pa.Table, unix_us: int) -> pa.Table:
    """Mark the rows that have no mark as deleted at a time."""
    at = pc.if_else(rows[DELETED], rows[DELETED_AT], pa.scalar(unix_us, TIME))
    names = rows.column_names
    rows = rows.set_column(names.index(DELETED), pa.field(DELETED, pa.bool_()), pa.repeat(True, rows.num_rows))
    return rows.set_column(names.index(DELETED_AT), pa.field(DELETED_AT, TIME), at)


def _all_marked(
    following: FollowingTable, time_us: int, without: pa.Table, key: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Return all rows of a table, marked, but for those whose key is in `without`. The table is read from now on."""
    keys = without.select(key)
    batches = following.batches(following.schema().names)

    def rows() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            table = pa.Table.from_batches([batch])
            if key:
                table = key_filter(table, keys, keep_matches=False)
            yield from mark_live(table, time_us + POSTGRES_EPOCH_US).to_batches()

    return rows()


def _chain(rows: Iterable[pa.RecordBatch], last: pa.Table) -> Iterator[pa.RecordBatch]:
    yield from rows
    yield from last.to_batches()


def _picked(held: Iterable[ChangedRows], numbers: Sequence[int]) -> list[ChangedRows]:
    """Return some of all changes that are held, by their numbers, which ascend."""
    found, begin, first = [], 0, 0
    for rows in held:
        end = begin + len(rows.indices)
        last = bisect_left(numbers, end, first)
        if first < last:
            found.append(rows.picked(number - begin for number in numbers[first:last]))
        begin, first = end, last
    return found
