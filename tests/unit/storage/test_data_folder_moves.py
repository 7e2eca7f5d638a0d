"""WAL that a rebootstrap sets aside, or its undo moves back, while processes end and the power is cut."""

import random

import msgspec
import pytest

from safekeeper.acceptor.effects import Persist, ResetWal, RestoreWal, SetWalAside
from safekeeper.consensus.control_state import ControlState
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
