"""The data folder of a standby on this machine, as far as WAL is handed over to it (hand_over.py). Every call blocks.

PostgreSQL would find a history file by restore_command, else in pg_wal. That command is run here in the same way, with
another target than PostgreSQL's own.
"""

import contextlib
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path

from psycopg.conninfo import make_conninfo

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.timelines import timeline_history_name
from walproxy.agent import processes
from walproxy.agent.agent_settings import sync_folder
from walproxy.agent.owner_commands import owner_of, run_as_owner
from walproxy.postgres.conninfo import parse_conninfo

_RESTORE_TIMEOUT_S = 30.0
_RESTORED = "RECOVERYHISTORY.walproxy"
_NEW_SUFFIX = ".walproxy"
_EVERY_ADDRESS = {"*": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
_WHOSE = "the standby's"


class LocalStandbyFolder:
    """The data folder. Its owner, or root, uses it."""

    def __init__(self, data_directory: Path) -> None:
        self._data_directory = data_directory.absolute()
        self._pg_wal = self._data_directory / "pg_wal"

    def __str__(self) -> str:
        return str(self._data_directory)

    def conninfo(self, given: str) -> str:
        """Return how to connect to the server that runs on the folder.

        Args:
            given: a connection string whose words take precedence, e.g. "user=postgres".

        Raises:
            ConfigurationError: `given` is not one, or no server runs.
        """
        words = parse_conninfo(given, _WHOSE)
        try:
            file = processes.read_pid_file(self._data_directory)
            owner = owner_of(self._data_directory)
        except OSError as error:
            raise ConfigurationError(
                f"{self._data_directory} cannot be read: {error.strerror}: --pgdata is the standby's data folder, and "
                "this command runs as its owner"
            ) from None
        if file is None or not file.port or processes.postmaster_of(self._data_directory) is None:
            raise ConfigurationError(f"no PostgreSQL server runs on {self._data_directory}: start the standby first")
        found = {"dbname": "postgres", **({"user": owner.name} if os.geteuid() == 0 else {})}
        if not words.keys() & {"host", "hostaddr", "service"}:
            found |= {"host": _EVERY_ADDRESS.get(file.host, file.host), "port": str(file.port)}
        return make_conninfo("", **{**found, **words})

    def check(self, data_directory: Path) -> None:
        """Make sure that this is the folder of the server with that one.

        Raises:
            ConfigurationError: it is not, or its files cannot be written.
        """
        try:
            is_ours = data_directory.samefile(self._data_directory)
        except OSError:
            is_ours = False
        if not is_ours:
            raise ConfigurationError(
                f"the server that replies has the data folder {data_directory}, not {self._data_directory}: correct "
                "--pgdata or --conninfo"
            )
        if not os.access(self._pg_wal, os.W_OK):
            raise ConfigurationError(f"{self._pg_wal} cannot be written: run this command as the owner of the folder")

    # WAL.

    def open_segment(self, name: str, size: int) -> "StandbySegment":
        """Open a segment of pg_wal."""
        return StandbySegment(self._pg_wal / name, size)

    def place_history(self, tli: int, content: bytes) -> None:
        """Write a history file to pg_wal, unless there is one."""
        path = self._pg_wal / timeline_history_name(tli)
        if path.exists():
            return
        new = path.with_name(path.name + _NEW_SUFFIX)
        try:
            with open(_created(new), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            _name_it(new, path)
        finally:
            new.unlink(missing_ok=True)

    def history_probe(self, restore_command: str) -> Callable[[int], bool]:
        """Return a function that returns whether PostgreSQL finds a history file of a number."""

        def has_history(tli: int) -> bool:
            name = timeline_history_name(tli)
            if (self._pg_wal / name).exists():
                return True
            return bool(restore_command) and self._can_restore(restore_command, name)

        return has_history

    def _can_restore(self, restore_command: str, name: str) -> bool:
        target = self._pg_wal / _RESTORED
        target.unlink(missing_ok=True)
        words = {"%f": name, "%p": f"pg_wal/{_RESTORED}", "%r": "000000010000000000000000", "%%": "%"}
        command = _with_words(restore_command, words)
        try:
            run_as_owner(
                owner_of(self._data_directory),
                ["/bin/sh", "-c", command],
                timeout_s=_RESTORE_TIMEOUT_S,
                folder=self._data_directory,
            )
            return target.exists()
        finally:
            target.unlink(missing_ok=True)

    # The server.

    def wake(self) -> None:
        """Make recovery look at pg_wal again, now."""
        processes.send_signal(self._data_directory, signal.SIGHUP)

    def end_walreceiver(self, pid: int) -> None:
        """End this walreceiver; PostgreSQL starts another one later."""
        processes.send_signal_to(pid, signal.SIGTERM, self._data_directory)


class StandbySegment:
    """A segment of a standby's pg_wal, open for writing. Every call blocks.

    Attributes:
        is_new: it did not exist.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._new = path.with_name(path.name + _NEW_SUFFIX)
        self.is_new = not path.exists()
        self._file = os.fdopen(
            _created(self._new) if self.is_new else os.open(path, os.O_RDWR | os.O_CLOEXEC), "r+b", buffering=0
        )
        if self._file.seek(0, os.SEEK_END) < size:
            os.posix_fallocate(self._file.fileno(), 0, size)

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of it."""
        return os.pread(self._file.fileno(), size, offset)

    def write(self, offset: int, payload: bytes) -> None:
        """Write bytes."""
        view = memoryview(payload)
        while view:
            written = os.pwrite(self._file.fileno(), view, offset)
            view, offset = view[written:], offset + written

    def finish(self) -> None:
        """Make it durable; a new one exists from then on."""
        os.fsync(self._file.fileno())
        if self.is_new:
            _name_it(self._new, self._path)

    def close(self) -> None:
        """Close it. A new one that is not finished is removed."""
        self._file.close()
        if self.is_new:
            self._new.unlink(missing_ok=True)


def _created(path: Path) -> int:
    """Create a file as PostgreSQL would: its owner's, and readable as the folder is."""
    folder = path.parent.stat()
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600 | (folder.st_mode & stat.S_IRGRP))
        if os.geteuid() != folder.st_uid:
            os.fchown(descriptor, folder.st_uid, folder.st_gid)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _name_it(new: Path, path: Path) -> None:
    """Give a file its name, unless another process has made one under that name meanwhile."""
    with contextlib.suppress(FileExistsError):
        path.hardlink_to(new)
    sync_folder(path.parent)


def _with_words(command: str, words: dict[str, str]) -> str:
    """Replace %-words as PostgreSQL does, from the left to the right."""
    parts: list[str] = []
    rest = command
    while rest:
        before, percent, rest = rest.partition("%")
        parts.append(before)
        if percent:
            word = "%" + rest[:1]
            parts.append(words.get(word, word))
            rest = rest[1:]
    return "".join(parts)
