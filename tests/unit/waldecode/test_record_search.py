"""The search for the records around a position (S9, S10)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safekeeper.waldecode.continuity import LinkCheck
from safekeeper.waldecode.format import ALIGNMENT, PAGE_SIZE
from safekeeper.waldecode.record_search import RecordEndSearch, find_records
from tests.unit.wal_builder import MIB, WalBuilder


def search(wal: WalBuilder, lsn: int, end_lsn: int | None = None) -> tuple[int, int]:
    """Return the two records around `lsn` in the log that `wal` is, up to `end_lsn`."""
    return find_records(wal.read, lsn, wal.begin_lsn, wal.position if end_lsn is None else end_lsn, MIB)[:2]


def written(*sizes: int) -> WalBuilder:
    wal = WalBuilder()
    for size in sizes:
        wal.add(b"r" * size)
    return wal


@given(st.lists(st.integers(0, 30_000), min_size=1, max_size=12), st.data())
def test_each_record_is_found_with_the_one_before_it(sizes: list[int], data: st.DataObject) -> None:
    wal = written(*sizes)
    index = data.draw(st.integers(0, len(sizes) - 1))
    record = wal.records[index]
    previous_lsn = wal.records[index - 1].start_lsn if index else 0
    assert search(wal, record.start_lsn) == (record.end_lsn, previous_lsn)


@given(st.lists(st.integers(0, 30_000), min_size=1, max_size=12), st.data())
def test_behind_a_fork_the_first_record_is_found_as_soon_as_it_is_complete(
    sizes: list[int], data: st.DataObject
) -> None:
    wal = written(*sizes)
    index = data.draw(st.integers(0, len(sizes) - 1))
    fork_lsn, end_lsn = (wal.records[index - 1].end_lsn if index else wal.begin_lsn), wal.records[index].end_lsn
    held_lsn = data.draw(st.integers(fork_lsn, wal.position))
    found_lsn = RecordEndSearch(fork_lsn, MIB).find(wal.read, held_lsn)
    if end_lsn - ALIGNMENT < held_lsn < end_lsn:
        assert found_lsn in (0, end_lsn)  # Only padding is missing.
    else:
        assert found_lsn == (end_lsn if held_lsn >= end_lsn else 0)


@given(st.lists(st.integers(0, 30_000), min_size=1, max_size=8), st.lists(st.integers(1, 20_000), max_size=30))
def test_what_was_read_is_not_read_again_while_the_log_grows(sizes: list[int], growths: list[int]) -> None:
    wal = written(*sizes)
    read_from: list[int] = []

    def read(begin_lsn: int, end_lsn: int) -> bytes:
        assert not read_from or begin_lsn >= read_from[-1]
        read_from.append(end_lsn)
        return wal.read(begin_lsn, end_lsn)

    search, end_lsn = RecordEndSearch(wal.begin_lsn, MIB), wal.begin_lsn
    for growth in [0, *growths, wal.position]:
        end_lsn = min(end_lsn + growth, wal.position)
        assert search.find(read, end_lsn) == RecordEndSearch(wal.begin_lsn, MIB).find(wal.read, end_lsn)


@pytest.mark.parametrize("pages", [1, 3])
def test_a_record_that_goes_on_at_a_segments_start_counts_there_as_soon_as_it_is_complete(pages: int) -> None:
    wal = WalBuilder()
    while wal.position < wal.begin_lsn + MIB - PAGE_SIZE:
        wal.fill_page()
    crossing, following = wal.add(b"r" * (pages * PAGE_SIZE + 100)), wal.add(b"f" * 300)
    border_lsn = wal.begin_lsn + MIB
    assert crossing.start_lsn < border_lsn < crossing.end_lsn
    for held_lsn, found_lsn in (
        (border_lsn, 0),
        (border_lsn + 10, 0),
        (crossing.end_lsn - ALIGNMENT, 0),
        (crossing.end_lsn, crossing.end_lsn),
        (following.start_lsn + 40, crossing.end_lsn),
        (wal.position, crossing.end_lsn),
    ):
        assert RecordEndSearch(border_lsn, MIB).find(wal.read, held_lsn) == found_lsn


def test_behind_a_fork_what_cannot_be_decoded_counts_as_complete() -> None:
    wal = written(100, 100)
    fork_lsn = wal.records[0].end_lsn
    wal.data[fork_lsn - wal.begin_lsn + 4] ^= 0xFF
    wal.data[fork_lsn - wal.begin_lsn + 30] ^= 0xFF
    assert RecordEndSearch(fork_lsn, MIB).find(wal.read, wal.position) == fork_lsn
    # So does a position at which no record can begin.
    assert RecordEndSearch(fork_lsn + 3, MIB).find(wal.read, wal.position) == fork_lsn + 3


def test_at_the_logs_end_there_is_no_record_and_the_last_one_is_found() -> None:
    wal = written(100, 200)
    assert search(wal, wal.position) == (0, wal.records[-1].start_lsn)


def test_a_record_that_is_not_complete_counts_as_the_last_one_but_has_no_end() -> None:
    wal = written(100)
    torn = wal.add(b"t" * 5000, held=3000)
    assert search(wal, torn.start_lsn) == (0, wal.records[0].start_lsn)
    assert search(wal, wal.position) == (0, torn.start_lsn)


def test_a_record_has_no_end_before_its_last_byte_is_there() -> None:
    wal = written(100, PAGE_SIZE)
    record = wal.records[1]
    for end_lsn in (record.start_lsn, record.start_lsn + 1, record.start_lsn + 24, wal.position - 1):
        assert search(wal, record.start_lsn, end_lsn)[0] == 0
    assert search(wal, record.start_lsn, wal.position)[0] == record.end_lsn


def test_where_a_record_was_overwritten_after_a_crash_its_successor_counts() -> None:
    # Cutting at the fork loses what came after the crash as well.
    wal = WalBuilder()
    last = wal.fill_page(leave=64)
    lost = wal.add(bytes(3 * PAGE_SIZE), held=64)
    assert search(wal, lost.start_lsn) == (0, last.start_lsn)
    overwriting = wal.overwrite()
    assert search(wal, lost.start_lsn) == (overwriting.end_lsn, last.start_lsn)


def test_a_switch_record_ends_with_its_segment_whose_rest_may_be_missing() -> None:
    wal = written(100)
    switch = wal.switch()
    assert search(wal, switch.start_lsn, switch.start_lsn + 24)[0] == 2 * MIB


def test_a_position_inside_a_record_names_that_records_end() -> None:
    wal = written(100, 20_000, 100)
    inside = wal.records[1]
    assert search(wal, inside.start_lsn + 8) == (inside.end_lsn, inside.start_lsn)


def test_a_fork_on_a_pages_start_means_the_record_behind_the_header() -> None:
    wal = WalBuilder()
    wal.add(b"x" * 100)
    last = wal.fill_page()
    behind = wal.add(b"y" * 100)
    assert last.end_lsn % PAGE_SIZE == 0 and behind.start_lsn > last.end_lsn
    assert search(wal, last.end_lsn) == (behind.end_lsn, last.start_lsn)


def test_a_record_over_many_segments_is_found_from_any_of_them() -> None:
    wal = written(100, 3 * MIB, 100)
    long, behind = wal.records[1], wal.records[2]
    for lsn in (long.start_lsn + MIB, 3 * MIB, long.end_lsn - 8):
        assert search(wal, lsn) == (long.end_lsn, long.start_lsn)
    assert search(wal, behind.start_lsn) == (behind.end_lsn, long.start_lsn)


def test_at_a_segments_start_the_last_record_is_in_the_segment_before() -> None:
    wal = WalBuilder()
    wal.add(b"x" * 100)
    switch = wal.switch()
    behind = wal.add(b"y" * 100)
    assert switch.end_lsn == 2 * MIB
    assert search(wal, 2 * MIB) == (behind.end_lsn, switch.start_lsn)
    # The zeros behind a switch record are its own.
    assert search(wal, switch.start_lsn + 4096) == (switch.end_lsn, switch.start_lsn)


def test_a_log_that_begins_inside_a_record_knows_its_end_but_not_its_start() -> None:
    whole = written(100, MIB, 100)
    log = WalBuilder(begin_lsn=2 * MIB, data=whole.data[MIB:])
    long, behind = whole.records[1], whole.records[2]
    assert search(log, 2 * MIB + 512) == (long.end_lsn, 0)
    assert search(log, behind.start_lsn) == (behind.end_lsn, 0)


@pytest.mark.parametrize("damaged_at", [100, PAGE_SIZE + 4])
def test_wal_that_cannot_be_decoded_counts_as_a_record_that_must_not_be_cut(damaged_at: int) -> None:
    wal = written(1000, 20_000, 100)
    wal.data[damaged_at] ^= 0xFF
    lsn = wal.records[2].start_lsn
    assert search(wal, lsn)[0] == lsn


def test_a_damaged_record_at_the_position_counts_as_complete_and_damage_behind_it_does_not_matter() -> None:
    wal = written(100, 100, 100)
    first, second, third = wal.records
    wal.data[third.start_lsn - wal.begin_lsn + 30] ^= 0xFF
    assert search(wal, second.start_lsn) == (second.end_lsn, first.start_lsn)
    assert search(wal, third.start_lsn) == (third.start_lsn, second.start_lsn)


def test_on_a_border_the_tail_is_what_the_next_segment_must_link_to() -> None:
    wal = WalBuilder()
    while wal.position < wal.begin_lsn + 3 * MIB:
        wal.add(b"r" * 90_000)
    for border in (wal.begin_lsn + MIB, wal.begin_lsn + 2 * MIB):
        tail = find_records(wal.read, border, wal.begin_lsn, border, MIB).log_tail
        assert tail is not None
        check = LinkCheck(tail, MIB)
        assert check.feed(wal.read(border, wal.position)) is True
        damaged = bytearray(wal.read(border, wal.position))
        damaged[60] ^= 1  # within the record that goes over the border
        assert LinkCheck(tail, MIB).feed(bytes(damaged)) is False


def test_a_tail_is_looked_for_in_earlier_segments_when_one_record_takes_all_of_the_last() -> None:
    wal = written(100)
    wal.add(b"h" * (2 * MIB + MIB // 2))
    border = wal.begin_lsn + 2 * MIB
    tail = find_records(wal.read, border, wal.begin_lsn, border, MIB).log_tail
    assert tail is not None
    assert tail.record_lsn == wal.records[1].start_lsn
    assert LinkCheck(tail, MIB).feed(wal.read(border, wal.position)) is True


def test_there_is_no_tail_anywhere_else() -> None:
    wal = written(100, 200)
    assert find_records(wal.read, wal.position, wal.begin_lsn, wal.position, MIB).log_tail is None
