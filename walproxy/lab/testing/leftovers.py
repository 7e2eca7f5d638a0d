"""Remove what is left of clusters whose test process was killed, and keep what is in use.

Each cluster's folder is in the system's folder for temporary files and holds a file that its owner has locked: a lock
ends with the process, whatever ended it. The processes themselves need no cleanup: the kernel ends them with their
parent. Containers, networks and volumes carry the owner's name: machine, process id, and when that process began.
"""

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "walproxy-testing-"
_LOCK = "lock"


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a folder that any user may enter, and remove it at the end; remove what others have left, too."""
    folder, lock = claim_folder(Path(tempfile.gettempdir()), _PREFIX)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
        os.close(lock)


def claim_folder(parent: Path, prefix: str) -> tuple[Path, int]:
    """Make a folder that any user may enter; remove those of the same prefix that processes which ended have left
    there.

    Returns:
        the folder, and the descriptor that keeps it from being removed.
    """
    for folder in parent.glob(f"{prefix}*"):
        if _is_left(folder):
            shutil.rmtree(folder, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    # Locked before it has its name: no process sees one that is not locked yet.
    lock = os.open(folder / "new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    (folder / "new").rename(folder / _LOCK)
    # Under root PostgreSQL runs as another user.
    folder.chmod(0o755)
    return folder, lock


def _is_left(folder: Path) -> bool:
    """Return whether its owner has ended. A folder without a lock is one that is being made, or another user's."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


def owner() -> str:
    """Return the name of this process that no other has, on any machine."""
    return f"{socket.gethostname()}/{os.getpid()}/{_began(os.getpid())}"


def has_ended(owner: str) -> bool:
    """Return whether the process of that name has ended, by what this machine shows."""
    host, pid, began = owner.rsplit("/", 2)
    return host == socket.gethostname() and _began(int(pid)) != began


def _began(pid: int) -> str:
    """Return when a process began, in ticks since the machine did; empty if it has ended."""
    if not Path("/proc/self/stat").exists():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return ""
        except PermissionError:
            pass
        return "lives"
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return ""
