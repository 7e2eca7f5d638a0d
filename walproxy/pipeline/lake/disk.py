"""Files and names that are durable, and locks: the few steps of a folder of tables.

A name is durable once the folder that holds it was synced; a file's content once the file was. Every function but
`storage_errors` raises OSError.
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


def make_folder(folder: Path) -> None:
    """Make a folder and those on the way to it, durably, unless they are there."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in new:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Return when all names of a folder are on disk as they are now."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Return when the content of a file is on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_durably(path: Path, content: bytes) -> None:
    """Make `content` the content of `path`: after any crash it is the old one or the new one."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync_folder(path.parent)


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


def cache_folder() -> Path:
    """Return the folder, which may not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "walproxy"
