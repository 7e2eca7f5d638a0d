"""A version of a row in a page of a table: its line pointer and its header. Pure.

A line pointer leads to a version of a row, to another line pointer (after pruning of versions that no index has), or to
nothing. The header of the version says which transaction has made it and which has ended it; what became of these is
not in the page, other than by hints.

Source: src/include/storage/itemid.h, src/include/access/htup_details.h.
"""

import struct
from typing import Final, NamedTuple

from safekeeper.base.errors import ConfigurationError
from walproxy.pipeline.pages.page import HEADER_BYTES, header_of

_POINTER: Final = struct.Struct("<I")
_UNUSED, _NORMAL, _REDIRECT = 0, 1, 2
_HEADER: Final = struct.Struct("<IIIHHHHHB")
_MASK_OFFSET: Final = 20

_COLUMNS: Final = 0x07FF
_HOT_UPDATED: Final = 0x4000
_HEAP_ONLY: Final = 0x8000

_XMIN_FROZEN: Final = 0x0300
_LOCK_ONLY: Final = 0x0080
_XMAX_INVALID: Final = 0x0800
_IS_MULTI: Final = 0x1000
_XMAX_BITS: Final = 0x1CD0  # locks, committed, invalid, multixact


class RowVersion(NamedTuple):
    """The header of a version of a row.

    Attributes:
        offset, length: where it is in the page, in bytes.
        xmin: the transaction that has made it; None if it is frozen, older than all that are told apart.
        xmax: the transaction that has deleted, updated or locked it, 0 if none has.
        is_multi: whether `xmax` is a multixact: several transactions have locked it, and one may have ended it.
        is_locked_only: whether `xmax` has locked it only.
        next_ctid: block and line pointer of the next version of the row; its own if there is none.
        columns: how many columns are stored; those that were added later are not.
        is_heap_only: whether no index entry leads to it, but an older version in the page.
        is_hot_updated: whether the next version is heap-only.
    """

    offset: int
    length: int
    xmin: int | None
    xmax: int
    is_multi: bool
    is_locked_only: bool
    next_ctid: tuple[int, int]
    columns: int
    is_heap_only: bool
    is_hot_updated: bool


def row_version(page: bytes, line: int) -> RowVersion:
    """Return what a line pointer of a table's page leads to.

    Args:
        line: the line pointer, from 1 on, as the second number of a ctid.

    Raises:
        ConfigurationError: it leads to no row; the message says to what.
    """
    header = header_of(page)
    items = header.items if header.is_regular else 0
    if line > items:
        raise ConfigurationError(f"the page has {items} line pointers at that LSN: correct --line")
    (pointer,) = _POINTER.unpack_from(page, HEADER_BYTES + (line - 1) * _POINTER.size)
    offset, flags, length = pointer & 0x7FFF, pointer >> 15 & 3, pointer >> 17
    if flags == _REDIRECT:
        raise ConfigurationError(
            f"line pointer {line} leads to line pointer {offset} at that LSN: give --line {offset}"
        )
    if flags != _NORMAL:
        kind = "unused" if flags == _UNUSED else "dead: the row was removed from the page"
        raise ConfigurationError(f"line pointer {line} is {kind} at that LSN: correct --line")
    if length < _HEADER.size or offset + length > header.special:
        raise ConfigurationError(f"line pointer {line} leads to no row: the relation is not a table")
    xmin, xmax, _, block_high, block_low, next_line, mask2, mask, _ = _HEADER.unpack_from(page, offset)
    return RowVersion(
        offset,
        length,
        None if mask & _XMIN_FROZEN == _XMIN_FROZEN else xmin,
        0 if mask & _XMAX_INVALID else xmax,
        bool(mask & _IS_MULTI),
        bool(mask & _LOCK_ONLY),
        (block_high << 16 | block_low, next_line),
        mask2 & _COLUMNS,
        bool(mask2 & _HEAP_ONLY),
        bool(mask2 & _HOT_UPDATED),
    )


def as_visible(page: bytes, version: RowVersion) -> bytes:
    """Return the page with a version that everybody sees: made by a frozen transaction, and ended by none."""
    at = version.offset + _MASK_OFFSET
    mask = int.from_bytes(page[at : at + 2], "little") & ~_XMAX_BITS | _XMIN_FROZEN | _XMAX_INVALID
    return page[:at] + mask.to_bytes(2, "little") + page[at + 2 :]
