"""A page of 8 KiB: its header, and how two versions of it may differ that have the same LSN. Pure.

What redo makes is not always byte for byte what the primary has, although nothing is wrong. PostgreSQL changes some
bytes without a word in the WAL, and redo does not know others. They are those that PostgreSQL's own check of redo
(wal_consistency_checking) leaves out, for the page at large, for heaps and for btrees:

- the checksum, which is made when a page is written to the disk;
- hints: flags of the page, pd_prune_xid, which transactions a tuple's header marks as over, index entries that are
  marked as dead, a btree page's flag that it has such;
- the command number in a tuple's header, which redo sets to the first;
- the hole between line pointers and tuples, where older bytes may be, and padding after a tuple.

Sources: src/include/storage/bufpage.h, src/backend/access/common/bufmask.c, heap_mask() and btree_mask().
"""

import struct
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from safekeeper.base.lsn import Lsn

PAGE_BYTES: Final = 8192
_HEADER: Final = struct.Struct("<IIHHHHHHI")
HEADER_BYTES: Final = _HEADER.size
_LINE_POINTER: Final = struct.Struct("<I")
_LP_NORMAL, _LP_DEAD = 1, 3

# Offsets in the page's header.
_CHECKSUM: Final = range(8, 10)
_FLAGS: Final = range(10, 12)
_PRUNE_XID: Final = range(20, 24)

# Offsets in a heap tuple's header, and bits of its t_infomask.
_COMMAND: Final = range(8, 12)
_INFOMASK: Final = range(20, 22)
_TUPLE_HEADER_BYTES: Final = 23
_XACT_BITS: Final = 0xFFF0
_XMAX_BITS: Final = 0x0C00
_XMIN_FROZEN: Final = 0x0300

_BTREE_SPECIAL_BYTES: Final = 16
_BTREE_FLAGS: Final = 12
_BTREE_CYCLE: Final = 14
_BTREE_HINTS: Final = 0x20 | 0x40  # BTP_SPLIT_END, BTP_HAS_GARBAGE

PageKind = Literal["heap", "btree", "other"]


class PageHeader(NamedTuple):
    """The header of a page; `lsn` is the end of the last record that has changed it, 0 for an empty page."""

    lsn: Lsn
    checksum: int
    flags: int
    lower: int
    upper: int
    special: int
    size: int
    version: int
    prune_xid: int

    @property
    def items(self) -> int:
        """The number of line pointers."""
        return max(self.lower - HEADER_BYTES, 0) // _LINE_POINTER.size

    @property
    def is_regular(self) -> bool:
        """Whether the layout is valid; a page that was never used is all zeros."""
        return HEADER_BYTES <= self.lower <= self.upper <= self.special <= PAGE_BYTES


class Difference(NamedTuple):
    """The differences of a page from another of the same LSN.

    Attributes:
        excused: how many bytes differ that may, by their kind.
        ranges: [begin, end) of bytes that must not, and do.
    """

    excused: dict[str, int]
    ranges: list[tuple[int, int]]


def header_of(page: bytes) -> PageHeader:
    """Return the header of a page."""
    high, low, checksum, flags, lower, upper, special, size_version, prune_xid = _HEADER.unpack_from(page)
    lsn = high << 32 | low
    return PageHeader(
        lsn, checksum, flags, lower, upper, special, size_version & 0xFF00, size_version & 0xFF, prune_xid
    )


def compare(restored: bytes, primary: bytes, kind: PageKind) -> Difference:
    """Return how the page that redo made differs from the primary's, which has the same LSN."""
    reasons = _may_differ(restored, kind) | _may_differ(primary, kind)
    excused: dict[str, int] = {}
    wrong = []
    for offset, (left, right) in enumerate(zip(restored, primary, strict=True)):
        if left == right:
            continue
        reason = reasons.get(offset)
        if reason is not None and not (left ^ right) & ~reason[1]:
            excused[reason[0]] = excused.get(reason[0], 0) + 1
        else:
            wrong.append(offset)
    return Difference(excused, list(_ranges(wrong)))


def hex_dump(page: bytes) -> Iterator[str]:
    """Yield the lines of a dump: offset, sixteen bytes, the same as text. Lines that repeat the one before are `*`."""
    before = b""
    is_repeated = False
    for offset in range(0, len(page), 16):
        line = page[offset : offset + 16]
        if line == before:
            if not is_repeated:
                yield "*"
            is_repeated = True
            continue
        before, is_repeated = line, False
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
        yield f"{offset:04x}  {line[:8].hex(' ')}  {line[8:].hex(' ')}  |{text}|"
    yield f"{len(page):04x}"


def _ranges(offsets: list[int]) -> Iterator[tuple[int, int]]:
    begin = end = -1
    for offset in offsets:
        if offset != end:
            if end > begin:
                yield begin, end
            begin = offset
        end = offset + 1
    if end > begin:
        yield begin, end


Excuse = tuple[str, int]
"""Why a byte may differ, and which of its bits."""


def _may_differ(page: bytes, kind: PageKind) -> dict[int, Excuse]:
    """Return the offsets of bytes that may differ."""
    header = header_of(page)
    found: dict[int, Excuse] = dict.fromkeys(_CHECKSUM, ("checksum", 0xFF))
    found |= {_FLAGS[0]: ("hints", 0x07)} | dict.fromkeys(_PRUNE_XID, ("hints", 0xFF))
    if not header.is_regular:
        return found
    found |= dict.fromkeys(range(header.lower, header.upper), ("unused space", 0xFF))
    for item in range(header.items):
        place = HEADER_BYTES + item * _LINE_POINTER.size
        (pointer,) = _LINE_POINTER.unpack_from(page, place)
        offset, flags, length = pointer & 0x7FFF, pointer >> 15 & 3, pointer >> 17
        if kind != "heap":
            found[place + 1] = ("hints", 0x80)  # lp_flags is bits 15 and 16 of the line pointer.
            found[place + 2] = ("hints", 0x01)
        elif flags == _LP_NORMAL and offset + max(length, _TUPLE_HEADER_BYTES) <= header.special:
            found |= _heap_tuple(page, offset, length)
    if kind == "btree" and header.special == PAGE_BYTES - _BTREE_SPECIAL_BYTES:
        found[header.special + _BTREE_FLAGS] = ("hints", _BTREE_HINTS)
        found |= dict.fromkeys(range(header.special + _BTREE_CYCLE, PAGE_BYTES), ("hints", 0xFF))
    return found


def _heap_tuple(page: bytes, offset: int, length: int) -> dict[int, Excuse]:
    infomask = int.from_bytes(page[offset + _INFOMASK.start : offset + _INFOMASK.stop], "little")
    bits = _XMAX_BITS if infomask & _XMIN_FROZEN == _XMIN_FROZEN else _XACT_BITS
    found: dict[int, Excuse] = {offset + byte: ("command number", 0xFF) for byte in _COMMAND}
    found |= {offset + byte: ("hints", bits >> 8 * index & 0xFF) for index, byte in enumerate(_INFOMASK)}
    padding = range(offset + length, min(offset + (length + 7) // 8 * 8, PAGE_BYTES))
    return found | dict.fromkeys(padding, ("unused space", 0xFF))
