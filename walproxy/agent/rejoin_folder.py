"""The record of an overwrite of the data folder that has begun: the folder DATA.walproxy-rejoin beside it.

    DATA.walproxy-rejoin/overwrite.json   the step; while it exists, the data folder is not started
    DATA.walproxy-rejoin/kept/            the files of the data folder that are not PostgreSQL's: the configuration
    DATA.walproxy-rejoin/lock             locked by the process that overwrites, and by its programs
    DATA.walproxy-new                     a base backup that is being made
    DATA.walproxy-old                     the data folder that it has replaced

It is not in the data folder, because pg_rewind removes each file there that the source does not have. All programs that
change the data folder inherit the lock: a killed agent's pg_rewind still holds it, and the next attempt waits.
"""

import contextlib
import enum
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from walproxy.agent.agent_settings import sync_file, sync_folder
from walproxy.agent.errors import RejoinFailed
from walproxy.agent.owner_commands import Owner

_POLL_S = 0.05
# What PostgreSQL has in its data folder, except its configuration; "log" is the usual folder of its log.
_POSTGRESQLS = frozenset(
    {
        "PG_VERSION",
        "backup_label",
        "backup_label.old",
        "backup_manifest",
        "base",
        "current_logfiles",
        "global",
        "log",
        "postmaster.opts",
        "postmaster.pid",
        "recovery.done",
        "recovery.signal",
        "standby.signal",
        "tablespace_map",
        "tablespace_map.old",
    }
)
_CONFIGURATION = frozenset({"pg_hba.conf", "pg_ident.conf"})


class OverwriteStep(enum.Enum):
    """The step of an overwrite that has begun, and which a new attempt repeats."""

    REWIND = "rewind"
    BASE_BACKUP = "base backup"
    SWAP = "swap"  # the base backup is complete, and replaces the data folder
    CONFIGURE = "configure"  # the content is the new primary's; the local configuration is missing


class Overwrite(msgspec.Struct, frozen=True):
    """The content of overwrite.json.

    Attributes:
        step: the step that has begun.
        system_id: of both servers.
        tli: the TLI in pg_control before anything was changed.
    """

    step: OverwriteStep
    system_id: int
    tli: int


def is_users_file(name: str) -> bool:
    """Return whether an entry of a data folder is not PostgreSQL's own: configuration, keys, included folders."""
    return name in _CONFIGURATION or not (
        name in _POSTGRESQLS or name.startswith("pg_") or name.endswith((".walproxy", ".tmp"))
    )


class RejoinFolder:
    """The record, and the paths beside a data folder.

    Args:
        data_directory: an absolute path.
    """

    def __init__(self, data_directory: Path) -> None:
        self._data_directory = data_directory
        self.path = data_directory.with_name(f"{data_directory.name}.walproxy-rejoin")
        self.new = data_directory.with_name(f"{data_directory.name}.walproxy-new")
        self.old = data_directory.with_name(f"{data_directory.name}.walproxy-old")
        self.kept = self.path / "kept"
        self._record = self.path / "overwrite.json"

    def read(self) -> Overwrite | None:
        """Return the overwrite that has begun, None if none has.

        Raises:
            RejoinFailed: the record is damaged.
            OSError: it cannot be read.
        """
        try:
            return msgspec.json.decode(self._record.read_bytes(), type=Overwrite)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise RejoinFailed(
                f"{self._record} is damaged ({error}): restore {self._data_directory} manually"
            ) from None

    def write(self, overwrite: Overwrite) -> None:
        """Record a step, durably, before it begins."""
        temporary = self._record.with_name("overwrite.json.tmp")
        with temporary.open("wb") as file:
            file.write(msgspec.json.encode(overwrite))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._record)
        sync_folder(self.path)
        sync_folder(self.path.parent)

    @contextlib.contextmanager
    def locked(self, timeout_s: float) -> Iterator[int]:
        """Hold the lock; yield the file that each program must inherit.

        Raises:
            RejoinFailed: another process has not released it in time, e.g. pg_rewind of an agent that was killed.
            OSError: the folder cannot be created.
        """
        deadline = time.monotonic() + timeout_s
        while (file := self._try_lock()) is None:
            if time.monotonic() > deadline:
                raise RejoinFailed(
                    f"{self.path} is locked by another process, e.g. pg_rewind of an agent that was killed"
                )
            time.sleep(_POLL_S)
        try:
            yield file
        finally:
            os.close(file)

    def _try_lock(self) -> int | None:
        self.path.mkdir(mode=0o700, exist_ok=True)
        path = self.path / "lock"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The process that had it may have completed, and have removed this file.
            if path.exists() and path.samefile(f"/proc/self/fd/{file}"):
                return file
        except BlockingIOError:
            pass
        except BaseException:
            os.close(file)
            raise
        os.close(file)
        return None

    def keep_users_files(self) -> None:
        """Copy the files of the data folder that are not PostgreSQL's, durably."""
        shutil.rmtree(self.kept, ignore_errors=True)
        self.kept.mkdir(mode=0o700)
        for path in sorted(self._data_directory.iterdir()):
            if is_users_file(path.name):
                _copy(path, self.kept / path.name)
        _sync(self.kept)

    def restore_users_files(self, target: Path, owner: Owner) -> None:
        """Replace the files of `target` that are not PostgreSQL's by the kept ones."""
        for path in sorted(target.iterdir()):
            if is_users_file(path.name):
                _remove(path)
        for path in sorted(self.kept.iterdir()):
            _copy(path, target / path.name)
            _give(target / path.name, owner)
            _sync(target / path.name)
        sync_folder(target)

    def remove(self) -> None:
        """Remove the record, then everything else of it. The data folder may be started from then on."""
        self._record.unlink(missing_ok=True)
        if self.path.exists():
            sync_folder(self.path)
        shutil.rmtree(self.path, ignore_errors=True)


def _copy(source: Path, target: Path) -> None:
    if source.is_symlink() or source.is_file():
        shutil.copy2(source, target, follow_symlinks=False)
    elif source.is_dir():
        shutil.copytree(source, target, symlinks=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _sync(path: Path) -> None:
    if path.is_symlink():
        return
    if path.is_dir():
        for child in path.iterdir():
            _sync(child)
        sync_folder(path)
    else:
        sync_file(path)


def _give(path: Path, owner: Owner) -> None:
    if os.geteuid() != 0:
        return
    os.chown(path, owner.uid, owner.gid, follow_symlinks=False)
    if path.is_dir() and not path.is_symlink():
        for child in path.iterdir():
            _give(child, owner)
