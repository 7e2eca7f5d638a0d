"""Each detail of the footers (ADR 0002), and of removals, left out of the storage: the lone data folder finds it."""

import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import safekeeper.storage.recovery as recovery_module
import safekeeper.storage.wal_log as storage_module
from safekeeper.base.errors import StorageFailed
from safekeeper.storage.disk_work import Flush
from safekeeper.storage.recovery import NamedSegment
from safekeeper.storage.segment_file import FOOTER_BYTES, FooterSlot, SegmentFile
from safekeeper.storage.wal_log import WalStorage
from tests.simulation.lone import folder as lone_folder
from tests.simulation.model.virtual_disk import VirtualCrash, VirtualFile, VirtualFileSystem
from tests.simulation.seeds.hunt import MISFITS
from tests.simulation.world.world import SimulationFailed

SEEDS_TO_FIND_A_BUG = 200
SEGMENT_SIZE = 4096
Patch = Callable[[pytest.MonkeyPatch], None]


def create_without_slots(patch: pytest.MonkeyPatch) -> None:
    """(a) A prepared file has no slots: the first flush's is torn, and nothing says where the WAL ends."""
    create = WalStorage._create

    def planted(storage: WalStorage, tli: int, begin_lsn: int) -> SegmentFile:
        segment = create(storage, tli, begin_lsn)
        assert isinstance(storage._fs, VirtualFileSystem)
        storage._fs.damage(segment.path, segment.end_lsn - begin_lsn, bytes(FOOTER_BYTES))
        return segment

    patch.setattr(WalStorage, "_create", planted)


def rename_before_sync(patch: pytest.MonkeyPatch) -> None:
    """(a) A file gets its name before its content and slots are synced."""
    fdatasync = VirtualFile.fdatasync

    def planted(file: VirtualFile) -> None:
        if not file._path.name.endswith(".new"):
            fdatasync(file)

    patch.setattr(VirtualFile, "fdatasync", planted)


def flush_during_a_flush(patch: pytest.MonkeyPatch) -> None:
    """(b) A slot is written while the fdatasync of the one before it is under way."""
    start_flush, finish_flush = WalStorage.start_flush, WalStorage.finish_flush

    def planted_start(storage: WalStorage) -> Flush | None:
        storage._flush = None
        return start_flush(storage)

    def planted_finish(storage: WalStorage, flush: Flush) -> None:
        storage._flush = flush
        flush.end_lsn = max(flush.end_lsn, storage.flush_lsn)
        finish_flush(storage, flush)

    patch.setattr(WalStorage, "start_flush", planted_start)
    patch.setattr(WalStorage, "finish_flush", planted_finish)


def slots_first_then_syncs(patch: pytest.MonkeyPatch) -> None:
    """(b) The next segment's slot may be durable before the last one of this segment."""

    def planted(flush: Flush) -> None:
        try:
            for segment, slot in flush._slots:
                segment.write_slot(slot)
            for segment, _ in flush._slots:
                segment.sync()
        except StorageFailed as error:
            raise flush._fail(error) from error
        flush.done = True

    patch.setattr(Flush, "run", planted)


def flush_without_sync(patch: pytest.MonkeyPatch) -> None:
    """S2: what a flush has only written counts as durable."""
    patch.setattr(SegmentFile, "sync", lambda segment: None)


def walk_to_the_last_file(patch: pytest.MonkeyPatch) -> None:
    """(c) Recovery enters a segment although the one before it is not complete."""

    def planted(
        fs: VirtualFileSystem, directory: Path, found: list[NamedSegment], segment_size: int
    ) -> tuple[int, FooterSlot]:
        return len(found) - 1, recovery_module._slot_of(fs, directory, found[-1], segment_size)

    patch.setattr(recovery_module, "_walk", planted)


def drop_without_sync(patch: pytest.MonkeyPatch) -> None:
    """(d) A cut removes the later files and does not sync the folder."""

    def planted(fs: VirtualFileSystem, directory: Path, segments: Iterable[NamedSegment], segment_size: int) -> None:
        for segment in reversed(list(segments)):
            fs.unlink(segment.path(directory, segment_size))

    patch.setattr(storage_module, "drop_segments", planted)
    patch.setattr(recovery_module, "drop_segments", planted)


def drop_with_one_sync(patch: pytest.MonkeyPatch) -> None:
    """(d) A cut removes the later files in any durable order, so that a crash leaves a gap."""

    def planted(fs: VirtualFileSystem, directory: Path, segments: Iterable[NamedSegment], segment_size: int) -> None:
        for segment in segments:
            fs.unlink(segment.path(directory, segment_size))
        fs.fsync_directory(directory)

    patch.setattr(storage_module, "drop_segments", planted)
    patch.setattr(recovery_module, "drop_segments", planted)


def open_without_settling_names(patch: pytest.MonkeyPatch) -> None:
    """(d) A removal that a killed process has left pending is taken for durable."""

    def planted(fs: VirtualFileSystem, directory: Path, names: list[str]) -> None:
        for name in names:
            if name.endswith(".new"):
                fs.unlink(directory / name)

    patch.setattr(recovery_module, "_settle_names", planted)


def cut_without_slot(patch: pytest.MonkeyPatch) -> None:
    """(e) After a cut the newest slot still vouches for what was cut."""

    def planted(segment: SegmentFile, lsn: int) -> None:
        segment.write_lsn = segment.unslotted_lsn = lsn
        segment.crc = 0

    patch.setattr(SegmentFile, "cut", planted)


def cut_without_flush(patch: pytest.MonkeyPatch) -> None:
    """(e) The empty slot of a cut vouches for bytes below it that are not durable."""
    truncate = WalStorage.truncate

    def planted(storage: WalStorage, lsn: int, tli: int) -> None:
        storage.flush_lsn = max(storage.flush_lsn, lsn)
        truncate(storage, lsn, tli)

    patch.setattr(WalStorage, "truncate", planted)


def open_without_rewriting(patch: pytest.MonkeyPatch) -> None:
    """(g) Recovery trusts a page cache that shows what the disk has lost."""

    def planted(
        fs: VirtualFileSystem, directory: Path, segment: NamedSegment, slot: FooterSlot, segment_size: int
    ) -> SegmentFile:
        return SegmentFile(
            fs.open(segment.path(directory, segment_size)),
            segment.path(directory, segment_size),
            tli=segment.tli,
            begin_lsn=segment.begin_lsn,
            end_lsn=segment.begin_lsn + segment_size,
            write_lsn=slot.end_lsn,
            sequence=slot.sequence,
        )

    patch.setattr(recovery_module, "_rewrite", planted)


def open_without_finishing_a_removal(patch: pytest.MonkeyPatch) -> None:
    """What a crash brings back of removed segments is taken for the log's beginning, or for damage."""

    def planted(names: list[str], begin_lsn: int, segment_size: int) -> set[str]:
        return set()

    patch.setattr(recovery_module, "names_below", planted)


def retry_a_failed_sync(patch: pytest.MonkeyPatch) -> None:
    """(S12) An fdatasync that failed is tried again, succeeds, and is believed."""
    sync = SegmentFile.sync

    def planted(segment: SegmentFile) -> None:
        try:
            sync(segment)
        except StorageFailed:
            sync(segment)

    patch.setattr(SegmentFile, "sync", planted)


PLANTED_BUGS: tuple[Patch, ...] = (
    create_without_slots,
    rename_before_sync,
    flush_during_a_flush,
    slots_first_then_syncs,
    flush_without_sync,
    walk_to_the_last_file,
    drop_without_sync,
    drop_with_one_sync,
    cut_without_slot,
    cut_without_flush,
    open_without_rewriting,
    open_without_finishing_a_removal,
    retry_a_failed_sync,
)


@pytest.mark.parametrize("plant", PLANTED_BUGS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_of_the_storage_is_found(plant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(SimulationFailed) as found:
        for seed in range(SEEDS_TO_FIND_A_BUG):
            lone_folder.drive(seed)
    assert found.value.invariant not in MISFITS, found.value


def _killed_removal_that_comes_back(seed: int) -> None:
    """A process is killed while it drops files; the next one meets a failing disk; then the power goes."""
    fs = VirtualFileSystem(random.Random(seed))
    storage = _open_log(fs)
    storage.reset(SEGMENT_SIZE, 1)
    storage.append(SEGMENT_SIZE, bytes(3 * SEGMENT_SIZE))
    fs.kill()
    # Dies at the first removal, or at one of the operations next to it.
    fs.crash_in(1 + seed % 4)
    with pytest.raises(VirtualCrash):
        _open_log(fs)
    fs.kill()
    fs.fail_in(1 + seed // 4 % 3, only="sync folder")
    with pytest.raises(StorageFailed):
        _open_log(fs)
    fs.crash()
    assert _open_log(fs).flush_lsn == SEGMENT_SIZE


def _open_log(fs: VirtualFileSystem) -> WalStorage:
    return WalStorage.open(fs, Path("/data/wal"), segment_size=SEGMENT_SIZE, tli=1)


def test_a_killed_removal_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(100):
        _killed_removal_that_comes_back(seed)
    open_without_settling_names(monkeypatch)
    with pytest.raises((AssertionError, StorageFailed)):
        for seed in range(100):
            _killed_removal_that_comes_back(seed)
