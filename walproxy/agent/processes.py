"""The processes of one data folder, and signals that reach no other process.

The pid in postmaster.pid is not enough: after a crash or a reboot another process may have it. Each process of
PostgreSQL has the data folder as its current folder, so a process belongs to the folder if its program is postgres and
/proc/PID/cwd is that folder (by inode, which neither a link nor a renamed parent changes). Its start time is compared
with the one in postmaster.pid only to choose between the postmaster and its children: clocks are set, inodes are not.

A pidfd is opened before the check and used for the signal: a pid that is reused in between is never signalled.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from walproxy.postgres.problems import ServerProblem
from walproxy.postgres.process_table import descendants

PID_FILE = "postmaster.pid"
_PROGRAMS = ("postgres", "postmaster")
_POLL_S = 0.02


@dataclass(frozen=True)
class PidFile:
    """The used lines of postmaster.pid.

    Attributes:
        pid: of the postmaster, or of a single-user server.
        status: "starting", "stopping", "ready" or "standby"; "" if it is not written yet.
        port: 0 if it is not written yet.
        host: the folder of its first socket, else the first address that it listens on; "" if it has neither yet.
    """

    pid: int
    status: str
    port: int = 0
    host: str = ""


def parse_pid_file(text: str) -> PidFile | None:
    """Return the content of postmaster.pid, None if it is empty or incomplete.

    A single-user server writes its pid as a negative number.
    Source: src/include/utils/pidfile.h
    """
    lines = [line.strip() for line in text.split("\n")]
    lines += [""] * (8 - len(lines))
    try:
        pid = abs(int(lines[0]))
    except ValueError:
        return None
    if pid <= 1:
        return None
    return PidFile(pid, lines[7], int(lines[3]) if lines[3].isdecimal() else 0, lines[4] or lines[5])


def read_pid_file(data_directory: Path) -> PidFile | None:
    """Return the content of postmaster.pid, None if it does not exist or is incomplete.

    Raises:
        OSError: it cannot be read.
    """
    try:
        return parse_pid_file((data_directory / PID_FILE).read_text(errors="replace"))
    except FileNotFoundError:
        return None


def postmaster_of(data_directory: Path) -> int | None:
    """Return the pid of the server that runs on a data folder, None if none does.

    Raises:
        OSError: postmaster.pid cannot be read.
    """
    file = read_pid_file(data_directory)
    return file.pid if file is not None and _belongs(file.pid, data_directory) else None


def processes_of(data_directory: Path) -> list[int]:
    """Return the pids of all processes of postgres that have the data folder, also those without a postmaster."""
    return [pid for pid in _all_pids() if _belongs(pid, data_directory)]


def send_signal(data_directory: Path, number: signal.Signals) -> bool:
    """Send a signal to the postmaster of a data folder; return False if none runs.

    Raises:
        OSError: postmaster.pid cannot be read, or the signal is not permitted.
    """
    file = read_pid_file(data_directory)
    return file is not None and send_signal_to(file.pid, number, data_directory)


def send_signal_to(pid: int, number: signal.Signals, data_directory: Path) -> bool:
    """Send a signal to one process of a data folder; return False if it is not one.

    Raises:
        OSError: the signal is not permitted.
    """
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if not _belongs(pid, data_directory):
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def kill_all(data_directory: Path, timeout_s: float) -> int:
    """End all processes of a data folder with SIGKILL, and their children; return the number of processes.

    The postmaster is first: it starts no others then. A stopped (SIGSTOP) process ends, too.

    Raises:
        ServerProblem: one still exists after `timeout_s`, e.g. because it waits for a disk that hangs.
        OSError: a signal is not permitted.
    """
    deadline = time.monotonic() + timeout_s
    ended: set[int] = set()
    while True:
        first = postmaster_of(data_directory)
        found = processes_of(data_directory)
        if not found:
            return len(ended)
        # A restore_command or archive_command runs in the folder, too, but under another name.
        others = {child for pid in found for child in descendants(pid)} - set(found)
        for pid in sorted(found, key=lambda pid: pid != first):
            if send_signal_to(pid, signal.SIGKILL, data_directory):
                ended.add(pid)
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise ServerProblem(
                f"{len(found)} processes of {data_directory} still exist {timeout_s:g} s after SIGKILL: "
                f"{', '.join(map(str, found[:5]))}"
            )
        time.sleep(_POLL_S)


def remove_stale_pid_file(data_directory: Path) -> None:
    """Remove postmaster.pid if its pid is another process now, or one that has ended and is not reaped yet.

    PostgreSQL would refuse to start, because it checks only whether the pid exists. It creates the file after it has
    changed to the data folder, so the file of a server that starts now is not taken for a stale one.

    Raises:
        OSError: it cannot be removed.
    """
    file = read_pid_file(data_directory)
    if file is not None and Path("/proc", str(file.pid)).exists() and not _belongs(file.pid, data_directory):
        (data_directory / PID_FILE).unlink(missing_ok=True)


def wait_until_gone(data_directory: Path, timeout_s: float) -> bool:
    """Wait until no process of the data folder exists; return whether that was in time."""
    deadline = time.monotonic() + timeout_s
    while processes_of(data_directory):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _belongs(pid: int, data_directory: Path) -> bool:
    """Return whether a process that has not ended is PostgreSQL's and has this data folder."""
    folder = Path("/proc", str(pid))
    try:
        # pid (name) state ...; the name may contain spaces and parentheses.
        head, _, rest = (folder / "stat").read_text().rpartition(")")
        if rest.split()[0] in "ZX" or not head.partition("(")[2].startswith(_PROGRAMS):
            return False
        return (folder / "cwd").samefile(data_directory)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        # It has ended, or it is another user's, and so not a server of a folder that we may manage.
        return False


def _all_pids() -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        yield int(folder.name)
