"""What is durable on the disk of a real safekeeper, read from the disk."""

import random

import pytest

from safekeeper.base.errors import StorageFailed
from safekeeper.storage.data_folder import WAL_FOLDER
from safekeeper.storage.wal_log import WalStorage
from tests.simulation.model.synthetic_wal import SEGMENT_SIZE
from tests.simulation.shells.shell_disk import DIRECTORY, ShellDisk

FOLDER = DIRECTORY / WAL_FOLDER
BEGIN_LSN = 16 * SEGMENT_SIZE
CUT_LSN = BEGIN_LSN + 100


def _open(disk: ShellDisk) -> WalStorage:
    return WalStorage.open(disk.fs, FOLDER, segment_size=SEGMENT_SIZE, tli=1, begin_lsn=BEGIN_LSN)


@pytest.mark.parametrize("operations", range(1, 8))
def test_a_cut_that_fails_leaves_any_part_of_what_is_above_it(operations: int) -> None:
    disk = ShellDisk(random.Random(operations))
    disk.fs.make_directory(FOLDER)
    storage = _open(disk)
    disk.resetting(BEGIN_LSN, lambda: storage.reset(BEGIN_LSN, 1))
    for index in range(3):
        payload = bytes([index]) * (SEGMENT_SIZE // 2)
        begin_lsn = BEGIN_LSN + index * len(payload)
        disk.writing(payload, lambda: storage.append(begin_lsn, payload))  # noqa: B023 - called at once
        storage.flush_now()
    assert disk.durable_lsn == disk.write_lsn == BEGIN_LSN + 3 * SEGMENT_SIZE // 2
    disk.fs.fail_in(operations)
    try:
        disk.truncating(CUT_LSN, 1, lambda: storage.truncate(CUT_LSN, 1))
    except StorageFailed:
        assert disk.durable_lsn == CUT_LSN
    disk.crash(power_cut=False)
    restarted = _open(disk)
    assert CUT_LSN <= restarted.flush_lsn <= disk.write_lsn
    disk.accept(restarted, restarted.read(BEGIN_LSN, restarted.flush_lsn))
