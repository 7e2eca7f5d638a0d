"""The PostgreSQL server that runs a restore_command: its system, which run of it recovers, when sources did not reply.

Read from its data folder at each call; only small modules are imported.
"""

import hashlib
import os
import time
from pathlib import Path

from walproxy.recovery.config import FetchConfig
from walproxy.recovery.server_mode import Mode, mode_of

SILENCE_FILE = ".walproxy-silence"
_SILENCE_S = 10.0


def system_id_of(data_directory: Path) -> int:
    """Return the system id in a data folder's pg_control, 0 if it cannot be read."""
    try:
        with (data_directory / "global" / "pg_control").open("rb") as file:
            return int.from_bytes(file.read(8), "little")
    except OSError:
        return 0


def recovering_run(data_directory: Path) -> str:
    """Return which run of a server recovers there from an archive, as `PID START_TIME`; empty if none does."""
    if mode_of(data_directory) not in (Mode.STANDBY, Mode.RECOVERY):
        return ""
    try:
        pid, _, started, *_ = (data_directory / "postmaster.pid").read_text().split("\n")
        os.kill(int(pid), 0)
    except PermissionError:
        pass  # It runs, as another user.
    except (OSError, ValueError):
        return ""
    return f"{pid.strip()} {started.strip()}"


def sources_key(system_id: int, config: FetchConfig) -> str:
    """Return a key for these sources and one system, under which state is kept between two calls."""
    sources = (
        system_id,
        config.archive,
        sorted(config.archive_options.items()),
        config.safekeepers,
        [str(folder) for folder in config.data_dir],
    )
    return hashlib.sha256(repr(sources).encode()).hexdigest()[:16]


class Silence:
    """The file in pg_wal which records that the sources did not reply recently. An old one is ignored, and kept.

    A server that is promoted runs the command several times before it serves; each would wait for the same timeout.

    Args:
        key: the key of the sources; the file of others does not count.
    """

    def __init__(self, wal_directory: Path, key: str) -> None:
        self._path = wal_directory / SILENCE_FILE
        self._key = key

    def is_recent(self) -> bool:
        """Return whether the sources did not reply within the last seconds."""
        try:
            return self._path.read_text() == self._key and 0 <= time.time() - self._path.stat().st_mtime < _SILENCE_S
        except OSError:
            return False

    def begin(self) -> None:
        """Write the file. Without it the next call tries the sources, which is right, too."""
        try:
            self._path.write_text(self._key)
        except OSError:
            return
