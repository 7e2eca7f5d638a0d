"""A disk with faults: what each does to a file, and what a sudden end of the process would leave."""

import threading
import time
from pathlib import Path

import pytest

from safekeeper.base.errors import ConfigurationError, StorageFull
from safekeeper.storage.filesystem import replace_durably
from walproxy.lab.testing.faulty_disk import DiskFaults, FaultyDisk, write_faults

DEADLINE_S = 20.0


@pytest.fixture
def control_file(tmp_path: Path) -> Path:
    return tmp_path / "disk.json"


@pytest.fixture
def disk(control_file: Path) -> FaultyDisk:
    return FaultyDisk(control_file)


@pytest.fixture
def volatile(control_file: Path) -> FaultyDisk:
    return FaultyDisk(control_file, volatile=True)


def test_without_a_control_file_a_disk_has_no_faults(disk: FaultyDisk, tmp_path: Path) -> None:
    replace_durably(disk, tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"
    assert disk.space(tmp_path).free_bytes > 0


def test_on_a_full_disk_files_are_neither_made_nor_made_longer_but_written_over(
    disk: FaultyDisk, control_file: Path, tmp_path: Path
) -> None:
    file = disk.create(tmp_path / "file")
    file.pwrite(b"0123456789", 0)
    write_faults(control_file, DiskFaults(full=True))
    with pytest.raises(StorageFull, match="could not create"):
        disk.create(tmp_path / "another")
    assert not (tmp_path / "another").exists()
    with pytest.raises(StorageFull, match="could not write"):
        file.pwrite(b"more", 8)
    file.pwrite(b"over", 6)
    file.fdatasync()
    assert disk.space(tmp_path).free_bytes == 0
    write_faults(control_file, DiskFaults())
    file.pwrite(b"more", 10)
    assert (tmp_path / "file").read_bytes() == b"012345overmore"
    assert disk.space(tmp_path).free_bytes > 0
    file.close()


def test_a_slow_disk_takes_its_time_for_each_sync(disk: FaultyDisk, control_file: Path, tmp_path: Path) -> None:
    file = disk.create(tmp_path / "file")
    write_faults(control_file, DiskFaults(fsync_ms=50))
    began_at = time.monotonic()
    file.fdatasync()
    assert time.monotonic() - began_at >= 0.05
    file.close()


def test_on_a_held_disk_no_sync_returns_until_it_is_released(
    disk: FaultyDisk, control_file: Path, tmp_path: Path
) -> None:
    file = disk.create(tmp_path / "file")
    write_faults(control_file, DiskFaults(held=True))
    sync = threading.Thread(target=file.fdatasync)
    sync.start()
    sync.join(0.1)
    assert sync.is_alive()
    write_faults(control_file, DiskFaults())
    sync.join(DEADLINE_S)
    assert not sync.is_alive()
    file.close()


def test_an_empty_control_file_changes_nothing_and_a_wrong_one_is_named(
    disk: FaultyDisk, control_file: Path, tmp_path: Path
) -> None:
    write_faults(control_file, DiskFaults(full=True))
    assert disk.space(tmp_path).free_bytes == 0
    control_file.write_bytes(b"")
    assert disk.space(tmp_path).free_bytes == 0
    control_file.write_bytes(b'{"fsync_s": 1}')
    with pytest.raises(ConfigurationError, match=r"disk\.json does not describe"):
        disk.space(tmp_path)


def test_what_a_volatile_disk_has_not_synced_is_seen_by_its_own_process_alone(
    volatile: FaultyDisk, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    file = volatile.create(path)
    file.pwrite(b"synced", 0)
    file.fdatasync()
    file.pwrite(b"not yet", 3)
    other = volatile.open(path, read_only=True)
    assert path.read_bytes() == b"synced"
    assert file.size() == 10
    assert other.pread(100, 0) == b"synnot yet"
    assert other.pread_at_hand(100, 0) == b"synnot yet"
    other.close()
    file.fdatasync()
    assert path.read_bytes() == b"synnot yet"
    # From now on what the system has is the truth.
    path.write_bytes(b"others")
    assert file.pread(100, 0) == b"others"
    file.close()


def test_a_volatile_file_keeps_its_unsynced_bytes_over_a_close_and_another_name(
    volatile: FaultyDisk, tmp_path: Path
) -> None:
    file = volatile.create(tmp_path / "old")
    file.pwrite(b"content", 0)
    file.close()
    volatile.rename(tmp_path / "old", tmp_path / "new")
    again = volatile.open(tmp_path / "new")
    assert again.pread(100, 0) == b"content"
    assert (tmp_path / "new").read_bytes() == b""
    again.fdatasync()
    assert (tmp_path / "new").read_bytes() == b"content"
    again.close()


def test_a_volatile_file_that_is_made_anew_has_nothing_of_the_one_before(volatile: FaultyDisk, tmp_path: Path) -> None:
    path = tmp_path / "file"
    first = volatile.create(path)
    first.pwrite(b"first", 0)
    first.close()
    again = volatile.create(path)
    assert again.size() == 0
    # The operating system may give a new file the place of one that was removed, be it by somebody else.
    again.pwrite(b"again", 0)
    path.rename(tmp_path / "place")
    third = volatile.create(tmp_path / "place")
    assert third.pread(100, 0) == b""
    third.close()
    again.close()
