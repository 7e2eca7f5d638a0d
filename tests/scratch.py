"""Folders for the clusters of tests, and `pytest --in-memory`, which has them in memory.

A PostgreSQL cluster is a thousand files, and to make a file on a disk costs processor time: a copy of a cluster took
0.6 s of it on ext4, 0.06 s on tmpfs. An fsync in memory costs nothing, and no test of a cluster needs one that does:
their crashes are SIGKILL, which leaves the page cache. What the safekeepers of a cluster write stays on a disk
(`on_disk`): they read some WAL in a way that tmpfs does not have (RWF_NOWAIT). So do pytest's `tmp_path`, and all
folders of tests that are marked with `on_disk`: the demo's and the benchmark's.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from walproxy.lab.testing.leftovers import claim_folder

SHARED_MEMORY = Path("/dev/shm")
# One process alone has used 1.5 GB.
NEEDED_BYTES = 6 << 30
_PREFIX = "walproxy-tests-"
# Where the folders of this run are, for its worker processes too.
_IN_MEMORY, _ON_DISK = "WALPROXY_TESTS_IN_MEMORY", "WALPROXY_TESTS_ON_DISK"


@contextlib.contextmanager
def scratch_folder(*, may_be_in_memory: bool = True) -> Iterator[Path]:
    """Yield a folder that the servers' user can enter, unlike pytest's own under root."""
    parent = os.environ.get(_IN_MEMORY if may_be_in_memory else _ON_DISK)
    path = Path(tempfile.mkdtemp(prefix="walproxy-test-", dir=parent))
    path.chmod(0o755)
    try:
        yield path
    finally:
        for folder in {path, on_disk(path)}:
            shutil.rmtree(folder)


def on_disk(path: Path) -> Path:
    """Return a folder on a disk that goes with the scratch folder that `path` is in; `path` if that is on a disk."""
    memory = os.environ.get(_IN_MEMORY)
    if memory is None or not path.is_relative_to(memory):
        return path
    beside = Path(os.environ[_ON_DISK], path.relative_to(memory))
    beside.mkdir(parents=True, exist_ok=True)
    return beside


def use_memory(parent: Path = SHARED_MEMORY, needed_bytes: int = NEEDED_BYTES) -> tuple[Path, ...]:
    """Have all scratch folders of this process, and of those that it starts, in memory if there is enough.

    Returns:
        the folders that have them, to be removed. The next call after this process has ended removes them, too.
    """
    try:
        space = os.statvfs(parent)
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return ()  # There is no such folder, or this is not Linux.
    available_bytes = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    if not suffices(space, available_bytes, needed_bytes):
        return ()
    folders = []
    for variable, place in ((_IN_MEMORY, parent), (_ON_DISK, Path(tempfile.gettempdir()))):
        folder, _ = claim_folder(place, _PREFIX)
        os.environ[variable] = str(folder)
        folders.append(folder)
    return tuple(folders)


def suffices(space: os.statvfs_result, available_bytes: int, needed_bytes: int) -> bool:
    """Return whether files may take `needed_bytes` of memory, and programs among them may be run.

    Args:
        space: of the file system in memory.
        available_bytes: memory that is free. The processes of the tests need as much as their files.
    """
    writable = not space.f_flag & (os.ST_NOEXEC | os.ST_RDONLY)
    return writable and space.f_bavail * space.f_frsize >= needed_bytes and available_bytes >= 2 * needed_bytes
