"""The view `transactions` against what was written into the bodies.

With NUMBA_BOUNDSCHECK=1 (tests/torture/test_pipeline_views.py) a read outside of the WAL is an error, too.
"""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from safekeeper.base.lsn import format_lsn
from safekeeper.waldecode.format import RM_XACT, WalFormatError
from tests.unit.record_bodies import body
from tests.unit.transaction_bodies import (
    ABORT,
    ABORT_PREPARED,
    COMMIT,
    COMMIT_PREPARED,
    HAS_XINFO,
    PREPARE,
    prepare,
    transaction_end,
)
from tests.unit.wal_builder import MIB, WalBuilder
from walproxy.pipeline.decoder.decode import Decoded, decode
from walproxy.pipeline.decoder.opcodes import MAJORS
from walproxy.pipeline.decoder.transaction_bodies import Bodies, read_bodies
from walproxy.pipeline.decoder.views import Piece, view_batch

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def microseconds(time: datetime) -> int:
    return (time - EPOCH) // timedelta(microseconds=1)


def decoded(wal: WalBuilder) -> Decoded:
    result = decode(bytes(wal.data), wal.begin_lsn, wal.position, wal.segment_size)
    assert result.end.kind == "complete", result.end
    return result


def rows(wal: WalBuilder) -> list[dict[str, Any]]:
    batch = view_batch("transactions", decoded(wal), Piece(wal.begin_lsn, wal.position))
    batch.validate(full=True)
    return batch.to_pylist()


def end(wal: WalBuilder, info: int, main: bytes, xid: int = 700, origin: int = 0) -> Any:
    return wal.add(body(main, major=wal.major, origin=origin), rmid=RM_XACT, info=info, xid=xid)


@pytest.mark.parametrize("major", MAJORS)
def test_a_commit_says_everything_that_it_can_say(major: int) -> None:
    wal = WalBuilder(major=major)
    main = transaction_end(
        microseconds(NOON),
        major=major,
        database=5,
        subxids=[701, 2**32 - 1],
        relfiles=3,
        dropped_stats=2 if major >= 15 else 0,
        invalidations=4,
        twophase_xid=650,
        gid=b"a gid",
        origin=(0x1_2345_6789, microseconds(NOON - timedelta(seconds=3))),
        more_xinfo=1 << 29 | 1 << 6 | 1 << 30 | 1 << 31,
    )
    record = end(wal, COMMIT_PREPARED | HAS_XINFO, main, origin=9)
    assert rows(wal) == [
        {
            "lsn": record.start_lsn,
            "end_lsn": record.end_lsn,
            "tli": 1,
            "xid": 650,
            "outcome": "commit_prepared",
            "time": NOON,
            "database": 5,
            "subxids": [701, 2**32 - 1],
            "gid": "a gid",
            "origin": 9,
            "origin_lsn": 0x1_2345_6789,
            "origin_time": NOON - timedelta(seconds=3),
            "remote_apply": True,
        }
    ]


@pytest.mark.parametrize(("info", "outcome"), [(COMMIT, "commit"), (ABORT, "abort")])
def test_a_bare_commit_or_abort_says_only_its_time(info: int, outcome: str) -> None:
    wal = WalBuilder()
    end(wal, info, microseconds(NOON).to_bytes(8, "little"), xid=3_000_000_000)
    row = rows(wal)[0]
    assert (row["outcome"], row["time"], row["xid"], row["subxids"]) == (outcome, NOON, 3_000_000_000, [])
    assert [row[name] for name in ("database", "gid", "origin", "origin_lsn", "origin_time")] == [None] * 5
    assert row["remote_apply"] is False


@pytest.mark.parametrize("major", MAJORS)
def test_prepare_has_a_body_of_its_own(major: int) -> None:
    wal = WalBuilder(major=major)
    origin = (77, microseconds(NOON))
    end(wal, PREPARE, prepare(microseconds(NOON), 701, b"one", major=major, subxids=[702, 703], origin=origin), xid=701)
    end(wal, PREPARE, prepare(microseconds(NOON), 704, b"12345678", major=major, origin=origin), xid=704, origin=4)
    end(wal, ABORT_PREPARED | HAS_XINFO, transaction_end(microseconds(NOON), major=major, twophase_xid=704), xid=0)
    first, second, third = rows(wal)
    assert (first["outcome"], first["xid"], first["gid"], first["time"]) == ("prepare", 701, "one", NOON)
    assert (first["subxids"], first["database"], first["origin_lsn"]) == ([702, 703], 5, None)
    assert (second["gid"], second["subxids"], second["origin"]) == ("12345678", [], 4)
    assert (second["origin_lsn"], second["origin_time"]) == (77, NOON)
    assert (third["outcome"], third["xid"], third["gid"]) == ("abort_prepared", 704, None)


def test_only_records_that_end_a_transaction_are_rows() -> None:
    wal = WalBuilder()
    end(wal, 0x50, bytes(12))  # ASSIGNMENT
    end(wal, 0x60, bytes(12))  # INVALIDATIONS
    end(wal, 0x70, b"")
    wal.add(body(bytes(8)), rmid=10, info=0x20)
    assert rows(wal) == []


@pytest.mark.parametrize(
    ("gid", "shown"),
    [
        (b"", ""),
        (b"two\nlines, 'quotes' and \"more\"", "two\nlines, 'quotes' and \"more\""),
        ("Überweisung №7 🙂".encode(), "Überweisung №7 🙂"),
        ("Überweisung".encode("latin-1"), "\N{REPLACEMENT CHARACTER}berweisung"),
        (b"\xff\xfe\x80", "\N{REPLACEMENT CHARACTER}" * 3),
        (b"g" * 199, "g" * 199),
    ],
)
def test_a_gid_may_be_any_text_in_any_encoding(gid: bytes, shown: str) -> None:
    wal = WalBuilder()
    end(wal, PREPARE, prepare(0, 701, gid))
    end(wal, COMMIT, bytes(8))
    end(wal, COMMIT_PREPARED | HAS_XINFO, transaction_end(0, twophase_xid=701, gid=gid))
    assert [row["gid"] for row in rows(wal)] == [shown, None, shown]


def test_times_that_nobody_can_write_break_nothing() -> None:
    wal = WalBuilder()
    for time in (2**63 - 1, -(2**63), 0):
        end(wal, COMMIT | HAS_XINFO, transaction_end(time, origin=(8, time)), origin=1)
    forever, never, epoch = rows(wal)
    assert (forever["time"].year, forever["origin_time"], forever["origin_lsn"]) == (9999, None, 8)
    assert (never["time"].year, never["origin_time"]) == (1, None)
    assert epoch["time"] == epoch["origin_time"] == EPOCH


FULL = {
    "database": 5,
    "subxids": (701, 702),
    "relfiles": 2,
    "invalidations": 2,
    "twophase_xid": 650,
    "gid": b"gid",
    "origin": (1, 2),
}


@pytest.mark.parametrize("major", MAJORS)
def test_a_body_is_read_to_its_last_byte(major: int) -> None:
    wal = WalBuilder(major=major)
    main = transaction_end(1, major=major, dropped_stats=2 if major >= 15 else 0, **FULL)  # type: ignore[arg-type]
    end(wal, COMMIT | HAS_XINFO, main)
    end(wal, PREPARE, prepare(1, 701, b"gid", major=major, subxids=[702, 703, 704]))
    end(wal, ABORT, bytes(8))
    found = decoded(wal)
    bodies = read_bodies(found)
    assert isinstance(bodies, Bodies)
    np.testing.assert_array_equal(bodies.body_end, (found.main_offset + found.main_bytes)[bodies.record])


@pytest.mark.parametrize("major", (13, 17, 18))
def test_a_body_that_is_cut_anywhere_is_an_error_that_names_the_record(major: int) -> None:
    stats = {"dropped_stats": 2} if major >= 15 else {}
    whole = transaction_end(1, major=major, **FULL, **stats)  # type: ignore[arg-type]
    prepared = prepare(1, 701, b"gid", major=major, subxids=[702, 703])
    for info, main in ((COMMIT | HAS_XINFO, whole), (ABORT | HAS_XINFO, whole), (PREPARE, prepared)):
        for length in range(len(main)):
            wal = WalBuilder(major=major)
            end(wal, COMMIT, bytes(8))
            lsn = end(wal, info, main[:length]).start_lsn
            with pytest.raises(
                WalFormatError, match=f"record at {format_lsn(lsn)} is not in the format of PostgreSQL {major}"
            ):
                rows(wal)


@pytest.mark.parametrize("bit", [9, 10, 15, 28])
@pytest.mark.parametrize("info", [COMMIT, ABORT, COMMIT_PREPARED, ABORT_PREPARED])
def test_a_bit_of_xinfo_that_no_version_knows_is_an_error(bit: int, info: int) -> None:
    wal = WalBuilder()
    end(wal, info | HAS_XINFO, transaction_end(1, database=5, more_xinfo=1 << bit) + bytes(100))
    with pytest.raises(WalFormatError, match="0/100028"):
        rows(wal)


def test_version_14_has_no_dropped_statistics() -> None:
    wal = WalBuilder(major=14)
    end(wal, COMMIT | HAS_XINFO, transaction_end(1, major=14, dropped_stats=1))
    with pytest.raises(WalFormatError, match="PostgreSQL 14"):
        rows(wal)


@pytest.mark.parametrize("bits", [1 << 1, 1 << 2, 1 << 3, 1 << 8, 0b100001110])
@pytest.mark.parametrize("count", [2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
def test_a_count_that_leads_out_of_the_body_is_an_error(bits: int, count: int) -> None:
    wal = WalBuilder()
    main = transaction_end(1, more_xinfo=bits) + count.to_bytes(4, "little") + bytes(7)
    end(wal, COMMIT | HAS_XINFO, main)
    with pytest.raises(WalFormatError, match="COMMIT record at 0/100028"):
        rows(wal)


@pytest.mark.parametrize("wrong", [{"gid_bytes": 65535}, {"subxid_count": 2**31 - 1}, {"subxid_count": 2**32 - 1}])
def test_a_prepare_whose_counts_lead_out_of_it_is_an_error(wrong: dict[str, int]) -> None:
    wal = WalBuilder()
    end(wal, PREPARE, prepare(1, 701, b"gid", subxids=[], **wrong))
    with pytest.raises(WalFormatError, match="PREPARE record at 0/100028"):
        rows(wal)


@pytest.mark.parametrize("gid", [b"n" * length for length in range(1, 10)])
def test_a_name_that_does_not_end_is_an_error(gid: bytes) -> None:
    """Wherever the body ends: at a multiple of 8 the next record follows, which is no zero, else padding."""
    wal = WalBuilder()
    end(wal, COMMIT_PREPARED | HAS_XINFO, transaction_end(1, twophase_xid=701, gid=gid)[:-1])
    end(wal, COMMIT, bytes(8))
    with pytest.raises(WalFormatError, match="COMMIT_PREPARED record at 0/100028"):
        rows(wal)


@pytest.mark.parametrize(("bit", "waited"), [(6, False), (29, True), (30, False), (31, False)])
def test_one_bit_says_that_standbys_had_to_replay(bit: int, waited: bool) -> None:
    wal = WalBuilder()
    end(wal, COMMIT | HAS_XINFO, transaction_end(1, more_xinfo=1 << bit))
    assert rows(wal)[0]["remote_apply"] is waited


@pytest.mark.parametrize("major", MAJORS)
def test_whatever_a_body_holds_it_is_read_or_refused(major: int) -> None:
    chance = random.Random(major)
    stats = {"dropped_stats": 2} if major >= 15 else {}
    whole = transaction_end(1, major=major, **FULL, **stats)  # type: ignore[arg-type]
    prepared = prepare(1, 701, b"gid", major=major, subxids=[702, 703])
    read = refused = 0
    for _ in range(200):
        wal = WalBuilder(major=major)
        for info, main in ((COMMIT | HAS_XINFO, whole), (PREPARE, prepared)):
            damaged = bytearray(main)
            for _ in range(chance.choice([1, 2, 9])):
                damaged[chance.randrange(len(damaged))] = chance.choice([0, 1, 2, 127, 128, 255])
            end(wal, info, bytes(damaged))
        try:
            assert len(rows(wal)) == 2
            read += 1
        except WalFormatError:
            refused += 1
    assert min(read, refused) > 20


def test_a_transaction_may_have_many_subtransactions() -> None:
    wal = WalBuilder(begin_lsn=0x1000_0000, segment_size=16 * MIB)
    subxids = list(range(701, 701 + 100_000))
    end(wal, COMMIT | HAS_XINFO, transaction_end(1, subxids=[]))
    end(wal, COMMIT | HAS_XINFO, transaction_end(1, subxids=subxids))
    end(wal, COMMIT | HAS_XINFO, transaction_end(1, subxids=[9]))
    assert [row["subxids"] for row in rows(wal)] == [[], subxids, [9]]
