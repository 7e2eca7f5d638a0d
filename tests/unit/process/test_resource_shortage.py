"""A process or machine without a free file descriptor: whatever was to be opened is tried again, and nothing fails."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from safekeeper.base.errors import ResourceShortage, StorageFailed
from safekeeper.consensus.control_state import ControlState, LeaderId
from safekeeper.consensus.messages import RefusalCode, VoteResponse
from safekeeper.storage.control_file import ControlFile, DataDirectoryLock
from safekeeper.storage.data_folder import DataFolder
from safekeeper.storage.filesystem import RealFileSystem
from safekeeper.storage.wal_log import WalStorage
from tests.unit.event_loop import on_the_loop, until
from tests.unit.node.test_node import BASE_LSN, SEGMENT_SIZE, asks, bench

SIZE = 8192
BASE = 4 * SIZE


class Descriptors:
    """Stands in front of os.open: of a folder's files, lets so many be opened, and then none until it is freed.

    Attributes:
        left: how many may be opened, None for any number.
        refused: how many were not.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.left: int | None = None
        self.refused = 0
        self.errno = errno.EMFILE
        self._open = os.open
        self._folder = str(folder)
        monkeypatch.setattr(os, "open", self.open)

    def open(self, path: Any, *arguments: Any, **options: Any) -> int:
        if self.left is not None and str(path).startswith(self._folder):
            if not self.left:
                self.refused += 1
                raise OSError(self.errno, os.strerror(self.errno), str(path))
            self.left -= 1
        return self._open(path, *arguments, **options)


@pytest.fixture
def descriptors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Descriptors:
    return Descriptors(monkeypatch, tmp_path)


def append_over_two_borders(storage: WalStorage) -> None:
    storage.append(storage.write_lsn, bytes(2 * SIZE))


def cut_in_an_older_segment(storage: WalStorage) -> None:
    storage.truncate(BASE + 100, 2)


def cut_on_a_border(storage: WalStorage) -> None:
    storage.truncate(BASE + SIZE, 2)


def begin_anew(storage: WalStorage) -> None:
    storage.reset(BASE + 64 * SIZE, 3)


def read_an_older_segment(storage: WalStorage) -> None:
    storage.read(BASE, BASE + 10)


OPERATIONS = (append_over_two_borders, cut_in_an_older_segment, cut_on_a_border, begin_anew, read_an_older_segment)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_whichever_open_fails_the_operation_is_repeated_and_does_what_it_would_have_done(
    operation: Callable[[WalStorage], None], number: int, tmp_path: Path, descriptors: Descriptors
) -> None:
    def log(name: str) -> WalStorage:
        (tmp_path / name).mkdir()
        storage = WalStorage.open(RealFileSystem(), tmp_path / name / "wal", segment_size=SIZE, tli=1)
        storage.reset(BASE, 1)
        storage.append(BASE, b"x" * (2 * SIZE + 100))
        storage.flush_now()
        return storage

    undisturbed = log("undisturbed")
    operation(undisturbed)
    undisturbed.flush_now()
    descriptors.errno = number
    disturbed_at = 0
    while True:
        storage = log(f"open {disturbed_at} fails")
        descriptors.left = disturbed_at
        before = descriptors.refused
        try:
            operation(storage)
        except ResourceShortage:
            descriptors.left = None
            operation(storage)
        descriptors.left = None
        storage.flush_now()
        where = (storage.begin_lsn, storage.write_lsn, storage.flush_lsn, storage.tli)
        assert where == (undisturbed.begin_lsn, undisturbed.write_lsn, undisturbed.flush_lsn, undisturbed.tli)
        found = storage.read(storage.begin_lsn, storage.write_lsn)
        assert found == undisturbed.read(storage.begin_lsn, storage.write_lsn)
        storage.close()
        again = WalStorage.open(
            RealFileSystem(), tmp_path / f"open {disturbed_at} fails" / "wal", segment_size=SIZE, tli=where[3]
        )
        assert (again.begin_lsn, again.flush_lsn) == where[:1] + where[2:3]
        again.close()
        if descriptors.refused == before:
            break  # It opens no more files than that.
        disturbed_at += 1
    undisturbed.close()
    assert disturbed_at >= 1


def test_the_control_file_stands_as_it_was_and_is_written_when_there_are_descriptors_again(
    tmp_path: Path, descriptors: Descriptors
) -> None:
    file = ControlFile(RealFileSystem(), tmp_path)
    old, new = (ControlState(safekeeper_id=1, incarnation=letter * 32) for letter in "ab")
    file.store(old)
    for allowed in (0, 1):
        descriptors.left = allowed
        with pytest.raises(ResourceShortage, match="Too many open files"):
            file.store(new)
        descriptors.left = None
        assert file.load(ControlState) == old
        assert [path.name for path in tmp_path.iterdir()] == ["control"]
    descriptors.left = 2
    file.store(new)  # The folder and the temporary file: nothing has to be opened behind the rename.
    descriptors.left = None
    assert file.load(ControlState) == new


@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
def test_a_sync_that_fails_for_want_of_memory_is_not_repeated(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = RealFileSystem()
    file = fs.create(tmp_path / "file")

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(StorageFailed, match=r"could not sync .*: Cannot allocate memory"):
        file.fdatasync() if call == "fdatasync" else fs.fsync_directory(tmp_path)
    file.close()


def test_a_start_without_descriptors_says_what_to_raise(tmp_path: Path, descriptors: Descriptors) -> None:
    (tmp_path / "sk").mkdir()
    descriptors.left = 0
    with pytest.raises(ResourceShortage, match="Too many open files: raise the limit of open files"):
        DataDirectoryLock(tmp_path / "sk")
    descriptors.left = 2
    with pytest.raises(ResourceShortage, match=r"could not start in .*Too many open files"):
        DataFolder.open(RealFileSystem(), tmp_path / "sk", 1, "a" * 32)


@on_the_loop
async def test_a_segment_that_cannot_be_made_is_made_later_and_the_node_lives(
    tmp_path: Path, descriptors: Descriptors, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        descriptors.left = 0
        await sk.append_durably(bytes(SEGMENT_SIZE - 100))
        await until(lambda: sk.node.disk_space.shortages >= 3)
        sk.append(bytes(200))
        await until(lambda: sk.refusal() is not None)
        refusal = sk.refusal()
        assert refusal is not None and refusal.code == RefusalCode.STORAGE_FULL
        assert "Too many open files" in refusal.reason
        descriptors.left = None
        await until(lambda: not sk.node.disk_space.lacking)
        await sk.append_durably(bytes(200))
        assert sk.node.acceptor.flush_lsn == BASE_LSN + SEGMENT_SIZE + 100
    lines = [record.getMessage() for record in caplog.records if "Too many open files: retrying" in record.getMessage()]
    assert 1 <= len(lines) <= 3


@on_the_loop
async def test_a_vote_waits_for_a_descriptor(tmp_path: Path, descriptors: Descriptors) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        descriptors.left = 0
        sk.says(asks(LeaderId(2, "run")))
        await until(lambda: sk.node.disk_space.shortages >= 2)
        descriptors.left = None
        await until(lambda: sk.node.ready)
        vote = sk.said[-1][1]
        assert isinstance(vote, VoteResponse) and vote.granted
        assert sk.node.acceptor.control.promised == LeaderId(2, "run")
        assert not sk.node.disk_space.lacking
