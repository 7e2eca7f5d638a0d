"""The records that a restore must know are found whichever border cuts them; nothing else is taken for one."""

import functools
import struct
from collections.abc import Callable, Iterator

import pytest

from tests.unit.wal_builder import MIB, WalBuilder
from walproxy.recovery.notable_records import (
    Notable,
    NotableRecords,
    ParametersChanged,
    RestorePoint,
    TablespaceCreated,
    Undecodable,
)

PATH = "/mnt/space"
CREATE = struct.pack("<I", 16500) + PATH.encode() + b"\0"


def with_main(main: bytes) -> bytes:
    return bytes((255, len(main))) + main if len(main) < 256 else b"\xfe" + struct.pack("<I", len(main)) + main


def pieces(wal: WalBuilder, at: int) -> Iterator[bytes]:
    for offset in range(at, min(at + wal.segment_size, len(wal.data)), 64 << 10):
        yield bytes(wal.data[offset : offset + (64 << 10)])


def notable(wal: WalBuilder) -> list[Notable]:
    records = NotableRecords(wal.segment_size)
    found = []
    for at in range(0, len(wal.data), wal.segment_size):
        found += records.of_segment(wal.begin_lsn + at, functools.partial(pieces, wal, at))
    return found


def fill_segment(wal: WalBuilder, leave: int) -> None:
    """Append records that end `leave` bytes before the end of the segment."""
    while wal.position % MIB < MIB - 8192:
        wal.fill_page()
    wal.fill_page(leave)


@pytest.mark.parametrize("leave", [0, 8, 16, 24, 32, 64])
@pytest.mark.parametrize("path", [PATH, "/" + "x" * 1000], ids=["short", "long"])
@pytest.mark.parametrize("cut", [WalBuilder.fill_page, fill_segment], ids=["page", "segment"])
def test_a_tablespace_is_found_whichever_border_cuts_its_record(
    cut: Callable[[WalBuilder, int], object], path: str, leave: int
) -> None:
    wal = WalBuilder()
    wal.add(b"before")
    cut(wal, leave)
    main = struct.pack("<I", 16500) + path.encode() + b"\0"
    record = wal.add(with_main(main), rmid=5)
    wal.add(b"after" * 3000)
    assert notable(wal) == [TablespaceCreated(record.start_lsn, record.previous_lsn, 16500, path)]


def test_restore_points_and_changed_settings_are_found() -> None:
    wal = WalBuilder()
    wal.add(b"before")
    point = wal.add(with_main(bytes(8) + b"here".ljust(64, b"\0")), rmid=0, info=0x70)
    change = wal.add(with_main(struct.pack("<6i2?2x", 40, 8, 10, 0, 64, 1, False, False)), rmid=0, info=0x60)
    values = {
        "max_connections": 40,
        "max_worker_processes": 8,
        "max_wal_senders": 10,
        "max_prepared_transactions": 0,
        "max_locks_per_transaction": 64,
    }
    assert notable(wal) == [
        RestorePoint(point.start_lsn, point.previous_lsn, "here"),
        ParametersChanged(change.start_lsn, change.previous_lsn, values),
    ]


def test_a_copy_of_the_record_among_the_data_of_a_table_is_not_taken_for_one() -> None:
    written = WalBuilder()
    written.add(with_main(CREATE), rmid=5)
    wal = WalBuilder()
    wal.add(bytes(8) + bytes(written.data[40:]))
    wal.add(b"after")
    assert notable(wal) == []


def test_wal_that_cannot_be_decoded_is_reported_and_not_taken_for_its_end() -> None:
    wal = WalBuilder()
    before = wal.add(b"before")
    record = wal.add(with_main(CREATE), rmid=5)
    wal.data[record.start_lsn - wal.begin_lsn + 40] ^= 1
    wal.add(with_main(CREATE), rmid=5)
    [found] = notable(wal)
    assert isinstance(found, Undecodable)
    assert found.record_lsn == before.start_lsn


def test_the_zeros_after_a_switch_do_not_hide_the_next_segment() -> None:
    wal = WalBuilder()
    wal.switch()
    wal.add(with_main(CREATE), rmid=5)
    assert [type(each) for each in notable(wal)] == [TablespaceCreated]
