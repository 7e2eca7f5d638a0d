"""Segments that were fetched before PostgreSQL requests them: the part that runs in every restore_command.

    pg_wal/.walproxy-prefetch/lock             held by the one prefetcher of this data folder
    pg_wal/.walproxy-prefetch/KEY/NAME         a whole segment, checked and on disk: delivered by a rename
    pg_wal/.walproxy-prefetch/KEY/NAME.begun   it is being fetched pg_wal/.walproxy-prefetch/KEY/requests     a pipe:
    the name of the segment that was delivered last, for the prefetcher

KEY is made of the system id in pg_control and of the sources, so files of another recovery are never used.
A call that is served from here takes less than 0.1 s, most of it Python's start; so only small modules are imported.
"""

import os
import time
from pathlib import Path

from walproxy.recovery.caller import sources_key
from walproxy.recovery.config import FetchConfig

FOLDER = ".walproxy-prefetch"
REQUESTS = "requests"
LOCK = "lock"
BEGUN_SUFFIX = ".begun"
_WAIT_S = 20.0
_POLL_S = 0.005


class Prefetched:
    """The segments that were fetched ahead for one data folder from certain sources.

    Attributes:
        folder: pg_wal/.walproxy-prefetch/KEY, which need not exist.

    Args:
        data_directory: the data folder of the PostgreSQL that recovers.
        wal_directory: its pg_wal.
        system_id: the system id in its pg_control.
    """

    def __init__(self, data_directory: Path, wal_directory: Path, system_id: int, config: FetchConfig) -> None:
        self.data_directory = data_directory
        self.folder = wal_directory / FOLDER / sources_key(system_id, config)

    def take(self, name: str, target: Path) -> bool:
        """Rename the segment `name` to `target`, if it was or is being fetched; return whether it was."""
        if self._move(name, target):
            return True
        begun = self.folder / (name + BEGUN_SUFFIX)
        deadline = time.monotonic() + _WAIT_S
        while begun.exists() and time.monotonic() < deadline and self._is_listened_to():
            time.sleep(_POLL_S)  # Only the name of the file shows that it is complete.
        return self._move(name, target)

    def request(self, name: str) -> bool:
        """Send the prefetcher the `name` that was delivered; return False if there is no prefetcher."""
        try:
            pipe = os.open(self.folder / REQUESTS, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False  # No pipe, or no process reads it.
        try:
            os.write(pipe, f"{name}\n".encode())
        except OSError:
            return False
        finally:
            os.close(pipe)
        return True

    def _move(self, name: str, target: Path) -> bool:
        try:
            (self.folder / name).replace(target)
        except OSError:
            return False
        return True

    def _is_listened_to(self) -> bool:
        try:
            os.close(os.open(self.folder / REQUESTS, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError:
            return False
        return True
