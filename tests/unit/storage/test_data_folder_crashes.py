"""WAL that is set aside, moved back or removed, while processes end and the power is cut."""

import random

import msgspec
import pytest

from safekeeper.acceptor.effects import Persist, ResetWal, RestoreWal, SetWalAside
from safekeeper.base.errors import StorageFailed
from safekeeper.consensus.control_state import ControlState
from safekeeper.storage.control_file import ControlFile
from tests.simulation.model.virtual_disk import VirtualCrash, VirtualFileSystem
from tests.unit.virtual_data_folder import DIRECTORY, SIZE, folder_with_wal, persist, start

WAL = random.Random(1).randbytes(3 * SIZE - 100)
END = SIZE + len(WAL)
SEEDS = 4
# A cross-section of a move of three files: each rename, and each sync.
OPERATIONS = range(1, 12)


def with_wal(seed: int) -> tuple[VirtualFileSystem, ControlState]:
    """Return a disk with WAL in three segments, and its control state."""
    fs, folder = folder_with_wal(seed, WAL)
    return fs, folder.control


def set_aside_although_a_process_ends(fs: VirtualFileSystem, control: ControlState, operations: int) -> None:
    """Set the WAL aside; the first process is killed after so many operations, the second one continues."""
    folder = start(fs)
    persist(folder, set_aside=True, set_aside_as="c", commit_lsn=0, wal_begin_lsn=0)
    fs.crash_in(operations)
    with pytest.raises(VirtualCrash):
        folder.perform(SetWalAside("c"))
        fs.stop()
        fs.exists(DIRECTORY)
    fs.kill()
    folder = start(fs)
    folder.perform(SetWalAside("c"))
    persist(folder, set_aside=False, set_aside_as="", base_lsn=SIZE * 9)


def test_wal_that_is_said_to_be_set_aside_stays_there_after_a_power_cut() -> None:
    """Also if all files were moved by a process that ended before it synced: otherwise the reset removes them."""
    for seed in range(SEEDS):
        for operations in OPERATIONS:
            fs, control = with_wal(seed)
            set_aside_although_a_process_ends(fs, control, operations)
            fs.crash()
            folder = start(fs)
            folder.perform(ResetWal(SIZE * 9, 2))
            persist(folder, base_lsn=None, wal_begin_lsn=SIZE * 9)
            folder.perform(Persist(msgspec.structs.replace(control, set_aside=True, restore_from="c")))
            folder.perform(SetWalAside("undone"))
            persist(folder, set_aside=False)
            assert folder.perform(RestoreWal("c")) == END
            assert folder.opened_storage().read(SIZE, END) == WAL


def test_wal_that_is_said_to_be_moved_back_stays_there_after_a_power_cut() -> None:
    for seed in range(SEEDS):
        for operations in OPERATIONS:
            fs, control = with_wal(seed)
            set_aside_although_a_process_ends(fs, control, 3)
            folder = start(fs)
            folder.perform(Persist(msgspec.structs.replace(control, restore_from="c")))
            fs.crash_in(operations)
            with pytest.raises(VirtualCrash):
                folder.perform(RestoreWal("c"))
                fs.stop()
                fs.exists(DIRECTORY)
            fs.kill()
            folder = start(fs)
            assert folder.perform(RestoreWal("c")) == END
            persist(folder, restore_from="")
            fs.crash()
            folder = start(fs)
            assert folder.flush_lsn == END and folder.opened_storage().read(SIZE, END) == WAL


# Old WAL that a start removes because the control file says so; the page cache may show what the disk lacks.


REMOVED_END = 4 * SIZE - 100
OPERATIONS_OF_A_START = 16


def with_a_removal_that_is_in_the_cache_only(seed: int) -> VirtualFileSystem:
    """Return a disk with three segments; the process has ended as it recorded that the log begins with the third."""
    fs, folder = folder_with_wal(seed, bytes(REMOVED_END - SIZE))
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
            assert folder.flush_lsn == REMOVED_END and folder.begin_lsn == folder.control.wal_begin_lsn
            begins.add(folder.begin_lsn)
    assert begins == {SIZE, 3 * SIZE}


def test_a_start_on_a_full_disk_removes_old_wal_and_has_room_then() -> None:
    fs = with_a_removal_that_is_in_the_cache_only(1)
    fs.capacity_bytes = fs.used_bytes()
    folder = start(fs)
    assert folder.begin_lsn == 3 * SIZE and len(fs.listdir(DIRECTORY / "wal")) == 1
    assert ControlFile(fs, DIRECTORY).load(ControlState) == folder.control
