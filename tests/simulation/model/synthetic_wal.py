"""WAL as the virtual primaries write it: records whose borders can be seen in the bytes, from anywhere.

    0           1          4           9
    | 0x80      | length   | previous  | content ... 0x7F
    The first byte alone has its high bit set; length and previous record's start are written in base 128. In the
    content 0x7F is the last byte, and no other: it stands for the page header that has the end of a record.

A record that bears a time is a commit: its content begins with 1, and is never written again. The bytes of all others
follow from where they are: a primary that was restored from a backup can repeat them.

So a record begins wherever a byte is above 0x7F, and no page or segment needs a header. A record that is followed by
another one before its announced end is one that a crash of the primary has cut short: PostgreSQL marks such a place
with an overwrite-contrecord page; the record is never complete, but what follows it counts.
"""

import random
from collections.abc import Iterator

from safekeeper.base.lsn import Lsn, segment_start

SEGMENT_SIZE = 16 << 10
HEADER_BYTES = 9
TIMED_BYTES_MIN = HEADER_BYTES + 8
_START, _END = 0x80, 0x7F
_TIMED = b"\x01"
_CONTENT = bytes(min(byte & 0x7F, _END - 1) for byte in range(256))
_FILL = random.Random(1).randbytes(8 * SEGMENT_SIZE).translate(_CONTENT)


def make_record(size: int, previous_lsn: Lsn, rng: random.Random, *, is_timed: bool = True) -> bytes:
    """Return a record of `size` bytes, with a content of its own if it bears a time, for which it may be too short."""
    header = (
        _START,
        *(size >> 14 & 0x7F, size >> 7 & 0x7F, size & 0x7F),
        *(previous_lsn >> 28 & 0x7F, previous_lsn >> 21 & 0x7F, previous_lsn >> 14 & 0x7F),
        *(previous_lsn >> 7 & 0x7F, previous_lsn & 0x7F),
    )
    if is_timed and size >= TIMED_BYTES_MIN:
        content = bytearray(_TIMED + rng.randbytes(size - HEADER_BYTES - 1).translate(_CONTENT))
    else:
        begin = previous_lsn % SEGMENT_SIZE
        content = bytearray((b"\x00" + _FILL[begin : begin + size])[: size - HEADER_BYTES])
    content[-1:] = bytes([_END]) if content else b""
    return bytes(header) + content


def records(wal: bytes | bytearray, begin_lsn: Lsn, from_lsn: Lsn) -> Iterator[tuple[Lsn, Lsn]]:
    """Yield (start, end) of the complete records that begin at or above `from_lsn`.

    Args:
        wal: the bytes from `begin_lsn` on.
    """
    position = from_lsn - begin_lsn
    while (position := _next_start(wal, position)) < len(wal):
        following = _next_start(wal, position + 1)
        length = _length(wal, position)
        if length and position + length <= len(wal) and position + length <= following:
            yield begin_lsn + position, begin_lsn + position + length
        position = following


def find_records(wal: bytes | bytearray, begin_lsn: Lsn, lsn: Lsn) -> tuple[Lsn, Lsn]:
    """Return (end of the first complete record that ends above `lsn`, start of the last record below), 0 for unknown.

    The record at `lsn` itself may have been cut short by a crash of the primary and have others behind it, which may
    be acknowledged: then the first of those counts.
    """
    last_lsn = last_record_start(wal, begin_lsn, lsn)
    if not last_lsn and begin_lsn <= lsn < begin_lsn + len(wal) and wal[lsn - begin_lsn] != _START:
        # A record that the log begins amidst. A crash may have cut it short: then the next record shows where it ends.
        end = _next_start(wal, lsn - begin_lsn)
        last = wal.find(_END, lsn - begin_lsn, end)
        if last >= 0:
            return begin_lsn + last + 1, 0
        return (begin_lsn + end if end < len(wal) else 0), 0
    return next((end for _, end in records(wal, begin_lsn, last_lsn or begin_lsn) if end > lsn), 0), last_lsn


def is_timed_at(wal: bytes | bytearray, position: int) -> bool:
    """Return whether the record that begins at this position of `wal` bears a time."""
    return (
        _length(wal, position) >= TIMED_BYTES_MIN
        and wal[position + HEADER_BYTES : position + HEADER_BYTES + 1] == _TIMED
    )


def last_timed_record(wal: bytes | bytearray, begin_lsn: Lsn, lsn: Lsn) -> tuple[Lsn, Lsn]:
    """Return (start, end) of the last record in `wal` that bears a time and is complete at `lsn`, (0, 0) for none."""
    start_lsn = lsn
    while start_lsn := last_record_start(wal, begin_lsn, start_lsn):
        position = start_lsn - begin_lsn
        end_lsn = start_lsn + _length(wal, position)
        if is_timed_at(wal, position) and end_lsn <= lsn and begin_lsn + _next_start(wal, position + 1) >= end_lsn:
            return start_lsn, end_lsn
    return 0, 0


def slot_lsn(wal: bytes | bytearray, begin_lsn: Lsn, commit_lsn: Lsn) -> Lsn:
    """Return what may be reported to a primary as flushed: its slot keeps the segment of the last record with a time.

    Args:
        begin_lsn: of `wal`, a segment's start: that of an earlier such record, or the log's.
    """
    start_lsn, end_lsn = last_timed_record(wal, begin_lsn, commit_lsn)
    kept_lsn = segment_start(start_lsn or begin_lsn, SEGMENT_SIZE)
    if kept_lsn == segment_start(commit_lsn, SEGMENT_SIZE):
        return commit_lsn
    return min(commit_lsn, max(kept_lsn + SEGMENT_SIZE - 1, end_lsn))


def first_record_start(wal: bytes | bytearray, begin_lsn: Lsn) -> Lsn:
    """Return the start of the first record in `wal`, its end if there is none."""
    return begin_lsn + _next_start(wal, 0)


def end_of_the_first_part(wal: bytes | bytearray, begin_lsn: Lsn) -> Lsn | None:
    """Return where the record ends that the WAL begins amidst, None if it is not complete, or was cut short."""
    end = _next_start(wal, 0)
    return begin_lsn + end if end and wal[end - 1] == _END else None


def last_record_start(wal: bytes | bytearray, begin_lsn: Lsn, lsn: Lsn) -> Lsn:
    """Return the start of the last record that begins below `lsn`, 0 if there is none."""
    position = wal.rfind(_START, 0, max(0, lsn - begin_lsn))
    return begin_lsn + position if position >= 0 else 0


def last_complete_end(wal: bytes | bytearray, begin_lsn: Lsn, lsn: Lsn) -> Lsn:
    """Return the end of the last record that is complete at `lsn`, at least `begin_lsn`.

    What lies between a record's end and `lsn` belongs to a record that was not acknowledged.
    """
    start_lsn = lsn
    while start_lsn := last_record_start(wal, begin_lsn, start_lsn):
        length = _length(wal, start_lsn - begin_lsn)
        if (
            length
            and start_lsn + length <= lsn
            and _next_start(wal, start_lsn - begin_lsn + 1) >= length + (start_lsn - begin_lsn)
        ):
            return start_lsn + length
    return begin_lsn


def previous_link(wal: bytes | bytearray, begin_lsn: Lsn) -> Lsn | None:
    """Return what the first record that begins in `wal` names as the one before it, None while that is not seen."""
    position = _next_start(wal, 0)
    header = wal[position : position + HEADER_BYTES]
    if len(header) < HEADER_BYTES:
        return None
    return _number(header[4:])


def _next_start(wal: bytes | bytearray, position: int) -> int:
    """Return the position of the next record start at or above `position`, len(wal) if there is none."""
    found = wal.find(_START, position)
    return found if found >= 0 else len(wal)


def _length(wal: bytes | bytearray, position: int) -> int:
    """Return the announced length of the record at `position`, 0 if it cannot be seen."""
    if position + 4 > len(wal):
        return 0
    return wal[position + 1] << 14 | wal[position + 2] << 7 | wal[position + 3]


def _number(digits: bytes | bytearray) -> int:
    number = 0
    for digit in digits:
        number = number << 7 | digit
    return number
