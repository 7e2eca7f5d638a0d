"""The log over many segment files: appends, flushes, cuts, reads, and what its folder may look like."""

import errno
import os
import random
import threading
from itertools import pairwise
from pathlib import Path

import google_crc32c
import pytest

from safekeeper.base.errors import LocalProtocolError, ResourceShortage, StorageFailed, StorageFull
from safekeeper.base.lsn import segment_name
from safekeeper.storage.filesystem import RealFileSystem
from safekeeper.storage.recovery import inspect
from safekeeper.storage.segment_file import FOOTER_BYTES, SegmentFile
from safekeeper.storage.wal_log import WalStorage
from tests.simulation.model.virtual_disk import VirtualFileSystem

DIRECTORY = Path("/data/wal")
SIZE = 8192
BASE = 4 * SIZE
BYTES = random.Random(0).randbytes(10 * SIZE)


@pytest.fixture
def fs() -> VirtualFileSystem:
    return VirtualFileSystem(random.Random(0))


@pytest.fixture
def storage(fs: VirtualFileSystem) -> WalStorage:
    storage = open_log(fs)
    storage.reset(BASE, 1)
    return storage


def open_log(fs: VirtualFileSystem, tli: int = 1) -> WalStorage:
    return WalStorage.open(fs, DIRECTORY, segment_size=SIZE, tli=tli)


def name(tli: int, lsn: int) -> str:
    return segment_name(tli, lsn, SIZE)


def write(storage: WalStorage, length: int) -> None:
    """Append `length` of the bytes that belong at write_lsn, and flush."""
    begin = storage.write_lsn - BASE
    storage.append(storage.write_lsn, BYTES[begin : begin + length])
    storage.flush_now()


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_new_folder_is_empty_and_takes_no_append(fs: VirtualFileSystem) -> None:
    storage = open_log(fs)
    assert storage.is_empty
    assert (storage.begin_lsn, storage.write_lsn, storage.flush_lsn) == (0, 0, 0)
    with pytest.raises(
        LocalProtocolError, match="the log is empty, and cannot serve an append at 0/0: reset it to a base first"
    ):
        storage.append(0, b"x")


def test_an_append_moves_write_and_a_flush_moves_flush(storage: WalStorage) -> None:
    storage.append(BASE, BYTES[:100])
    assert (storage.write_lsn, storage.flush_lsn) == (BASE + 100, BASE)
    storage.flush_now()
    assert storage.flush_lsn == BASE + 100
    assert storage.start_flush() is None


@pytest.mark.parametrize("offset", [-1, 1, SIZE])
def test_an_append_elsewhere_than_at_the_end_is_refused(storage: WalStorage, offset: int) -> None:
    write(storage, 100)
    with pytest.raises(LocalProtocolError, match=r"is outside of the WAL, \[0/8000, 0/8064\)"):
        storage.append(storage.write_lsn + offset, b"x")
    assert storage.write_lsn == BASE + 100


def test_a_flush_covers_what_was_written_when_it_was_taken(storage: WalStorage) -> None:
    storage.append(BASE, BYTES[:100])
    flush = storage.start_flush()
    assert flush is not None
    storage.append(BASE + 100, BYTES[100:200])
    assert storage.start_flush() is None
    flush.run()
    assert storage.flush_lsn == BASE
    storage.finish_flush(flush)
    assert storage.flush_lsn == BASE + 100
    storage.flush_now()
    assert storage.flush_lsn == BASE + 200


def test_a_flush_counts_only_after_it_was_carried_out(storage: WalStorage) -> None:
    storage.append(BASE, b"x")
    flush = storage.start_flush()
    assert flush is not None
    with pytest.raises(LocalProtocolError, match="has not been carried out"):
        storage.finish_flush(flush)
    with pytest.raises(LocalProtocolError, match="is not finished: finish it first"):
        storage.flush_now()
    flush.run()
    with pytest.raises(LocalProtocolError, match="already"):
        flush.run()
    storage.finish_flush(flush)
    assert storage.flush_lsn == BASE + 1


def test_a_flush_counts_once(storage: WalStorage) -> None:
    storage.append(BASE, BYTES[:10])
    first = storage.start_flush()
    assert first is not None
    first.run()
    storage.finish_flush(first)
    storage.append(BASE + 10, BYTES[10:20])
    second = storage.start_flush()
    assert second is not None
    with pytest.raises(LocalProtocolError, match="has not been carried out"):
        storage.finish_flush(first)
    assert storage.flush_lsn == BASE + 10
    second.run()
    storage.finish_flush(second)
    assert storage.flush_lsn == BASE + 20


def test_a_flush_over_several_segments_leaves_those_open_that_it_has_not_covered(storage: WalStorage) -> None:
    storage.append(BASE, BYTES[: SIZE + 10])
    flush = storage.start_flush()
    assert flush is not None and flush.end_lsn == BASE + SIZE + 10
    storage.append(BASE + SIZE + 10, BYTES[SIZE + 10 : 3 * SIZE])
    flush.run()
    storage.finish_flush(flush)
    assert storage.flush_lsn == BASE + SIZE + 10
    storage.append(BASE + 3 * SIZE, BYTES[3 * SIZE : 3 * SIZE + 5])
    storage.flush_now()
    assert storage.read(BASE, storage.flush_lsn) == BYTES[: 3 * SIZE + 5]


def test_an_append_that_just_fills_a_segment_needs_no_space(fs: VirtualFileSystem, storage: WalStorage) -> None:
    fs.capacity_bytes = fs.used_bytes()
    write(storage, 100)
    write(storage, SIZE - 100)
    assert storage.flush_lsn == BASE + SIZE
    with pytest.raises(StorageFull):
        storage.append(BASE + SIZE, b"x")


def test_recovery_finds_exactly_what_was_flushed() -> None:
    for seed in range(50):
        fs = VirtualFileSystem(random.Random(seed))
        storage = open_log(fs)
        storage.reset(BASE, 1)
        write(storage, 3 * SIZE + 700)
        fs.crash()
        again = open_log(fs)
        assert (again.begin_lsn, again.flush_lsn, again.write_lsn) == (BASE, BASE + 3 * SIZE + 700, again.flush_lsn)
        assert again.read(BASE, again.flush_lsn) == BYTES[: 3 * SIZE + 700]


def test_a_memoryview_can_be_appended(storage: WalStorage) -> None:
    storage.append(BASE, memoryview(bytearray(BYTES[: SIZE + 10])))
    assert storage.read(BASE, storage.write_lsn) == BYTES[: SIZE + 10]


def test_reads_cross_segments_whether_flushed_or_not(storage: WalStorage) -> None:
    write(storage, 2 * SIZE + 100)
    storage.append(storage.write_lsn, BYTES[2 * SIZE + 100 : 4 * SIZE])
    for begin, end in ((0, 0), (0, 10), (SIZE - 5, SIZE + 5), (10, 4 * SIZE), (4 * SIZE, 4 * SIZE)):
        assert storage.read(BASE + begin, BASE + end) == BYTES[begin:end]
    for begin, end in ((-1, 5), (5, 4 * SIZE + 1), (6, 5)):
        with pytest.raises(LocalProtocolError, match="a read of"):
            storage.read(BASE + begin, BASE + end)


def test_many_old_segments_can_be_read_in_any_order(fs: VirtualFileSystem, storage: WalStorage) -> None:
    write(storage, 10 * SIZE)
    storage.append(storage.write_lsn, b"tail")
    for number in (0, 9, 3, 1, 2, 4, 5, 6, 7, 8, 0, 9):
        begin = number * SIZE
        assert storage.read(BASE + begin, BASE + begin + SIZE) == BYTES[begin : begin + SIZE]


def test_few_files_are_open_however_long_the_log(tmp_path: Path) -> None:
    storage = WalStorage.open(RealFileSystem(), tmp_path / "wal", segment_size=SIZE, tli=1)
    storage.reset(BASE, 1)
    before = open_files()
    for _ in range(40):
        storage.append(storage.write_lsn, BYTES[:SIZE])
        storage.flush_now()
    assert open_files() == before
    for lsn in range(BASE, storage.write_lsn, SIZE):
        assert storage.read(lsn, lsn + 10) == BYTES[:10]
    assert open_files() <= before + 8
    storage.close()
    assert open_files() == before - 1


@pytest.mark.parametrize("page_size", [8192, 3000, 512])
def test_page_digests_are_the_crcs_of_the_aligned_pieces(storage: WalStorage, page_size: int) -> None:
    write(storage, 5 * SIZE)
    begin, end = BASE + 777, BASE + 4 * SIZE + 9
    expected, piece_begin = [], begin
    while piece_begin < end:
        piece_end = min(end, (piece_begin // page_size + 1) * page_size)
        expected.append(google_crc32c.value(BYTES[piece_begin - BASE : piece_end - BASE]))
        piece_begin = piece_end
    assert storage.page_digests(begin, end, page_size) == expected
    assert storage.page_digests(begin, begin, page_size) == []


def test_page_digests_of_more_wal_than_is_read_at_once_are_those_of_whole_pages(storage: WalStorage) -> None:
    wal = random.Random(2).randbytes(2 << 20)
    storage.append(BASE, wal)
    begin = BASE + 100
    borders = [begin, *range(begin - begin % 3000 + 3000, BASE + len(wal), 3000), BASE + len(wal)]
    expected = [google_crc32c.value(wal[low - BASE : high - BASE]) for low, high in pairwise(borders)]
    assert storage.page_digests(begin, BASE + len(wal), 3000) == expected


def test_an_append_without_room_changes_nothing_and_works_when_there_is_room(
    fs: VirtualFileSystem, storage: WalStorage
) -> None:
    write(storage, 100)
    # Room for one more segment, not for two.
    fs.capacity_bytes = fs.used_bytes() + SIZE + FOOTER_BYTES + 100
    with pytest.raises(StorageFull, match="no space left"):
        storage.append(BASE + 100, BYTES[100 : 2 * SIZE + 200])
    assert storage.write_lsn == BASE + 100
    assert storage.read(BASE, BASE + 100) == BYTES[:100]
    storage.append(BASE + 100, BYTES[100 : 2 * SIZE])
    storage.flush_now()
    fs.capacity_bytes = 1 << 30
    write(storage, 200)
    fs.crash()
    assert open_log(fs).flush_lsn == BASE + 2 * SIZE + 200


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_failed_flush_is_never_tried_again(fs: VirtualFileSystem, storage: WalStorage, operation: str) -> None:
    storage.append(BASE, b"x" * 100)
    flush = storage.start_flush()
    assert flush is not None
    fs.fail_in(1, only=operation)
    with pytest.raises(StorageFailed, match="input/output error; the safekeeper must be restarted"):
        flush.run()
    for attempt in (
        lambda: storage.append(BASE + 100, b"y"),
        lambda: storage.finish_flush(flush),
        storage.start_flush,
        storage.flush_now,
        storage.prepare_ahead,
        lambda: storage.truncate(BASE, 1),
        lambda: storage.reset(BASE, 1),
        lambda: storage.read(BASE, BASE),
    ):
        with pytest.raises(StorageFailed, match="must be restarted"):
            attempt()


def test_no_room_for_live_wal_is_a_failure_not_a_refusal(fs: VirtualFileSystem, storage: WalStorage) -> None:
    """A file system that copies on write may have no room for a block that exists."""

    class FullFile:
        def pwrite(self, data: bytes, offset: int) -> None:
            raise StorageFull("could not write: no space left on device")

        def pread(self, length: int, offset: int) -> bytes:
            return b""

        def fdatasync(self) -> None:
            pass

        def size(self) -> int:
            return 0

        def close(self) -> None:
            pass

    storage._writing[-1].file = FullFile()
    with pytest.raises(StorageFailed, match="no space left"):
        storage.append(BASE, b"x")


@pytest.mark.parametrize(
    ("call", "number", "message"),
    [
        ("pwrite", errno.EIO, "could not write .*: Input/output error; the safekeeper must be restarted"),
        ("pwrite", errno.ENOSPC, "could not write .*: No space left on device; the safekeeper must"),
        ("pwrite", errno.ENOMEM, "could not write .*: Cannot allocate memory; the safekeeper must"),
        ("fdatasync", errno.EIO, "could not sync .*: Input/output error; the safekeeper must be restarted"),
    ],
)
def test_an_error_of_the_system_at_an_append_or_a_flush_ends_the_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, message: str
) -> None:
    def fails(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    for appended in (0, 100):
        if call == "fdatasync" and not appended:
            continue
        storage = WalStorage.open(RealFileSystem(), tmp_path / f"{appended}", segment_size=SIZE, tli=1)
        storage.reset(BASE, 1)
        if appended:
            storage.append(BASE, b"x" * appended)
        with monkeypatch.context() as patch:
            patch.setattr(os, call, fails)
            with pytest.raises(StorageFailed, match=message):
                storage.flush_now() if appended else storage.append(BASE, b"x")
        assert (storage.write_lsn, storage.flush_lsn) == (BASE + appended, BASE)
        with pytest.raises(StorageFailed, match="must be restarted"):
            storage.append(BASE + appended, b"y")


def test_what_the_system_writes_in_parts_is_written_completely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = WalStorage.open(RealFileSystem(), tmp_path / "wal", segment_size=SIZE, tli=1)
    storage.reset(BASE, 1)
    whole = os.pwrite
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda file, data, offset: whole(file, data[: len(data) // 200 + 1], offset))
        storage.append(BASE, b"0123456789")
        storage.flush_now()
    storage.close()
    again = WalStorage.open(RealFileSystem(), tmp_path / "wal", segment_size=SIZE, tli=1)
    assert again.read(BASE, again.flush_lsn) == b"0123456789"
    again.close()


def test_a_closed_file_writes_nothing_more_into_whichever_has_its_number(tmp_path: Path) -> None:
    file = RealFileSystem().create(tmp_path / "file")
    file_number = file._descriptor
    file.close()
    other = RealFileSystem().create(tmp_path / "other")
    assert other._descriptor == file_number
    with pytest.raises(StorageFailed, match="Bad file descriptor"):
        file.pwrite(b"x", 0)
    other.close()


@pytest.mark.parametrize("length", [SIZE // 2 + 100, SIZE, 2 * SIZE, 2 * SIZE + 1, 3 * SIZE])
@pytest.mark.parametrize("cut", [0, 1, SIZE - 1, SIZE, SIZE + 1, 2 * SIZE])
@pytest.mark.parametrize("flushed", [True, False])
def test_a_cut_ends_the_log_durably_and_renames_the_segment_it_lies_in(length: int, cut: int, flushed: bool) -> None:
    if cut > length:
        return
    fs = VirtualFileSystem(random.Random(length + cut))
    storage = open_log(fs)
    storage.reset(BASE, 1)
    storage.append(BASE, BYTES[:length])
    if flushed:
        storage.flush_now()
    storage.truncate(BASE + cut, 2)
    assert (storage.write_lsn, storage.flush_lsn, storage.tli) == (BASE + cut, BASE + cut, 2)
    kept = [name(1, BASE + start) for start in range(0, cut - cut % SIZE, SIZE)]
    if cut % SIZE or cut == 0:
        kept.append(name(2, BASE + cut))
    assert sorted(fs.listdir(DIRECTORY)) == kept
    fs.crash()
    again = open_log(fs, tli=2)
    assert again.flush_lsn == BASE + cut
    again.append(again.write_lsn, b"N" * SIZE)
    again.flush_now()
    assert name(2, BASE + cut + SIZE - 1) in fs.listdir(DIRECTORY)
    assert again.read(BASE, again.write_lsn) == BYTES[:cut] + b"N" * SIZE


def test_a_cut_at_the_end_changes_only_the_tli(fs: VirtualFileSystem, storage: WalStorage) -> None:
    write(storage, 100)
    storage.truncate(storage.write_lsn, 2)
    assert fs.listdir(DIRECTORY) == [name(2, BASE)]
    write(storage, 100)
    assert storage.read(BASE, BASE + 200) == BYTES[:200]
    storage.truncate(BASE + 50, 1)
    assert fs.listdir(DIRECTORY) == [name(1, BASE)]


@pytest.mark.parametrize("cut", [0, 1, SIZE])
def test_a_cut_where_the_log_begins_after_a_removal_leaves_an_empty_segment(
    fs: VirtualFileSystem, storage: WalStorage, cut: int
) -> None:
    write(storage, 3 * SIZE + 100)
    storage.trim(BASE + 2 * SIZE)
    storage.truncate(BASE + 2 * SIZE + cut, 2)
    assert (storage.begin_lsn, storage.flush_lsn) == (BASE + 2 * SIZE, BASE + 2 * SIZE + cut)
    assert fs.listdir(DIRECTORY) == [name(1 if cut == SIZE else 2, BASE + 2 * SIZE)]
    fs.crash()
    again = WalStorage.open(fs, DIRECTORY, segment_size=SIZE, tli=2, begin_lsn=BASE + 2 * SIZE)
    assert (again.begin_lsn, again.flush_lsn) == (BASE + 2 * SIZE, BASE + 2 * SIZE + cut)
    with pytest.raises(LocalProtocolError, match="a cut at"):
        again.truncate(BASE + 2 * SIZE - 1, 3)


def test_segments_that_were_read_before_a_cut_are_not_read_again_after_it(tmp_path: Path) -> None:
    storage = WalStorage.open(RealFileSystem(), tmp_path / "wal", segment_size=SIZE, tli=1)
    storage.reset(BASE, 1)
    write(storage, 4 * SIZE)
    for number in range(4):
        assert storage.read(BASE + number * SIZE, BASE + number * SIZE + 10) == BYTES[number * SIZE :][:10]
    storage.truncate(BASE + SIZE + 100, 2)
    storage.append(storage.write_lsn, b"N" * 3 * SIZE)
    storage.flush_now()
    assert storage.read(BASE, storage.write_lsn) == BYTES[: SIZE + 100] + b"N" * 3 * SIZE
    storage.reset(BASE, 3)
    storage.append(BASE, b"M" * 2 * SIZE + b"end")
    storage.flush_now()
    assert storage.read(BASE, storage.write_lsn) == b"M" * 2 * SIZE + b"end"
    storage.close()


def test_an_empty_log_cannot_be_cut_and_has_nothing_to_remove(fs: VirtualFileSystem, storage: WalStorage) -> None:
    assert storage.forget_below(BASE) is None
    empty = WalStorage.open(fs, DIRECTORY.with_name("empty"), segment_size=SIZE, tli=1)
    with pytest.raises(LocalProtocolError, match="the log is empty, and cannot serve a cut at 0/0"):
        empty.truncate(0, 1)
    assert empty.forget_below(0) is None


def test_a_cut_that_lacks_memory_halfway_fails_the_storage(
    storage: WalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(storage, 100)

    def lacks_memory(*_: object) -> None:
        raise ResourceShortage("no memory")

    monkeypatch.setattr(SegmentFile, "cut", lacks_memory)
    with pytest.raises(StorageFailed, match="no memory"):
        storage.truncate(BASE + 50, 2)
    with pytest.raises(StorageFailed):
        storage.append(storage.write_lsn, b"x")


@pytest.mark.parametrize("lsn", [BASE - 1, BASE + 101])
def test_a_cut_outside_the_log_is_refused(storage: WalStorage, lsn: int) -> None:
    write(storage, 100)
    with pytest.raises(LocalProtocolError, match=r"a cut at .* is outside of"):
        storage.truncate(lsn, 1)
    assert storage.flush_lsn == BASE + 100


def test_a_segment_is_prepared_past_the_half_and_used_by_the_append_that_needs_it(
    fs: VirtualFileSystem, storage: WalStorage
) -> None:
    write(storage, SIZE // 2)
    assert storage.prepare_ahead() is None
    write(storage, 1)
    preparation = storage.prepare_ahead()
    assert preparation is not None
    assert storage.prepare_ahead() is None
    preparation.run()
    storage.finish_preparation(preparation)
    assert name(1, BASE + SIZE) in fs.listdir(DIRECTORY)
    assert storage.prepare_ahead() is None
    before = fs.operations
    storage.append(storage.write_lsn, BYTES[SIZE // 2 + 1 : SIZE + 100])
    assert fs.operations - before == 2, "an append into prepared segments only writes"


def test_a_segment_that_was_prepared_and_not_used_is_closed_with_the_log(
    fs: VirtualFileSystem, storage: WalStorage
) -> None:
    write(storage, SIZE // 2 + 1)
    preparation = storage.prepare_ahead()
    assert preparation is not None
    preparation.run()
    storage.close()
    assert fs.open_files == 0


def test_an_append_takes_over_a_preparation_that_has_not_begun(fs: VirtualFileSystem, storage: WalStorage) -> None:
    write(storage, SIZE - 1)
    preparation = storage.prepare_ahead()
    assert preparation is not None
    write(storage, 100)
    before = fs.operations
    preparation.run()
    storage.finish_preparation(preparation)
    assert fs.operations == before, "the file was made a second time, over WAL that is in use"
    assert storage.read(BASE, storage.write_lsn) == BYTES[: SIZE + 99]


def test_an_append_waits_for_a_preparation_in_another_thread(tmp_path: Path) -> None:
    storage = WalStorage.open(RealFileSystem(), tmp_path / "wal", segment_size=1 << 20, tli=1)
    storage.reset(1 << 20, 1)
    for _ in range(20):
        storage.append(storage.write_lsn, bytes((storage.write_lsn | ((1 << 20) - 1)) - storage.write_lsn))
        preparation = storage.prepare_ahead()
        assert preparation is not None
        thread = threading.Thread(target=preparation.run)
        thread.start()
        storage.append(storage.write_lsn, b"across")
        thread.join(timeout=30)
        storage.finish_preparation(preparation)
        assert storage.read(storage.write_lsn - 6, storage.write_lsn) == b"across"
    storage.flush_now()
    storage.close()


def test_appends_go_on_while_flushes_run_in_another_thread(tmp_path: Path) -> None:
    wal = random.Random(1).randbytes(5 << 20)
    storage = WalStorage.open(RealFileSystem(), tmp_path / "wal", segment_size=1 << 20, tli=1)
    storage.reset(1 << 20, 1)
    position, step = 0, 5000
    while position < len(wal):
        flush = storage.start_flush()
        thread = threading.Thread(target=flush.run) if flush is not None else None
        if thread is not None:
            thread.start()
        for _ in range(20):
            piece = wal[position : position + step]
            storage.append((1 << 20) + position, piece)
            position += len(piece)
        if flush is not None and thread is not None:
            thread.join(timeout=30)
            storage.finish_flush(flush)
    storage.flush_now()
    storage.close()
    again = WalStorage.open(RealFileSystem(), tmp_path / "wal", segment_size=1 << 20, tli=1)
    assert again.flush_lsn == (1 << 20) + len(wal)
    assert again.read(1 << 20, again.flush_lsn) == wal
    again.close()


def test_a_preparation_without_room_is_offered_again(fs: VirtualFileSystem, storage: WalStorage) -> None:
    write(storage, SIZE - 10)
    preparation = storage.prepare_ahead()
    assert preparation is not None
    fs.capacity_bytes = fs.used_bytes()
    with pytest.raises(StorageFull):
        preparation.run()
    storage.finish_preparation(preparation)
    write(storage, 10)
    again = storage.prepare_ahead()
    assert again is not None
    fs.capacity_bytes = 1 << 30
    again.run()
    storage.finish_preparation(again)
    write(storage, 10)
    assert storage.flush_lsn == BASE + SIZE + 10


def test_a_cut_forgets_what_was_prepared_under_the_old_tli(fs: VirtualFileSystem, storage: WalStorage) -> None:
    for when in ("before", "during", "after"):
        write(storage, SIZE - 100 - (storage.write_lsn - BASE))
        preparation = storage.prepare_ahead()
        assert preparation is not None
        if when != "before":
            preparation.run()
        if when == "after":
            storage.finish_preparation(preparation)
        storage.truncate(BASE + 10, storage.tli + 1)
        preparation.run()
        storage.finish_preparation(preparation)
        assert fs.listdir(DIRECTORY) == [name(storage.tli, BASE)], when


def test_a_reset_drops_everything_and_begins_anew_and_may_be_repeated(
    fs: VirtualFileSystem, storage: WalStorage
) -> None:
    write(storage, 3 * SIZE)
    for _ in range(2):
        storage.reset(BASE + 7 * SIZE, 3)
        assert fs.listdir(DIRECTORY) == [name(3, BASE + 7 * SIZE)]
        assert (storage.begin_lsn, storage.write_lsn, storage.flush_lsn) == (BASE + 7 * SIZE,) * 3
    fs.crash()
    assert open_log(fs).flush_lsn == BASE + 7 * SIZE


def test_a_reset_without_room_leaves_an_empty_log_and_may_be_repeated(
    fs: VirtualFileSystem, storage: WalStorage
) -> None:
    write(storage, 100)
    fs.capacity_bytes = 100
    with pytest.raises(StorageFull):
        storage.reset(BASE, 1)
    assert storage.is_empty and (storage.begin_lsn, storage.write_lsn, storage.flush_lsn) == (0, 0, 0)
    fs.capacity_bytes = 1 << 30
    storage.reset(BASE, 1)
    write(storage, 100)
    assert storage.flush_lsn == BASE + 100


@pytest.mark.parametrize("lsn", [0, 1, BASE + 1, BASE - 1])
def test_a_log_cannot_begin_but_at_a_segments_start(storage: WalStorage, lsn: int) -> None:
    with pytest.raises(LocalProtocolError, match="is not the start of a segment"):
        storage.reset(lsn, 1)


# Old WAL is removed.


def whole_names(begin: int, end: int) -> list[str]:
    """Return the names of the segments [begin, end) of the log."""
    return [name(1, BASE + number * SIZE) for number in range(begin, end)]


def test_segments_below_a_position_are_removed_and_the_rest_is_read_as_before(
    fs: VirtualFileSystem, storage: WalStorage
) -> None:
    write(storage, 4 * SIZE + 100)
    assert storage.read(BASE + SIZE, BASE + SIZE + 10) == BYTES[SIZE : SIZE + 10]  # Its file is open from now on.
    storage.trim(BASE + 3 * SIZE)
    assert (storage.begin_lsn, storage.flush_lsn) == (BASE + 3 * SIZE, BASE + 4 * SIZE + 100)
    assert sorted(fs.listdir(DIRECTORY)) == whole_names(3, 5)
    assert storage.read(BASE + 3 * SIZE, storage.write_lsn) == BYTES[3 * SIZE : 4 * SIZE + 100]
    assert storage.segment_path(BASE + 3 * SIZE - 1) is None
    with pytest.raises(LocalProtocolError, match="is outside of the WAL"):
        storage.read(BASE + SIZE, BASE + SIZE + 10)
    storage.trim(BASE + 3 * SIZE)
    storage.trim(BASE)
    assert storage.begin_lsn == BASE + 3 * SIZE
    write(storage, SIZE)
    fs.crash()
    again = WalStorage.open(fs, DIRECTORY, segment_size=SIZE, tli=1, begin_lsn=BASE + 3 * SIZE)
    assert (again.begin_lsn, again.flush_lsn) == (BASE + 3 * SIZE, BASE + 5 * SIZE + 100)
    assert again.read(again.begin_lsn, again.flush_lsn) == BYTES[3 * SIZE : 5 * SIZE + 100]


def test_what_is_left_behind_may_be_removed_later_but_is_gone_before_the_log_begins_anew(
    fs: VirtualFileSystem, storage: WalStorage
) -> None:
    write(storage, 4 * SIZE + 100)
    removal = storage.forget_below(BASE + 2 * SIZE)
    assert removal is not None and storage.begin_lsn == BASE + 2 * SIZE
    assert sorted(fs.listdir(DIRECTORY)) == whole_names(0, 5)
    write(storage, 10)
    removal.run()
    storage.finish_removal(removal)
    assert sorted(fs.listdir(DIRECTORY)) == whole_names(2, 5)
    late = storage.forget_below(BASE + 3 * SIZE)
    assert late is not None
    storage.reset(BASE + 2 * SIZE, 1)
    assert sorted(fs.listdir(DIRECTORY)) == whole_names(2, 3)
    late.run()
    assert sorted(fs.listdir(DIRECTORY)) == whole_names(2, 3), "that name belongs to another segment now"


def test_the_files_of_removed_segments_are_closed(tmp_path: Path) -> None:
    storage = WalStorage.open(RealFileSystem(), tmp_path / "wal", segment_size=1 << 20, tli=1)
    storage.reset(1 << 20, 1)
    storage.append(1 << 20, bytes(3 << 20))
    storage.flush_now()
    before = open_files()
    storage.read(1 << 20, 3 << 20)
    assert open_files() == before + 2
    storage.trim(3 << 20)
    assert open_files() == before
    storage.close()


@pytest.mark.parametrize("lsn", [BASE + SIZE + 1, BASE + 3 * SIZE, BASE + 9 * SIZE])
def test_nothing_is_removed_but_whole_segments_below_the_last_one(
    fs: VirtualFileSystem, storage: WalStorage, lsn: int
) -> None:
    write(storage, 2 * SIZE + 100)
    with pytest.raises(LocalProtocolError, match=r"a removal of WAL below .* is outside of"):
        storage.trim(lsn)
    assert sorted(fs.listdir(DIRECTORY)) == whole_names(0, 3)
    storage.trim(BASE + 2 * SIZE)
    assert sorted(fs.listdir(DIRECTORY)) == whole_names(2, 3)


def test_what_is_not_flushed_is_not_removed(fs: VirtualFileSystem, storage: WalStorage) -> None:
    write(storage, SIZE + 100)
    storage.append(storage.write_lsn, BYTES[SIZE + 100 : 3 * SIZE])
    with pytest.raises(LocalProtocolError, match="a removal"):
        storage.trim(BASE + 2 * SIZE)
    storage.trim(BASE + SIZE)
    assert storage.begin_lsn == BASE + SIZE


def test_there_is_nothing_to_remove_where_there_is_no_wal(fs: VirtualFileSystem) -> None:
    with pytest.raises(LocalProtocolError, match="the log is empty"):
        open_log(fs).trim(BASE)


def test_a_removal_that_fails_is_the_end(fs: VirtualFileSystem, storage: WalStorage) -> None:
    write(storage, 3 * SIZE + 100)
    fs.unlink(DIRECTORY / name(1, BASE + SIZE))
    with pytest.raises(StorageFailed, match="must be restarted"):
        storage.trim(BASE + 2 * SIZE)
    with pytest.raises(StorageFailed, match="must be restarted"):
        storage.append(storage.write_lsn, b"x")


def test_a_removal_that_was_interrupted_goes_on_where_it_was(fs: VirtualFileSystem, storage: WalStorage) -> None:
    write(storage, 4 * SIZE + 100)
    removal = storage.forget_below(BASE + 3 * SIZE)
    assert removal is not None
    fs.fail_in(2, only="remove")
    with pytest.raises(StorageFailed):
        removal.run()
    assert sorted(fs.listdir(DIRECTORY)) == whole_names(1, 5), "the oldest first"
    removal.run()
    assert sorted(fs.listdir(DIRECTORY)) == whole_names(3, 5)


def test_removals_that_were_not_finished_are_finished_when_the_log_is_closed(
    fs: VirtualFileSystem, storage: WalStorage
) -> None:
    write(storage, 4 * SIZE + 100)
    first, second = storage.forget_below(BASE + SIZE), storage.forget_below(BASE + 3 * SIZE)
    assert first is not None and second is not None
    first.run()
    storage.finish_removal(first)
    storage.finish_removal(first)
    assert sorted(fs.listdir(DIRECTORY)) == whole_names(1, 5)
    storage.close()
    assert sorted(fs.listdir(DIRECTORY)) == whole_names(3, 5)


def test_whatever_a_crash_brings_back_of_removed_segments_is_removed_at_the_start() -> None:
    seen = set()
    for seed in range(30):
        fs = VirtualFileSystem(random.Random(seed))
        storage = open_log(fs)
        storage.reset(BASE, 1)
        write(storage, 5 * SIZE + 100)
        storage.trim(BASE + 3 * SIZE)
        fs.crash()
        left = fs.listdir(DIRECTORY)
        seen.add(tuple(sorted(left)))
        facts, problems = inspect(fs, DIRECTORY, SIZE, BASE + 3 * SIZE)
        assert [each.name for each in facts] == whole_names(3, 6) and problems == []
        again = WalStorage.open(fs, DIRECTORY, segment_size=SIZE, tli=1, begin_lsn=BASE + 3 * SIZE)
        assert (again.begin_lsn, again.flush_lsn) == (BASE + 3 * SIZE, BASE + 5 * SIZE + 100), seed
        assert sorted(fs.listdir(DIRECTORY)) == whole_names(3, 6)
    # Also some with a gap, which is damage everywhere else.
    assert any(name(1, BASE) in left and name(1, BASE + SIZE) not in left for left in seen)


def test_a_gap_above_the_beginning_is_damage_all_the_same(fs: VirtualFileSystem, storage: WalStorage) -> None:
    write(storage, 4 * SIZE)
    storage.close()
    fs.unlink(DIRECTORY / name(1, BASE + 2 * SIZE))
    with pytest.raises(StorageFailed, match="is missing"):
        WalStorage.open(fs, DIRECTORY, segment_size=SIZE, tli=1, begin_lsn=BASE + SIZE)


# What a folder may look like at the start.


def filled(fs: VirtualFileSystem) -> None:
    """Leave a log of three full segments and a part of a fourth, and nobody using it."""
    storage = open_log(fs)
    storage.reset(BASE, 1)
    write(storage, 3 * SIZE + 500)
    fs.kill()


def test_leftover_temporaries_are_removed_and_other_files_left_alone(fs: VirtualFileSystem) -> None:
    filled(fs)
    for other in ("000000010000000000000009.new", "00000002.history"):
        fs.create(DIRECTORY / other).pwrite(b"x", 0)
    assert open_log(fs).flush_lsn == BASE + 3 * SIZE + 500
    assert sorted(fs.listdir(DIRECTORY))[-1] == "00000002.history"
    assert len(fs.listdir(DIRECTORY)) == 5


def test_a_folder_of_another_segment_size_is_refused(fs: VirtualFileSystem) -> None:
    filled(fs)
    with pytest.raises(StorageFailed, match=f"has {SIZE + FOOTER_BYTES} bytes, not the {2 * SIZE + FOOTER_BYTES}"):
        WalStorage.open(fs, DIRECTORY, segment_size=2 * SIZE, tli=1)
    fs.create(DIRECTORY / "000000010000000000FFFFFF")
    with pytest.raises(StorageFailed, match="another segment size"):
        open_log(fs)


def test_a_restart_without_room_changes_nothing(fs: VirtualFileSystem) -> None:
    filled(fs)
    fs.capacity_bytes = fs.used_bytes()
    with pytest.raises(StorageFull):
        open_log(fs)
    fs.kill()
    fs.capacity_bytes = 1 << 30
    assert open_log(fs).flush_lsn == BASE + 3 * SIZE + 500


# Inspection.


def test_inspection_says_what_it_sees_and_changes_nothing(fs: VirtualFileSystem) -> None:
    filled(fs)
    before = fs.operations
    facts, problems = inspect(fs, DIRECTORY, SIZE)
    assert fs.operations == before
    assert problems == []
    assert [each.name for each in facts] == [name(1, BASE + number * SIZE) for number in range(4)]
    assert [each.valid_end_lsn for each in facts] == [
        BASE + SIZE,
        BASE + 2 * SIZE,
        BASE + 3 * SIZE,
        BASE + 3 * SIZE + 500,
    ]
    assert all(each.problems == () for each in facts)


def test_inspection_never_raises_for_damage(fs: VirtualFileSystem) -> None:
    filled(fs)
    fs.damage(DIRECTORY / name(1, BASE), SIZE, bytes(FOOTER_BYTES))
    fs.unlink(DIRECTORY / name(1, BASE + SIZE))
    fs.damage(DIRECTORY / name(1, BASE + 3 * SIZE), 100, b"?!")
    fs.create(DIRECTORY / "000000010000000000FFFFFF").pwrite(b"x", 0)
    fs.create(DIRECTORY / name(1, BASE + 4 * SIZE)).pwrite(b"x", 0)
    fs.create(DIRECTORY / "000000010000000000000009.new")
    facts, problems = inspect(fs, DIRECTORY, SIZE)
    assert [each.valid_end_lsn for each in facts] == [None, BASE + 3 * SIZE, BASE + 3 * SIZE, None]
    assert facts[0].problems == ("both slots of the footer have a wrong checksum",)
    assert facts[2].problems == (
        "the WAL does not match the checksum of the newest slot: the last flush was interrupted",
    )
    assert facts[3].problems[0] == f"has 1 bytes, not {SIZE + FOOTER_BYTES}"
    assert "000000010000000000000009.new is left over from an interrupted step" in problems
    assert any("another segment size" in problem for problem in problems)
    assert any("acknowledged WAL is damaged" in problem for problem in problems)


def test_inspection_of_a_missing_folder_shows_nothing(tmp_path: Path) -> None:
    assert inspect(RealFileSystem(), tmp_path / "missing", SIZE) == ([], [])


def test_a_real_folder_is_made_and_used(tmp_path: Path) -> None:
    directory = tmp_path / "wal"
    fs = RealFileSystem()
    storage = WalStorage.open(fs, directory, segment_size=SIZE, tli=1)
    storage.reset(BASE, 1)
    write(storage, 3 * SIZE + 1)
    storage.truncate(BASE + 2 * SIZE + 5, 2)
    storage.close()
    assert sorted(path.name for path in directory.iterdir()) == [
        name(1, BASE),
        name(1, BASE + SIZE),
        name(2, BASE + 2 * SIZE),
    ]
    again = WalStorage.open(fs, directory, segment_size=SIZE, tli=2)
    assert again.read(BASE, again.flush_lsn) == BYTES[: 2 * SIZE + 5]
    again.close()
    assert fs.space(directory).free_bytes <= fs.space(directory).total_bytes


def test_a_reset_for_which_no_descriptor_is_free_leaves_the_log_as_it_is(
    fs: VirtualFileSystem, storage: WalStorage
) -> None:
    storage.append(BASE, b"x" * 100)
    storage.flush_now()
    fs.short = 1
    with pytest.raises(ResourceShortage):
        storage.reset(BASE + 4 * SIZE, 2)
    assert (storage.begin_lsn, storage.flush_lsn) == (BASE, BASE + 100)
    storage.reset(BASE + 4 * SIZE, 2)
    assert (storage.begin_lsn, storage.flush_lsn) == (BASE + 4 * SIZE, BASE + 4 * SIZE)
