"""The operating system's files: calls that do less than they were asked for, and what each of its errors becomes."""

import errno
import os
import random
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from safekeeper.base.errors import ResourceShortage, StorageFailed, StorageFull
from safekeeper.storage.filesystem import (
    RealFile,
    RealFileSystem,
    Space,
    is_shortage,
    read_whole,
    replace_durably,
    storage_error,
    sync_names,
)
from tests.simulation.model.virtual_disk import VirtualFileSystem

PATH = Path("/data/file")


@pytest.fixture
def file(tmp_path: Path) -> RealFile:
    return RealFileSystem().create(tmp_path / "file")


def fails(number: int) -> Callable[..., Any]:
    def call(*_: object) -> Any:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize("changes_nothing", [False, True])
@pytest.mark.parametrize(
    ("number", "kind", "kind_if_nothing_changed"),
    [
        (errno.EIO, StorageFailed, StorageFailed),
        (errno.EROFS, StorageFailed, StorageFailed),
        (errno.ENOSPC, StorageFull, StorageFull),
        (errno.EDQUOT, StorageFull, StorageFull),
        (errno.EMFILE, StorageFailed, ResourceShortage),
        (errno.ENFILE, StorageFailed, ResourceShortage),
        (errno.ENOMEM, StorageFailed, ResourceShortage),
    ],
)
def test_each_error_of_the_system_has_its_kind(
    number: int, kind: type[Exception], kind_if_nothing_changed: type[Exception], changes_nothing: bool
) -> None:
    error = OSError(number, "reason")
    made = storage_error("write", PATH, error, changes_nothing=changes_nothing)
    assert type(made) is (kind_if_nothing_changed if changes_nothing else kind)
    assert str(made) == "could not write /data/file: reason"
    assert is_shortage(error) is (kind_if_nothing_changed is ResourceShortage)


def test_an_error_without_a_text_of_the_system_is_reported_with_its_own() -> None:
    assert str(storage_error("read", PATH, OSError("odd"), changes_nothing=True)) == "could not read /data/file: odd"


def test_a_write_in_parts_is_complete_and_at_its_place(file: RealFile, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda number, data, offset: whole(number, bytes(data)[:3], offset))
    file.pwrite(b"0123456789", 5)
    assert file.pread(20, 5) == b"0123456789"


def test_a_read_in_parts_is_complete_and_ends_with_the_file(file: RealFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file.pwrite(b"0123456789", 0)
    whole = os.pread
    monkeypatch.setattr(os, "pread", lambda number, length, offset: whole(number, min(length, 3), offset))
    assert file.pread(8, 1) == b"12345678"
    assert file.pread(100, 4) == b"456789"
    assert file.pread(1, 10) == b""


@pytest.mark.parametrize(
    ("call", "attempt", "number", "kind"),
    [
        ("pwrite", lambda file: file.pwrite(b"x", 0), errno.ENOMEM, ResourceShortage),
        ("pwrite", lambda file: file.pwrite(b"x", 0), errno.EIO, StorageFailed),
        ("pread", lambda file: file.pread(1, 0), errno.ENOMEM, ResourceShortage),
        ("pread", lambda file: file.pread(1, 0), errno.EIO, StorageFailed),
        ("preadv", lambda file: file.pread_at_hand(1, 0), errno.ENOMEM, ResourceShortage),
        ("preadv", lambda file: file.pread_at_hand(1, 0), errno.EIO, StorageFailed),
        ("fdatasync", lambda file: file.fdatasync(), errno.ENOMEM, StorageFailed),
        ("fdatasync", lambda file: file.fdatasync(), errno.ENOSPC, StorageFull),
        ("fstat", lambda file: file.size(), errno.ENOMEM, ResourceShortage),
    ],
)
def test_only_a_call_that_has_changed_nothing_may_be_repeated_for_want_of_memory(
    file: RealFile,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    attempt: Callable[[RealFile], object],
    number: int,
    kind: type[Exception],
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails(number))
        with pytest.raises((StorageFailed, StorageFull)) as raised:
            attempt(file)
    assert raised.type is kind
    assert "/file: " in str(raised.value)


@pytest.mark.parametrize(("number", "kind"), [(errno.EMFILE, ResourceShortage), (errno.EIO, StorageFailed)])
def test_a_folder_that_could_not_be_opened_for_its_sync_may_be_tried_again_for_want_of_a_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    monkeypatch.setattr(os, "open", fails(number))
    with pytest.raises((StorageFailed, StorageFull)) as raised:
        RealFileSystem().fsync_directory(tmp_path)
    assert raised.type is kind


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="Linux only")
def test_a_read_without_waiting_returns_what_is_in_memory(file: RealFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file.pwrite(b"0123456789", 0)
    assert file.pread_at_hand(4, 3) == b"3456"
    assert file.pread_at_hand(100, 6) == b"6789", "the file ends there"
    for number, found in ((errno.EAGAIN, b""), (errno.EOPNOTSUPP, None)):
        monkeypatch.setattr(os, "preadv", fails(number))
        assert file.pread_at_hand(4, 3) == found


def test_a_file_is_its_owners_alone_and_created_empty(tmp_path: Path) -> None:
    fs = RealFileSystem()
    fs.make_directory(tmp_path / "folder")
    fs.make_directory(tmp_path / "folder")
    path = tmp_path / "folder" / "file"
    first = fs.create(path)
    first.pwrite(b"old", 0)
    first.close()
    first.close()
    second = fs.create(path)
    assert second.size() == 0
    second.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_file_that_was_opened_to_be_read_is_not_written(tmp_path: Path) -> None:
    fs = RealFileSystem()
    (tmp_path / "file").write_bytes(b"content")
    reading = fs.open(tmp_path / "file", read_only=True)
    with pytest.raises(StorageFailed, match="could not write"):
        reading.pwrite(b"x", 0)
    reading.close()
    writing = fs.open(tmp_path / "file")
    writing.pwrite(b"C", 0)
    writing.close()
    assert read_whole(fs, tmp_path / "file") == b"Content"


def test_a_folder_is_made_durable_with_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = RealFileSystem()
    synced: list[Path] = []
    monkeypatch.setattr(fs, "fsync_directory", synced.append)
    fs.make_directory(tmp_path / "folder")
    assert synced == [tmp_path] and (tmp_path / "folder").is_dir()


def open_count() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_folder_that_is_held_is_opened_once_in_each_thread_and_released_at_the_end(tmp_path: Path) -> None:
    fs = RealFileSystem()
    before = open_count()
    with fs.hold_directory(tmp_path):
        assert open_count() == before + 1
        with fs.hold_directory(tmp_path):
            fs.fsync_directory(tmp_path)
            assert open_count() == before + 1
        fs.fsync_directory(tmp_path)  # Still held.
        assert open_count() == before + 1
        thread = threading.Thread(target=fs.fsync_directory, args=(tmp_path,))
        thread.start()
        thread.join()
    assert open_count() == before
    with pytest.raises(StorageFailed, match="could not sync folder"), fs.hold_directory(tmp_path / "missing"):
        pass


def test_the_space_of_a_disk_is_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Facts:
        f_bavail, f_bfree, f_blocks, f_frsize, f_bsize = 3, 4, 10, 512, 4096

    monkeypatch.setattr(os, "statvfs", lambda _: Facts)
    assert RealFileSystem().space(tmp_path) == Space(free_bytes=3 * 512, total_bytes=10 * 512)


def test_the_names_in_a_folder_that_does_not_exist_are_none(tmp_path: Path) -> None:
    assert RealFileSystem().listdir(tmp_path / "missing") == []
    (tmp_path / "one").touch()
    assert RealFileSystem().listdir(tmp_path) == ["one"]


# Replacing a file.


class FullAt(VirtualFileSystem):
    """A disk without space for one kind of operation."""

    def __init__(self, kind: str) -> None:
        super().__init__(random.Random(1))
        self.kind = ""
        replace_durably(self, PATH, b"old")
        self.kind = kind

    def step(self, kind: str, path: Path, life: int) -> None:
        if kind == self.kind:
            raise StorageFull(f"could not {kind} {path}: no space left on device")
        super().step(kind, path, life)


@pytest.mark.parametrize("kind", ["create", "write", "sync", "rename"])
def test_no_space_before_a_file_is_replaced_leaves_the_old_one_alone(kind: str) -> None:
    fs = FullAt(kind)
    with pytest.raises(StorageFull, match="no space left"):
        replace_durably(fs, PATH, b"new")
    assert fs.listdir(PATH.parent) == [PATH.name]
    assert read_whole(fs, PATH) == b"old"


def test_no_space_to_make_a_name_durable_is_a_failure() -> None:
    fs = FullAt("sync folder")
    with pytest.raises(StorageFailed, match="no space left"):
        replace_durably(fs, PATH, b"new")
    with pytest.raises(StorageFailed, match="no space left"):
        sync_names(fs, PATH.parent)


def test_the_content_of_a_replaced_file_is_durable_before_its_name() -> None:
    for seed in range(30):
        fs = VirtualFileSystem(random.Random(seed))
        replace_durably(fs, PATH, b"old" * 1000)
        replace_durably(fs, PATH, b"new" * 1000)
        fs.crash()
        assert read_whole(fs, PATH) == b"new" * 1000
        assert fs.listdir(PATH.parent) == [PATH.name]


def test_the_sync_of_a_folder_is_one_of_that_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(Path(f"/proc/self/fd/{descriptor}").readlink()))
    RealFileSystem().fsync_directory(tmp_path)
    assert synced == [tmp_path]


def test_what_is_read_from_memory_ends_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789" * 100)
    file = RealFileSystem().open(path, read_only=True)
    assert file.pread_at_hand(1000, 500) in (b"0123456789" * 50, None)
    file.close()


@pytest.mark.parametrize(
    ("call", "attempt"),
    [
        ("exists", RealFileSystem.exists),
        ("iterdir", RealFileSystem.listdir),
    ],
)
def test_a_look_at_names_may_be_repeated_for_want_of_a_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, attempt: Callable[[RealFileSystem, Path], object]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Path, call, fails(errno.EMFILE))
        with pytest.raises(ResourceShortage):
            attempt(RealFileSystem(), tmp_path)
