"""Combine the changes of one table by columns: what `NetChanges` does with one change after the other. Pure.

The messages are joined, and each step is taken for all of them at once: NumPy finds the values of a column, Arrow
copies those that are needed, and tells keys apart. No Python object is made for a change or a value.

    I oid N row               positions of the values of `row`, column by column
    U oid [K|O row] N row     an old row, if there is one: its key goes first
    D oid K|O row             its key goes

Of each key the last operation counts, and keys are in the order of their first one, as in NetChanges. That is the
reference, and takes everything else: rows with values that were not sent, whose messages are *left*, and all messages
if some cannot be told apart by their key, or are not understood.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_Numbers = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]

_INSERT, _UPDATE, _DELETE = b"IUD"
_NEW, _KEY, _OLD = b"NKO"
_NULL, _UNCHANGED, _TEXT = b"nut"
_ROW_AT: Final = 6
"""Where the first row begins: after the kind, the OID, and the kind of the row."""

_LEAST_BYTES: Final = _ROW_AT + 2
_PADDING: Final = b"\0" * 8
"""What is read beyond the end of a message that is cut short is in here, or in the next message."""

_LINKS_MAX: Final = 8

_TEXT_BYTES_MAX: Final = (1 << 31) - 1
"""Of one column in an array of Arrow."""


class NetColumns(NamedTuple):
    """The combined changes of one table, all of one layout.

    Attributes:
        data: the messages, joined.
        columns: of the new row of each message.
        rows: the messages whose rows stay, in the order of their keys.
        keys: the columns of the key, of each operation.
        gone: the operations whose keys go.
        left: the messages that NetChanges must take: those with values that were not sent, and others of their rows.
    """

    data: bytes
    columns: Sequence["_Values"]
    rows: _Numbers
    keys: Sequence["_Values"]
    gone: _Numbers
    left: _Numbers

    def texts(self, column: int) -> pa.Array:
        """Return the values of a column of the new rows, as large_binary."""
        return self.columns[column].taken(self.data, self.rows)

    def gone_keys(self, number: int) -> pa.Array:
        """Return the values of a column of the key, by its number in the key, of the rows that go."""
        return self.keys[number].taken(self.data, self.gone)


class _Values(NamedTuple):
    """Where the values of one column are: those of the first message first. An absent one has no bytes."""

    kinds: npt.NDArray[np.uint8]
    begins: _Numbers
    ends: _Numbers

    def taken(self, data: bytes, rows: _Numbers) -> pa.Array:
        """Return some of the values. Arrow sees the values and the gaps between them as one array."""
        offsets = np.column_stack((self.begins, self.ends)).reshape(-1)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        values = pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
        return values.take(pa.array(2 * rows, mask=self.kinds[rows] == _NULL))

    def at(self, rows: _Numbers) -> "_Values":
        return _Values(self.kinds[rows], self.begins[rows], self.ends[rows])

    def replaced(self, rows: _Numbers, others: "_Values") -> "_Values":
        changed = _Values(self.kinds.copy(), self.begins.copy(), self.ends.copy())
        changed.kinds[rows], changed.begins[rows], changed.ends[rows] = others.kinds, others.begins, others.ends
        return changed

    def inserted(self, rows: _Numbers, others: "_Values") -> "_Values":
        """Put other values before those of the rows."""
        return _Values(
            np.insert(self.kinds, rows, others.kinds),
            np.insert(self.begins, rows, others.begins),
            np.insert(self.ends, rows, others.ends),
        )


def combine(messages: Sequence[bytes], column_count: int, key: Sequence[int]) -> NetColumns | None:
    """Return the combined changes of rows of one relation.

    Args:
        messages: I, U and D, at least one, outside of pieces.
        key: positions of the columns of the key; without one, rows are added.

    Returns:
        None if NetChanges must take all of them.
    """
    lengths = np.fromiter(map(len, messages), np.int64, len(messages))
    if lengths.min() < _LEAST_BYTES:
        return None
    data = b"".join([*messages, _PADDING])
    reader = _Reader(data)
    ends = np.cumsum(lengths)
    begins = ends - lengths
    kinds, row_kinds = reader.octets[begins], reader.octets[begins + 5]
    is_row = kinds != _DELETE
    has_old = (row_kinds == _KEY) | (row_kinds == _OLD)
    if not np.all(np.where(kinds == _INSERT, ~has_old, ~is_row <= has_old) & (has_old | (row_kinds == _NEW))):
        return None
    first = reader.walk(begins + _ROW_AT, ends, column_count)
    if first is None:
        return None
    columns, reached = first
    both = np.flatnonzero(is_row & has_old)
    old = [values.at(both) for values in columns]
    if len(both):
        if np.any(reader.octets[reached[both]] != _NEW):
            return None
        second = reader.walk(reached[both] + 1, ends[both], column_count)
        if second is None:
            return None
        columns = [values.replaced(both, others) for values, others in zip(columns, second[0], strict=True)]
        reached[both] = second[1]
    if np.any(reached != ends):
        return None
    if any(int((values.ends - values.begins).sum()) > _TEXT_BYTES_MAX for values in columns):
        return None
    if not key:
        nothing = np.empty(0, np.int64)
        if not np.all(kinds == _INSERT) or any(np.any(values.kinds == _UNCHANGED) for values in columns):
            return None
        return NetColumns(data, columns, np.arange(len(begins)), (), nothing, nothing)
    # An update with an old row is two operations: the old key goes, and a row comes, perhaps with the same key.
    keys = [columns[index].inserted(both, old[index]) for index in key]
    if any(np.any(values.kinds != _TEXT) for values in keys):
        return None
    comes = np.insert(is_row, both, False)
    message_of = np.insert(np.arange(len(begins)), both, both)
    numbers = _key_numbers(data, keys)
    last = np.empty(int(numbers.max()) + 1, np.int64)
    last[numbers] = np.arange(len(numbers))  # the last one of those with the same number is what stays
    is_left = np.zeros(len(begins), np.bool_)
    for values in columns:
        is_left |= is_row & (values.kinds == _UNCHANGED)
    if np.any(is_left):
        left = _with_their_rows(is_left, message_of, numbers)
        if left is None:
            return None
        last = last[~left]
    stays = comes[last]
    return NetColumns(data, columns, message_of[last[stays]], keys, last[~stays], np.flatnonzero(is_left))


def _with_their_rows(is_left: _Flags, message_of: _Numbers, numbers: _Numbers) -> _Flags | None:
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


def _key_numbers(data: bytes, keys: Sequence[_Values]) -> _Numbers:
    """Return a number for the key of each operation, from 0 on in the order in which they come."""
    every = np.arange(len(keys[0].begins))
    numbers = np.zeros(len(every), np.int64)
    for values in keys:
        own = _numbered(values.taken(data, every))
        numbers = _numbered(pa.array(numbers * (own.max() + 1) + own)) if len(keys) > 1 else own
    return numbers


def _numbered(values: pa.Array) -> _Numbers:
    """Return a number for each value, the same for equal ones, from 0 on in the order in which they come."""
    numbers: _Numbers = values.dictionary_encode().indices.to_numpy().astype(np.int64)
    return numbers


class _Reader:
    """Big-endian numbers at any byte."""

    def __init__(self, data: bytes) -> None:
        self.octets = np.frombuffer(data, np.uint8)
        self._u16 = np.ndarray(len(data) - 1, ">u2", data, strides=(1,))
        self._u32 = np.ndarray(len(data) - 3, ">u4", data, strides=(1,))

    def walk(self, at: _Numbers, limits: _Numbers, column_count: int) -> tuple[list[_Values], _Numbers] | None:
        """Read a row of each message.

        Args:
            at: where the rows begin.
            limits: where the messages end.

        Returns:
            The values by column, and where each row ends; None if that is beyond a limit, or a row is something else.
        """
        if np.any(at + 2 > limits) or np.any(self._u16[at] != column_count):
            return None
        at = at + 2
        columns = []
        for _ in range(column_count):
            kinds = self.octets[at]
            is_text = kinds == _TEXT
            if not np.all(is_text | (kinds == _NULL) | (kinds == _UNCHANGED)):
                return None
            begins = at + np.where(is_text, 5, 1)
            at = begins + np.where(is_text, self._u32[at + 1], 0)
            if np.any(at > limits):
                return None
            columns.append(_Values(kinds, begins, at))
        return columns, at
