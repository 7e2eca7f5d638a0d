"""The processes of this machine, as far as a crash has to reach them: their descent, and which are still alive.

Read from /proc where there is one, else from `ps`.
"""

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

_POLL_S = 0.01


def descendants(pid: int) -> list[int]:
    """Return the pids of the children of `pid`, their children, and so on."""
    table = _read()
    found: list[int] = []
    seek = [pid]
    while seek:
        children = [child for child, (parent, _) in table.items() if parent in seek]
        found += children
        seek = children
    return found


def is_alive(pid: int) -> bool:
    """Return whether the process exists and has not ended."""
    return not _read().get(pid, (0, "Z"))[1].startswith("Z")


def wait_until_ended(pids: Sequence[int], timeout_s: float) -> bool:
    """Wait until none of the processes lives; return whether that came in time."""
    deadline = time.monotonic() + timeout_s
    while any(is_alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _read() -> dict[int, tuple[int, str]]:
    """Return {pid: (parent's pid, state)} of all processes; a state that begins with "Z" is one that has ended."""
    table: dict[int, tuple[int, str]] = {}
    if not Path("/proc/self/stat").exists():
        answer = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True)
        for line in answer.stdout.splitlines():
            pid, parent, state = line.split()
            table[int(pid)] = (int(parent), state)
        return table
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # pid (name) state parent ...; the name may hold spaces and parentheses.
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        table[int(folder.name)] = (int(parent), state)
    return table
