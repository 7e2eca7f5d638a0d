"""Names that appear and vanish durably: the few steps of a table of plain Parquet.

A name is durable once the folder that holds it was synced; a file's content once the file was. Every step is one
method, so that a test can stop the world before and after each of them. Every method raises OSError.
"""

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from safekeeper.base.errors import StorageFailed, StorageFull, WalproxyError

LOCK_TIMEOUT_S = 120.0
_LOCK_POLL_S = 0.005
TEMPORARY_SUFFIX = ".new"


class Disk:
    """The operating system's files."""

    def write(self, path: Path, content: bytes) -> None:
        """Make a file with this content, or give it this content, and sync it. Not its name."""
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def link(self, old: Path, new: Path) -> None:
        """Give a file a second name. Raises FileExistsError if a file has it."""
        os.link(old, new)

    def rename(self, old: Path, new: Path) -> None:
        """Give `old` the name `new`, in place of whatever had it."""
        old.rename(new)

    def symlink(self, target: str, path: Path) -> None:
        """Make a symbolic link."""
        path.symlink_to(target)

    def unlink(self, path: Path) -> None:
        """Remove a name, if it is there."""
        path.unlink(missing_ok=True)

    def touch(self, path: Path) -> None:
        """Make now the time of the last change of a file or folder."""
        os.utime(path)

    def make_folder(self, folder: Path) -> None:
        """Make a folder and those on the way to it, unless they are there."""
        folder.mkdir(parents=True, exist_ok=True)

    def sync_folder(self, folder: Path) -> None:
        """Return when all names of a folder are on disk as they are now."""
        sync_folder(folder)

    def locked(self, path: Path) -> contextlib.AbstractContextManager[None]:
        """Hold the lock that is the file `path`, as `locked` does."""
        return locked(path)


def sync_folder(folder: Path) -> None:
    """Return when all names of a folder are on disk as they are now. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Return when the content of a file is on disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_durably(disk: Disk, path: Path, content: bytes) -> None:
    """Make `content` the content of `path`: after any crash it is the old one or the new one. Raises OSError."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    disk.write(temporary, content)
    disk.rename(temporary, path)
    disk.sync_folder(path.parent)


@contextlib.contextmanager
def locked(path: Path, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Hold the lock that is the file `path`; it is made if it is missing. The end of a process releases its locks.

    Threads of one process exclude each other, too: the lock belongs to the open file.

    Raises:
        StorageFailed: another holder has not released it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
            if time.monotonic() > deadline:
                raise StorageFailed(
                    f"{path} has been locked by another process for {timeout_s:.0f} s: stop the one that hangs"
                )
            time.sleep(_LOCK_POLL_S)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Report an error of the operating system as one line: "could not `what`: reason".

    Raises:
        StorageFull, StorageFailed.
    """
    try:
        yield
    except WalproxyError:
        raise
    except OSError as error:
        kind = StorageFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageFailed
        reason = os.strerror(error.errno) if error.errno else str(error).partition("\n")[0]
        where = f" ({error.filename})" if error.filename and str(error.filename) not in what else ""
        raise kind(f"could not {what}: {reason}{where}") from error
