"""The mode of the PostgreSQL server that runs a restore_command, and the exit codes for it.

Only the standard library is imported, so that a command that cannot be imported still ends with the right code.
"""

import enum
from collections.abc import Sequence
from pathlib import Path

# PostgreSQL's handling of a restore_command's exit code: up to 125 the file does not exist, which ends recovery; above
# that, or after a signal, the server ends with an error. The second is right in archive recovery only: a standby
# retries, and a server in a promotion must not end.
# https://www.postgresql.org/docs/current/runtime-config-wal.html
EXIT_DELIVERED = 0
EXIT_MISSING = 1
EXIT_STOPS_RECOVERY = 200


class Mode(enum.Enum):
    """The mode of the PostgreSQL server that runs the restore_command, by the signal files in its data folder.

    RECOVERY: archive recovery (recovery.signal alone). It ends at the first missing file.
    STANDBY: standby.signal exists. The server retries.
    PROMOTING: both files are missing. A promotion removes them before it fetches the history file of the timeline
        that it leaves, and a server that fails from then on restarts writable on that old timeline.
    UNKNOWN: the command was not run for a data folder, e.g. manually. It is handled as RECOVERY.
    """

    RECOVERY = enum.auto()
    STANDBY = enum.auto()
    PROMOTING = enum.auto()
    UNKNOWN = enum.auto()

    @property
    def failure_code(self) -> int:
        """The exit code for "unknown": EXIT_STOPS_RECOVERY only where EXIT_MISSING would end recovery too early."""
        return EXIT_MISSING if self in (Mode.STANDBY, Mode.PROMOTING) else EXIT_STOPS_RECOVERY


def mode_of(data_directory: Path) -> Mode:
    """Return the mode of the server of a data folder; PROMOTING also for one that does not recover at all."""
    if not is_data_directory(data_directory):
        return Mode.UNKNOWN
    if (data_directory / "standby.signal").exists():
        return Mode.STANDBY
    return Mode.RECOVERY if (data_directory / "recovery.signal").exists() else Mode.PROMOTING


def data_directory_of(target: Path) -> Path:
    """Return the data folder for which a file is fetched.

    That is the parent of pg_wal with `target`. A script around the command may use another target; PostgreSQL has
    started the script in the data folder then.
    """
    try:
        above, here = target.absolute().parent.parent, Path.cwd()
    except OSError:  # The current folder has been removed.
        return target.parent.parent
    return here if is_data_directory(here) and not is_data_directory(above) else above


def is_data_directory(folder: Path) -> bool:
    """Return whether a folder is the data folder of a PostgreSQL server, False also if it cannot be read."""
    try:
        return (folder / "global" / "pg_control").exists()
    except OSError:
        return False


def failure_code(words: Sequence[str]) -> int:
    """Return the exit code of a `walproxy wal-fetch` that fails, even of one with wrong arguments.

    Args:
        words: its arguments; one of them may be the path of the file that PostgreSQL requests.
    """
    paths = [Path(word) for word in words if not word.startswith("-")]
    modes = [mode_of(data_directory_of(path)) for path in paths]
    return next((mode for mode in modes if mode is not Mode.UNKNOWN), Mode.UNKNOWN).failure_code
