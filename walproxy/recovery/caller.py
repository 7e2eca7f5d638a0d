"""The PostgreSQL server that runs a restore_command: what it does, and what an exit code would make it do.

Read from its data folder at each call; nothing heavy is imported.
"""

import enum
import hashlib
import os
import time
from pathlib import Path

from walproxy.recovery.config import EXIT_MISSING, EXIT_STOPS_RECOVERY, FetchConfig

SILENCE_FILE = ".walproxy-silence"
_SILENCE_S = 10.0


def system_id_of(data_directory: Path) -> int:
    """Return the system id in a data folder's pg_control, 0 if it cannot be read."""
    try:
        with (data_directory / "global" / "pg_control").open("rb") as file:
            return int.from_bytes(file.read(8), "little")
    except OSError:
        return 0


class Mode(enum.Enum):
    """What the PostgreSQL server that runs the restore_command does, by the signal files in its data folder.

    RECOVERY: archive recovery (recovery.signal alone). It ends at the first file that is said to be missing.
    STANDBY: standby.signal is there. The server asks again for what it does not get.
    PROMOTING: both files are gone from a data folder. A promotion removes them before it asks for the history file of
        the timeline that it leaves, and a server that fails from then on comes back writable on that old timeline.
    UNKNOWN: the command was not run for a data folder, e.g. by hand. It is answered as RECOVERY.
    """

    RECOVERY = enum.auto()
    STANDBY = enum.auto()
    PROMOTING = enum.auto()
    UNKNOWN = enum.auto()

    @property
    def failure_code(self) -> int:
        """The exit code for "cannot say": EXIT_STOPS_RECOVERY only where EXIT_MISSING would end recovery too early."""
        return EXIT_MISSING if self in (Mode.STANDBY, Mode.PROMOTING) else EXIT_STOPS_RECOVERY


def mode_of(data_directory: Path) -> Mode:
    """Return what the server of a data folder does; PROMOTING also for one that does not recover at all."""
    if not is_data_directory(data_directory):
        return Mode.UNKNOWN
    if (data_directory / "standby.signal").exists():
        return Mode.STANDBY
    return Mode.RECOVERY if (data_directory / "recovery.signal").exists() else Mode.PROMOTING


def data_directory_of(target: Path) -> Path:
    """Return the data folder for which a file is fetched.

    That is where `target`, in pg_wal, belongs. A script around the command may name a place of its own; PostgreSQL has
    started the script in the data folder then.
    """
    try:
        above, here = target.absolute().parent.parent, Path.cwd()
    except OSError:  # The current folder has been removed.
        return target.parent.parent
    return here if is_data_directory(here) and not is_data_directory(above) else above


def is_data_directory(folder: Path) -> bool:
    """Return whether a folder is the data folder of a PostgreSQL server, False also if it cannot be looked at."""
    try:
        return (folder / "global" / "pg_control").exists()
    except OSError:
        return False


def is_recovering(data_directory: Path) -> bool:
    """Whether a server runs there that was told to recover from an archive and has not finished."""
    if mode_of(data_directory) not in (Mode.STANDBY, Mode.RECOVERY):
        return False
    try:
        os.kill(int((data_directory / "postmaster.pid").read_text().split("\n")[0]), 0)
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return True


def sources_key(system_id: int, config: FetchConfig) -> str:
    """Return a name for these sources as those of one system: what is kept between two calls is kept under it."""
    sources = (
        system_id,
        config.archive,
        sorted(config.archive_options.items()),
        config.safekeepers,
        [str(folder) for folder in config.data_dir],
    )
    return hashlib.sha256(repr(sources).encode()).hexdigest()[:16]


class Silence:
    """The note in pg_wal that the sources did not answer a moment ago. An old one means nothing, and is left there.

    A server that is promoted asks several questions before it serves, each of which would wait for the same timeout.

    Args:
        key: of the sources; the note of others does not count.
    """

    def __init__(self, wal_directory: Path, key: str) -> None:
        self._path = wal_directory / SILENCE_FILE
        self._key = key

    def is_recent(self) -> bool:
        """Return whether the sources did not answer within the last seconds."""
        try:
            return self._path.read_text() == self._key and 0 <= time.time() - self._path.stat().st_mtime < _SILENCE_S
        except OSError:
            return False

    def begin(self) -> None:
        """Write the note. Without it the next call asks, which is right too."""
        try:
            self._path.write_text(self._key)
        except OSError:
            return
