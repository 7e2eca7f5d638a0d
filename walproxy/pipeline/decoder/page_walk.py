"""From page to page: each header is validated when the walk reaches it.

That is: where it is, in which version and timeline of which cluster's log, and how many bytes of a record go on there.
The rules are those of XLogReaderValidatePageHeader in src/backend/access/transam/xlogreader.c, and of its reading of
records that go on.
"""

from typing import Any, Final, NamedTuple

import numpy as np

from safekeeper.waldecode.format import (
    ALL_PAGE_FLAGS,
    FIRST_IS_CONTRECORD,
    FIRST_IS_OVERWRITE_CONTRECORD,
    LONG_HEADER,
    LONG_PAGE_HEADER_SIZE,
    MAJOR_OF_MAGIC,
    PAGE_HEADER_SIZE,
    PAGE_SIZE,
)
from walproxy.pipeline.decoder import pages, stops
from walproxy.pipeline.decoder.jit import inlined, part

UNKNOWN: Final = -1


class Span(NamedTuple):
    """The range of the walk.

    Attributes:
        begin_lsn: a page's start, where the bytes begin.
        end_lsn: records that begin below it are decoded.
        check_crc: 0 or 1.
    """

    begin_lsn: int
    end_lsn: int
    segment_size: int
    check_crc: int


class WalkedPage(NamedTuple):
    """The page that the walk is on, and what the pages so far have in common.

    Attributes:
        number: counted from begin_lsn; -1 before the first page.
        begin, end: its content. After a switch record `end` is the segment's, and `begin` has no meaning.
        magic, tli: of its header; 0 before the first page.
        system_id, system_id_known: of the last long header; the id as a signed number.
    """

    number: int
    begin: int
    end: int
    magic: int
    tli: int
    system_id: int
    system_id_known: int


BEFORE_FIRST: Final = WalkedPage(-1, 0, 0, 0, 0, 0, 0)

MAJORS = np.zeros(1 << 16, np.int64)
for _magic, _major in MAJOR_OF_MAGIC.items():
    MAJORS[_magic] = _major
_content_position = part(pages.content_position)


@part
def enter_page(headers: Any, span: Any, before: Any, rest: int) -> Any:
    """Go to the next page.

    Args:
        rest: bytes of the incomplete record that are on it and after it; 0 if none is incomplete; UNKNOWN: accept its
            own.

    Returns:
        stop, expected, found, the new WalkedPage (the old one if the page will not do). If all is well, `found` is the
        number of bytes that go on here.
    """
    number = before.number + 1
    page_lsn = span.begin_lsn + number * PAGE_SIZE
    if number >= len(headers):
        return stops.CUT_PAGE, 0, 0, before
    is_long = page_lsn & (span.segment_size - 1) == 0
    word: Any = np.int64(headers[number, 0])
    magic = word & 0xFFFF
    flags = word >> 16 & 0xFFFF
    tli = word >> 32 & 0xFFFFFFFF
    address: Any = np.int64(headers[number, 1])
    found_rest: Any = np.int64(headers[number, 2]) & 0xFFFFFFFF
    system_id = before.system_id
    system_id_known = before.system_id_known
    if MAJORS[magic] == 0:
        return stops.PAGE_MAGIC, 0, magic, before
    if magic != before.magic and before.magic != 0:
        return stops.PAGE_MAGIC_CHANGED, before.magic, magic, before
    if address != page_lsn:
        return stops.PAGE_ADDRESS, page_lsn, address, before
    if flags & ~ALL_PAGE_FLAGS != 0 or (flags & LONG_HEADER != 0) != is_long:
        return stops.PAGE_FLAGS, 0, flags, before
    if tli == 0 or tli < before.tli:
        return stops.PAGE_TLI, before.tli, tli, before
    if is_long:
        sizes: Any = np.int64(headers[number, 4])
        if sizes & 0xFFFFFFFF != span.segment_size or sizes >> 32 & 0xFFFFFFFF != PAGE_SIZE:
            return stops.PAGE_SIZES, 0, sizes, before
        system_id = np.int64(headers[number, 3])
        if system_id_known != 0 and system_id != before.system_id:
            return stops.PAGE_SYSTEM_ID, before.system_id, system_id, before
        system_id_known = 1
    header_size = LONG_PAGE_HEADER_SIZE if is_long else PAGE_HEADER_SIZE
    end = before.end + PAGE_SIZE - header_size
    entered = WalkedPage(number, before.end, end, magic, tli, system_id, system_id_known)
    if flags & FIRST_IS_OVERWRITE_CONTRECORD != 0:
        return stops.OVERWRITTEN, 0, 0, entered
    goes_on = flags & FIRST_IS_CONTRECORD != 0
    if not goes_on:
        found_rest = 0
    if (rest != UNKNOWN and found_rest != rest) or (goes_on and found_rest == 0):
        return stops.PAGE_REST, max(rest, 0), found_rest, before
    return stops.COMPLETE, 0, found_rest, entered


@inlined
def is_wanted(span: Any, number: int) -> Any:
    """Return whether a record that begins on page `number` can be needed."""
    page_lsn = span.begin_lsn + number * PAGE_SIZE
    is_long = page_lsn & (span.segment_size - 1) == 0
    return page_lsn + (LONG_PAGE_HEADER_SIZE if is_long else PAGE_HEADER_SIZE) < span.end_lsn


@part
def cross_pages(headers: Any, span: Any, page: Any, record_end: int, until: int) -> Any:
    """Follow a record that ends at `record_end` through the pages up to `until`; both are positions in the content.

    Returns:
        As enter_page.
    """
    while page.end < until:
        stop, expected, found, page = enter_page(headers, span, page, record_end - page.end)
        if stop != stops.COMPLETE:
            return stop, expected, found, page
    return stops.COMPLETE, 0, 0, page


@part
def leave_segment(span: Any, page: Any, lsn: int) -> Any:
    """Return the last Page of the segment that holds `lsn`: the walk continues after it."""
    segment_end_lsn = (lsn | (span.segment_size - 1)) + 1
    number = (segment_end_lsn - span.begin_lsn) // PAGE_SIZE - 1
    end = _content_position(segment_end_lsn, span.segment_size) - _content_position(span.begin_lsn, span.segment_size)
    return WalkedPage(number, end, end, page.magic, page.tli, page.system_id, page.system_id_known)
