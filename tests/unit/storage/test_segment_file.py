"""One segment file: its footer, and what of it counts after a crash."""

import random
from collections.abc import Callable
from pathlib import Path

import google_crc32c
import pytest

from safekeeper.base.errors import StorageFailed, StorageFull
from safekeeper.base.lsn import segment_name
from safekeeper.storage import segment_file
from safekeeper.storage.filesystem import RealFile, RealFileSystem
from safekeeper.storage.segment_file import (
    FOOTER_BYTES,
    SLOT_BYTES,
    FooterSlot,
    SegmentFile,
    create_segment,
    newest_valid_slot,
    open_segment,
    slot_offset,
)
from tests.simulation.model.virtual_disk import SECTOR_BYTES, VirtualFileSystem

DIRECTORY = Path("/data/wal")
SIZE = 8192
BEGIN_LSN = 5 * SIZE
PATH = DIRECTORY / segment_name(1, BEGIN_LSN, SIZE)


def new_segment(fs: VirtualFileSystem) -> SegmentFile:
    return create_segment(fs, DIRECTORY, tli=1, begin_lsn=BEGIN_LSN, segment_size=SIZE)


def flush(segment: SegmentFile) -> FooterSlot:
    slot = segment.take_slot()
    assert slot is not None
    segment.write_slot(slot)
    segment.sync()
    return slot


def found(fs: VirtualFileSystem) -> FooterSlot | None:
    return newest_valid_slot(fs.open(PATH), PATH, BEGIN_LSN, SIZE)


def end_found(fs: VirtualFileSystem) -> int:
    slot = found(fs)
    assert slot is not None
    return slot.end_lsn - BEGIN_LSN


def test_a_slot_comes_back_as_it_was_encoded() -> None:
    slot = FooterSlot(sequence=(1 << 40) + 3, begin_lsn=(1 << 63) + 7, end_lsn=(1 << 64) - 1, data_crc=0xFFFFFFFF)
    encoded = slot.encode()
    assert len(encoded) == SLOT_BYTES
    assert FooterSlot.decode(encoded) == slot
    assert not encoded[SECTOR_BYTES:].strip(b"\0"), "what counts must lie in one sector"
    other = bytes(byte ^ 1 for byte in encoded[:4]) + encoded[4 : segment_file._SLOT.size]
    checksum = segment_file._CRC.pack(google_crc32c.value(other))
    assert FooterSlot.decode(other + checksum + bytes(SLOT_BYTES)) is None, "another magic, with its own checksum"


def test_all_of_a_segment_is_written_when_it_is_created_so_that_its_disk_space_is_allocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: set[int] = set()
    pwrite = RealFile.pwrite

    def recorded(file: RealFile, data: bytes, offset: int) -> None:
        written.update(range(offset, offset + len(data)))
        pwrite(file, data, offset)

    monkeypatch.setattr(RealFile, "pwrite", recorded)
    create_segment(RealFileSystem(), tmp_path, tli=1, begin_lsn=SIZE, segment_size=SIZE).close()
    assert written >= set(range(SIZE))


def test_a_slot_with_any_byte_changed_is_no_slot() -> None:
    encoded = FooterSlot(3, BEGIN_LSN, BEGIN_LSN + 9, 77).encode()
    length = len(encoded.rstrip(b"\0"))
    for position in range(length):
        damaged = bytearray(encoded)
        damaged[position] ^= 1
        assert FooterSlot.decode(bytes(damaged)) is None, position
    assert FooterSlot.decode(bytes(SLOT_BYTES)) is None
    assert FooterSlot.decode(b"") is None


def test_a_file_is_the_segment_and_two_slots_and_has_no_other_trace(tmp_path: Path) -> None:
    segment = create_segment(RealFileSystem(), tmp_path, tli=3, begin_lsn=BEGIN_LSN, segment_size=SIZE)
    segment.append(b"wal" * 100)
    flush(segment)
    segment.close()
    (path,) = tmp_path.iterdir()
    assert path.name == "000000030000000000000005"
    content = path.read_bytes()
    assert len(content) == SIZE + FOOTER_BYTES
    assert content[:SIZE] == (b"wal" * 100).ljust(SIZE, b"\0")
    assert FooterSlot.decode(content[SIZE:]) == FooterSlot(2, BEGIN_LSN, BEGIN_LSN, 0)
    assert FooterSlot.decode(content[SIZE + SLOT_BYTES :]) == FooterSlot(
        3, BEGIN_LSN, BEGIN_LSN + 300, google_crc32c.value(b"wal" * 100)
    )


def test_slots_take_turns_and_each_covers_what_was_written_since_the_last() -> None:
    segment = new_segment(VirtualFileSystem(random.Random(1)))
    assert segment.take_slot() is None
    slots = []
    for piece in (b"a" * 10, b"b" * 20, b"c" * 30):
        segment.append(piece)
        slots.append(flush(segment))
    assert segment.take_slot() is None, "nothing was written since"
    assert [slot.end_lsn - slot.begin_lsn for slot in slots] == [10, 20, 30]
    assert [slot.begin_lsn for slot in slots[1:]] == [slot.end_lsn for slot in slots[:-1]]
    offsets = [slot_offset(SIZE, slot.sequence) for slot in slots]
    assert offsets[0] == offsets[2] != offsets[1]
    assert set(offsets) == {SIZE, SIZE + SLOT_BYTES}


def test_bytes_appended_after_the_slot_was_taken_belong_to_the_next() -> None:
    segment = new_segment(VirtualFileSystem(random.Random(1)))
    segment.append(b"first")
    slot = segment.take_slot()
    segment.append(b"second")
    assert slot is not None
    assert slot.data_crc == google_crc32c.value(b"first")
    following = segment.take_slot()
    assert following is not None
    assert following.data_crc == google_crc32c.value(b"second")


def test_the_newest_slot_whose_bytes_check_reports_the_end() -> None:
    fs = VirtualFileSystem(random.Random(1))
    segment = new_segment(fs)
    assert end_found(fs) == 0
    for _ in range(3):
        segment.append(b"x" * 700)
        flush(segment)
    assert end_found(fs) == 2100
    fs.damage(PATH, 2000, b"?")
    assert end_found(fs) == 1400
    fs.damage(PATH, 1000, b"?")
    assert found(fs) is None


def test_a_torn_slot_leaves_the_one_before_it() -> None:
    fs = VirtualFileSystem(random.Random(1))
    segment = new_segment(fs)
    segment.append(b"x" * 700)
    flush(segment)
    segment.append(b"y" * 700)
    newest = flush(segment)
    fs.damage(PATH, slot_offset(SIZE, newest.sequence), b"torn")
    assert end_found(fs) == 700


@pytest.mark.parametrize(
    ("begin_lsn", "end_lsn"),
    [
        (BEGIN_LSN - SIZE, BEGIN_LSN - SIZE),
        (BEGIN_LSN - 1, BEGIN_LSN),
        (BEGIN_LSN + SIZE, BEGIN_LSN + SIZE + 1),
        (BEGIN_LSN + 8, BEGIN_LSN + 7),
    ],
)
def test_a_slot_of_another_segment_says_nothing(begin_lsn: int, end_lsn: int) -> None:
    fs = VirtualFileSystem(random.Random(1))
    new_segment(fs)
    foreign = FooterSlot(99, begin_lsn, end_lsn, google_crc32c.value(bytes(max(0, end_lsn - begin_lsn))))
    fs.damage(PATH, slot_offset(SIZE, 99), foreign.encode())
    assert end_found(fs) == 0


def test_a_cut_ends_the_segment_even_if_the_next_append_is_lost() -> None:
    for seed in range(50):
        fs = VirtualFileSystem(random.Random(seed))
        segment = new_segment(fs)
        for _ in range(2):
            segment.append(b"old!" * 250)
            flush(segment)
        segment.cut(BEGIN_LSN + 500)
        segment.append(b"new!" * 100)
        slot = segment.take_slot()
        assert slot is not None
        segment.write_slot(slot)
        fs.crash()
        assert end_found(fs) in (500, 900), f"seed {seed}"


def test_a_segment_opened_again_goes_on_where_it_ended() -> None:
    fs = VirtualFileSystem(random.Random(1))
    segment = new_segment(fs)
    segment.append(b"a" * 100)
    flush(segment)
    segment.close()
    again = open_segment(fs, DIRECTORY, tli=1, begin_lsn=BEGIN_LSN, segment_size=SIZE)
    assert again.read(BEGIN_LSN, again.write_lsn) == b"a" * 100
    assert again.sequence == segment.sequence
    again.append(b"b" * 50)
    flush(again)
    assert end_found(fs) == 150


def test_a_segment_that_is_opened_is_the_one_that_was_created() -> None:
    fs = VirtualFileSystem(random.Random(1))
    created = create_segment(fs, DIRECTORY, tli=3, begin_lsn=BEGIN_LSN, segment_size=SIZE, wal=[b"a" * 10, b"b" * 5])
    opened = open_segment(fs, DIRECTORY, tli=3, begin_lsn=BEGIN_LSN, segment_size=SIZE)
    for segment in (created, opened):
        assert (segment.tli, segment.path) == (3, DIRECTORY / segment_name(3, BEGIN_LSN, SIZE))
        assert (segment.begin_lsn, segment.end_lsn, segment.write_lsn) == (BEGIN_LSN, BEGIN_LSN + SIZE, BEGIN_LSN + 15)
        assert (segment.sequence, segment.unslotted_lsn, segment.crc) == (2, BEGIN_LSN + 15, 0)
        assert segment.read(BEGIN_LSN + 5, BEGIN_LSN + 15) == b"a" * 5 + b"b" * 5


def test_a_segment_without_a_footer_cannot_be_opened() -> None:
    fs = VirtualFileSystem(random.Random(1))
    new_segment(fs)
    fs.damage(PATH, SIZE, bytes(FOOTER_BYTES))
    with pytest.raises(StorageFailed, match=r"0{7}10{15}5 has lost its footer: .*replace it"):
        open_segment(fs, DIRECTORY, tli=1, begin_lsn=BEGIN_LSN, segment_size=SIZE)


def test_a_created_segment_survives_a_crash_at_once() -> None:
    for seed in range(20):
        fs = VirtualFileSystem(random.Random(seed))
        new_segment(fs)
        fs.crash()
        assert fs.listdir(DIRECTORY) == [PATH.name]
        assert end_found(fs) == 0


def test_creating_a_segment_without_room_leaves_no_trace() -> None:
    for room_bytes in (0, SIZE // 2, SIZE + SLOT_BYTES):
        fs = VirtualFileSystem(random.Random(1), capacity_bytes=room_bytes)
        with pytest.raises(StorageFull, match="no space left"):
            new_segment(fs)
        assert fs.listdir(DIRECTORY) == [] and fs.open_files == 0


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename", "sync folder"])
def test_creating_a_segment_on_a_failing_disk_fails(operation: str) -> None:
    fs = VirtualFileSystem(random.Random(1))
    fs.fail_in(1, only=operation)
    with pytest.raises(StorageFailed, match="input/output error"):
        new_segment(fs)


def test_copied_wal_that_is_not_what_was_checked_is_refused() -> None:
    fs = VirtualFileSystem(random.Random(1))

    def copy(wal: bytes) -> SegmentFile:
        expected = FooterSlot(7, BEGIN_LSN + 1, BEGIN_LSN + 4, google_crc32c.value(b"bcd"))
        return create_segment(
            fs, DIRECTORY, tli=1, begin_lsn=BEGIN_LSN, segment_size=SIZE, wal=[wal], expected=expected
        )

    with pytest.raises(StorageFailed, match="changed while it was read"):
        copy(b"abXd")
    assert copy(b"abcd").write_lsn == BEGIN_LSN + 4


def test_reading_beyond_the_end_of_a_short_file_fails(tmp_path: Path) -> None:
    segment = create_segment(RealFileSystem(), tmp_path, tli=1, begin_lsn=BEGIN_LSN, segment_size=SIZE)
    segment.path.write_bytes(b"short")
    with pytest.raises(StorageFailed, match="ends at byte 5, before the end of its WAL"):
        segment.read(BEGIN_LSN, BEGIN_LSN + 10)
    segment.close()


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda fs, path: fs.open(path / "missing"), "could not open .*missing: No such file"),
        (lambda fs, path: fs.unlink(path / "missing"), "could not remove .*missing: No such file"),
        (lambda fs, path: fs.rename(path / "missing", path / "new"), "could not rename to new .*missing: No such"),
        (lambda fs, path: fs.fsync_directory(path / "missing"), "could not sync folder .*missing: No such file"),
        (lambda fs, path: fs.make_directory(path / "missing" / "deep"), "could not create folder .*deep: No such"),
        (lambda fs, path: fs.space(path / "missing"), "could not measure the space of .*missing: No such file"),
    ],
)
def test_the_operating_systems_errors_name_the_path(
    tmp_path: Path, attempt: Callable[[RealFileSystem, Path], object], message: str
) -> None:
    with pytest.raises(StorageFailed, match=message):
        attempt(RealFileSystem(), tmp_path)
