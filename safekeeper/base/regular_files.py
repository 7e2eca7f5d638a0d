"""Opens files that must not be FIFOs: the open of a FIFO waits for a writer, indefinitely.

A pipe of a shell, `<(...)` or /dev/stdin, is refused too: a daemon reads its files again at SIGHUP.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_descriptor(path: Path, flags: int, mode: int = 0o600) -> int:
    """Return a descriptor of a file, without waiting.

    Raises:
        OSError: it cannot be opened, or it is a folder or a FIFO.
    """
    # Without effect on a regular file; a read of a terminal fails instead of waiting.
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, mode)
    try:
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if stat.S_ISFIFO(kind):
            raise OSError(errno.EINVAL, "it is a FIFO, not a regular file", str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read it. Raises OSError, as `open_descriptor` does."""
    return os.fdopen(open_descriptor(path, os.O_RDONLY), "rb")


def read_regular(path: Path) -> bytes:
    """Return the content of a file. Raises OSError, as `open_descriptor` does."""
    with open_regular(path) as file:
        return file.read()
