"""Pages: how they differ, how they are named, and which records make them."""

import random
import struct
from pathlib import Path

import pytest

from safekeeper.base.errors import ConfigurationError
from tests.unit.record_bodies import Block, Image, body
from tests.unit.table_rows import open_table
from tests.unit.wal_builder import MIB, WalBuilder
from tests.unit.wal_places import write_segments
from walproxy.pipeline.decoder.views import Piece, view_batch
from walproxy.pipeline.input.opening import open_input
from walproxy.pipeline.input.pieces import PlannedPiece, decode_piece, plan_pieces
from walproxy.pipeline.jobs.catalog import RelationId
from walproxy.pipeline.pages.history import LogReader, history_of
from walproxy.pipeline.pages.page import PAGE_BYTES, compare, header_of, hex_dump
from walproxy.pipeline.pages.relation import PageId, RelationName, parse_relation, read_page
from walproxy.pipeline.schemas import arrow_schema

HEAP, HEAP2 = 10, 9
INSERT, VISIBLE = 0x00, 0x40
RELATION = RelationId(1663, 5, 16384)
PAGE = PageId(RELATION, 0, 7)


def heap_page(*tuples: bytes) -> bytearray:
    """Return a page of a table with tuples whose headers have 24 bytes of zeros."""
    content = bytearray(PAGE_BYTES)
    upper = PAGE_BYTES
    for number, data in enumerate(tuples):
        length = 24 + len(data)
        upper -= (length + 7) // 8 * 8
        content[upper + 24 : upper + length] = data
        struct.pack_into("<I", content, 24 + 4 * number, upper | 1 << 15 | length << 17)
    struct.pack_into("<IIHHHHHHI", content, 0, 5, 0x1234, 0xBEEF, 0, 24 + 4 * len(tuples), upper, PAGE_BYTES, 0x2004, 0)
    return content


def changed(page: bytearray, offset: int, value: int) -> bytes:
    copy = bytearray(page)
    copy[offset] ^= value
    return bytes(copy)


def test_the_header_says_which_record_has_changed_the_page_last() -> None:
    header = header_of(bytes(heap_page(b"row", b"another row")))
    assert (header.lsn, header.checksum, header.items, header.size, header.version) == (
        0x5_0000_1234,
        0xBEEF,
        2,
        8192,
        4,
    )
    assert header.is_regular
    assert not header_of(bytes(PAGE_BYTES)).is_regular


@pytest.mark.parametrize(
    ("offset", "bits", "reason"),
    [
        (8, 0xFF, "checksum"),
        (10, 0x04, "hints"),
        (21, 0xFF, "hints"),
        (40, 0xFF, "unused space"),
        (PAGE_BYTES - 32 + 9, 0xFF, "command number"),
        (PAGE_BYTES - 32 + 21, 0x05, "hints"),
        (PAGE_BYTES - 1, 0xFF, "unused space"),
    ],
)
def test_bytes_that_redo_does_not_know_may_differ(offset: int, bits: int, reason: str) -> None:
    page = heap_page(b"row")
    found = compare(bytes(page), changed(page, offset, bits), "heap")
    assert found.ranges == []
    assert found.excused == {reason: 1}


@pytest.mark.parametrize(
    ("offset", "bits"),
    [
        (1, 1),
        (10, 0x08),
        (12, 1),
        (25, 0x80),
        (27, 1),
        (PAGE_BYTES - 32, 1),
        (PAGE_BYTES - 32 + 20, 1),
        (PAGE_BYTES - 7, 1),
    ],
)
def test_every_other_byte_must_be_the_same(offset: int, bits: int) -> None:
    page = heap_page(b"row")
    found = compare(bytes(page), changed(page, offset, bits), "heap")
    assert found.ranges == [(offset, offset + 1)]


def test_an_index_page_may_have_dead_entries_and_a_tuple_frozen_before_no_other_inserter() -> None:
    page = heap_page(b"row")
    assert compare(bytes(page), changed(page, 26, 1), "btree").ranges == []
    assert compare(bytes(page), changed(page, 26, 1), "heap").ranges != []
    page[PAGE_BYTES - 32 + 21] = 0x03  # HEAP_XMIN_FROZEN
    assert compare(bytes(page), changed(page, PAGE_BYTES - 32 + 21, 0x08), "heap").ranges == []
    assert compare(bytes(page), changed(page, PAGE_BYTES - 32 + 21, 0x10), "heap").ranges != []


def test_a_dump_shows_bytes_and_text_and_says_a_repeated_line_once() -> None:
    lines = list(hex_dump(b"PostgreSQL page!" + bytes(48) + b"end of the page."))
    assert lines == [
        "0000  50 6f 73 74 67 72 65 53  51 4c 20 70 61 67 65 21  |PostgreSQL page!|",
        "0010  00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00  |................|",
        "*",
        "0040  65 6e 64 20 6f 66 20 74  68 65 20 70 61 67 65 2e  |end of the page.|",
        "0050",
    ]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("1663/5/16384", RELATION),
        ("?1663/5/16384", RELATION),
        ("public.Orders", RelationName("postgres", "public", "orders")),
        ('shop.public."Order ""lines"""', RelationName("shop", "public", 'Order "lines"')),
        ('"a.b".c', RelationName("postgres", "a.b", "c")),
    ],
)
def test_a_relation_is_named_as_sql_does_or_by_its_numbers(text: str, named: object) -> None:
    assert parse_relation(text) == named


@pytest.mark.parametrize("text", ["", "orders", "a.b.c.d", "a..b", "public.", '"public.orders', "1/2"])
def test_what_names_no_relation_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not the name of a relation"):
        parse_relation(text)


def test_a_page_lies_in_the_fork_s_file(tmp_path: Path) -> None:
    for folder, name in (
        ("base/5", "16384"),
        ("base/5", "16384_vm"),
        ("global", "1260"),
        ("pg_tblspc/99/PG_18_1/5", "7"),
    ):
        path = tmp_path / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(PAGE_BYTES) + name.encode().ljust(PAGE_BYTES))
    for relation, fork, name in (
        (RELATION, 0, b"16384 "),
        (RELATION, 2, b"16384_vm"),
        (RelationId(1664, 0, 1260), 0, b"1260"),
        (RelationId(99, 5, 7), 0, b"7"),
    ):
        assert read_page(tmp_path, PageId(relation, fork, 1)).startswith(name)
    with pytest.raises(ConfigurationError, match=r"block 2 is beyond the end .* which has 2 blocks"):
        read_page(tmp_path, PageId(RELATION, 0, 2))
    with pytest.raises(ConfigurationError, match="the fork fsm of the relation 1663/5/16384 has no file"):
        read_page(tmp_path, PageId(RELATION, 1, 0))


# Which records make a page.


def change(
    wal: WalBuilder, *, image: bool = False, init: bool = False, visible: bool = False, data: bytes = b"tuple"
) -> int:
    """Add a record that changes the page; return where it begins."""
    reference = Block(0, RELATION, 0, PAGE.block, Image(2000, 24, 6192) if image else None, data, will_init=init)
    wal.add(body(bytes(3), [reference]), rmid=HEAP2 if visible else HEAP, info=VISIBLE if visible else INSERT)
    return wal.records[-1].start_lsn


def log_of(folder: Path, wal: WalBuilder) -> LogReader:
    folder.mkdir(exist_ok=True)
    write_segments(folder, wal)
    wal_input = open_input(str(folder))
    path = wal_input.log_path()
    return LogReader(wal_input, path, plan_pieces(path, wal_input.extents(path)))


def fill(wal: WalBuilder, until_lsn: int) -> None:
    """Add records of another block."""
    rng = random.Random(1)
    while wal.position < until_lsn:
        wal.add(body(bytes(3), [Block(0, RELATION, 0, 8, None, rng.randbytes(3000))]), rmid=HEAP)


@pytest.fixture
def log(tmp_path: Path) -> tuple[LogReader, list[int], WalBuilder]:
    """Three segments. The page has an image in the first, changes in each, and is begun anew in the third."""
    wal = WalBuilder(begin_lsn=MIB, segment_size=MIB)
    lsns = [change(wal)]
    fill(wal, MIB + 20_000)
    lsns += [change(wal, image=True), change(wal)]
    fill(wal, 2 * MIB + 50_000)
    lsns += [change(wal), change(wal, visible=True)]
    fill(wal, 3 * MIB + 50_000)
    lsns += [change(wal, init=True), change(wal)]
    fill(wal, 3 * MIB + 100_000)
    return log_of(tmp_path / "wal", wal), lsns, wal


@pytest.mark.parametrize("with_tables", [False, True], ids=["wal", "tables"])
def test_the_history_of_a_page_begins_with_its_last_image(
    log: tuple[LogReader, list[int], WalBuilder], tmp_path: Path, with_tables: bool
) -> None:
    reader, lsns, wal = log
    ends = {record.start_lsn: record.end_lsn for record in wal.records}
    tables = tmp_path / "tables" if with_tables else None
    if tables is not None:
        write_page_versions(reader, tmp_path / "wal", tables)
    expected = [(None, 1, 0), (lsns[1], 0, 1), (lsns[1], 1, 2), (lsns[1], 2, 3), (lsns[1], 3, 4), (lsns[5], 0, 5)]
    for image_lsn, since, last in [*expected, (lsns[5], 1, 6)]:
        at_lsn = ends[lsns[last]]
        history = history_of(reader, PAGE, at_lsn, tables)
        assert history.last is not None
        assert (history.image_lsn, history.records_since_image, history.last.lsn) == (image_lsn, since, lsns[last])
        assert history.allows(at_lsn)
        assert not history.allows(at_lsn - 8)
        # One byte less, and the record is not complete.
        before = history_of(reader, PAGE, at_lsn - 1, tables)
        assert before.last is None if last == 0 else before.last is not None and before.last.lsn == lsns[last - 1]


def test_a_record_that_marks_a_page_as_visible_may_leave_its_lsn_alone(
    log: tuple[LogReader, list[int], WalBuilder],
) -> None:
    reader, lsns, wal = log
    ends = {record.start_lsn: record.end_lsn for record in wal.records}
    history = history_of(reader, PAGE, ends[lsns[4]])
    assert history.possible_lsns == [ends[lsns[4]], ends[lsns[3]]]
    assert not history.allows(ends[lsns[2]])
    assert history_of(reader, PageId(RELATION, 0, 9), wal.position).allows(MIB)


def test_the_last_record_at_an_lsn_is_the_last_that_is_complete(
    log: tuple[LogReader, list[int], WalBuilder],
) -> None:
    reader, _, wal = log
    for record, following in zip(wal.records[100:400:7], wal.records[101:401:7], strict=True):
        for at_lsn in (record.end_lsn, following.end_lsn - 1):
            assert reader.last_record(at_lsn) == (record.start_lsn, record.end_lsn)
    assert reader.last_record(MIB + 8) is None


def test_a_record_that_ends_behind_its_piece_is_not_complete_at_the_piece_s_end(tmp_path: Path) -> None:
    wal = WalBuilder(begin_lsn=MIB, segment_size=MIB)
    image_lsn = change(wal, image=True)
    fill(wal, 2 * MIB - 10_000)
    change(wal, data=bytes(30_000))
    end_lsn = wal.records[-1].end_lsn
    fill(wal, 4 * MIB - 10_000)
    reader = log_of(tmp_path / "wal", wal)
    write_page_versions(reader, tmp_path / "wal", tmp_path / "tables")
    for tables in (None, tmp_path / "tables"):
        history = history_of(reader, PAGE, end_lsn - 8, tables)
        assert history.last is not None
        assert (history.last.lsn, history.records_since_image) == (image_lsn, 0)
        assert history_of(reader, PAGE, end_lsn, tables).records_since_image == 1


def write_page_versions(log: LogReader, folder: Path, tables: Path) -> None:
    """Write the table of the first two segments, in two pieces each; the third is to be read from the WAL."""
    wal_input = open_input(str(folder))
    with open_table(tables, "page_versions", "delta", arrow_schema("page_versions")) as table:
        pieces = []
        for begin_lsn, end_lsn, available_lsn in log.pieces[:2]:
            cut_lsn = begin_lsn + PAGE_BYTES  # What was done to the page in its first segment is on both sides of it.
            pieces += [PlannedPiece(begin_lsn, cut_lsn, available_lsn), PlannedPiece(cut_lsn, end_lsn, available_lsn)]
        batches = (
            view_batch("page_versions", decode_piece(wal_input, log.path, piece), Piece(piece.begin_lsn, piece.end_lsn))
            for piece in pieces
        )
        made = table.new_file().write(batches)
        assert made is not None
        table.commit(None, None, [made])
