"""When commits happened, read out of their records."""

from datetime import UTC, datetime, timedelta

import pytest

from safekeeper.waldecode.format import RM_XACT
from tests.unit.wal_builder import WalBuilder
from walproxy.recovery.record_times import scan

MIB = 1 << 20
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
COMMIT, ABORT, COMMIT_PREPARED, HAS_INFO = 0x00, 0x20, 0x30, 0x80


def body(time: datetime, before: bytes = b"", long: bool = False) -> bytes:
    """The body of a commit record: a header of its main data, and the time."""
    data = ((time - datetime(2000, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)).to_bytes(8, "little") + bytes(4)
    header = b"\xfe" + len(data).to_bytes(4, "little") if long else bytes([255, len(data)])
    return before + header + data


@pytest.mark.parametrize("info", [COMMIT, COMMIT | HAS_INFO, COMMIT_PREPARED | HAS_INFO])
@pytest.mark.parametrize("before", [b"", b"\xfd\x01\x00", b"\xfc\x01\x00\x00\x00"], ids=["plain", "origin", "parent"])
@pytest.mark.parametrize("long", [False, True])
def test_the_time_of_a_commit_is_found(info: int, before: bytes, long: bool) -> None:
    wal = WalBuilder()
    record = wal.add(body(NOON, before, long), RM_XACT, info)
    found = scan([bytes(wal.data)], MIB, MIB)
    assert found.first == found.last == (record.start_lsn, record.end_lsn, NOON)


def test_the_first_and_the_last_commit_are_found_and_aborts_are_none() -> None:
    wal = WalBuilder()
    wal.add(b"x" * 9000)
    times = [NOON + timedelta(seconds=second) for second in range(4)]
    for info, time in zip((ABORT, COMMIT, COMMIT, ABORT), times, strict=True):
        last = wal.add(body(time), RM_XACT, info)
    data = bytes(wal.data)
    found = scan([data[:5000], data[5000:]], MIB, MIB)
    assert (found.first and found.first.time, found.last and found.last.time) == (times[1], times[2])
    assert (found.last_record_lsn, found.end_lsn, found.problem) == (last.start_lsn, last.end_lsn, "")


def test_a_scan_for_the_first_commit_reads_no_further() -> None:
    wal = WalBuilder()
    wal.add(body(NOON), RM_XACT)
    wal.add(b"x" * 9000)
    pieces = iter([bytes(wal.data[:8192]), bytes(wal.data[8192:])])
    found = scan(pieces, MIB, MIB, first_only=True)
    assert found.first is not None
    assert list(pieces) == [wal.data[8192:]]


def test_a_scan_ends_at_the_first_record_that_is_not_intact() -> None:
    wal = WalBuilder()
    good = wal.add(body(NOON), RM_XACT)
    wal.add(body(NOON + timedelta(days=1)), RM_XACT)
    wal.data[-1] ^= 1
    found = scan([bytes(wal.data) + bytes(8192)], MIB, MIB)
    assert found.last is not None
    assert found.last.time == NOON
    assert found.last_record_lsn == good.start_lsn
    assert found.problem


@pytest.mark.parametrize("content", [b"", b"\xff", b"\xff\x08", b"\x00" * 20, b"\xff\x08" + b"\xff" * 8])
def test_a_commit_without_a_time_is_none(content: bytes) -> None:
    wal = WalBuilder()
    wal.add(content, RM_XACT)
    found = scan([bytes(wal.data)], MIB, MIB)
    assert found.last is None or found.last.time < datetime(2000, 1, 1, tzinfo=UTC)
    assert found.last_record_lsn
