"""Copies the WAL of each server that was a primary and has ended, before its rejoin overwrites it.

It does not ask the manager: a thread watches the processes of the data folders. The manager stands still while its
server's WAL is copied. A copy is valid only if no overwrite had begun when it was complete, by the record that a rejoin
makes first (walproxy/agent/rejoin_folder.py).
"""

import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from safekeeper.base.lsn import parse_segment_name
from walproxy.agent.processes import postmaster_of, processes_of
from walproxy.agent.rejoin_folder import RejoinFolder
from walproxy.lab.failover.host import Host
from walproxy.lab.torture.repeatedly import Repeatedly

_POLL_S = 0.02
_SEGMENTS_BYTES = 32 << 20
_MAGIC_BYTES = 2  # xlp_magic, the first field of a page header


@dataclass(frozen=True)
class KeptWal:
    """The end of the WAL of a primary that has ended.

    Attributes:
        folder: a copy of the newest segments of pg_wal, and of its history files.
        is_valid: False: an overwrite had begun already.
    """

    folder: Path
    is_valid: bool


class WalKeeper(Repeatedly):
    """Watches the servers of all hosts.

    Args:
        folder: for the copies, one for each end of a primary.
        segment_size: of WAL, in bytes.
    """

    def __init__(self, hosts: Sequence[Host], folder: Path, segment_size: int) -> None:
        super().__init__("failover WAL keeper", _POLL_S, self._watch_all)
        self._hosts = hosts
        self._folder = folder
        self._segment_size = segment_size
        self._running: set[str] = set()
        self._kept: dict[str, KeptWal] = {}
        self._copies = 0
        self._lock = threading.Lock()

    def take(self) -> dict[str, KeptWal]:
        """Return what was kept since the last call, by the host's name: of each host the last copy.

        The caller removes the folders.

        Raises:
            OSError: a copy has failed.
        """
        self.check()
        with self._lock:
            kept, self._kept = self._kept, {}
        return kept

    def _watch_all(self) -> None:
        for host in self._hosts:
            self._watch(host)

    def _watch(self, host: Host) -> None:
        folder, name = host.place.data_directory, host.name
        try:
            is_running = postmaster_of(folder) is not None
        except NotADirectoryError:
            is_running = False
        if is_running:
            # A rejoin recovers the old primary from its crash, in a single-user server.
            if (folder / "standby.signal").exists() or RejoinFolder(folder).read() is not None:
                self._running.discard(name)
            else:
                self._running.add(name)
        elif name in self._running and not processes_of(folder):
            self._running.discard(name)
            self._keep(host)

    def _keep(self, host: Host) -> None:
        folder = host.place.data_directory
        self._copies += 1
        target = self._folder / f"{self._copies}-{host.name}"
        target.mkdir(parents=True)
        try:
            with host.manager_stopped():
                copy_newest_wal(folder / "pg_wal", target, self._segment_size)
                is_valid = RejoinFolder(folder).read() is None
        except FileNotFoundError:
            is_valid = False  # The folder is being replaced.
        with self._lock:
            before = self._kept.get(host.name)
            self._kept[host.name] = KeptWal(target, is_valid)
        if before is not None:
            shutil.rmtree(before.folder)


def copy_newest_wal(pg_wal: Path, target: Path, segment_size: int) -> None:
    """Copy the newest segments of a folder, 32 MiB or three, and all history files.

    One that PostgreSQL has only allocated is left out: pg_waldump takes the segment size from any.

    Raises:
        OSError: a file cannot be copied.
    """
    names = sorted(path.name for path in pg_wal.iterdir())
    segments = [name for name in names if parse_segment_name(name, segment_size) is not None]
    newest = [name for name in segments if _was_written(pg_wal / name)]
    kept = newest[-max(3, _SEGMENTS_BYTES // segment_size) :]
    for name in [*kept, *(name for name in names if name.endswith(".history"))]:
        shutil.copy2(pg_wal / name, target / name)


def _was_written(segment: Path) -> bool:
    """Return whether a segment has a page header."""
    with segment.open("rb") as file:
        return any(file.read(_MAGIC_BYTES))
