"""Old WAL that a start removes because the control file says so, while the page cache may show what the disk lacks."""

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from safekeeper.acceptor.effects import FlushWal, Persist, ResetWal, WriteWal
from safekeeper.base.errors import StorageFailed
from safekeeper.consensus.control_state import ControlState
from safekeeper.consensus.term_history import HistoryEntry
from safekeeper.storage.control_file import ControlFile
from safekeeper.storage.data_folder import DataFolder
from tests.simulation.virtual_disk import VirtualCrash, VirtualFileSystem

DIRECTORY = Path("/data/sk")
SIZE = 4096
END = 4 * SIZE - 100
OPERATIONS_OF_A_START = 16


class NoLock:
    """In place of the lock, which is a real file."""

    def release(self) -> None:
        """See DataDirectoryLock."""


def start(fs: VirtualFileSystem) -> DataFolder:
    lock: Any = NoLock()
    folder = DataFolder(fs, DIRECTORY, lock, ControlFile(fs, DIRECTORY))
    folder._load(1, "a" * 32)
    return folder


def persist(folder: DataFolder, **changes: object) -> None:
    folder.perform(Persist(msgspec.structs.replace(folder.control, **changes)))


def with_a_removal_that_is_in_the_cache_only(seed: int) -> VirtualFileSystem:
    """Return a disk with three segments; the process has ended as it recorded that the log begins with the third."""
    fs = VirtualFileSystem(random.Random(seed))
    fs.make_directory(DIRECTORY)
    folder = start(fs)
    persist(folder, segment_size=SIZE, base_lsn=SIZE, history=(HistoryEntry(1, SIZE, 1),), cluster_id="c")
    folder.perform(ResetWal(SIZE, 1))
    persist(folder, base_lsn=None, wal_begin_lsn=SIZE)
    folder.perform(WriteWal(SIZE, bytes(END - SIZE)))
    folder.perform(FlushWal())
    persist(folder, commit_lsn=END)
    fs.fail_in(1, only="sync folder")
    with pytest.raises(StorageFailed):
        persist(folder, wal_begin_lsn=3 * SIZE)
    fs.kill()
    return fs


@pytest.mark.parametrize("is_full", [False, True])
def test_a_power_cut_while_a_start_removes_old_wal_does_not_make_it_a_lost_disk(is_full: bool) -> None:
    """The position at which the log begins is durable before a file goes: otherwise the older one comes back."""
    begins = set()
    for seed in range(5):
        for operations in range(1, OPERATIONS_OF_A_START):
            fs = with_a_removal_that_is_in_the_cache_only(seed)
            if is_full:
                fs.capacity_bytes = fs.used_bytes()
            fs.crash_in(operations)
            with pytest.raises(VirtualCrash):
                start(fs)
                fs.stop()
                fs.exists(DIRECTORY)
            fs.crash()
            fs.capacity_bytes = 1 << 40
            folder = start(fs)
            assert folder.flush_lsn == END and folder.begin_lsn == folder.control.wal_begin_lsn
            begins.add(folder.begin_lsn)
    assert begins == {SIZE, 3 * SIZE}


def test_a_start_on_a_full_disk_removes_old_wal_and_has_room_then() -> None:
    fs = with_a_removal_that_is_in_the_cache_only(1)
    fs.capacity_bytes = fs.used_bytes()
    folder = start(fs)
    assert folder.begin_lsn == 3 * SIZE and len(fs.listdir(DIRECTORY / "wal")) == 1
    assert ControlFile(fs, DIRECTORY).load(ControlState) == folder.control
