"""Records as lines of text, in pg_waldump's layout, made by compiled code.

    rmgr: Heap        len (rec/tot):     54/  8018, tx:       733, lsn: 0/01501F68, prev 0/01501F30, desc: INSERT ,
    blkref #0: rel 1663/5/16384 blk 0 FPW

Of what pg_waldump prints after the operation's name only the decoded part is printed: of a record that ends a
transaction its time, its name, its subtransactions and where it was replayed from.

Lines are written into one array of bytes whose size is known beforehand; no object is made per record. A million lines
take 0.4 s.
"""

import functools
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from safekeeper.base.lsn import format_lsn
from safekeeper.waldecode.format import RM_XACT, WalFormatError
from walproxy.pipeline.decoder.arrow import TIME_MAX, TIME_MIN
from walproxy.pipeline.decoder.decode import Decoded
from walproxy.pipeline.decoder.jit import compiled, part
from walproxy.pipeline.decoder.opcodes import MAJORS, operation_table, rmgr_table
from walproxy.pipeline.decoder.transaction_bodies import Bodies, read_bodies

# Upper bounds of what a line takes.
_LINE_BYTES: Final = 176  # without block references and what belongs to a transaction
_BLOCK_BYTES: Final = 112
_TRANSACTION_BYTES: Final = 176
_SUBXID_BYTES: Final = 11

_FORKS: Final = ("main", "fsm", "vm", "init")
_DAY_US: Final = 86_400_000_000
_PREPARE: Final = 0x10
_PREPARED: Final = (0x30, 0x40)  # how a prepared transaction ends: the line names it

# Numbers of numpy's, because a function is compiled again for each of Python's that it is called with.
_SPACE, _ZERO = np.array([32, 48])
_WIDE_1, _WIDE_2, _WIDE_4, _WIDE_6, _WIDE_8, _WIDE_10 = np.array([1, 2, 4, 6, 8, 10])
_NO_IMAGE, _NOT_APPLIED, _APPLIED = np.arange(3)
_IMAGES: Final = ("", " FPW for WAL verification", " FPW")
_TX, _LSN, _PREV, _BLKREF, _REL, _GID, _COLON, _UTC, _SUBXACTS, _APPLY, _ORIGIN, _ORIGIN_LSN, _AT = np.arange(13)
_OTHERS: Final = (
    *(", tx: ", ", lsn: ", ", prev ", ", blkref #", ": rel "),
    *("gid ", ": ", " UTC", "; subxacts:", "; apply_feedback", "; origin: node ", ", lsn ", ", at "),
)


class _Words(NamedTuple):
    """Words one after the other: the word `n` is `letters[begin[n]:begin[n + 1]]`."""

    letters: Any
    begin: Any


class _Names(NamedTuple):
    """The words of a line."""

    rmgrs: _Words
    operations: _Words
    forks: _Words
    images: _Words
    others: _Words


class _Records(NamedTuple):
    """The arrays of a `Decoded` that stand in lines."""

    lsn: Any
    previous_lsn: Any
    total_length: Any
    image_bytes: Any
    xid: Any
    origin: Any
    rmid: Any
    info: Any
    first_block: Any


class _Blocks(NamedTuple):
    """The same of its blocks."""

    block_id: Any
    tablespace: Any
    database: Any
    relation: Any
    fork: Any
    block: Any
    has_image: Any
    image_applied: Any


def format_records(decoded: Decoded, selected: Any) -> bytes:
    """Return the lines of some of the records of a `Decoded`, in order.

    Args:
        selected: their indices, ascending, int64.

    Raises:
        WalFormatError: a record that ends a transaction is not as its version writes it.
    """
    bodies = read_bodies(decoded)
    if isinstance(bodies, int):
        raise WalFormatError(
            f"the transaction data of the record at {format_lsn(int(decoded.lsn[bodies]))} is not in the format of "
            f"PostgreSQL {decoded.major}: look at it with pg_waldump, and continue after it with --start"
        )
    blocks = int((decoded.first_block[selected + 1] - decoded.first_block[selected]).sum())
    room = (
        len(selected) * _LINE_BYTES
        + blocks * _BLOCK_BYTES
        + len(bodies.record) * _TRANSACTION_BYTES
        + int(bodies.subxid_end[-1] if len(bodies.record) else 0) * _SUBXID_BYTES
        + int(bodies.gid_bytes.clip(0).sum())
    )
    out = np.empty(room, np.uint8)
    written = _write_lines(
        out,
        selected,
        _Records(*(getattr(decoded, name) for name in _Records._fields)),
        _Blocks(*(getattr(decoded, name) for name in _Blocks._fields)),
        # Arrays of one memory layout, whether there is one row or many: else it is compiled again.
        Bodies(*(np.ascontiguousarray(field) for field in bodies)),
        decoded.stripped,
        _names(decoded.major),
    )
    return out[:written].tobytes()


@functools.cache
def _names(major: int) -> _Names:
    return _Names(
        _words([f"rmgr: {name:<11} len (rec/tot): " for name in rmgr_table().to_pylist()]),
        _words([f", desc: {name} " for name in operation_table(major or MAJORS[-1]).to_pylist()]),
        _words([" blk " if n == 0 else f" fork {_FORKS[n] if n < len(_FORKS) else n} blk " for n in range(256)]),
        _words(_IMAGES),
        _words(_OTHERS),
    )


def _words(words: Sequence[str]) -> _Words:
    encoded = [word.encode() for word in words]
    begin = np.cumsum([0, *(len(word) for word in encoded)])
    return _Words(np.frombuffer(b"".join(encoded), np.uint8).copy(), begin.astype(np.int64))


@part
def _put_word(out: Any, at: int, words: _Words, number: int) -> int:
    for index in range(words.begin[number], words.begin[number + 1]):
        out[at] = words.letters[index]
        at += 1
    return at


@part
def _put_number(out: Any, at: int, value: int, width: int, filler: int) -> int:
    """Write a decimal number, right-justified."""
    digits, rest = 1, value // 10
    while rest:
        digits += 1
        rest //= 10
    end = at + max(digits, width)
    for position in range(at, end - digits):
        out[position] = filler
    for position in range(end - 1, end - digits - 1, -1):
        out[position] = 48 + value % 10
        value //= 10
    return end


@part
def _put_hexadecimal(out: Any, at: int, value: int, digits: int) -> int:
    """Write a hexadecimal number with at least `digits` digits."""
    while digits < 8 and value >> 4 * digits:
        digits += 1
    for position in range(digits - 1, -1, -1):
        digit = value >> 4 * position & 15
        out[at] = 48 + digit if digit < 10 else 55 + digit
        at += 1
    return at


@part
def _put_lsn(out: Any, at: int, lsn: int, low_digits: int) -> int:
    """Write an LSN; of its lower half at least `digits` digits."""
    at = _put_hexadecimal(out, at, lsn >> 32 & 0xFFFFFFFF, _WIDE_1)
    out[at] = 47
    return _put_hexadecimal(out, at + 1, lsn & 0xFFFFFFFF, low_digits)


@part
def _put_time(out: Any, at: int, time: int) -> int:
    """Write one of PostgreSQL's timestamps, `2026-07-30 12:34:56.123456`; nonsense becomes year 1 or 9999."""
    time = min(max(time, TIME_MIN), TIME_MAX)
    day, time = time // _DAY_US, time % _DAY_US
    # Days since 0000-03-01 in the Gregorian calendar: eras of 400 years, whose years begin in March.
    day += 730_425
    era = day // 146_097
    of_era = day - era * 146_097
    year_of_era = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * of_year + 2) // 153
    day_of_month = of_year - (153 * month + 2) // 5 + 1
    year = year_of_era + era * 400 + (1 if month >= 10 else 0)
    month = month + 3 if month < 10 else month - 9
    at = _put_number(out, at, year, _WIDE_4, _ZERO)
    out[at] = 45
    at = _put_number(out, at + 1, month, _WIDE_2, _ZERO)
    out[at] = 45
    at = _put_number(out, at + 1, day_of_month, _WIDE_2, _ZERO)
    out[at] = 32
    at = _put_number(out, at + 1, time // 3_600_000_000, _WIDE_2, _ZERO)
    out[at] = 58
    at = _put_number(out, at + 1, time // 60_000_000 % 60, _WIDE_2, _ZERO)
    out[at] = 58
    at = _put_number(out, at + 1, time // 1_000_000 % 60, _WIDE_2, _ZERO)
    out[at] = 46
    return _put_number(out, at + 1, time % 1_000_000, _WIDE_6, _ZERO)


@part
def _put_transaction(
    out: Any, at: int, operation: int, row: int, t: Bodies, origin: int, wal: Any, names: _Names
) -> int:
    """Write the data of a record about the transaction that it ends."""
    if operation == _PREPARE:
        at = _put_word(out, at, names.others, _GID)
        for index in range(t.gid_begin[row], t.gid_begin[row] + t.gid_bytes[row]):
            # A line break in a name must not look like a new record.
            out[at] = wal[index] if wal[index] >= 32 else 63
            at += 1
        at = _put_word(out, at, names.others, _COLON)
    elif operation in _PREPARED:
        at = _put_number(out, at, t.xid[row], _WIDE_1, _SPACE)
        at = _put_word(out, at, names.others, _COLON)
    at = _put_time(out, at, t.time[row])
    at = _put_word(out, at, names.others, _UTC)
    begin = t.subxid_end[row - 1] if row else 0
    if t.subxid_end[row] > begin:
        at = _put_word(out, at, names.others, _SUBXACTS)
        for index in range(begin, t.subxid_end[row]):
            out[at] = 32
            at = _put_number(out, at + 1, np.int64(t.subxids[index]), _WIDE_1, _SPACE)
    if t.remote_apply[row]:
        at = _put_word(out, at, names.others, _APPLY)
    if t.has_origin[row]:
        at = _put_word(out, at, names.others, _ORIGIN)
        at = _put_number(out, at, origin, _WIDE_1, _SPACE)
        at = _put_word(out, at, names.others, _ORIGIN_LSN)
        at = _put_lsn(out, at, t.origin_lsn[row], _WIDE_1)
        at = _put_word(out, at, names.others, _AT)
        at = _put_time(out, at, t.origin_time[row])
        at = _put_word(out, at, names.others, _UTC)
    return at


@part
def _put_block(out: Any, at: int, block: int, b: _Blocks, names: _Names) -> int:
    at = _put_word(out, at, names.others, _BLKREF)
    at = _put_number(out, at, np.int64(b.block_id[block]), _WIDE_1, _SPACE)
    at = _put_word(out, at, names.others, _REL)
    at = _put_number(out, at, np.int64(b.tablespace[block]), _WIDE_1, _SPACE)
    out[at] = 47
    at = _put_number(out, at + 1, np.int64(b.database[block]), _WIDE_1, _SPACE)
    out[at] = 47
    at = _put_number(out, at + 1, np.int64(b.relation[block]), _WIDE_1, _SPACE)
    at = _put_word(out, at, names.forks, np.int64(b.fork[block]))
    at = _put_number(out, at, np.int64(b.block[block]), _WIDE_1, _SPACE)
    return _put_word(
        out,
        at,
        names.images,
        (_APPLIED if b.image_applied[block] else _NOT_APPLIED) if b.has_image[block] else _NO_IMAGE,
    )


@compiled
def _write_lines(
    out: Any,
    selected: Any,
    r: _Records,
    b: _Blocks,
    t: Bodies,
    wal: Any,
    names: _Names,
) -> int:
    """Write the lines of the selected records to `out`, which has room for them; return how many bytes they have."""
    at: Any = np.int64(0)
    row = 0
    for index in selected:
        rmid, info = np.int64(r.rmid[index]), np.int64(r.info[index])
        total = np.int64(r.total_length[index])
        at = _put_word(out, at, names.rmgrs, rmid)
        at = _put_number(out, at, total - r.image_bytes[index], _WIDE_6, _SPACE)
        out[at] = 47
        at = _put_number(out, at + 1, total, _WIDE_6, _SPACE)
        at = _put_word(out, at, names.others, _TX)
        at = _put_number(out, at, np.int64(r.xid[index]), _WIDE_10, _SPACE)
        at = _put_word(out, at, names.others, _LSN)
        at = _put_lsn(out, at, r.lsn[index], _WIDE_8)
        at = _put_word(out, at, names.others, _PREV)
        at = _put_lsn(out, at, r.previous_lsn[index], _WIDE_8)
        at = _put_word(out, at, names.operations, rmid * 16 + (info >> 4))
        if rmid == RM_XACT:
            while row < t.record.size and t.record[row] < index:
                row += 1
            if row < t.record.size and t.record[row] == index:
                at = _put_transaction(out, at, info & 0x70, row, t, np.int64(r.origin[index]), wal, names)
        for block in range(r.first_block[index], r.first_block[index + 1]):
            at = _put_block(out, at, block, b, names)
        out[at] = 10
        at += 1
    return at
