"""What the compiled decoder says of single records and of single faults."""

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from safekeeper.base.errors import LocalProtocolError
from safekeeper.base.lsn import format_lsn
from safekeeper.waldecode.format import PAGE_SIZE
from tests.unit.record_bodies import Block, Image, body, of_length
from tests.unit.wal_builder import MIB, WalBuilder
from walproxy.pipeline.decoder.decode import Decoded, Workspace, decode, record_end_lsn, straddler_end

WORKSPACE = Workspace()


def decoded_all(wal: WalBuilder, **options: Any) -> Decoded:
    return decode(bytes(wal.data), wal.begin_lsn, wal.position, wal.segment_size, workspace=WORKSPACE, **options)


@pytest.mark.parametrize("major", [13, 14, 15, 18])
def test_block_references_come_out_as_they_were_written(major: int) -> None:
    blocks = [
        Block(0, (1663, 5, 16384), 0, 7, data=b"tuple"),
        Block(1, block=2**32 - 2, fork=2, same_relation=True, image=Image()),
        Block(4, (1664, 0, 1260), 1, 9, Image(8000, 100, 192), b"data", will_init=True),
        Block(5, (2**32 - 1,) * 3, 3, 0, Image(900, 100, 3000, compressed=True, apply=False)),
        Block(32, block=1, same_relation=True, image=Image(700, compressed=True)),
    ]
    wal = WalBuilder(major=major)
    wal.add(of_length(100))
    wal.add(body(b"main data", blocks, major=major, origin=258), xid=5)
    wal.add(of_length(100))
    d = decoded_all(wal)
    assert d.first_block.tolist() == [0, 0, 5, 5]
    assert d.block_count == 5
    assert d.block_record.tolist() == [1] * 5
    assert d.block_id.tolist() == [0, 1, 4, 5, 32]
    assert d.tablespace.tolist() == [1663, 1663, 1664, 2**32 - 1, 2**32 - 1]
    assert d.database.tolist() == [5, 5, 0, 2**32 - 1, 2**32 - 1]
    assert d.relation.tolist() == [16384, 16384, 1260, 2**32 - 1, 2**32 - 1]
    assert d.fork.tolist() == [0, 2, 1, 3, 0]
    assert d.block.tolist() == [7, 2**32 - 2, 9, 0, 1]
    assert d.has_image.tolist() == [False, True, True, True, True]
    assert d.image_applied.tolist() == [False, True, True, False, True]
    assert d.will_init.tolist() == [False, False, True, False, False]
    assert d.block_image_bytes.tolist() == [0, 8192, 8000, 900, 700]
    assert d.hole_offset.tolist() == [0, 0, 100, 100, 0]
    assert d.hole_bytes.tolist() == [0, 0, 192, 3000, 0]
    assert d.data_bytes.tolist() == [5, 0, 4, 0, 0]
    assert (d.origin.tolist(), d.top_xid.tolist()) == ([0, 258, 0], [0, 0, 0])
    assert (d.image_count.tolist(), d.image_bytes.tolist()) == ([0, 4, 0], [0, 17792, 0])
    for index, block in enumerate(blocks):
        begin = int(d.data_offset[index])
        assert d.stripped[begin : begin + len(block.data)].tobytes() == block.data
        begin, size = int(d.image_offset[index]), int(d.block_image_bytes[index])
        assert set(d.stripped[begin : begin + size].tobytes()) <= {ord("i")}
    begin = int(d.main_offset[1])
    assert d.stripped[begin : begin + int(d.main_bytes[1])].tobytes() == b"main data"
    assert d.stripped.shape == (len(wal.data) - 40 - 24 * ((len(wal.data) - 1) // PAGE_SIZE),)


def test_the_transaction_of_a_subtransaction_is_known_from_14_on() -> None:
    wal = WalBuilder(major=14)
    wal.add(body(b"main", top_xid=77), xid=78)
    assert decoded_all(wal).top_xid.tolist() == [77]
    wal = WalBuilder(major=13)
    wal.add(body(b"main", top_xid=77), xid=78)
    assert "252 is not a valid id of a block reference" in decoded_all(wal).end.message


def test_the_timeline_of_a_record_is_that_of_its_first_page() -> None:
    wal = WalBuilder()
    wal.add(of_length(5000))
    wal.tli = 3
    wal.add(of_length(5000))
    wal.add(of_length(20))
    assert decoded_all(wal).tli.tolist() == [1, 1, 3]


@pytest.mark.parametrize("segment_mib", [1, 16, 1024])
def test_records_of_many_pages_and_segments(segment_mib: int) -> None:
    size = segment_mib * MIB
    wal = WalBuilder(1 << 30, size)
    wal.begin_lsn = (1 << 34) - 2 * PAGE_SIZE  # two pages before a segment's end
    wal.add(of_length(100))
    long = wal.add(of_length(3 * MIB))
    wal.add(of_length(100))
    d = decoded_all(wal)
    assert d.lsn.tolist() == [record.start_lsn for record in wal.records]
    assert d.end_lsn.tolist() == [record.end_lsn for record in wal.records]
    assert record_end_lsn(long.start_lsn, long.total_length, size) == long.end_lsn
    # The page at the border says the same.
    border = 1 << 34
    assert straddler_end(wal.read(border, border + 24), border, size) == long.end_lsn
    piece = decode(wal.read(wal.begin_lsn, border), wal.begin_lsn, border, size)
    assert (piece.count, piece.end.kind, piece.end.lsn) == (1, "incomplete", long.start_lsn)
    assert piece.end.needed_until_lsn == long.end_lsn
    assert f"the record of {long.total_length} bytes continues" in piece.end.message


@pytest.mark.parametrize("leave", [0, 8, 16, 24, 32])
@pytest.mark.parametrize("at_the_segments_end", [True, False])
def test_a_switch_record_that_lies_on_a_border_is_passed_over_from_either_side(
    leave: int, at_the_segments_end: bool
) -> None:
    wal = WalBuilder(2 * MIB - PAGE_SIZE if at_the_segments_end else 2 * MIB - 3 * PAGE_SIZE)
    border = wal.begin_lsn + PAGE_SIZE
    wal.data += wal.page_header()
    wal.add(of_length(PAGE_SIZE - 24 - 24 - leave))
    switch = wal.switch()
    last = wal.add(of_length(10))
    whole = decoded_all(wal)
    assert whole.end.kind == "complete"
    assert whole.end_lsn.tolist()[1:] == [switch.end_lsn, last.end_lsn]
    header = wal.read(border, border + 24)
    upto = straddler_end(header, border, MIB)
    before = decode(wal.read(wal.begin_lsn, upto), wal.begin_lsn, border, MIB)
    found = before.lsn.tolist()
    assert before.end.kind == "complete"
    after = decode(wal.read(border, wal.position), border, wal.position, MIB)
    if after.end.zeros_until_lsn:
        assert (leave >= 24, after.end.zeros_until_lsn) == (True, 2 * MIB)
        border = after.end.zeros_until_lsn
        after = decode(wal.read(border, wal.position), border, wal.position, MIB)
    assert after.end.kind == "complete"
    assert found + after.lsn.tolist() == whole.lsn.tolist()


def test_a_page_of_zeros_is_distinguished_from_a_damaged_one() -> None:
    wal = WalBuilder(2 * MIB - 4 * PAGE_SIZE)
    wal.switch()
    wal.add(of_length(10))
    begin_lsn = 2 * MIB - 2 * PAGE_SIZE
    end = decode(wal.read(begin_lsn, wal.position), begin_lsn, wal.position, MIB).end
    assert (end.kind, end.lsn, end.zeros_until_lsn) == ("invalid", begin_lsn, 2 * MIB)
    end = decode(bytes(100), begin_lsn, begin_lsn + 100, MIB).end
    assert (end.kind, end.zeros_until_lsn) == ("invalid", begin_lsn + 100)
    damaged = bytearray(wal.read(begin_lsn, wal.position))
    damaged[PAGE_SIZE] = 1
    end = decode(damaged, begin_lsn, wal.position, MIB).end
    assert (end.kind, end.zeros_until_lsn) == ("invalid", 0)


def test_a_record_that_a_crash_lost_is_no_record_of_any_piece() -> None:
    wal = WalBuilder(2 * MIB - 4 * PAGE_SIZE)
    first = wal.add(of_length(100))
    wal.add(bytes(10 * PAGE_SIZE), held=2 * PAGE_SIZE)
    wal.overwrite()
    wal.data = wal.data[: -40 - -len(wal.data) % 8]
    wal.records.pop()
    wal.previous_lsn = first.start_lsn
    lost_at = wal.position - wal.position % PAGE_SIZE
    last = wal.add(of_length(18), rmid=0, info=0xD0)
    assert decoded_all(wal).lsn.tolist() == [first.start_lsn, last.start_lsn]
    # What is behind the page that says so is not needed.
    header = wal.read(lost_at, lost_at + 24)
    upto = straddler_end(header, lost_at, MIB)
    assert upto == lost_at + 24
    piece = decode(wal.read(wal.begin_lsn, upto), wal.begin_lsn, lost_at, MIB)
    assert (piece.lsn.tolist(), piece.end.kind) == ([first.start_lsn], "complete")
    # Cut within the lost record: the second piece begins by passing over it.
    border = wal.begin_lsn + PAGE_SIZE
    piece = decode(wal.read(border, wal.position), border, wal.position, MIB)
    assert (piece.lsn.tolist(), piece.end.kind) == ([last.start_lsn], "complete")


def test_arrays_grow_to_what_a_piece_needs_and_are_used_again() -> None:
    many = WalBuilder()
    for number in range(9000):
        many.add(b"", xid=number)
    dense = WalBuilder()
    for _ in range(300):
        dense.add(body(blocks=[Block(index, block=index, same_relation=index > 0) for index in range(33)]))
    few = WalBuilder()
    few.add(of_length(10), xid=5)
    for wals in ((few, many, few, many), (few, dense, few, many, dense)):
        workspace = Workspace()
        for wal in wals:
            decoded = decode(bytes(wal.data), MIB, wal.position, MIB, workspace=workspace)
            assert decoded.end.kind == "complete"
            assert decoded.lsn.tolist() == [record.start_lsn for record in wal.records]
            assert decoded.xid.tolist() == [record.xid for record in wal.records]
            assert decoded.first_block[-1] == decoded.block_count == (9900 if wal is dense else 0)
        room = workspace.records.lsn
        decode(bytes(many.data), MIB, many.position, MIB, workspace=workspace)
        assert workspace.records.lsn is room


def test_any_buffer_will_do() -> None:
    wal = WalBuilder()
    record = wal.add(of_length(10))
    raw = bytes(wal.data)
    read_only = np.frombuffer(raw, np.uint8)
    for wanted in (raw, bytearray(raw), memoryview(raw), read_only, read_only.copy()):
        assert decode(wanted, MIB, wal.position, MIB).lsn.tolist() == [record.start_lsn]


def test_what_is_no_piece_of_wal_is_our_own_fault() -> None:
    for arguments in ((1, 5, MIB), (0, -8, MIB), (PAGE_SIZE, 0, MIB), (0, 1 << 63, MIB), (0, 5, 3 * MIB), (0, 5, 1024)):
        with pytest.raises(LocalProtocolError):
            decode(b"", *arguments)


def test_without_checksums_a_record_is_taken_for_its_form() -> None:
    wal = WalBuilder()
    wal.add(of_length(50))
    wal.data[-1] ^= 1
    assert decoded_all(wal).end.kind == "invalid"
    assert decoded_all(wal, check_crc=False).count == 1


def body_of(content: bytes, **options: Any) -> Callable[[WalBuilder], None]:
    """Write a record with such a body."""

    def write(wal: WalBuilder) -> None:
        wal.add(content, **options)

    return write


def with_patch(at: int, values: bytes, length: int = PAGE_SIZE) -> Callable[[WalBuilder], None]:
    """Write a record up to the next page and one behind, and change bytes, counted from that page's start."""

    def write(wal: WalBuilder) -> None:
        wal.add(of_length(length))
        wal.add(of_length(10))
        begin = PAGE_SIZE + at
        wal.data[begin : begin + len(values)] = values

    return write


def block(flags: int, *parts: tuple[str, int], data_bytes: int = 0, block_id: int = 0) -> bytes:
    """Return the header of a block reference: what is in `parts` follows the flags and the length of its data."""
    return struct.pack("<BBH", block_id, flags, data_bytes) + b"".join(struct.pack(f"<{k}", v) for k, v in parts)


LOCATOR = [("I", 1663), ("I", 5), ("I", 16384), ("I", 0)]


def image(size: int, hole_offset: int, info: int, *hole_bytes: tuple[str, int]) -> bytes:
    return block(0x10, ("H", size), ("H", hole_offset), ("B", info), *hole_bytes, *LOCATOR) + bytes(size)


NOT_AS_LONG = "the lengths in the record's headers do not add up to the record's length"
OF_IMAGE = "an image of {} bytes contradicts its header's hole and compression"
# The first record lies at 1/2FFE028, and is whole; the second one begins at 1/2FFE090, the next page at 1/3000000.
FAULTS: list[tuple[str, str, Callable[[WalBuilder], None]]] = [
    ("1/3000000", "page magic D100 is not that of PostgreSQL 13 to 18", with_patch(0, b"\x00\xd1")),
    ("1/3000000", "page magic D106 follows D118: two versions in one log", with_patch(0, b"\x06")),
    ("1/3000000", "page flags 0013 do not fit segments of 1048576 bytes", with_patch(2, b"\x13")),
    ("1/3000000", "page flags 0001 do not fit segments of 1048576 bytes", with_patch(2, b"\x01")),
    ("1/3000000", "a page of TLI 0 follows one of TLI 2", with_patch(4, b"\x00")),
    ("1/3000000", "a page of TLI 1 follows one of TLI 2", with_patch(4, b"\x01")),
    ("1/3000000", "the page claims to be at 1/3000001, as in a recycled or misnamed file", with_patch(8, b"\x01")),
    ("1/3000000", "no record continues here, 168 bytes of one are missing", with_patch(2, b"\x02")),
    ("1/3000000", "112 bytes of a record continue here, 168 are missing", with_patch(16, b"\x70")),
    (
        "1/3000000",
        "0 bytes of a record continue here, but no record is incomplete",
        with_patch(2, b"\x03", PAGE_SIZE - 168),
    ),
    (
        "1/3000000",
        "segments of 1048577 and pages of 8192 bytes, where 1048576 and 8192 are expected",
        with_patch(32, b"\x01"),
    ),
    (
        "1/3000000",
        "segments of 1048576 and pages of 8193 bytes, where 1048576 and 8192 are expected",
        with_patch(36, b"\x01"),
    ),
    ("1/2FFE090", "the record's checksum should be ", with_patch(-1, b"x")),
    ("1/2FFE090", "23 bytes is not a valid length of a record", with_patch(0x90 - PAGE_SIZE, b"\x17\0\0\0")),
    ("1/2FFE090", "0 bytes is not a valid length of a record", with_patch(0x90 - PAGE_SIZE, bytes(4))),
    ("1/2FFE090", "1073741824 bytes is not a valid length of a record", with_patch(0x90 - PAGE_SIZE, b"\0\0\0\x40")),
    ("1/2FFE090", "22 is not the number of a resource manager", body_of(b"", rmid=22)),
    ("1/2FFE090", "127 is not the number of a resource manager", body_of(b"", rmid=127)),
    ("1/2FFE090", "the record links to 0/5 instead of 1/2FFE018", body_of(b"", previous_lsn=5)),
    ("1/2FFE090", NOT_AS_LONG, body_of(b"\xff\x05abc")),
    ("1/2FFE090", NOT_AS_LONG, body_of(b"\xff\x01abc")),
    ("1/2FFE090", NOT_AS_LONG, body_of(b"\xff")),
    ("1/2FFE090", NOT_AS_LONG, body_of(b"\xfe\x01\0\0")),
    ("1/2FFE090", NOT_AS_LONG, body_of(b"\xfd\x01")),
    ("1/2FFE090", NOT_AS_LONG, body_of(b"\xfc\x01\0\0")),
    ("1/2FFE090", NOT_AS_LONG, body_of(b"\0\0\0")),
    ("1/2FFE090", NOT_AS_LONG, body_of(block(0, *LOCATOR)[:-1])),
    ("1/2FFE090", NOT_AS_LONG, body_of(block(0, *LOCATOR)[:-5])),
    ("1/2FFE090", NOT_AS_LONG, body_of(block(0x10, ("H", 8), ("H", 0)))),
    ("1/2FFE090", NOT_AS_LONG, body_of(block(0x10, ("H", 0), ("H", 8), ("B", 5), ("B", 1)))),
    ("1/2FFE090", "33 is not a valid id of a block reference", body_of(b"\x21")),
    ("1/2FFE090", "251 is not a valid id of a block reference", body_of(b"\xfb")),
    ("1/2FFE090", "block reference 0 does not follow in order", body_of(2 * block(0, *LOCATOR))),
    (
        "1/2FFE090",
        "block reference 0 has data without its flag, or the flag without data",
        body_of(block(0x20, *LOCATOR)),
    ),
    (
        "1/2FFE090",
        "block reference 0 has data without its flag, or the flag without data",
        body_of(block(0, *LOCATOR, data_bytes=1) + b"x"),
    ),
    (
        "1/2FFE090",
        "block reference 3 refers to the relation of the previous one, and there is none",
        body_of(block(0x80, ("I", 0), block_id=3)),
    ),
    ("1/2FFE090", OF_IMAGE.format(100), body_of(image(100, 0, 1))),
    ("1/2FFE090", OF_IMAGE.format(8192), body_of(image(8192, 9, 1))),
    ("1/2FFE090", OF_IMAGE.format(100), body_of(image(100, 9, 5, ("H", 0)))),
    ("1/2FFE090", OF_IMAGE.format(100), body_of(image(100, 9, 4))),
    ("1/2FFE090", OF_IMAGE.format(100), body_of(image(100, 0, 0))),
    ("1/2FFE090", OF_IMAGE.format(8192), body_of(image(8192, 0, 4))),
]


@pytest.mark.parametrize(("lsn", "message", "write"), FAULTS, ids=[f"{i}: {f[1]}" for i, f in enumerate(FAULTS)])
def test_what_is_wrong_is_said_with_its_place(lsn: str, message: str, write: Callable[[WalBuilder], None]) -> None:
    wal = WalBuilder(0x1_02FFE000, tli=2)
    wal.add(of_length(96))
    write(wal)
    wal.add(of_length(10))
    end = decoded_all(wal).end
    assert end.kind == "invalid"
    assert end.message.startswith(f"WAL at {lsn}: {message}")
    assert format_lsn(end.lsn) == lsn
    assert decoded_all(wal).lsn.tolist() == [record.start_lsn for record in wal.records if record.end_lsn <= end.lsn]


def test_a_bad_checksum_is_said_with_what_it_should_be_and_is() -> None:
    wal = WalBuilder()
    wal.add(of_length(50))
    stated = int.from_bytes(wal.data[60:64], "little")
    wal.data[60:64] = b"\x01\x02\x03\x04"
    assert decoded_all(wal).end.message == (
        f"WAL at 0/100028: the record's checksum should be 04030201 and is {stated:08X}"
    )


def test_a_log_is_of_one_cluster() -> None:
    wal = WalBuilder(MIB)
    wal.switch()
    wal.system_id = 2**64 - 2
    wal.add(of_length(10))
    assert decoded_all(wal).end.message == "WAL at 0/200000: system id 18446744073709551614 follows 7000000000000000001"
    assert decode(wal.read(2 * MIB, wal.position), 2 * MIB, wal.position, MIB).system_id == 2**64 - 2


def test_the_first_record_links_to_an_earlier_one() -> None:
    for link in (MIB + 40, 2 * MIB, 1 << 63):
        wal = WalBuilder()
        wal.add(of_length(10), previous_lsn=link)
        assert decoded_all(wal).end.message.endswith(f"links to {format_lsn(link)} instead of an earlier one")
    wal = WalBuilder()
    wal.add(of_length(10), previous_lsn=MIB + 32)
    assert decoded_all(wal).end.kind == "complete"


def test_an_end_that_is_given_within_a_page_header_is_complete_before_it() -> None:
    wal = WalBuilder(2 * MIB - PAGE_SIZE)
    record = wal.add(of_length(PAGE_SIZE - 48))
    for more in range(48):
        header = (wal.page_header() + bytes(8))[:more]
        decoded = decode(bytes(wal.data) + header, wal.begin_lsn, 2 * MIB + more, MIB)
        assert decoded.end_lsn.tolist() == [record.end_lsn]
        assert (decoded.end.kind == "complete") == (more <= 40)


def test_a_record_whose_length_is_not_there_yet_needs_that_first() -> None:
    wal = WalBuilder()
    first = wal.add(of_length(20))
    second = wal.add(of_length(100))
    for more in range(1, second.total_length):
        cut_lsn = second.start_lsn + more
        decoded = decode(wal.read(MIB, cut_lsn), MIB, cut_lsn, MIB)
        assert decoded.lsn.tolist() == [first.start_lsn]
        assert (decoded.end.kind, decoded.end.lsn) == ("incomplete", second.start_lsn)
        assert decoded.end.needed_until_lsn == (second.start_lsn + 8 if more < 4 else second.end_lsn)


def test_the_hole_of_an_image_is_a_number_of_16_bits() -> None:
    wal = WalBuilder()
    wal.add(image(9000, 9, 3))
    decoded = decoded_all(wal)
    assert decoded.end.kind == "complete"
    assert decoded.hole_bytes.tolist() == [PAGE_SIZE - 9000 + (1 << 16)]
