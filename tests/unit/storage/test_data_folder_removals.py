"""Old WAL that a start removes because the control file says so, while the page cache may show what the disk lacks."""

import pytest

from safekeeper.base.errors import StorageFailed
from safekeeper.consensus.control_state import ControlState
from safekeeper.storage.control_file import ControlFile
from tests.simulation.model.virtual_disk import VirtualCrash, VirtualFileSystem
from tests.unit.virtual_data_folder import DIRECTORY, SIZE, folder_with_wal, persist, start

END = 4 * SIZE - 100
OPERATIONS_OF_A_START = 16


def with_a_removal_that_is_in_the_cache_only(seed: int) -> VirtualFileSystem:
    """Return a disk with three segments; the process has ended as it recorded that the log begins with the third."""
    fs, folder = folder_with_wal(seed, bytes(END - SIZE))
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
