"""The control file: atomic, durable, and refused when it is not what was stored."""

import errno
import fcntl
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import google_crc32c
import msgspec
import pytest

from safekeeper.base.errors import ConfigurationError, ResourceShortage, StorageFailed, StorageFull
from safekeeper.consensus.control_state import ControlState
from safekeeper.consensus.membership import Member, Membership, QuorumSizes
from safekeeper.storage.control_file import CONTROL_FILE_NAME, LOCK_FILE_NAME, ControlFile, DataDirectoryLock
from safekeeper.storage.data_folder import DataFolder
from safekeeper.storage.filesystem import RealFileSystem
from tests.simulation.model.virtual_disk import VirtualCrash, VirtualFileSystem

DIRECTORY = Path("/data")
PATH = DIRECTORY / CONTROL_FILE_NAME
CRASH_SCHEDULES = 500


class State(msgspec.Struct):
    """Stands in for the consensus core's state."""

    term: int
    note: str = ""


class OtherState(msgspec.Struct):
    """What another program might have stored."""

    name: str


def test_a_membership_with_quorums_that_cannot_be_is_refused(tmp_path: Path) -> None:
    membership = Membership(1, (Member(2, "2" * 32),), quorum_sizes=QuorumSizes(commit="2"))
    state = ControlState(safekeeper_id=2, incarnation="2" * 32, membership=membership)
    ControlFile(RealFileSystem(), tmp_path).store(state)
    with pytest.raises(ConfigurationError, match="that is not valid: the commit quorum '2' is 2 for N = 1"):
        DataFolder.open(RealFileSystem(), tmp_path, 2, "9" * 32)


def test_what_is_stored_is_loaded(tmp_path: Path) -> None:
    control_file = ControlFile(RealFileSystem(), tmp_path)
    assert control_file.load(State) is None
    control_file.store(State(1, "first"))
    control_file.store(State(2, "second"))
    assert ControlFile(RealFileSystem(), tmp_path).load(State) == State(2, "second")
    assert [path.name for path in tmp_path.iterdir()] == [CONTROL_FILE_NAME]


def test_a_crash_leaves_the_old_state_or_the_new_one_and_never_less_than_was_stored() -> None:
    for seed in range(CRASH_SCHEDULES):
        rng = random.Random(seed)
        fs = VirtualFileSystem(rng)
        stored = attempted = None
        for term in range(1, 6):
            control_file = ControlFile(fs, DIRECTORY)
            found = control_file.load(State)
            assert found in (stored, attempted), f"seed {seed}"
            if found is not None:
                control_file.store(found)
            stored = found
            if rng.random() < 0.6:
                fs.crash_in(rng.randint(1, 6))
            attempted = State(term, "x" * rng.randint(0, 2000))
            try:
                control_file.store(attempted)
                stored = attempted
            except VirtualCrash:
                pass
            rng.choice((fs.crash, fs.kill))()


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename", "sync folder"])
def test_a_failing_disk_ends_the_control_file(operation: str) -> None:
    fs = VirtualFileSystem(random.Random(1))
    control_file = ControlFile(fs, DIRECTORY)
    control_file.store(State(1))
    fs.fail_in(1, only=operation)
    with pytest.raises(StorageFailed, match="input/output error"):
        control_file.store(State(2))
    with pytest.raises(StorageFailed, match="must be restarted"):
        control_file.store(State(3))
    assert ControlFile(fs, DIRECTORY).load(State) in (State(1), State(2))


def test_no_room_leaves_the_old_state_and_no_trace() -> None:
    fs = VirtualFileSystem(random.Random(1))
    control_file = ControlFile(fs, DIRECTORY)
    control_file.store(State(1))
    fs.capacity_bytes = fs.used_bytes() + 10
    with pytest.raises(StorageFull, match="no space left"):
        control_file.store(State(2))
    assert fs.listdir(DIRECTORY) == [CONTROL_FILE_NAME]
    assert control_file.load(State) == State(1)
    fs.capacity_bytes = 1 << 20
    control_file.store(State(3))
    assert control_file.load(State) == State(3)


def test_no_room_on_a_real_disk_leaves_the_old_state() -> None:
    """/dev/full is the kernel's own full disk; what RealFileSystem makes of it is StorageFull."""
    with pytest.raises(StorageFull, match=r"could not write /dev/full: No space left on device"):
        RealFileSystem().open(Path("/dev/full")).pwrite(b"x", 0)


@pytest.mark.parametrize("position", ["magic", "version", "length", "payload", "checksum"])
def test_a_damaged_file_is_refused_with_its_path(position: str) -> None:
    fs = VirtualFileSystem(random.Random(1))
    ControlFile(fs, DIRECTORY).store(State(7, "note"))
    length = fs.used_bytes()
    offset = {"magic": 0, "version": 8, "length": 12, "payload": 18, "checksum": length - 1}[position]
    fs.damage(PATH, offset, b"\xff")
    with pytest.raises(StorageFailed, match=str(PATH)):
        ControlFile(fs, DIRECTORY).load(State)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "truncated to 0 bytes"),
        (b"PK\x03\x04" * 9, "not a safekeeper's control file"),
        (b"SAFEKEEP\x02\0\0\0\0\0\0\0", "format version 2, this release reads version 4: use the release that"),
        (b"SAFEKEEP\x05\0\0\0\0\0\0\0", "format version 5, this release reads version 4: use the release that"),
        (b"SAFEKEEP\x04\0\0\0\x05\0\0\0", "not the number in its header"),
        (b"SAFEKEEP\x04\0\0\0\0\0\0\0\x80", "has 21 bytes, not the number in its header"),
        (b"SAFEKEEP\x04\0\0\0\0\0\0", "truncated to 19 bytes"),
        (b"SAFEKEEP\x04\0\0\0\x01\0\0\0\xc1", "is not a valid State: .*replace the disk"),
    ],
)
def test_a_file_that_is_not_understood_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    checksum = google_crc32c.value(content).to_bytes(4, "little") if content else b""
    (tmp_path / CONTROL_FILE_NAME).write_bytes(content + checksum)
    with pytest.raises(StorageFailed, match=message):
        ControlFile(RealFileSystem(), tmp_path).load(State)


def test_another_programs_state_is_refused(tmp_path: Path) -> None:
    ControlFile(RealFileSystem(), tmp_path).store(OtherState("x"))
    with pytest.raises(StorageFailed, match="is not a valid State: Object missing required field `term`"):
        ControlFile(RealFileSystem(), tmp_path).load(State)


def test_a_second_lock_names_the_process_that_holds_the_first(tmp_path: Path) -> None:
    assert DataDirectoryLock.owner(tmp_path) is None
    lock = DataDirectoryLock(tmp_path)
    assert DataDirectoryLock.owner(tmp_path) == os.getpid()
    with pytest.raises(ConfigurationError, match=f"in use by process {os.getpid()}: stop it"):
        DataDirectoryLock(tmp_path)
    lock.release()
    lock.release()
    assert DataDirectoryLock.owner(tmp_path) is None
    DataDirectoryLock(tmp_path).release()


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys, time\n"
        "from safekeeper.storage.control_file import DataDirectoryLock\n"
        "lock = DataDirectoryLock(pathlib.Path(sys.argv[1]))\n"
        "print('locked', flush=True)\n"
        "time.sleep(60)\n"
    )
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=root
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "locked\n"
            with pytest.raises(ConfigurationError, match=f"in use by process {process.pid}"):
                DataDirectoryLock(tmp_path)
        finally:
            process.send_signal(signal.SIGKILL)
    DataDirectoryLock(tmp_path).release()


def test_a_folder_that_cannot_be_locked_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"could not open .*: No such file"):
        DataDirectoryLock(tmp_path / "missing")
    (tmp_path / LOCK_FILE_NAME).mkdir()
    with pytest.raises(ConfigurationError, match="Is a directory"):
        DataDirectoryLock(tmp_path)


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (errno.ENOSPC, StorageFailed, r"not enough disk space to start in .*: free some space \(No space left"),
        (errno.EDQUOT, StorageFailed, r"not enough disk space to start in .*: free some space \(Disk quota"),
        (errno.EIO, ConfigurationError, "could not lock .*: Input/output error; choose another --data-dir"),
    ],
)
def test_a_lock_that_cannot_be_written_is_refused_and_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception], message: str
) -> None:
    def fails(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fails)
        with pytest.raises(kind, match=message):
            DataDirectoryLock(tmp_path)
    assert DataDirectoryLock.owner(tmp_path) is None
    DataDirectoryLock(tmp_path).release()


def test_the_id_in_a_lock_file_is_the_holder_s_alone(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE_NAME).write_text("12345678901234567890\n")
    lock = DataDirectoryLock(tmp_path)
    assert (tmp_path / LOCK_FILE_NAME).read_text() == f"{os.getpid()}\n"
    (tmp_path / LOCK_FILE_NAME).write_text("not a number\n")
    assert DataDirectoryLock.owner(tmp_path) == 0
    with pytest.raises(ConfigurationError, match=r"in use by process \(unknown\)"):
        DataDirectoryLock(tmp_path)
    lock.release()


def test_a_lock_file_that_cannot_be_read_is_no_free_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DataDirectoryLock(tmp_path).release()

    def fails(*_: object, **__: object) -> int:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", fails)
        with pytest.raises(ConfigurationError, match=r"could not examine .*: Permission denied"):
            DataDirectoryLock.owner(tmp_path)
    monkeypatch.setattr(os, "open", fails)
    with pytest.raises(ConfigurationError, match=r"could not open .*: Permission denied"):
        DataDirectoryLock.owner(tmp_path)


def test_a_folder_for_which_no_descriptor_is_free_is_a_shortage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "open", fails)
    with pytest.raises(ResourceShortage, match="raise the limit of open files"):
        DataDirectoryLock(tmp_path)


def test_only_the_user_of_the_process_can_open_the_lock_file(tmp_path: Path) -> None:
    lock = DataDirectoryLock(tmp_path)
    assert (tmp_path / LOCK_FILE_NAME).stat().st_mode & 0o777 == 0o600
    lock.release()
