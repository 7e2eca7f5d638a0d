"""Files that must be regular: nothing else is opened, and nothing is waited for."""

import os
from pathlib import Path

import pytest

from safekeeper.base.errors import StorageFailed
from safekeeper.base.regular_files import open_descriptor, read_regular
from safekeeper.storage.filesystem import RealFileSystem


def test_a_regular_file_is_read_and_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    descriptor = open_descriptor(file, os.O_RDWR | os.O_CREAT)
    os.write(descriptor, b"content")
    os.close(descriptor)
    assert read_regular(file) == b"content"


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR])
def test_a_fifo_without_a_writer_is_refused_at_once(flags: int, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="it is a FIFO, not a regular file"):
        open_descriptor(tmp_path / "fifo", flags)
    with pytest.raises(StorageFailed, match="it is a FIFO, not a regular file"):
        RealFileSystem().open(tmp_path / "fifo", read_only=flags == os.O_RDONLY)


def test_a_folder_and_a_missing_file_are_distinguished(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "missing")
