"""A folder in memory for the files of a test run: `pytest --in-memory`.

A PostgreSQL cluster is a thousand files, and to make a file on a disk costs processor time: a copy of a cluster took
0.6 s of it on ext4, 0.06 s on tmpfs. An fsync in memory costs nothing, and no test needs one that does: their crashes
are SIGKILL, which leaves the page cache, and their power cuts happen on disks of their own (--volatile of
walproxy/lab/testing/faulty_disk.py, tests/simulation/virtual_disk.py).
"""

import os
from pathlib import Path

from walproxy.lab.testing.leftovers import claim_folder

SHARED_MEMORY = Path("/dev/shm")
NEEDED_BYTES = 6 << 30
_PREFIX = "walproxy-tests-"


def memory_folder(parent: Path = SHARED_MEMORY, needed_bytes: int = NEEDED_BYTES) -> Path | None:
    """Return a new folder in memory, None if there is not enough. The next call after this process removes it."""
    try:
        space = os.statvfs(parent)
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None  # There is no such folder, or this is not Linux.
    available_bytes = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return claim_folder(parent, _PREFIX)[0] if suffices(space, available_bytes, needed_bytes) else None


def suffices(space: os.statvfs_result, available_bytes: int, needed_bytes: int) -> bool:
    """Return whether files may take `needed_bytes` of memory, and programs among them may be run.

    Args:
        space: of the file system in memory.
        available_bytes: memory that is free. The processes of the tests need as much as their files.
    """
    writable = not space.f_flag & (os.ST_NOEXEC | os.ST_RDONLY)
    return writable and space.f_bavail * space.f_frsize >= needed_bytes and available_bytes >= 2 * needed_bytes
