import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from safekeeper.errors import LocalProtocolError
from safekeeper.wal.continuity import LinkCheck, RecordEndFinder, find_log_tail
from safekeeper.wal.format import PAGE_SIZE, WalFormatError
from tests.unit.wal_builder import MIB, WalBuilder, WrittenRecord

BORDER = 2 * MIB


def end_after(wal: WalBuilder, fork_lsn: int, log_end_lsn: int | None = None, chunk: int = PAGE_SIZE) -> int | None:
    """Return the finder's answer for the log that `wal` is up to `log_end_lsn`."""
    log = bytes(wal.data if log_end_lsn is None else wal.data[: log_end_lsn - wal.begin_lsn])
    finder = RecordEndFinder(fork_lsn, wal.begin_lsn, wal.segment_size)
    for offset in range(0, len(log), chunk):
        finder.feed(log[offset : offset + chunk])
    return finder.end_lsn


def test_the_record_at_the_fork_ends_where_the_next_may_begin() -> None:
    wal = WalBuilder()
    wal.add(b"kept")
    fork = wal.add(b"acked")
    wal.add(b"later")
    assert end_after(wal, fork.start_lsn) == fork.end_lsn


@pytest.mark.parametrize("chunk", [1, 7, PAGE_SIZE, MIB])
def test_a_record_that_the_log_holds_in_part_has_no_end(chunk: int) -> None:
    wal = WalBuilder()
    wal.add(b"kept")
    fork = wal.add(b"x" * PAGE_SIZE)
    last_byte_lsn = wal.position - 1
    for log_end_lsn in (fork.start_lsn, fork.start_lsn + 1, fork.start_lsn + 24, last_byte_lsn):
        assert end_after(wal, fork.start_lsn, log_end_lsn, chunk) is None
    assert end_after(wal, fork.start_lsn, last_byte_lsn + 1, chunk) == fork.end_lsn


def test_a_fork_at_a_page_start_means_the_record_behind_the_page_header() -> None:
    wal = WalBuilder()
    assert wal.fill_page().end_lsn == MIB + PAGE_SIZE
    record = wal.add(b"on the second page")
    assert record.start_lsn == MIB + PAGE_SIZE + 24
    assert end_after(wal, MIB + PAGE_SIZE) == end_after(wal, record.start_lsn) == record.end_lsn


def test_a_fork_at_the_very_end_of_the_log_has_no_record() -> None:
    wal = WalBuilder()
    wal.add(b"kept..8B")
    assert wal.position % 8 == 0
    assert end_after(wal, wal.position) is None


def test_a_switch_record_at_the_fork_ends_with_its_segment() -> None:
    wal = WalBuilder()
    wal.add(b"kept")
    fork = wal.switch()
    assert end_after(wal, fork.start_lsn, fork.start_lsn + 24) == BORDER


def test_where_the_record_at_the_fork_was_overwritten_its_successor_counts() -> None:
    # Cutting at the fork loses what came after the crash as well.
    wal = WalBuilder()
    wal.fill_page(leave=64)
    fork = wal.add(bytes(3 * PAGE_SIZE), held=64)
    assert end_after(wal, fork.start_lsn) is None
    overwriting = wal.overwrite()
    assert end_after(wal, fork.start_lsn) == overwriting.end_lsn


@pytest.mark.parametrize("length", [100, 3 * PAGE_SIZE])
def test_a_fork_inside_a_complete_record_is_refused(length: int) -> None:
    wal = WalBuilder()
    wal.fill_page(leave=64)
    record = wal.add(b"x" * length)
    assert record.start_lsn < MIB + PAGE_SIZE < record.end_lsn
    with pytest.raises(WalFormatError, match="0/102000: no record begins at this fork, the record at 0/101FC0"):
        end_after(wal, MIB + PAGE_SIZE)


@pytest.mark.parametrize("fork_lsn", [BORDER, BORDER + PAGE_SIZE])
@pytest.mark.parametrize("followed", [False, True])
def test_a_fork_inside_a_record_of_an_earlier_segment_is_refused(fork_lsn: int, followed: bool) -> None:
    wal = WalBuilder(BORDER - PAGE_SIZE)
    wal.fill_page(leave=64)
    wal.add(bytes(2 * PAGE_SIZE))
    if followed:
        wal.add(b"after")
    log = bytes(wal.data[PAGE_SIZE:])
    finder = RecordEndFinder(fork_lsn, BORDER, MIB)
    with pytest.raises(WalFormatError, match="no record begins at this fork, one that began in an earlier segment"):
        finder.feed(log)
    assert RecordEndFinder(fork_lsn, BORDER, MIB).feed(log[:PAGE_SIZE]) is None


def test_a_fork_in_front_of_the_bytes_given_is_a_mistake_of_ours() -> None:
    with pytest.raises(LocalProtocolError, match="no way to find 0/100028 from 0/200000"):
        RecordEndFinder(MIB + 40, BORDER, MIB)


def test_a_fork_where_no_record_can_begin_is_refused() -> None:
    with pytest.raises(WalFormatError, match="no WAL record can begin at 0/102008"):
        RecordEndFinder(MIB + PAGE_SIZE + 8, MIB, MIB)


def ours_and_theirs(leave: int, length: int = 100) -> tuple[WalBuilder, WrittenRecord, WrittenRecord]:
    """WAL of which ours is the part before BORDER; returns its last two records around it.

    Args:
        leave: how far before the border the last record of ours begins; with 0 one ends exactly there.
        length: bytes of the body of the record at the border.
    """
    wal = WalBuilder(BORDER - 4 * PAGE_SIZE)
    wal.previous_lsn = wal.begin_lsn - 100
    for _ in range(3):
        wal.fill_page()
    last = wal.fill_page(leave)
    return wal, last, wal.add(b"r" * length)


def check(ours: WalBuilder, theirs: WalBuilder, chunk: int = PAGE_SIZE) -> LinkCheck:
    tail = find_log_tail([bytes(ours.data[: BORDER - ours.begin_lsn])], ours.begin_lsn, ours.segment_size)
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
        assert link.reason == "no record behind 0/200000 yet that could link to ours"
    stream = bytes(wal.data[BORDER - wal.begin_lsn :])
    assert link.feed(stream[:-1]) is None
    assert link.reason == f"the record at 0/{record.start_lsn:X} is not complete yet"
    assert link.feed(stream[-1:]) is True
    how = "which our log ends in, is completed" if leave else "links to ours at"
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
    assert f"nothing goes on here, the record at 0/{record.start_lsn:X} lacks 92 bytes" in link.reason


def test_a_record_that_goes_on_where_ours_had_ended_is_refused() -> None:
    ours, _, _ = ours_and_theirs(leave=0)
    theirs, _, _ = ours_and_theirs(leave=32)
    link = check(ours, theirs)
    assert link.linked is False
    assert "a record goes on for 92 bytes here, none was under way" in link.reason


def test_a_rest_of_another_length_is_refused() -> None:
    ours, _, _ = ours_and_theirs(leave=32, length=100)
    theirs, _, _ = ours_and_theirs(leave=32, length=101)
    link = check(ours, theirs)
    assert link.linked is False
    assert "93 bytes of a record go on here" in link.reason


@pytest.mark.parametrize("leave", [16, 1000])
def test_a_rest_of_the_right_length_with_other_bytes_is_refused(leave: int) -> None:
    # The same workload done twice after a snapshot was restored: same layout, other content.
    ours, _, _ = ours_and_theirs(leave, length=2000)
    theirs = WalBuilder(ours.begin_lsn)
    theirs.previous_lsn = theirs.begin_lsn - 100
    for _ in range(3):
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
    segments = [bytes(wal.data[:MIB]), bytes(wal.data[MIB : 2 * MIB])]
    assert find_log_tail(segments[1:], BORDER, MIB) is None
    tail = find_log_tail(segments, BORDER - MIB, MIB)
    assert tail is not None
    assert (tail.end_lsn, tail.previous_lsn, tail.record_lsn) == (BORDER + MIB, MIB + 40, under_way.start_lsn)
    link = LinkCheck(tail, MIB)
    assert link.feed(bytes(wal.data[2 * MIB :])) is True


def test_a_switched_segment_links_to_its_switch_record() -> None:
    wal = WalBuilder()
    wal.add(b"x")
    switch = wal.switch()
    tail = find_log_tail([bytes(wal.data)], MIB, MIB)
    assert tail is not None
    assert (tail.previous_lsn, tail.record_lsn) == (switch.start_lsn, None)
    wal.add(b"after")
    assert check(wal, wal).linked is True
