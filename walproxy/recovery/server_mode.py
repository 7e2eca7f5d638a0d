"""What the PostgreSQL server does that runs a restore_command, and what an exit code would make it do.

Only the standard library is imported, so that a command that cannot be imported still ends with the right code.
"""

import enum
from collections.abc import Sequence
from pathlib import Path

# What PostgreSQL makes of a restore_command's exit code: up to 125 the file is not there, which ends recovery; above
# that, or after a signal, the server ends with an error. The second is right in archive recovery only: a standby asks
# again, and a server in a promotion must not end.
# https://www.postgresql.org/docs/current/runtime-config-wal.html
EXIT_DELIVERED = 0
EXIT_MISSING = 1
EXIT_STOPS_RECOVERY = 200


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


def failure_code(words: Sequence[str]) -> int:
    """Return the exit code of a `walproxy wal-fetch` that fails, even of one that is not understood.

    Args:
        words: its arguments; one of them may be the path of the file that PostgreSQL wants.
    """
    paths = [Path(word) for word in words if not word.startswith("-")]
    modes = [mode_of(data_directory_of(path)) for path in paths]
    return next((mode for mode in modes if mode is not Mode.UNKNOWN), Mode.UNKNOWN).failure_code
