import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safekeeper.waldecode.format import PAGE_SIZE
from tests.unit.wal_builder import MIB, WalBuilder
from walproxy.pipeline.decoder.pages import (
    HEADER_WORDS,
    content_position,
    end_lsn_of_content,
    lsn_of_content,
    page_headers,
    strip,
)

SIZES = (MIB, 16 * MIB, 1024 * MIB)
SEGMENT_SIZES = st.sampled_from(SIZES)
LSNS = st.one_of(st.integers(0, 3 * PAGE_SIZE), st.integers(1 << 33, (1 << 33) + 2 * MIB), st.integers(0, 1 << 62))


def header_size(page_lsn: int, segment_size: int) -> int:
    return 24 if page_lsn % segment_size else 40


@settings(deadline=None)
@given(LSNS, SEGMENT_SIZES)
def test_a_byte_of_content_has_one_position_and_one_lsn(lsn: int, segment_size: int) -> None:
    header = header_size(lsn - lsn % PAGE_SIZE, segment_size)
    position = content_position(lsn, segment_size)
    if lsn % PAGE_SIZE >= header:
        assert lsn_of_content(position, segment_size) == lsn
        assert end_lsn_of_content(position + 1, segment_size) == lsn + 1
    else:
        content_lsn = lsn - lsn % PAGE_SIZE + header
        assert lsn_of_content(position, segment_size) == content_lsn
        assert position == content_position(content_lsn, segment_size)
    # What ends with its page ends at the page's end, and the next byte lies behind the next header.
    end_lsn = lsn - lsn % PAGE_SIZE + PAGE_SIZE
    end = content_position(end_lsn, segment_size)
    assert end == content_position(end_lsn - 1, segment_size) + 1
    assert end_lsn_of_content(end, segment_size) == end_lsn
    assert lsn_of_content(end, segment_size) == end_lsn + header_size(end_lsn, segment_size)


@pytest.mark.parametrize("segment_size", SIZES)
@pytest.mark.parametrize("first_page", [-130, -3, -1, 0, 1])
@pytest.mark.parametrize("size", [0, 1, 23, 24, 39, 40, 41, PAGE_SIZE, 3 * PAGE_SIZE + 30, 260 * PAGE_SIZE, 2100000])
def test_pages_are_taken_apart_wherever_they_are_cut(segment_size: int, first_page: int, size: int) -> None:
    begin_lsn = 5 * segment_size + first_page * PAGE_SIZE
    raw = np.frombuffer(np.random.default_rng(1).bytes(size), np.uint8)
    content: list[bytes] = []
    headers: list[bytes] = []
    for offset in range(0, size, PAGE_SIZE):
        length = header_size(begin_lsn + offset, segment_size)
        page = raw[offset : offset + PAGE_SIZE].tobytes()
        content.append(page[length:])
        if len(page) >= length:
            headers.append(page[:length])
    out = np.zeros(size, np.uint8)
    rows = np.zeros((size // PAGE_SIZE + 2, HEADER_WORDS), np.uint64)
    assert out[: strip(raw, begin_lsn, segment_size, out)].tobytes() == b"".join(content)
    assert page_headers(raw, begin_lsn, segment_size, rows) == len(headers)
    for row, header in zip(rows, headers, strict=False):
        assert row.tobytes().startswith(header)


def test_a_record_written_page_by_page_is_whole_in_the_content() -> None:
    wal = WalBuilder(2 * MIB - PAGE_SIZE)
    record = wal.add(bytes(range(256)) * 200)
    out = np.zeros(len(wal.data), np.uint8)
    size = strip(np.frombuffer(bytes(wal.data), np.uint8), wal.begin_lsn, MIB, out)
    assert out[24:size].tobytes() == record.body
