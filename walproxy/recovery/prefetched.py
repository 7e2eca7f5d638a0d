"""Segments that were fetched before PostgreSQL requests them: the part that runs in every restore_command.

    base/pgsql_tmp/pgsql_tmp.walproxy/
      owner        the prefetcher, and for which run of the server, which options and sources it fetches
      lock         held by the one prefetcher of this data folder
      NAME         a whole segment, checked and on disk: delivered by a rename
      NAME.begun   it is being fetched
      delivered    the name of a segment that was delivered, but not from here

These are regular files, and the folder has a name of PostgreSQL's temporary files: it removes them when it starts, and
pg_rewind, pg_basebackup and other backups skip them, also those of a prefetcher that was killed.

`owner` has three lines, so files of another run of the server, or from other sources, are never used:

    PID                          of the prefetcher
    PID START_TIME OPTION... SOURCE...
                                 the lines 1 and 3 of postmaster.pid, the options of the restore_command, and the
                                 sources in its environment
    KEY                          of the system id in pg_control, and of the sources

The shell script walproxy-wal-fetch beside this file does what `take` does, by the first two lines, without Python,
while the prefetcher lives. A source that may contain a credential is not written: the second line is then none that
the script has, so it leaves all segments to Python, which compares the third line.
"""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from safekeeper.base.lsn import Lsn, parse_segment_name, segment_name
from safekeeper.base.settings import environment_variable
from walproxy.recovery.caller import recovering_run, sources_key
from walproxy.recovery.config import ENVIRONMENT_PREFIX, FetchConfig

FOLDER = Path("base", "pgsql_tmp", "pgsql_tmp.walproxy")
OWNER = "owner"
LOCK = "lock"
DELIVERED = "delivered"
BEGUN_SUFFIX = ".begun"
# In the order of the script.
_SOURCES = ("config", "archive", "archive_options", "safekeepers", "data_dir")
_CREDENTIAL = re.compile("secret|token|password|_key|@", re.IGNORECASE)
_AHEAD_BYTES_MAX = 1 << 30
_WAIT_S = 10.0
_POLL_S = 0.005


class Prefetched:
    """The segments that were fetched ahead for one run of a server from certain sources.

    Attributes:
        folder: it need not exist, and may be that of another run.
        run: which run of the server recovers, empty if none does.
        options: the words of the restore_command after %p.
        count: the number of segments to fetch ahead.
        owner: the second and the third line of the folder's `owner`.

    Args:
        data_directory: the data folder of the PostgreSQL that recovers.
        system_id: the system id in its pg_control.
    """

    def __init__(self, data_directory: Path, system_id: int, config: FetchConfig, options: Sequence[str]) -> None:
        self.data_directory = data_directory
        self.folder = data_directory / FOLDER
        self.run = recovering_run(data_directory)
        self.options = tuple(options)
        self.count = config.prefetch
        words = (self.run, *options, _sources_in(os.environ))
        self.owner = f"{' '.join(words)}\n{sources_key(system_id, config)}\n"

    def take(self, name: str, target: Path) -> bool:
        """Move the segment `name` to `target`, if it was or is being fetched; return whether it was."""
        if not self.is_ours():
            return False
        if self._move(name, target):
            return True
        begun = self.folder / (name + BEGUN_SUFFIX)
        deadline = time.monotonic() + _WAIT_S
        while begun.exists() and time.monotonic() < deadline and self._has_prefetcher():
            time.sleep(_POLL_S)  # Only the name of the file shows that it is complete.
        return self._move(name, target)

    def report(self, name: str) -> bool:
        """Let the prefetcher know which segment was delivered; return False if there is no prefetcher."""
        if not self.is_ours() or not self._has_prefetcher():
            return False
        temporary = self.folder / f"{DELIVERED}.{os.getpid()}"
        try:
            temporary.write_text(name)
            temporary.replace(self.folder / DELIVERED)
        except OSError:
            return False
        return True

    def segments_after(self, name: str, segment_size: int) -> dict[str, Lsn]:
        """Return the names and positions of the segments to fetch when `name` was delivered."""
        parsed = parse_segment_name(name, segment_size)
        if parsed is None:
            return {}
        tli, lsn = parsed
        count = min(self.count, max(1, _AHEAD_BYTES_MAX // segment_size))
        positions = [lsn + index * segment_size for index in range(1, count + 1)]
        return {segment_name(tli, each, segment_size): each for each in positions}

    def _move(self, name: str, target: Path) -> bool:
        path = self.folder / name
        try:
            path.replace(target)
        except OSError as error:
            return error.errno == errno.EXDEV and _copied(path, target)  # pg_wal may be a link to another disk.
        return True

    def is_ours(self) -> bool:
        """Return whether the folder is that of this run, with these options and sources."""
        try:
            _, _, owner = (self.folder / OWNER).read_bytes().partition(b"\n")
        except OSError:
            return False
        return owner == os.fsencode(self.owner)

    def _has_prefetcher(self) -> bool:
        try:
            lock = os.open(self.folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False


def _sources_in(environment: Mapping[str, str]) -> str:
    """Return what the environment sets of the sources, each as `=VALUE`, empty if not set, `*` if it may be secret."""
    values = [environment.get(environment_variable(ENVIRONMENT_PREFIX, name)) for name in _SOURCES]
    return " ".join("" if value is None else "*" if _CREDENTIAL.search(value) else f"={value}" for value in values)


def _copied(path: Path, target: Path) -> bool:
    """Copy a file to another disk; `target` has all of it or is not changed. Return False if that is not possible."""
    temporary = target.with_name(f"{target.name}.walproxy")
    try:
        shutil.copyfile(path, temporary)
        temporary.replace(target)
        path.unlink()
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        return False
    return True
