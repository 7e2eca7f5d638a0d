import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safekeeper.base.errors import LocalProtocolError, RemoteProtocolError
from safekeeper.waldecode.format import MAGIC_OF_MAJOR, PAGE_SIZE, WalFormatError
from safekeeper.waldecode.records import Record, RecordDecoder
from tests.unit.wal_builder import MIB, WalBuilder, WrittenRecord

ALL_RMIDS = range(256)


def decode(wal: bytes, begin_lsn: int = MIB, segment_size: int = MIB, chunk: int = 1 << 20) -> list[Record]:
    decoder = RecordDecoder(begin_lsn, segment_size, ALL_RMIDS)
    records: list[Record] = []
    for offset in range(0, len(wal), chunk):
        records += decoder.feed(wal[offset : offset + chunk])
        assert decoder.position == begin_lsn + min(offset + chunk, len(wal))
    return records


def as_written(records: list[WrittenRecord]) -> list[Record]:
    return [Record(**vars(record)) for record in records]


LENGTHS = st.one_of(st.integers(0, 100), st.integers(PAGE_SIZE - 100, PAGE_SIZE + 100), st.just(3 * PAGE_SIZE))
RECORDS = st.tuples(st.just("record"), LENGTHS, st.sampled_from([0, 1, 10, 21, 128, 255]), st.integers(0, 2**32 - 1))
ENDS_OF_PAGES = st.tuples(st.just("end of page"), st.sampled_from([0, 8, 16, 24, 32]))
LOST_RECORDS = st.tuples(st.just("lost in a crash"))


@st.composite
def some_wal(draw: st.DrawFn) -> WalBuilder:
    """WAL with records of all lengths, at all distances from the ends of pages and segments."""
    pages_before_border = draw(st.integers(0, 2))
    wal = WalBuilder(3 * MIB - PAGE_SIZE * pages_before_border, major=draw(st.sampled_from(sorted(MAGIC_OF_MAJOR))))
    for item in draw(st.lists(st.one_of(RECORDS, ENDS_OF_PAGES, LOST_RECORDS), min_size=1, max_size=30)):
        match item:
            case "record", int(length), int(rmid), int(xid):
                wal.add(b"b" * length, rmid, xid=xid)
            case "end of page", int(leave):
                wal.fill_page(leave)
            case _:
                # It must reach over the page's end: only the next page can say that it was lost.
                room = PAGE_SIZE - (wal.position + -wal.position % 8) % PAGE_SIZE
                if room < PAGE_SIZE:
                    wal.add(bytes(2 * PAGE_SIZE), held=room)
                    wal.overwrite()
    wal.add(b"the last one")
    return wal


@settings(deadline=None, max_examples=60)
@given(some_wal(), st.lists(st.integers(1, 3 * PAGE_SIZE), min_size=1))
def test_every_record_comes_out_as_it_was_written_however_the_bytes_are_cut(wal: WalBuilder, sizes: list[int]) -> None:
    decoder = RecordDecoder(wal.begin_lsn, wal.segment_size, ALL_RMIDS)
    rest = bytes(wal.data)
    records: list[Record] = []
    turn = 0
    while rest:
        size = sizes[turn % len(sizes)]
        records += decoder.feed(rest[:size])
        rest = rest[size:]
        turn += 1
    assert records == as_written(wal.records)
    assert decoder.pending is None
    assert decoder.last_record_lsn == wal.records[-1].start_lsn


@settings(deadline=None, max_examples=60)
@given(some_wal(), st.data())
def test_cut_wal_gives_the_records_before_the_cut_and_no_error(wal: WalBuilder, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(wal.data)))
    records = decode(bytes(wal.data[:cut]), wal.begin_lsn)
    whole = decode(bytes(wal.data), wal.begin_lsn)
    # What counts is a record's last byte, not the padding behind it.
    complete = [each for each in whole if each.end_lsn - -each.total_length % 8 <= wal.begin_lsn + cut]
    assert records == complete


@settings(deadline=None, max_examples=200)
@given(some_wal(), st.data())
def test_a_flipped_bit_is_refused_or_met_where_nothing_is_read(wal: WalBuilder, data: st.DataObject) -> None:
    whole = decode(bytes(wal.data), wal.begin_lsn)
    place = data.draw(st.integers(0, len(wal.data) - 1))
    wal.data[place] ^= 1 << data.draw(st.integers(0, 7))
    decoder = RecordDecoder(wal.begin_lsn, wal.segment_size, ALL_RMIDS)
    found: list[Record] = []
    try:
        found += decoder.walk(bytes(wal.data))
    except WalFormatError as error:
        assert "\n" not in str(error)
    assert found == whole[: len(found)]


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=3 * PAGE_SIZE), st.sampled_from([0, PAGE_SIZE, 40, 24 + PAGE_SIZE, MIB - 8]))
def test_noise_gives_no_other_error_than_that_of_the_format(noise: bytes, begin_lsn: int) -> None:
    try:
        RecordDecoder(begin_lsn, MIB).feed(noise)
    except RemoteProtocolError as error:
        assert isinstance(error, WalFormatError)


def test_bodies_come_only_for_the_resource_managers_asked_for() -> None:
    wal = WalBuilder()
    wal.add(b"heap", rmid=10)
    wal.add(b"commit", rmid=1)
    assert [record.body for record in RecordDecoder(MIB, MIB, {1}).feed(bytes(wal.data))] == [b"", b"commit"]


def test_a_record_that_ends_with_its_page_ends_at_the_boundary() -> None:
    wal = WalBuilder()
    wal.fill_page()
    wal.add(b"on the second page")
    wal.fill_page(leave=16)
    wal.add(b"")  # its header is cut in two: 16 bytes here, 8 on the next page
    first, second, _, split = decode(bytes(wal.data))
    assert (first.start_lsn, first.end_lsn) == (MIB + 40, MIB + PAGE_SIZE)
    assert second.start_lsn == MIB + PAGE_SIZE + 24
    assert (split.start_lsn, split.end_lsn) == (MIB + 2 * PAGE_SIZE - 16, MIB + 2 * PAGE_SIZE + 24 + 8)


def test_a_record_is_out_with_its_last_byte_and_not_before() -> None:
    wal = WalBuilder()
    record = wal.add(b"odd")
    decoder = RecordDecoder(MIB, MIB)
    assert decoder.feed(bytes(wal.data[:-1])) == []
    assert decoder.pending == record.start_lsn
    [found] = decoder.feed(bytes(wal.data[-1:]))
    assert found.end_lsn == record.end_lsn == decoder.position + 5
    assert decoder.pending is None


@pytest.mark.parametrize("segment_mib", [1, 2, 1024])
def test_a_switch_record_ends_with_its_segment_and_what_follows_is_not_read(segment_mib: int) -> None:
    segment_size = segment_mib * MIB
    begin_lsn = 7 * 1024 * MIB - 2 * PAGE_SIZE
    wal = WalBuilder(begin_lsn, segment_size)
    wal.add(b"before")
    switch = wal.switch()
    wal.data[-100] = 0xFF
    after = wal.add(b"after")
    assert switch.end_lsn == 7 * 1024 * MIB
    assert decode(bytes(wal.data), begin_lsn, segment_size) == as_written(wal.records)
    assert after.start_lsn == switch.end_lsn + 40


def test_a_switch_record_that_fills_its_segment_to_the_last_byte_takes_no_other() -> None:
    wal = WalBuilder(2 * MIB - PAGE_SIZE)
    wal.fill_page(leave=24)
    assert wal.switch().end_lsn == 2 * MIB
    wal.add(b"after")
    assert decode(bytes(wal.data), 2 * MIB - PAGE_SIZE) == as_written(wal.records)


@pytest.mark.parametrize("held_before_border", [8, 16])
def test_a_switch_record_cut_in_two_by_the_border_takes_the_whole_next_segment(held_before_border: int) -> None:
    wal = WalBuilder(2 * MIB - PAGE_SIZE)
    wal.fill_page(leave=held_before_border)
    assert wal.switch().end_lsn == 3 * MIB
    after = wal.add(b"after")
    assert decode(bytes(wal.data), 2 * MIB - PAGE_SIZE) == as_written(wal.records)
    # Somebody who begins in the middle sees no more of the record than its tail.
    decoder = RecordDecoder(2 * MIB, MIB, ALL_RMIDS)
    assert decoder.feed(bytes(wal.data[PAGE_SIZE:])) == as_written([after])
    assert decoder.skipped_until == 3 * MIB


@pytest.mark.parametrize("length", [10, 8 * PAGE_SIZE, 2 * MIB])
def test_a_record_under_way_where_the_decoder_begins_is_skipped(length: int) -> None:
    wal = WalBuilder(2 * MIB - PAGE_SIZE)
    wal.fill_page(leave=32)
    under_way = wal.add(b"u" * length)
    after = wal.add(b"after")
    decoder = RecordDecoder(2 * MIB, MIB, ALL_RMIDS)
    assert decoder.feed(bytes(wal.data[PAGE_SIZE:])) == as_written([after])
    assert decoder.skipped_until == under_way.end_lsn


def test_a_record_under_way_that_ends_with_its_page_is_skipped_to_the_boundary() -> None:
    wal = WalBuilder(2 * MIB - PAGE_SIZE)
    wal.fill_page(leave=32)
    wal.add(b"u" * (8 + PAGE_SIZE - 40))
    after = wal.add(b"after")
    assert after.start_lsn == 2 * MIB + PAGE_SIZE + 24
    assert decode(bytes(wal.data[PAGE_SIZE:]), 2 * MIB) == as_written([after])


def test_a_record_lost_in_a_crash_is_dropped_where_the_page_says_so() -> None:
    wal = WalBuilder()
    wal.add(b"complete")
    wal.fill_page(leave=64)
    lost = wal.add(bytes(3 * PAGE_SIZE), held=64)
    decoder = RecordDecoder(MIB, MIB, ALL_RMIDS)
    decoder.feed(bytes(wal.data))
    assert decoder.pending == lost.start_lsn
    wal.overwrite()
    wal.add(b"life goes on")
    assert decode(bytes(wal.data)) == as_written(wal.records)


def test_a_skipped_record_lost_in_a_crash_ends_where_the_page_says_so() -> None:
    wal = WalBuilder(2 * MIB - PAGE_SIZE)
    wal.fill_page(leave=64)
    wal.add(bytes(3 * PAGE_SIZE), held=64 + PAGE_SIZE - 40)
    after = [wal.overwrite(), wal.fill_page(), wal.add(b"on the next page")]
    decoder = RecordDecoder(2 * MIB, MIB, ALL_RMIDS)
    assert decoder.feed(bytes(wal.data[PAGE_SIZE:])) == as_written(after)
    assert decoder.skipped_until == 2 * MIB + PAGE_SIZE


def test_a_view_of_a_buffer_does_as_well_as_bytes() -> None:
    wal = WalBuilder()
    wal.add(b"x" * PAGE_SIZE)
    decoder = RecordDecoder(MIB, MIB, ALL_RMIDS)
    assert decoder.feed(wal.data[:100]) + decoder.feed(memoryview(wal.data)[100:]) == as_written(wal.records)


def test_decoding_can_begin_at_the_exact_start_of_a_record() -> None:
    wal = WalBuilder()
    wal.add(b"first")
    second = wal.add(b"s" * PAGE_SIZE)
    assert decode(bytes(wal.data[second.start_lsn - MIB :]), second.start_lsn) == as_written([second])


def test_the_pages_report_the_version_the_tli_and_the_system() -> None:
    wal = WalBuilder(major=14, tli=3)
    wal.add(b"x")
    decoder = RecordDecoder(MIB, MIB)
    assert (decoder.major, decoder.tli, decoder.system_id) == (None, None, None)
    decoder.feed(bytes(wal.data))
    assert (decoder.major, decoder.tli, decoder.system_id) == (14, 3, wal.system_id)


def test_a_higher_tli_may_follow_and_a_lower_one_is_refused() -> None:
    wal = WalBuilder(tli=2)
    wal.fill_page()
    wal.tli = 3
    wal.fill_page()
    assert len(decode(bytes(wal.data))) == 2
    wal.tli = 2
    wal.fill_page()
    with pytest.raises(WalFormatError, match="0/104000: a page of TLI 2 follows one of TLI 3"):
        decode(bytes(wal.data))


# What each place of page 1 (a segment's first) and 2 must say: (offset, new bytes, message).
PAGE_DAMAGE = {
    "unknown magic": (0, b"\x19\xd1", "0/100000: page magic D119 is not"),
    "magic of another version": (PAGE_SIZE, b"\x10\xd1", "0/102000: page magic D110 follows D118"),
    "unknown flag": (PAGE_SIZE + 2, b"\x11", "0/102000: page flags 0011"),
    "short header at a segment's start": (2, b"\x00", "0/100000: page flags 0000"),
    "long header inside a segment": (PAGE_SIZE + 2, b"\x03", "0/102000: page flags 0003"),
    "TLI 0": (4, bytes(4), "0/100000: a page of TLI 0"),
    "address": (PAGE_SIZE + 9, b"\x40", "0/102000: the page claims to be at 0/104000"),
    "segment size": (34, b"\x00\x01", "0/100000: segments of 16777216"),
    "page size": (37, b"\x40", "0/100000: segments of 1048576 and pages of 16384"),
    "nothing goes on": (PAGE_SIZE + 2, b"\x00", "0/102000: no record continues here, but the record at 0/100028 lacks"),
    "too much goes on": (PAGE_SIZE + 16, b"\xff", "0/102000: 255 bytes of a record continue here"),
}


def damaged(data: bytearray, offset: int, new: bytes) -> bytes:
    # Little-endian: for the address, its second byte is what makes another page of it.
    copy = bytearray(data)
    copy[offset : offset + len(new)] = new
    assert copy != data
    return bytes(copy)


@pytest.mark.parametrize("damage", PAGE_DAMAGE)
def test_a_wrong_page_header_is_refused_with_its_lsn(damage: str) -> None:
    wal = WalBuilder()
    wal.add(b"x" * (PAGE_SIZE + 20))
    offset, new, message = PAGE_DAMAGE[damage]
    with pytest.raises(WalFormatError, match=message):
        decode(damaged(wal.data, offset, new))


def test_a_second_system_in_one_log_is_refused() -> None:
    wal = WalBuilder(2 * MIB - PAGE_SIZE - MIB)
    wal.fill_page()
    wal.switch()
    wal.system_id += 1
    wal.add(b"of another cluster")
    with pytest.raises(WalFormatError, match=f"0/200000: system id {wal.system_id} follows"):
        decode(bytes(wal.data), 2 * MIB - PAGE_SIZE - MIB)


@pytest.mark.parametrize(
    ("offset", "new", "message"),
    [
        (0, b"\x17\x00", "0/100068: 23 bytes is not the length of a record"),
        (3, b"\x40", "0/100068: 107374.* bytes is not the length of a record"),
        (8, b"\x68", "0/100068: the record links to 0/100068 instead of 0/100028"),
        (17, b"\x16", "0/100068: 22 is not a resource manager"),
        (17, b"\x7f", "0/100068: 127 is not a resource manager"),
        (16, b"\x30", "0/100068: the checksum of the record of 36 bytes is wrong"),
        (30, b"!", "0/100068: the checksum of the record of 36 bytes is wrong"),
    ],
)
def test_a_wrong_record_is_refused_with_its_lsn(offset: int, new: bytes, message: str) -> None:
    wal = WalBuilder()
    wal.add(b"x" * 40)
    record = wal.add(b"twelve bytes")
    with pytest.raises(WalFormatError, match=message):
        decode(damaged(wal.data, record.start_lsn - MIB + offset, new))


def test_the_first_record_must_link_backwards() -> None:
    wal = WalBuilder()
    wal.add(b"x", previous_lsn=MIB + 40)
    with pytest.raises(WalFormatError, match="0/100028: the record links to 0/100028 instead of an earlier one"):
        decode(bytes(wal.data))


def test_a_record_that_goes_on_where_none_was_under_way_is_refused() -> None:
    wal = WalBuilder()
    wal.fill_page()
    wal.data += wal.page_header(flags=1, rest_of_record=100)
    with pytest.raises(WalFormatError, match="0/102000: 100 bytes of a record continue here, but none"):
        decode(bytes(wal.data))


def test_a_record_that_goes_on_for_no_bytes_is_refused() -> None:
    with pytest.raises(WalFormatError, match="0/100000: 0 bytes of a record continue here, but none"):
        decode(WalBuilder().page_header(flags=1, rest_of_record=0))


def test_a_skipped_record_must_go_on_as_announced() -> None:
    wal = WalBuilder(2 * MIB - PAGE_SIZE)
    wal.fill_page(leave=32)
    wal.add(b"u" * 4 * PAGE_SIZE)
    with pytest.raises(WalFormatError, match="more bytes of a record must continue here"):
        decode(damaged(wal.data[PAGE_SIZE:], PAGE_SIZE + 2, b"\x00"), 2 * MIB)
    with pytest.raises(WalFormatError, match=r"0/202000: \d+ bytes of a record continue here, but none"):
        decode(damaged(wal.data[PAGE_SIZE:], PAGE_SIZE + 16, b"\x05"), 2 * MIB)


def test_zeros_behind_the_last_record_are_no_records() -> None:
    wal = WalBuilder()
    record = wal.add(b"last one")
    decoder = RecordDecoder(MIB, MIB)
    found = []
    with pytest.raises(WalFormatError, match="0/100048: 0 bytes is not the length"):
        for each in decoder.walk(bytes(wal.data) + bytes(100)):
            found.append(each.start_lsn)
    assert found == [record.start_lsn]
    assert decoder.last_record_lsn == record.start_lsn


def test_after_an_error_every_call_fails_with_it() -> None:
    decoder = RecordDecoder(MIB, MIB)
    with pytest.raises(WalFormatError) as first:
        decoder.feed(bytes(40))
    with pytest.raises(WalFormatError) as second:
        decoder.feed(bytes(WalBuilder().page_header()))
    assert str(first.value) == str(second.value)


@pytest.mark.parametrize("begin_lsn", [MIB + 8, MIB + 24, MIB + PAGE_SIZE + 16, MIB + 44])
def test_a_begin_where_no_record_can_be_is_refused(begin_lsn: int) -> None:
    with pytest.raises(WalFormatError, match="check where this LSN comes from"):
        RecordDecoder(begin_lsn, MIB)


@pytest.mark.parametrize("segment_size", [0, MIB // 2, 3 * MIB, 2048 * MIB])
def test_a_segment_size_that_does_not_exist_is_refused(segment_size: int) -> None:
    with pytest.raises(WalFormatError, match=f"{segment_size} is not a segment size"):
        RecordDecoder(0, segment_size)


def test_a_long_record_costs_no_memory_when_its_body_is_not_asked_for() -> None:
    wal = WalBuilder()
    wal.add(bytes(4 * MIB))
    decoder = RecordDecoder(MIB, MIB)
    for offset in range(0, len(wal.data), PAGE_SIZE):
        decoder.feed(bytes(wal.data[offset : offset + PAGE_SIZE]))
        held = [value for value in vars(decoder).values() if isinstance(value, bytes | list)]
        assert sum(len(value) for value in held) <= 40
    assert decoder.last_record_lsn == MIB + 40


def test_a_tail_is_that_of_a_whole_segment() -> None:
    wal = WalBuilder()
    wal.add(b"x")
    decoder = RecordDecoder(MIB, MIB)
    assert decoder.tail() is None
    decoder.feed(bytes(wal.data))
    with pytest.raises(LocalProtocolError, match="is not the end of a segment"):
        decoder.tail()
