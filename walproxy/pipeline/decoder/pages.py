"""WAL without its page headers: one run of bytes in which every record is whole and begins at a multiple of 8.

A page is 8192 bytes with a header of 24, or of 40 where a segment begins. Both are multiples of 8, so taking the
headers out keeps every record aligned, and no reader has to care for records that lie on several pages. The headers go
into an array of their own, one row a page.

`content_position` counts the bytes of WAL that are no page headers, from LSN 0 on; `lsn_of_content` and
`end_lsn_of_content` go back. They differ at a page's end, which as the end of a record is the page's end, and as the
start of one is after the next page's header.
Source: XLogRecPtrToBytePos, XLogBytePosToRecPtr and XLogBytePosToEndRecPtr in src/backend/access/transam/xlog.c.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from safekeeper.base.lsn import Lsn
from safekeeper.waldecode.format import LONG_PAGE_HEADER_SIZE, PAGE_HEADER_SIZE, PAGE_SIZE, page_header_size

HEADER_WORDS = LONG_PAGE_HEADER_SIZE // 8

_PAGE_CONTENT = PAGE_SIZE - PAGE_HEADER_SIZE
_LONGER = LONG_PAGE_HEADER_SIZE - PAGE_HEADER_SIZE


def content_position(lsn: int, segment_size: int) -> int:
    """Return how many bytes of WAL before `lsn` are no page headers. Within a header: those before the header."""
    segment = lsn // segment_size
    in_segment = lsn % segment_size
    page = in_segment // PAGE_SIZE
    position = segment * (segment_size // PAGE_SIZE * _PAGE_CONTENT - _LONGER) + page * _PAGE_CONTENT
    if page == 0:
        return position + max(0, in_segment - LONG_PAGE_HEADER_SIZE)
    return position - _LONGER + max(0, in_segment % PAGE_SIZE - PAGE_HEADER_SIZE)


def lsn_of_content(position: int, segment_size: int) -> int:
    """Return where the byte of content number `position` is."""
    content = segment_size // PAGE_SIZE * _PAGE_CONTENT - _LONGER
    # As if the first page's header were short too, and its content longer.
    in_segment = position % content + _LONGER
    page_lsn = position // content * segment_size + in_segment // _PAGE_CONTENT * PAGE_SIZE
    return page_lsn + in_segment % _PAGE_CONTENT + PAGE_HEADER_SIZE


def end_lsn_of_content(position: int, segment_size: int) -> int:
    """Return where the content before number `position` ends: at a page's end, that is the page's end."""
    return lsn_of_content(position - 1, segment_size) + 1


def strip(wal: NDArray[np.uint8], begin_lsn: Lsn, segment_size: int, out: NDArray[np.uint8]) -> int:
    """Copy the content of pages.

    A copy that names all pages of a segment at once ran at 15 GB/s, as memory allows; a compiled loop at 2.6.

    Args:
        wal: raw WAL from `begin_lsn`, a page's start, on. Its last page may be cut anywhere.
        out: has room for as many bytes.

    Returns:
        How many bytes were written.
    """
    written = 0
    offset = 0
    while offset < len(wal):
        lsn = begin_lsn + offset
        header_size = page_header_size(lsn, segment_size)
        if header_size == PAGE_HEADER_SIZE:
            # The short headers of this segment that are here with their whole pages.
            pages = min(len(wal) - offset, segment_size - lsn % segment_size) // PAGE_SIZE
            if pages:
                size = pages * _PAGE_CONTENT
                np.copyto(
                    out[written : written + size].reshape(pages, _PAGE_CONTENT),
                    wal[offset : offset + pages * PAGE_SIZE].reshape(pages, PAGE_SIZE)[:, PAGE_HEADER_SIZE:],
                )
                written += size
                offset += pages * PAGE_SIZE
                continue
        content = wal[offset + header_size : offset + PAGE_SIZE]
        out[written : written + len(content)] = content
        written += len(content)
        offset += PAGE_SIZE
    return written


def page_headers(wal: NDArray[np.uint8], begin_lsn: Lsn, segment_size: int, out: NDArray[np.uint64]) -> int:
    """Copy the headers of pages, one row a page: the first 40 bytes, of which a short header is 24.

    Args:
        wal: raw WAL from `begin_lsn`, a page's start, on. Its last page may be cut anywhere.
        out: has HEADER_WORDS columns and at least as many rows as pages begin in `wal`.

    Returns:
        How many headers are whole.
    """
    rows: Any = out.view(np.uint8)
    pages, rest = divmod(len(wal), PAGE_SIZE)
    rows[:pages] = wal[: pages * PAGE_SIZE].reshape(pages, PAGE_SIZE)[:, :LONG_PAGE_HEADER_SIZE]
    if rest < page_header_size(begin_lsn + pages * PAGE_SIZE, segment_size):
        return pages
    last = wal[pages * PAGE_SIZE :][:LONG_PAGE_HEADER_SIZE]
    rows[pages, : len(last)] = last
    return pages + 1
