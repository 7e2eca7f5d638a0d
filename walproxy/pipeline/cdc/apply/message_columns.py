"""The values of many messages of rows, by columns. Pure.

The messages are joined, and each step is taken for all of them at once: NumPy finds the values of a column, Arrow
copies those that are needed, and tells keys apart. No Python object is made for a change or a value.

    I oid N row               positions of the values of `row`, column by column
    U oid [K|O row] N row     an old row, if there is one
    D oid K|O row             the old row
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

INSERT, UPDATE, DELETE = b"IUD"
_NEW, _KEY, _OLD = b"NKO"
NULL, UNSENT, TEXT = b"nut"
_ROW_AT: Final = 6
"""Where the first row begins: after the kind, the OID, and the kind of the row."""

_LEAST_BYTES: Final = _ROW_AT + 2
_PADDING: Final = b"\0" * 8
"""What is read beyond the end of a message that is cut short is in here, or in the next message."""

_TEXT_BYTES_MAX: Final = (1 << 31) - 1
"""Of one column in an array of Arrow."""


class Values(NamedTuple):
    """Where the values of one column are: those of the first message first. An absent one has no bytes."""

    kinds: npt.NDArray[np.uint8]
    begins: Numbers
    ends: Numbers

    def taken(self, data: bytes, rows: Numbers) -> pa.Array:
        """Return some of the values, null for those that were not sent.

        Arrow sees the values and the gaps between them as one array.
        """
        offsets = np.column_stack((self.begins, self.ends)).reshape(-1)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        values = pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
        return values.take(pa.array(2 * rows, mask=self.kinds[rows] != TEXT))

    def at(self, rows: Numbers) -> "Values":
        return Values(self.kinds[rows], self.begins[rows], self.ends[rows])

    def replaced(self, rows: Numbers, others: "Values") -> "Values":
        changed = Values(self.kinds.copy(), self.begins.copy(), self.ends.copy())
        changed.kinds[rows], changed.begins[rows], changed.ends[rows] = others.kinds, others.begins, others.ends
        return changed

    def inserted(self, rows: Numbers, others: "Values") -> "Values":
        """Put other values before those of the rows."""
        return Values(
            np.insert(self.kinds, rows, others.kinds),
            np.insert(self.begins, rows, others.begins),
            np.insert(self.ends, rows, others.ends),
        )


class RowMessages(NamedTuple):
    """Messages of rows of one relation.

    Attributes:
        data: the messages, joined.
        kinds: INSERT, UPDATE or DELETE.
        columns: of the new row of each message; of a delete, of the old row.
        both: the updates that have an old row.
        old: the columns of these old rows.
        is_whole: of each of `both`, whether all columns of the old row were sent, not the key alone.
    """

    data: bytes
    kinds: npt.NDArray[np.uint8]
    columns: list[Values]
    both: Numbers
    old: list[Values]
    is_whole: Flags

    def __len__(self) -> int:
        return len(self.kinds)


def read_messages(messages: Sequence[bytes], column_count: int) -> RowMessages | None:
    """Return the values of messages; None if one of them is not understood, or they are too large.

    Args:
        messages: I, U and D, at least one, outside of pieces.
    """
    lengths = np.fromiter(map(len, messages), np.int64, len(messages))
    if lengths.min() < _LEAST_BYTES:
        return None
    data = b"".join([*messages, _PADDING])
    reader = _Reader(data)
    ends = np.cumsum(lengths)
    begins = ends - lengths
    kinds, row_kinds = reader.octets[begins], reader.octets[begins + 5]
    is_row = kinds != DELETE
    has_old = (row_kinds == _KEY) | (row_kinds == _OLD)
    if not np.all(np.where(kinds == INSERT, ~has_old, ~is_row <= has_old) & (has_old | (row_kinds == _NEW))):
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
    return RowMessages(data, kinds, columns, both, old, row_kinds[both] == _OLD)


def key_numbers(data: bytes, keys: Sequence[Values]) -> Numbers:
    """Return a number for the key of each operation, from 0 on in the order in which they come."""
    every = np.arange(len(keys[0].begins))
    numbers = np.zeros(len(every), np.int64)
    for values in keys:
        own = _numbered(values.taken(data, every))
        numbers = _numbered(pa.array(numbers * (own.max() + 1) + own)) if len(keys) > 1 else own
    return numbers


def _numbered(values: pa.Array) -> Numbers:
    """Return a number for each value, the same for equal ones, from 0 on in the order in which they come."""
    numbers: Numbers = values.dictionary_encode().indices.to_numpy().astype(np.int64)
    return numbers


class _Reader:
    """Big-endian numbers at any byte."""

    def __init__(self, data: bytes) -> None:
        self.octets = np.frombuffer(data, np.uint8)
        self._u16 = np.ndarray(len(data) - 1, ">u2", data, strides=(1,))
        self._u32 = np.ndarray(len(data) - 3, ">u4", data, strides=(1,))

    def walk(self, at: Numbers, limits: Numbers, column_count: int) -> tuple[list[Values], Numbers] | None:
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
            is_text = kinds == TEXT
            if not np.all(is_text | (kinds == NULL) | (kinds == UNSENT)):
                return None
            begins = at + np.where(is_text, 5, 1)
            at = begins + np.where(is_text, self._u32[at + 1], 0)
            if np.any(at > limits):
                return None
            columns.append(Values(kinds, begins, at))
        return columns, at
