"""The body of a record, as far as it is read; and the records that end a transaction."""

import struct

import pytest

from safekeeper.waldecode.format import WalFormatError
from safekeeper.waldecode.record_body import RecordBody, RelationLocator, parse_body
from safekeeper.waldecode.records import Record, RecordDecoder
from safekeeper.waldecode.transaction_end import (
    ABORT,
    COMMIT,
    COMMIT_PREPARED,
    PREPARE,
    parse_assignment,
    parse_transaction_end,
)
from tests.unit import transaction_bodies as ends
from tests.unit.record_bodies import Block, Image, body
from tests.unit.transactions_wal import new_log
from tests.unit.wal_builder import MIB

MAJORS = [13, 14, 15, 16, 17, 18]
IMAGES = [None, Image(), Image(5000, 100, 3192), Image(900, 40, 500, compressed=True), Image(900, compressed=True)]


def record_with(content: bytes, rmid: int = 10, info: int = 0, xid: int = 7) -> Record:
    return Record(MIB + 40, MIB + 200, 0, 24 + len(content), xid, rmid, info, content)


def end_record(main: bytes, operation: int, *, has_xinfo: bool = True) -> tuple[Record, bytes]:
    return record_with(body(main), 1, operation | ends.HAS_XINFO * has_xinfo), main


@pytest.mark.parametrize("image", IMAGES, ids=repr)
@pytest.mark.parametrize("major", MAJORS)
def test_first_relation_and_main_data_are_found(major: int, image: Image | None) -> None:
    blocks = [
        Block(relation=(1663, 5, 20000), fork=2, image=image, data=b"one"),
        Block(block_id=1, same_relation=True, image=Image()),
        Block(block_id=2, relation=(1663, 5, 20001), data=b"two"),
    ]
    top_xid = 99 if major >= 14 else 0
    for main in (b"", b"main", b"m" * 300):
        content = body(main, blocks, major=major, origin=3, top_xid=top_xid)
        assert parse_body(record_with(content), major) == RecordBody(RelationLocator(1663, 5, 20000), 2, top_xid, main)
    assert parse_body(record_with(b""), major) == RecordBody(None, 0, 0, b"")


@pytest.mark.parametrize(
    "content",
    [
        b"\x00",
        b"\x00\x20\x05\x00",
        body(b"main")[:-1],
        body(b"main") + b"x",
        b"\xc8",
        Block(same_relation=True).header(18),
        body(top_xid=9)[:-1],
        b"\xfe\xff\xff\xff\xff",
    ],
)
def test_body_that_postgresql_does_not_write_is_refused(content: bytes) -> None:
    with pytest.raises(WalFormatError, match=r"^WAL at 0/100028: the record of \d+ bytes is not in the format of P"):
        parse_body(record_with(content), 18)


def test_parent_of_a_subtransaction_is_not_in_wal_of_13() -> None:
    with pytest.raises(WalFormatError, match="PostgreSQL 13"):
        parse_body(record_with(body(b"m", top_xid=9)), 13)


@pytest.mark.parametrize("major", MAJORS)
def test_every_section_of_a_commit_is_passed(major: int) -> None:
    main = ends.transaction_end(
        *(77,),
        major=major,
        database=5,
        subxids=[8, 9],
        relfiles=2,
        dropped_stats=3 if major >= 15 else 0,
        invalidations=1,
        twophase_xid=70,
        gid=b"name",
        origin=(1, 2),
    )
    record, main = end_record(main, ends.COMMIT_PREPARED)
    end = parse_transaction_end(record, main, major)
    assert end is not None
    assert (end.operation, end.xid, end.time_us, end.subxids) == (COMMIT_PREPARED, 70, 77, (8, 9))
    assert (end.changes_catalogs, end.gid) == (True, b"name")
    assert end.dropped == (RelationLocator(0xEEEEEEEE, 0xEEEEEEEE, 0xEEEEEEEE),) * 2
    for cut in range(len(main) - 16):  # Of the origin nothing is read.
        with pytest.raises(WalFormatError, match="look at it with pg_waldump"):
            parse_transaction_end(record, main[:cut], major)


@pytest.mark.parametrize("section", ["invalidations", "dropped_stats"])
def test_section_that_is_cut_is_refused(section: str) -> None:
    main = ends.transaction_end(77, **{section: 3})  # type: ignore[arg-type]
    record, main = end_record(main, ends.COMMIT)
    assert parse_transaction_end(record, main, 18) is not None
    for cut in range(12, len(main)):
        with pytest.raises(WalFormatError):
            parse_transaction_end(record, main[:cut], 18)


def test_short_commit_and_abort_have_a_time_only() -> None:
    for operation, expected in ((ends.COMMIT, COMMIT), (ends.ABORT, ABORT)):
        record, main = end_record(struct.pack("<q", -5), operation, has_xinfo=False)
        end = parse_transaction_end(record, main, 18)
        assert end is not None
        assert (end.operation, end.xid, end.time_us, end.subxids, end.gid) == (expected, 7, -5, (), b"")
        assert not end.changes_catalogs


@pytest.mark.parametrize("major", MAJORS)
def test_prepared_transaction_has_its_name_and_subtransactions(major: int) -> None:
    main = ends.prepare(77, 70, b"a name", major=major, subxids=[8, 9, 10])
    record, main = end_record(main, ends.PREPARE, has_xinfo=False)
    end = parse_transaction_end(record, main, major)
    assert end is not None
    assert (end.operation, end.xid, end.time_us, end.gid) == (PREPARE, 70, 77, b"a name")
    assert end.subxids == (8, 9, 10)
    for cut in range(len(main)):
        with pytest.raises(WalFormatError):
            parse_transaction_end(record, main[:cut], major)


@pytest.mark.parametrize("count", [0xFFFFFFFF, 4, 1 << 30])
def test_count_that_leads_out_of_the_record_is_refused(count: int) -> None:
    main = ends.prepare(77, 70, b"a", subxids=[8, 9, 10], subxid_count=count)
    with pytest.raises(WalFormatError):
        parse_transaction_end(*end_record(main, ends.PREPARE, has_xinfo=False), 18)
    for unknown in (1 << 9, 1 << 20):
        with pytest.raises(WalFormatError):
            parse_transaction_end(*end_record(ends.transaction_end(1, more_xinfo=unknown), ends.COMMIT), 18)
    with pytest.raises(WalFormatError, match="PostgreSQL 14"):
        parse_transaction_end(*end_record(ends.transaction_end(1, dropped_stats=1), ends.COMMIT), 14)


def test_other_records_end_nothing() -> None:
    wal = new_log()
    wal.insert(9)
    wal.assign(9, [10, 11])
    heap, assignment = RecordDecoder(MIB, MIB, range(256)).feed(wal.data)
    assert parse_transaction_end(heap, parse_body(heap, 18).main, 18) is None
    main = parse_body(assignment, 18).main
    assert parse_transaction_end(assignment, main, 18) is None
    assert parse_assignment(assignment, main, 18) == (9, (10, 11))
    for cut in range(len(main)):
        with pytest.raises(WalFormatError):
            parse_assignment(assignment, main[:cut], 18)
