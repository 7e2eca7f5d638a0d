import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from safekeeper.waldecode.continuity import LinkCheck
from safekeeper.waldecode.format import PAGE_SIZE
from safekeeper.waldecode.record_search import find_records
from safekeeper.waldecode.records import LogTail
from tests.unit.wal_builder import MIB, WalBuilder, WrittenRecord

BORDER = 2 * MIB


def ours_and_theirs(leave: int, length: int = 100) -> tuple[WalBuilder, WrittenRecord, WrittenRecord]:
    """WAL of which ours is the part before BORDER; returns its last two records around it.

    Args:
        leave: how far before the border the last record of ours begins; with 0 one ends exactly there.
        length: bytes of the body of the record at the border.
    """
    wal = WalBuilder(BORDER - MIB)
    wal.previous_lsn = wal.begin_lsn - 100
    for _ in range(MIB // PAGE_SIZE - 1):
        wal.fill_page()
    last = wal.fill_page(leave)
    return wal, last, wal.add(b"r" * length)


def tail_of(wal: WalBuilder, border: int) -> LogTail | None:
    return find_records(wal.read, border, wal.begin_lsn, border, wal.segment_size).log_tail


def check(ours: WalBuilder, theirs: WalBuilder, chunk: int = PAGE_SIZE) -> LinkCheck:
    tail = tail_of(ours, BORDER)
    assert tail is not None
    link = LinkCheck(tail, theirs.segment_size)
    stream = bytes(theirs.data[BORDER - theirs.begin_lsn :])
    for offset in range(0, len(stream), chunk):
        link.feed(stream[offset : offset + chunk])
    return link


@settings(deadline=None, max_examples=50)
@given(st.sampled_from([0, 8, 16, 24, 32, 1000]), st.sampled_from([0, 1, 100, 3 * PAGE_SIZE]), st.integers(1, MIB))
def test_the_same_log_links_wherever_the_border_cuts_it(leave: int, length: int, chunk: int) -> None:
    assume(leave < 24 + length)
    wal, _, record = ours_and_theirs(leave, length)
    following = wal.add(b"the next")
    link = check(wal, wal, chunk)
    assert link.linked is True
    first = record if record.end_lsn > BORDER else following
    assert f"{first.start_lsn:X}" in link.reason


@pytest.mark.parametrize("leave", [0, 1000])
def test_a_link_is_undecided_until_the_first_record_is_complete(leave: int) -> None:
    wal, _, record = ours_and_theirs(leave, length=3 * PAGE_SIZE)
    nothing_yet = WalBuilder(BORDER)
    link = check(wal, nothing_yet)
    assert link.linked is None
    if leave == 0:
        assert link.reason == "no complete record after 0/200000 yet that links to this log"
    stream = bytes(wal.data[BORDER - wal.begin_lsn :])
    assert link.feed(stream[:-1]) is None
    assert link.reason == f"the record at 0/{record.start_lsn:X} is not complete yet"
    assert link.feed(stream[-1:]) is True
    how = "in which this log ends, is completed" if leave else "links to this log's record at"
    assert f"the record at 0/{record.start_lsn:X}" in link.reason
    assert how in link.reason


def test_a_record_that_links_elsewhere_is_refused_with_both_lsns() -> None:
    ours, last, _ = ours_and_theirs(leave=0)
    theirs = WalBuilder(BORDER)
    theirs.previous_lsn = last.start_lsn - 64
    theirs.add(b"of another history")
    link = check(ours, theirs)
    assert link.linked is False
    assert link.reason == (
        f"WAL at 0/200028: the record links to 0/{last.start_lsn - 64:X} instead of 0/{last.start_lsn:X}"
    )


def test_a_fresh_record_where_ours_goes_on_is_refused() -> None:
    ours, last, record = ours_and_theirs(leave=32)
    theirs = WalBuilder(BORDER)
    theirs.previous_lsn = last.start_lsn
    theirs.add(b"fresh")
    link = check(ours, theirs)
    assert link.linked is False
    assert f"no record continues here, but the record at 0/{record.start_lsn:X} lacks 92 bytes" in link.reason


def test_a_record_that_goes_on_where_ours_had_ended_is_refused() -> None:
    ours, _, _ = ours_and_theirs(leave=0)
    theirs, _, _ = ours_and_theirs(leave=32)
    link = check(ours, theirs)
    assert link.linked is False
    assert "92 bytes of a record continue here, but none is incomplete" in link.reason


def test_a_rest_of_another_length_is_refused() -> None:
    ours, _, _ = ours_and_theirs(leave=32, length=100)
    theirs, _, _ = ours_and_theirs(leave=32, length=101)
    link = check(ours, theirs)
    assert link.linked is False
    assert "93 bytes of a record continue here" in link.reason


@pytest.mark.parametrize("leave", [16, 1000])
def test_a_rest_of_the_right_length_with_other_bytes_is_refused(leave: int) -> None:
    # The same workload done twice after a snapshot was restored: same layout, other content.
    ours, _, _ = ours_and_theirs(leave, length=2000)
    theirs = WalBuilder(ours.begin_lsn)
    theirs.previous_lsn = theirs.begin_lsn - 100
    for _ in range(MIB // PAGE_SIZE - 1):
        theirs.fill_page()
    theirs.fill_page(leave)
    theirs.add(b"r" * 1999 + b"!" if leave == 1000 else b"r" * 2000, xid=5)
    link = check(ours, theirs)
    assert link.linked is False
    assert "the checksum of the record of 2024 bytes is wrong" in link.reason


def test_a_primary_that_overwrote_the_record_under_way_links_by_the_one_before() -> None:
    ours, last, _ = ours_and_theirs(leave=64)
    theirs = WalBuilder(BORDER)
    theirs.previous_lsn = last.start_lsn
    theirs.overwrite()
    assert check(ours, theirs).linked is True
    theirs = WalBuilder(BORDER)
    theirs.previous_lsn = last.start_lsn - 64
    theirs.overwrite()
    assert check(ours, theirs).linked is False


def test_what_follows_the_first_record_is_not_looked_at_whatever_the_chunks() -> None:
    wal, _, _ = ours_and_theirs(leave=0)
    wal.data += bytes(100)
    assert check(wal, wal, chunk=MIB).linked is check(wal, wal, chunk=1).linked is True


def test_a_segment_inside_one_record_has_no_tail_and_with_those_before_it_has() -> None:
    wal = WalBuilder(BORDER - MIB)
    wal.add(b"last complete")
    under_way = wal.add(bytes(2 * MIB))
    assert tail_of(WalBuilder(BORDER, data=wal.data[MIB:]), BORDER + MIB) is None
    tail = tail_of(wal, BORDER + MIB)
    assert tail is not None
    assert (tail.end_lsn, tail.previous_lsn, tail.record_lsn) == (BORDER + MIB, MIB + 40, under_way.start_lsn)
    link = LinkCheck(tail, MIB)
    assert link.feed(bytes(wal.data[2 * MIB :])) is True


def test_a_switched_segment_links_to_its_switch_record() -> None:
    wal = WalBuilder()
    wal.add(b"x")
    switch = wal.switch()
    tail = tail_of(wal, BORDER)
    assert tail is not None
    assert (tail.previous_lsn, tail.record_lsn) == (switch.start_lsn, None)
    wal.add(b"after")
    assert check(wal, wal).linked is True
