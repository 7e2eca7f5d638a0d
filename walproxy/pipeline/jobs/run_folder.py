"""A run's files beside its tables, in `_run`: the system of their WAL, and the lock that lets one run write to them.

An object store has no locks. There the lock is a file of this machine, which only reports a second run of the same user
early. Two runs on two machines are told apart by the state, which is replaced by compare-and-set, and by the positions
of the tables (rule X1): the slower one ends.
"""

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from typing import Final

import msgspec

from safekeeper.base.errors import ConfigurationError, StorageFailed
from walproxy.pipeline.input.wal_input import WalInput
from walproxy.pipeline.lake.disk import cache_folder, storage_errors
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.state import StateObject
from walproxy.pipeline.source.stream import Offset
from walproxy.wal_sources.source import LogPath

_FOLDER: Final = "_run"
# A JVM whose Python process was killed ends within a second or two. That of a first session writes the archive of its
# classes before (spark_session.py), 167 MB, and holds the lock meanwhile: 15 s were not enough on a busy machine.
_LOCK_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.1


class RunFolder:
    """A run's folder on this machine, and its state beside the tables.

    Attributes:
        folder: `_run` in the folder of the tables; for tables in an object store, one in the cache of this user.
    """

    def __init__(self, tables: LakeLocation) -> None:
        self._tables = tables
        self._state = StateObject(tables, f"{_FOLDER}/run.json")
        if tables.folder is not None:
            self.folder = tables.folder / _FOLDER
        else:
            self.folder = cache_folder() / f"run-{hashlib.sha256(tables.url.encode()).hexdigest()[:16]}"

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Hold the lock; yield the open file, whose heirs hold it too.

        Raises:
            ConfigurationError: another run holds it.
            StorageFull, StorageFailed: the folder cannot be made.
        """
        with storage_errors(f"make the folder {self.folder}"):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock_fd = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            deadline = time.monotonic() + _LOCK_TIMEOUT_S
            while not _try_lock(lock_fd):
                if time.monotonic() > deadline:
                    holder = os.pread(lock_fd, 32, 0).decode(errors="replace").strip() or "unknown"
                    raise ConfigurationError(
                        f"another run writes to the tables in {self._tables} (process {holder}): stop it first"
                    )
                time.sleep(_POLL_S)
            os.ftruncate(lock_fd, 0)
            os.pwrite(lock_fd, str(os.getpid()).encode(), 0)
            yield lock_fd
        finally:
            os.close(lock_fd)

    def check(self, wal_input: WalInput, path: LogPath) -> None:
        """Make sure that the tables' WAL is that of the input, as far as they have it.

        Raises:
            ConfigurationError: it is another one's.
            StorageFailed: what is kept here cannot be read.
        """
        content = self._state.read()
        if content is None:
            return
        try:
            offset = Offset.parse(msgspec.json.decode(content))
        except (msgspec.DecodeError, ConfigurationError) as error:
            raise StorageFailed(f"{self._state.name} is damaged: remove it, if the tables are of this input") from error
        offset.check(wal_input, path, f"what the tables in {self._tables} hold")

    def remember(self, offset: Offset) -> None:
        """Keep where the tables stand.

        Raises:
            TableMoved: another run, of another machine, has done so since.
            StorageFull, StorageFailed, ArchiveError.
        """
        self._state.write(msgspec.json.encode(offset.content()))


def _try_lock(lock_fd: int) -> bool:
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
