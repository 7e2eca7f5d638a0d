"""Segments that were fetched before PostgreSQL asks for them: the half that is in every restore_command.

    pg_wal/.walproxy-prefetch/lock             held by the one prefetcher of this data folder
    pg_wal/.walproxy-prefetch/KEY/NAME         a whole segment, checked and on disk: delivered by a rename
    pg_wal/.walproxy-prefetch/KEY/NAME.begun   it is being fetched
    pg_wal/.walproxy-prefetch/KEY/requests     a pipe: what was delivered last, for the prefetcher to run ahead of

KEY is made of the system id in pg_control and of the sources, so what another recovery left behind is never served.
A call that is served from here takes less than 0.1 s, most of it Python's start; so nothing heavy is imported.
"""

import hashlib
import os
import time
from pathlib import Path

from walproxy.recovery.config import FetchConfig

FOLDER = ".walproxy-prefetch"
REQUESTS = "requests"
LOCK = "lock"
BEGUN_SUFFIX = ".begun"
_WAIT_S = 20.0
_POLL_S = 0.005


class Prefetched:
    """What was fetched ahead for one data folder from certain sources.

    Attributes:
        folder: pg_wal/.walproxy-prefetch/KEY, which need not be there.

    Args:
        data_directory: of the PostgreSQL that recovers.
        wal_directory: its pg_wal.
        system_id: what its pg_control says.
    """

    def __init__(self, data_directory: Path, wal_directory: Path, system_id: int, config: FetchConfig) -> None:
        sources = (
            system_id,
            config.archive,
            sorted(config.archive_options.items()),
            config.safekeepers,
            [str(folder) for folder in config.data_dir],
        )
        key = hashlib.sha256(repr(sources).encode()).hexdigest()[:16]
        self.data_directory = data_directory
        self.folder = wal_directory / FOLDER / key

    def take(self, name: str, target: Path) -> bool:
        """Make the segment `name` the file `target`, if it was fetched, or is being fetched; return whether it was."""
        if self._move(name, target):
            return True
        begun = self.folder / (name + BEGUN_SUFFIX)
        deadline = time.monotonic() + _WAIT_S
        while begun.exists() and time.monotonic() < deadline and self._is_listened_to():
            time.sleep(_POLL_S)  # There is nothing to wait on but the name.
        return self._move(name, target)

    def request(self, name: str) -> bool:
        """Tell the prefetcher that `name` was delivered; return False if there is none."""
        try:
            pipe = os.open(self.folder / REQUESTS, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False  # No pipe, or nobody reads it.
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


def system_id_of(data_directory: Path) -> int:
    """Return the system id in a data folder's pg_control, 0 if it cannot be read."""
    try:
        with (data_directory / "global" / "pg_control").open("rb") as file:
            return int.from_bytes(file.read(8), "little")
    except OSError:
        return 0


def is_standby(data_directory: Path) -> bool:
    """Whether the server is to be a standby, which asks again for what it does not get."""
    return (data_directory / "standby.signal").exists()


def is_recovering(data_directory: Path) -> bool:
    """Whether a server runs there that was told to recover from an archive and has not finished."""
    if not is_standby(data_directory) and not (data_directory / "recovery.signal").exists():
        return False
    try:
        os.kill(int((data_directory / "postmaster.pid").read_text().split("\n")[0]), 0)
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return True
