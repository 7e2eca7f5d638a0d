"""Combine the changes of one table by columns: what `NetChanges` does with one change after the other. Pure.

An update with an old row is two operations: the key of that row goes first. Of each key the last operation counts, and
keys are in the order of their first one, as in NetChanges. That is the reference, and takes everything else: rows with
values that were not sent, whose messages are *left*, and all messages if some cannot be told apart by their key, or are
not understood.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from walproxy.pipeline.cdc.apply.message_columns import (
    DELETE,
    INSERT,
    TEXT,
    UNSENT,
    Flags,
    Numbers,
    Values,
    key_numbers,
    read_messages,
)

_LINKS_MAX: Final = 8


class NetColumns(NamedTuple):
    """The combined changes of one table, all of one layout.

    Attributes:
        data: the messages, joined.
        columns: of the new row of each message.
        rows: the messages whose rows stay, in the order of their keys.
        keys: the columns of the key, of each operation.
        gone: the operations whose keys go.
        gone_by: the messages of these.
        last: for each of these the message with the last row of its key, -1 if there is none.
        left: the messages that NetChanges must take: those with values that were not sent, and others of their rows.
    """

    data: bytes
    columns: Sequence[Values]
    rows: Numbers
    keys: Sequence[Values]
    gone: Numbers
    gone_by: Numbers
    last: Numbers
    left: Numbers

    def texts(self, column: int) -> pa.Array:
        """Return the values of a column of the new rows, as large_binary."""
        return self.columns[column].taken(self.data, self.rows)

    def last_texts(self, column: int) -> pa.Array:
        """Return the same of the last rows of keys that go, of those that have one."""
        return self.columns[column].taken(self.data, self.last[self.last >= 0])

    def gone_keys(self, number: int) -> pa.Array:
        """Return the values of a column of the key, by its number in the key, of the rows that go."""
        return self.keys[number].taken(self.data, self.gone)


def combine(messages: Sequence[bytes], column_count: int, key: Sequence[int]) -> NetColumns | None:
    """Return the combined changes of rows of one relation.

    Args:
        messages: I, U and D, at least one, outside of pieces.
        key: positions of the columns of the key; without one, rows are added.

    Returns:
        None if NetChanges must take all of them.
    """
    read = read_messages(messages, column_count)
    if read is None:
        return None
    data, kinds, columns, both = read.data, read.kinds, read.columns, read.both
    if not key:
        nothing = np.empty(0, np.int64)
        if not np.all(kinds == INSERT) or any(np.any(values.kinds == UNSENT) for values in columns):
            return None
        return NetColumns(data, columns, np.arange(len(read)), (), nothing, nothing, nothing, nothing)
    # An update with an old row is two operations: the old key goes, and a row comes, perhaps with the same key.
    keys = [columns[index].inserted(both, read.old[index]) for index in key]
    if any(np.any(values.kinds != TEXT) for values in keys):
        return None
    is_row = kinds != DELETE
    comes = np.insert(is_row, both, False)
    message_of = np.insert(np.arange(len(read)), both, both)
    numbers = key_numbers(data, keys)
    last = np.empty(int(numbers.max()) + 1, np.int64)
    last[numbers] = np.arange(len(numbers))  # the last one of those with the same number is what stays
    is_left = np.zeros(len(read), np.bool_)
    for values in columns:
        is_left |= is_row & (values.kinds == UNSENT)
    if np.any(is_left):
        left = _with_their_rows(is_left, message_of, numbers)
        if left is None:
            return None
        last = last[~left]
    stays = comes[last]
    gone = last[~stays]
    last_row = np.full(int(numbers.max()) + 1, -1)
    last_row[numbers[comes]] = message_of[comes]
    return NetColumns(
        data,
        columns,
        message_of[last[stays]],
        keys,
        gone,
        message_of[gone],
        last_row[numbers[gone]],
        np.flatnonzero(is_left),
    )


def _with_their_rows(is_left: Flags, message_of: Numbers, numbers: Numbers) -> Flags | None:
    """Mark in `is_left` also all messages that share a key with one that is marked; return the marks of the keys.

    An update of a key ties two keys together. None if chains of them are too long: each link costs a look at all.
    """
    marked = np.zeros(int(numbers.max()) + 1, np.bool_)
    for _ in range(_LINKS_MAX):
        before = np.count_nonzero(is_left)
        marked[numbers[is_left[message_of]]] = True
        is_left[message_of[marked[numbers]]] = True
        if before == np.count_nonzero(is_left):
            return marked
    return None
