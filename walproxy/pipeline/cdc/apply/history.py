"""Every change of one table as a row that is added: mode append (modes.py has the columns).

An update has the row as it is then. A value that is stored out of line and did not change is not sent: it is null, and
`_unchanged` names its column; with a full replica identity the old row has it. If the key changes as well, the value
is looked up, since the earlier rows have another key: so the rows of one key are complete by themselves.

A delete has the columns of the key, with a full replica identity all of them. A table with a full replica identity and
no key has no other name for a row than its values: each update is a delete of the old row and an update.

As in net_changes.py and net_columns.py there are two ways with the same outcome: one change after the other, and by
columns for what is ordinary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from safekeeper.pgwire.backend import POSTGRES_EPOCH_US
from walproxy.pipeline.cdc.apply import message_columns
from walproxy.pipeline.cdc.apply.following import FollowingTable, Position
from walproxy.pipeline.cdc.apply.held_changes import HeldChanges, Layout
from walproxy.pipeline.cdc.apply.message_columns import Flags, Numbers, RowMessages, Values, key_numbers, read_messages
from walproxy.pipeline.cdc.apply.modes import (
    COMMIT_LSN,
    DELETE,
    INSERT,
    OP,
    SEQUENCE,
    TRUNCATE,
    UPDATE,
    own_columns,
)
from walproxy.pipeline.cdc.apply.net_changes import Key, filled, impossible, key_of
from walproxy.pipeline.cdc.apply.row_arrays import Lookup, RowArrays, tuples_of
from walproxy.pipeline.cdc.changes import Change, ChangedRows
from walproxy.pipeline.cdc.messages import UNCHANGED, Tuple

_OPS = pa.array([INSERT, UPDATE, DELETE])
_OWN = own_columns("append")


class HistoryRows(HeldChanges):
    """Every change, in order."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._changes: list[Change] = []
        self._rows: list[ChangedRows] = []
        self._order: list[Change | ChangedRows] = []

    def __bool__(self) -> bool:
        return bool(self._order)

    def add(self, change: Change) -> None:
        self._changes.append(change)
        self._order.append(change)

    def add_rows(self, rows: ChangedRows) -> None:
        self._rows.append(rows)
        self._order.append(rows)

    def put_into(self, arrays: RowArrays, position: Position) -> None:
        rows = self._table(arrays)
        arrays.following.append(rows.to_batches(), position, expected=arrays.position)

    def _table(self, arrays: RowArrays) -> pa.Table:
        if self._rows and all(change.kind == "truncate" for change in self._changes):
            read = read_messages([data for rows in self._rows for _, data in rows.items], len(self._names))
            history = None if read is None else history_columns(read, self._key)
            if history is not None:
                places = [_places(rows) for rows in self._rows]
                by_columns = _table_of_columns(history, places, arrays, self._names)
                return pa.concat_tables([by_columns, self._one_by_one(self._changes, arrays)])
        changes: list[Change] = []
        for part in self._order:
            changes += [part] if isinstance(part, Change) else part.changes()
        return self._one_by_one(changes, arrays)

    def _one_by_one(self, changes: Sequence[Change], arrays: RowArrays) -> pa.Table:
        rows = history_rows(changes, len(self._names), self._key)
        values = [row.values for row in rows]
        homes = {number: row.home for number, row in enumerate(rows) if row.home is not None}
        table = arrays.from_rows(self._names, values)
        table = arrays.completed(table, self._names, values, homes, last_sent(arrays.following))
        unsent = [
            [name for name, value in zip(self._names, row.values, strict=True) if value is UNCHANGED] or None
            if row.home is None
            else None
            for row in rows
        ]
        return _with_places(
            table,
            pa.array([row.op for row in rows], pa.string()),
            [row.change.transaction.commit_lsn for row in rows],
            [row.change.transaction.commit_time_us for row in rows],
            [row.change.sequence for row in rows],
            pa.array(unsent, pa.list_(pa.string())),
        )


class HistoryRow(NamedTuple):
    """A row to be added.

    Attributes:
        change: of which it is.
        key: its key, None without one.
        home: the key under which the table has values that were not sent; they are not left open.
    """

    op: str
    change: Change
    values: Tuple
    key: Key | None
    home: Key | None = None


def history_rows(changes: Sequence[Change], column_count: int, key: Sequence[int]) -> list[HistoryRow]:
    """Return the rows that changes are, in their order.

    Raises:
        RemoteProtocolError: a change cannot be: a value of an insert was not sent, or a row is not identified.
    """
    rows: list[HistoryRow] = []
    for change in changes:
        if change.kind == "truncate":
            rows.append(HistoryRow(TRUNCATE, change, (None,) * column_count, None))
        elif change.kind == "insert":
            assert change.after is not None  # by pgoutput.decode
            if UNCHANGED in change.after:
                raise impossible(change, "a value that is stored out of line was not sent")
            rows.append(HistoryRow(INSERT, change, change.after, key_of(change, change.after, key) if key else None))
        elif change.kind == "delete":
            assert change.old is not None  # by pgoutput.decode
            rows.append(_deleted(change, change.old, key))
        else:
            rows += _updated(change, key, rows)
    return rows


def _deleted(change: Change, old: Tuple, key: Sequence[int]) -> HistoryRow:
    if not key and change.old_is_key:
        raise impossible(change, "it does not identify its row")
    return HistoryRow(DELETE, change, old, key_of(change, old, key) if key else None)


def _updated(change: Change, key: Sequence[int], before: Sequence[HistoryRow]) -> list[HistoryRow]:
    assert change.after is not None  # by pgoutput.decode
    after = change.after if change.old is None else filled(change.old, change.after)
    if not key:
        if change.old is None:
            raise impossible(change, "it does not identify its row")
        return [_deleted(change, change.old, key), HistoryRow(UPDATE, change, after, None)]
    new_key = key_of(change, after, key)
    old_key = new_key if change.old is None else key_of(change, change.old, key)
    if old_key == new_key:
        return [HistoryRow(UPDATE, change, after, new_key)]
    home = None
    if UNCHANGED in after:
        after, home = _completed(change, after, old_key, before)
    assert change.old is not None  # the keys differ
    return [_deleted(change, change.old, key), HistoryRow(UPDATE, change, after, new_key, home)]


def _completed(change: Change, after: Tuple, old_key: Key, before: Sequence[HistoryRow]) -> tuple[Tuple, Key | None]:
    """Fill in what was not sent from the earlier rows of the old key; else return the key that has it in the table."""
    for row in reversed(before):
        if row.op == TRUNCATE or (row.op == DELETE and row.key == old_key):
            raise impossible(change, "its row was deleted before")
        if row.key == old_key:
            after = filled(row.values, after)
            if UNCHANGED not in after:
                return after, None
            if row.home is not None:
                return after, row.home
    return after, old_key


def last_sent(following: FollowingTable) -> Lookup:
    """Return what looks up, for keys that are not deleted, the last value of each column that is not null.

    It is meant for columns that were not sent: these are not null, and were sent since their row was inserted.
    """

    def lookup(keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        found = following.lookup(keys, [*columns, OP, COMMIT_LSN, SEQUENCE])
        found = found.sort_by([(COMMIT_LSN, "ascending"), (SEQUENCE, "ascending")])
        of_rows, operations = tuples_of(found.select(keys.column_names)), found[OP].to_pylist()
        last = {key: number for number, key in enumerate(of_rows)}
        wanted = [key for key in dict.fromkeys(tuples_of(keys)) if key in last and operations[last[key]] != DELETE]
        result = found.select(keys.column_names).take(pa.array([last[key] for key in wanted], pa.int64()))
        for name in columns:
            is_there = found[name].is_valid().to_pylist()
            last = {key: number for number, key in enumerate(of_rows) if is_there[number]}
            at = pa.array([last.get(key) for key in wanted], pa.int64())
            result = result.append_column(found.schema.field(name), found[name].take(at))
        return result

    return lookup


class HistoryColumns(NamedTuple):
    """Rows to be added, by columns.

    Attributes:
        data: the messages, joined.
        message_of: of each row, the number of its message.
        ops: of each row, its number in `_OPS`.
        columns: the values.
    """

    data: bytes
    message_of: Numbers
    ops: npt.NDArray[np.int8]
    columns: Sequence[Values]


def history_columns(read: RowMessages, key: Sequence[int]) -> HistoryColumns | None:
    """Return the rows that messages are; None if they must be taken one by one."""
    both, is_insert, is_delete = read.both, read.kinds == message_columns.INSERT, read.kinds == message_columns.DELETE
    for values, old in zip(read.columns, read.old, strict=True):
        is_unsent = values.kinds == message_columns.UNSENT
        if np.any(is_unsent & (is_insert | is_delete)) or np.any(is_unsent[both]):
            return None
        if np.any(old.kinds == message_columns.UNSENT):
            return None
    if key:
        keys = [read.columns[index].inserted(both, read.old[index]) for index in key]
        if any(np.any(values.kinds != message_columns.TEXT) for values in keys):
            return None
        numbers = key_numbers(read.data, keys)
        at = both + np.arange(len(both))
        moved: Flags = numbers[at] != numbers[at + 1]
    elif np.all(read.is_whole) and not np.any(~is_insert & ~_has_old(read)):
        moved = np.ones(len(both), np.bool_)
    else:
        return None
    first = both[moved]
    ops = np.where(is_insert, 0, np.where(is_delete, 2, 1)).astype(np.int8)
    return HistoryColumns(
        read.data,
        np.insert(np.arange(len(read)), first, first),
        np.insert(ops, first, np.int8(2)),
        [
            values.inserted(first, old.at(np.flatnonzero(moved)))
            for values, old in zip(read.columns, read.old, strict=True)
        ],
    )


def _has_old(read: RowMessages) -> Flags:
    found = read.kinds == message_columns.DELETE
    found[read.both] = True
    return found


def _places(rows: ChangedRows) -> tuple[Numbers, Numbers, Numbers]:
    """Return LSN and time of the commit of each change, and its number in its transaction."""
    indices, starts = np.asarray(rows.indices, np.int64), np.asarray(rows.rows.starts, np.int64)
    number = np.searchsorted(starts, indices, side="right") - 1
    transactions = rows.rows.transactions
    lsns = np.array([each.commit_lsn for each in transactions], np.int64)
    times = np.array([each.commit_time_us for each in transactions], np.int64)
    return lsns[number], times[number], indices - starts[number] + np.where(number == 0, rows.first_sequence, 0)


def _table_of_columns(
    history: HistoryColumns,
    places: Sequence[tuple[Numbers, Numbers, Numbers]],
    arrays: RowArrays,
    names: Sequence[str],
) -> pa.Table:
    every = np.arange(len(history.message_of))
    table = arrays.from_texts(names, len(every), lambda index: history.columns[index].taken(history.data, every))
    lsns, times, sequences = (np.concatenate(each)[history.message_of] for each in zip(*places, strict=True))
    unsent = np.column_stack([values.kinds == message_columns.UNSENT for values in history.columns])
    counts = unsent.sum(1)
    offsets = pa.array(np.concatenate(([0], np.cumsum(counts))), pa.int32())
    listed = pa.array(names, pa.string()).take(pa.array(np.nonzero(unsent)[1]))
    unchanged = pa.ListArray.from_arrays(offsets, listed, mask=pa.array(counts == 0))
    return _with_places(table, _OPS.take(pa.array(history.ops)), lsns, times, sequences, unchanged)


def _with_places(
    rows: pa.Table,
    ops: pa.Array,
    lsns: Sequence[int] | Numbers,
    times_us: Sequence[int] | Numbers,
    sequences: Sequence[int] | Numbers,
    unsent: pa.Array,
) -> pa.Table:
    unix_us = np.asarray(times_us, np.int64) + POSTGRES_EPOCH_US
    own = (ops, lsns, unix_us, sequences, unsent)
    arrays = [
        each if isinstance(each, pa.Array) else pa.array(each, pa.int64()).cast(field.type)
        for field, each in zip(_OWN, own, strict=True)
    ]
    schema = pa.schema([*_OWN, *rows.schema])
    return pa.table([*arrays, *rows.columns], schema)
