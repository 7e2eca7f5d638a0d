"""The compiled decoder against what was written, and against the decoder that reads a stream bit by bit."""

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from safekeeper.waldecode.format import MAGIC_OF_MAJOR, PAGE_SIZE
from safekeeper.waldecode.records import RecordDecoder
from tests.unit.record_bodies import Block, Image, body, of_length
from tests.unit.wal_builder import MIB, WalBuilder
from walproxy.pipeline.decoder.decode import Decoded, Workspace, decode, straddler_end

Row = tuple[int, ...]
WORKSPACE = Workspace()

RELATIONS = st.tuples(*[st.integers(0, 2**32 - 1)] * 3)
IMAGES = st.one_of(
    st.builds(Image, apply=st.booleans()),
    st.builds(lambda hole, at: Image(PAGE_SIZE - hole, at, hole), st.integers(1, 8000), st.integers(1, 190)),
    st.builds(Image, st.integers(1, 2000), st.integers(1, 9), st.integers(1, 8000), st.just(True), st.booleans()),
    st.builds(Image, st.integers(1, 2000), compressed=st.just(True)),
)


@st.composite
def some_blocks(draw: st.DrawFn) -> list[Block]:
    """Block references in order; all but the first may be of the relation before."""
    ids = sorted(draw(st.sets(st.integers(0, 32), max_size=4)))
    return [
        Block(
            block_id,
            draw(RELATIONS),
            draw(st.integers(0, 3)),
            draw(st.integers(0, 2**32 - 1)),
            draw(st.none() | IMAGES),
            draw(st.binary(max_size=40)),
            index > 0 and draw(st.booleans()),
            draw(st.booleans()),
        )
        for index, block_id in enumerate(ids)
    ]


class Wal(WalBuilder):
    """A builder that does not print what it built."""

    def __repr__(self) -> str:
        return f"Wal({self.begin_lsn:X}, {self.segment_size}, {self.major}, {len(self.records)} records)"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))


LENGTHS = st.one_of(st.just(0), st.integers(3, 300), st.integers(PAGE_SIZE - 100, PAGE_SIZE + 100), st.just(70_000))
RMIDS = st.sampled_from([0, 1, 10, 21, 128, 255])
XIDS = st.integers(0, 2**32 - 1)
PLAIN = st.tuples(st.just("plain"), LENGTHS, RMIDS, XIDS)
RICH = st.tuples(st.just("rich"), some_blocks(), st.binary(max_size=300), st.integers(0, 65535), XIDS)
ENDS_OF_PAGES = st.tuples(st.just("end of page"), st.sampled_from([0, 8, 16, 24, 32]))
OTHERS = st.sampled_from([("lost in a crash",), ("switch",), ("new timeline",)])


def fill_page(wal: WalBuilder, leave: int) -> None:
    """Write a record that ends so many bytes before its page, or begins on the next page if there is no room."""
    wal.data += bytes(-len(wal.data) % 8)
    if wal.position % PAGE_SIZE == 0:
        wal.data += wal.page_header()
    wal.add(of_length(max(8, PAGE_SIZE - wal.position % PAGE_SIZE - 24 - leave)))


def lose_a_record(wal: WalBuilder, pages: int = 1) -> None:
    """Write a record that a crash cuts off at a page's end, and what PostgreSQL writes when it starts again."""
    room = PAGE_SIZE - (wal.position + -wal.position % 8) % PAGE_SIZE
    if room < PAGE_SIZE:
        wal.add(bytes(4 * PAGE_SIZE), held=room + (pages - 1) * (PAGE_SIZE - 24))
        wal.data += bytes(-len(wal.data) % PAGE_SIZE)
        wal.data += wal.page_header(flags=8)
        wal.add(of_length(18), rmid=0, info=0xD0)


@st.composite
def some_wal(draw: st.DrawFn) -> WalBuilder:
    """WAL with records of all lengths and contents, at all distances from the ends of pages and segments."""
    size = draw(st.sampled_from([MIB, 16 * MIB]))
    begin_lsn = 3 * size - PAGE_SIZE * draw(st.integers(0, 2))
    wal = Wal(begin_lsn, size, major=draw(st.sampled_from(sorted(MAGIC_OF_MAJOR))))
    switches = 0
    for item in draw(st.lists(st.one_of(PLAIN, RICH, ENDS_OF_PAGES, OTHERS), min_size=1, max_size=25)):
        match item:
            case "plain", int(length), int(rmid), int(xid):
                wal.add(of_length(length), rmid, xid=xid)
            case "rich", list(blocks), bytes(main), int(origin), int(xid):
                top_xid = xid if wal.major >= 14 else 0
                wal.add(body(main, blocks, major=wal.major, origin=origin, top_xid=top_xid), xid=xid)
            case "end of page", int(leave):
                fill_page(wal, leave)
            case ("lost in a crash",):
                lose_a_record(wal)
            case ("new timeline",):
                wal.tli += 1
            case ("switch",) if size == MIB and switches < 2:
                switches += 1
                wal.switch()
    wal.add(body(b"the last one"))
    return wal


def decoded_all(wal: WalBuilder, **options: Any) -> Decoded:
    return decode(bytes(wal.data), wal.begin_lsn, wal.position, wal.segment_size, workspace=WORKSPACE, **options)


def rows(decoded: Decoded) -> list[Row]:
    """What the other decoder says of records, too."""
    d = decoded
    columns = (d.lsn, d.end_lsn, d.previous_lsn, d.total_length, d.xid, d.rmid, d.info)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def as_written(wal: WalBuilder) -> list[Row]:
    return [tuple(vars(record).values())[:-1] for record in wal.records]


def other_decoder(wal: WalBuilder, begin_lsn: int) -> list[Row]:
    raw = bytes(wal.data[begin_lsn - wal.begin_lsn :])
    return [record[:-1] for record in RecordDecoder(begin_lsn, wal.segment_size).feed(raw)]


def piece(wal: WalBuilder, begin_lsn: int, end_lsn: int, look_ahead: int | None = None) -> Decoded:
    """Decode [begin_lsn, end_lsn) with the look-ahead that the header at its end asks for, or with that much."""
    upto = end_lsn
    if look_ahead is not None:
        upto = end_lsn + look_ahead
    elif end_lsn + 24 <= wal.position:
        header = wal.read(end_lsn, end_lsn + 24)
        # Of a record whose header is cut in two, the page's own header is needed, too: it is in the end's LSN.
        upto = min(straddler_end(header, end_lsn, wal.segment_size), wal.position)
    raw = np.frombuffer(wal.read(begin_lsn, min(upto, wal.position)), np.uint8)
    return decode(raw, begin_lsn, min(end_lsn, wal.position), wal.segment_size, workspace=WORKSPACE)


@settings(deadline=None, max_examples=100)
@given(some_wal())
def test_records_come_out_as_they_were_written_and_as_the_other_decoder_reads_them(wal: WalBuilder) -> None:
    decoded = decoded_all(wal)
    assert decoded.end == ("complete", wal.position, "", 0, 0)
    assert rows(decoded) == as_written(wal) == other_decoder(wal, wal.begin_lsn)
    assert (decoded.major, decoded.system_id in (0, wal.system_id)) == (wal.major, True)
    for index, written in enumerate(wal.records):
        begin, size = int(decoded.main_offset[index]), int(decoded.main_bytes[index])
        assert written.body.endswith(decoded.stripped[begin : begin + size].tobytes())


@settings(deadline=None, max_examples=40)
@given(some_wal())
def test_pieces_cut_at_every_page_together_have_every_record_once(wal: WalBuilder) -> None:
    borders = [*range(wal.begin_lsn, wal.position, PAGE_SIZE), wal.position + -wal.position % PAGE_SIZE]
    found: list[Row] = []
    for begin_lsn, end_lsn in pairwise(borders):
        decoded = piece(wal, begin_lsn, end_lsn)
        found += rows(decoded)
        if decoded.end.zeros_until_lsn:
            assert decoded.count == 0  # behind a switch record
        else:
            assert decoded.end.kind == "complete", decoded.end
    assert found == as_written(wal)


@settings(deadline=None, max_examples=40)
@given(some_wal(), st.data())
def test_a_piece_that_is_cut_short_says_what_it_needs_and_is_content_with_that(
    wal: WalBuilder, data: st.DataObject
) -> None:
    whole = as_written(wal)
    end_lsn = data.draw(st.integers(wal.begin_lsn + 40, wal.position))
    decoded = decode(wal.read(wal.begin_lsn, end_lsn), wal.begin_lsn, end_lsn, wal.segment_size)
    assert rows(decoded) == whole[: decoded.count]
    if decoded.end.kind == "incomplete":
        needed = decoded.end.needed_until_lsn
        assert wal.begin_lsn <= decoded.end.lsn < end_lsn < needed
        upto = min(needed, wal.position)
        decoded = decode(wal.read(wal.begin_lsn, upto), wal.begin_lsn, end_lsn, wal.segment_size)
        if upto == needed and decoded.end.kind == "incomplete":
            # The record's length could not be seen; now it can.
            upto = min(decoded.end.needed_until_lsn, wal.position)
            decoded = decode(wal.read(wal.begin_lsn, upto), wal.begin_lsn, end_lsn, wal.segment_size)
    assert rows(decoded) == [row for row in whole if row[0] < end_lsn]
    assert decoded.end.kind == "complete"


@settings(deadline=None, max_examples=100)
@given(some_wal(), st.data())
def test_a_flipped_bit_ends_the_records_or_was_read_by_nobody(wal: WalBuilder, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(wal.data) - 1))
    wal.data[place] ^= 1 << data.draw(st.integers(0, 7))
    decoded = decoded_all(wal)
    whole = as_written(wal)
    assert rows(decoded) == whole[: decoded.count]
    check_end(wal, decoded)


def check_end(wal: WalBuilder, decoded: Decoded) -> None:
    """The end is a place in the log, behind the records, and has its reason in one line."""
    end = decoded.end
    assert wal.begin_lsn <= end.lsn <= wal.position
    assert decoded.count == 0 or end.lsn >= decoded.lsn[-1]
    assert (end.kind == "complete") == (end.message == "")
    assert "\n" not in end.message
    assert (end.needed_until_lsn > wal.position) == (end.kind == "incomplete")


def small_log() -> WalBuilder:
    """A log with a bit of everything, two pages and some bytes long."""
    wal = WalBuilder(2 * MIB - PAGE_SIZE)
    wal.add(body(b"insert", [Block(data=b"tuple"), Block(3, block=7, same_relation=True)], origin=3), xid=700)
    wal.add(b"", rmid=0, info=0x20)
    wal.add(body(b"x" * 300, [Block(image=Image(90, 40, 8000, True), data=b"more")], top_xid=700), xid=701)
    fill_page(wal, 16)
    wal.add(body(b"its header is cut in two"))
    wal.add(body(b"over a page's end", [Block(32, fork=2, image=Image(8000, 100, 192), will_init=True)]))
    wal.add(body(b"the last one"), rmid=1)
    return wal


def test_whatever_byte_is_flipped_the_records_before_it_come_out_and_none_is_made_up() -> None:
    wal = small_log()
    whole = as_written(wal)
    assert (decoded_all(wal).end.kind, decoded_all(wal).count) == ("complete", 7)
    sound = bytes(wal.data)
    # Within long runs of the same byte, one in 61 will do.
    places = [place for place in range(1, len(sound)) if sound[place - 1] != sound[place] or place % 61 == 0]
    for place in places:
        for flip in (0xFF, 1 << place % 8):
            wal.data[:] = sound
            wal.data[place] ^= flip
            decoded = decoded_all(wal)
            assert rows(decoded) == whole[: decoded.count], place
            check_end(wal, decoded)
            # What was read and is not right is not among the records.
            hit = [row for row in whole if row[0] <= wal.begin_lsn + place < row[1] - -row[3] % 8]
            if hit and (wal.begin_lsn + place) % PAGE_SIZE >= 40:
                assert decoded.end.kind != "complete", place
                assert decoded.count == whole.index(hit[0]), place


@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=3 * PAGE_SIZE), st.sampled_from([0, PAGE_SIZE, MIB - PAGE_SIZE, 7 * MIB]), st.booleans())
def test_noise_is_invalid_or_incomplete(noise: bytes, begin_lsn: int, check_crc: bool) -> None:
    decoded = decode(noise, begin_lsn, begin_lsn + len(noise), MIB, check_crc=check_crc)
    header_size = 24 if begin_lsn % MIB else 40
    assert decoded.count == 0
    if len(noise) <= header_size:
        assert decoded.end.kind == "complete"
    else:
        assert (decoded.end.kind, decoded.end.lsn) == ("invalid", begin_lsn)
