"""What the line pointers of a table's page lead to."""

import struct

import pytest

from safekeeper.base.errors import ConfigurationError
from tests.unit.pipeline.test_page import heap_page
from walproxy.pipeline.pages.heap_tuple import RowVersion, as_visible, row_version
from walproxy.pipeline.pages.page import PAGE_BYTES

XMIN_COMMITTED, XMIN_FROZEN, XMAX_COMMITTED, XMAX_INVALID = 0x0100, 0x0300, 0x0400, 0x0800
LOCK_ONLY, IS_MULTI, HEAP_ONLY, HOT_UPDATED = 0x0080, 0x1000, 0x8000, 0x4000


def page_of(xmin: int, xmax: int, mask: int, mask2: int = 3, ctid: tuple[int, int] = (7, 1)) -> bytes:
    """Return a page with one tuple."""
    page = heap_page(b"row")
    at = PAGE_BYTES - 32
    struct.pack_into("<IIIHHHHHB", page, at, xmin, xmax, 0, ctid[0] >> 16, ctid[0] & 0xFFFF, ctid[1], mask2, mask, 24)
    return bytes(page)


def pointing(flags: int, offset: int) -> bytes:
    """Return a page whose first line pointer has these flags."""
    page = heap_page(b"row")
    struct.pack_into("<I", page, 24, offset | flags << 15)
    return bytes(page)


def test_the_header_of_a_version_says_who_has_made_and_ended_it() -> None:
    page = page_of(750, 760, XMIN_COMMITTED | XMAX_COMMITTED, 3 | HOT_UPDATED, (70_000, 9))
    assert row_version(page, 1) == RowVersion(PAGE_BYTES - 32, 27, 750, 760, False, False, (70_000, 9), 3, False, True)


def test_a_frozen_version_has_no_maker_and_an_invalid_end_is_none() -> None:
    version = row_version(page_of(750, 760, XMIN_FROZEN | XMAX_INVALID, 3 | HEAP_ONLY), 1)
    assert (version.xmin, version.xmax, version.is_heap_only) == (None, 0, True)


def test_a_lock_and_a_multixact_are_distinguished_from_an_end() -> None:
    version = row_version(page_of(750, 12, LOCK_ONLY | IS_MULTI), 1)
    assert (version.xmax, version.is_multi, version.is_locked_only) == (12, True, True)


@pytest.mark.parametrize("mask", [0, XMAX_COMMITTED, LOCK_ONLY, IS_MULTI | LOCK_ONLY, XMIN_COMMITTED, 0x0200])
def test_a_version_that_everybody_sees_has_a_frozen_maker_and_no_end(mask: int) -> None:
    page = page_of(750, 760, mask | 0x2003)
    changed = as_visible(page, row_version(page, 1))
    version = row_version(changed, 1)
    assert (version.xmin, version.xmax, version.is_multi, version.is_locked_only) == (None, 0, False, False)
    (now,) = struct.unpack_from("<H", changed, PAGE_BYTES - 12)
    assert now & 0x2003 == 0x2003  # NULLs, columns of variable length, and that it is an update
    assert [at for at in range(PAGE_BYTES) if page[at] != changed[at]] in (
        [PAGE_BYTES - 11],
        [PAGE_BYTES - 12, PAGE_BYTES - 11],
    )


@pytest.mark.parametrize(
    ("page", "line", "problem"),
    [
        (pointing(0, 0), 1, "line pointer 1 is unused at that LSN"),
        (pointing(2, 5), 1, "line pointer 1 leads to line pointer 5 at that LSN: give --line 5"),
        (pointing(3, 0), 1, "line pointer 1 is dead: the row was removed from the page"),
        (pointing(1, 8000), 1, "leads to no row: the relation is not a table"),
        (bytes(heap_page(b"row")), 2, "the page has 1 line pointers at that LSN"),
        (bytes(PAGE_BYTES), 1, "the page has 0 line pointers at that LSN"),
    ],
)
def test_a_line_pointer_without_a_row_is_refused(page: bytes, line: int, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        row_version(page, line)
