"""The control file: an acceptor's durable promises and history, replaced as a whole, atomically and durably.

`StateFile` is the format, which other small files of the folder also have; `ControlFile` is the one named `control`.

    magic (8) | format version (4) | payload length (4) | payload, MessagePack | CRC-32C of all before (4)

All numbers are little-endian. The file is never changed in place: `store` writes a temporary one, syncs it, renames it
and syncs the folder, so that any crash leaves the old state or the new one. Here the state is one msgspec structure;
the consensus defines its meaning. A vote, an adoption or a membership may be sent to others only after `store` has
returned (S2).

Only one process uses the folder: `DataDirectoryLock` refuses a second one.
"""

import errno
import fcntl
import os
import struct
from pathlib import Path
from typing import TypeVar

import google_crc32c
import msgspec

from safekeeper.base.errors import ConfigurationError, ResourceShortage, StorageFailed
from safekeeper.base.regular_files import open_descriptor
from safekeeper.consensus.control_state import FORMAT_VERSION
from safekeeper.storage.filesystem import FileSystem, is_shortage, read_whole, replace_durably

CONTROL_FILE_NAME = "control"
LOCK_FILE_NAME = "lock"

_HEADER = struct.Struct("<8sII")
_CRC = struct.Struct("<I")

State = TypeVar("State", bound=msgspec.Struct)


class StateFile:
    """One state in one file. Not thread-safe.

    Args:
        magic: the file's first 8 bytes.
        what: the file's name in messages, e.g. "control file".
        what_to_do: the instruction to the operator if the file is damaged.
        version: the format version; a file of another one is refused.
    """

    def __init__(
        self,
        fs: FileSystem,
        path: Path,
        *,
        magic: bytes,
        what: str,
        what_to_do: str,
        version: int = 1,
    ) -> None:
        self._fs = fs
        self.path = path
        self._magic = magic
        self._what = what
        self._what_to_do = what_to_do
        self._version = version
        self._failure: str | None = None

    def load(self, state_type: type[State]) -> State | None:
        """Return the state in the file, None if the file does not exist. Changes nothing.

        The page cache may show what the disk has lost: store it again before the folder is used (S12).

        Raises:
            StorageFailed: the file is damaged, of another version, or not a `state_type`.
        """
        if not self._fs.exists(self.path):
            return None
        payload = self._checked_payload(read_whole(self._fs, self.path))
        try:
            return msgspec.msgpack.decode(payload, type=state_type)
        except msgspec.DecodeError as error:
            raise StorageFailed(
                f"{self.path} is not a valid {state_type.__name__}: {error}; {self._what_to_do}"
            ) from error

    def store(self, state: msgspec.Struct) -> None:
        """Store `state` durably.

        Raises:
            StorageFull: no disk space, or no file descriptor; the old state remains. It may be retried.
            StorageFailed: it is unknown which of the two states the disk has (S12). Any later call fails.
        """
        if self._failure is not None:
            raise StorageFailed(self._failure)
        payload = msgspec.msgpack.encode(state)
        content = _HEADER.pack(self._magic, self._version, len(payload)) + payload
        try:
            replace_durably(self._fs, self.path, content + _CRC.pack(google_crc32c.value(content)))
        except StorageFailed as error:
            self._failure = f"{error}; the safekeeper must be restarted"
            raise StorageFailed(self._failure) from error

    def _checked_payload(self, content: bytes) -> bytes:
        """Return the payload of a file after validating everything else in it."""
        if len(content) < _HEADER.size + _CRC.size:
            raise StorageFailed(f"{self.path} is truncated to {len(content)} bytes: {self._what_to_do}")
        magic, version, length = _HEADER.unpack_from(content)
        if magic != self._magic:
            raise StorageFailed(f"{self.path} is not a safekeeper's {self._what}: is this the right data folder?")
        # The checksum is checked before the version, so that damage is not reported as another version.
        if google_crc32c.value(content[: -_CRC.size]) != _CRC.unpack(content[-_CRC.size :])[0]:
            raise StorageFailed(f"{self.path} is damaged, its checksum is wrong: {self._what_to_do}")
        if version != self._version:
            raise StorageFailed(
                f"{self.path} has format version {version}, this release reads version {self._version}: use the "
                "release that wrote it"
            )
        if length != len(content) - _HEADER.size - _CRC.size:
            raise StorageFailed(
                f"{self.path} has {len(content)} bytes, not the number in its header: {self._what_to_do}"
            )
        return content[_HEADER.size : -_CRC.size]


class ControlFile(StateFile):
    """The control file in a data folder."""

    def __init__(self, fs: FileSystem, directory: Path) -> None:
        super().__init__(
            fs,
            directory / CONTROL_FILE_NAME,
            magic=b"SAFEKEEP",
            what="control file",
            what_to_do="do not edit it; replace the disk and start with an empty data folder",
            version=FORMAT_VERSION,
        )


class DataDirectoryLock:
    """The right to use a data folder: held by one process, and released when it ends for any reason.

    It excludes processes of the same machine. It is taken on the real folder, not through FileSystem.
    """

    def __init__(self, directory: Path) -> None:
        """Take the lock.

        Raises:
            ConfigurationError: another process holds it (the message names it), or the folder cannot be used.
            StorageFailed: the disk is full.
            ResourceShortage: no file descriptor was free.
        """
        path = directory / LOCK_FILE_NAME
        try:
            self._descriptor = open_descriptor(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            if is_shortage(error):
                reason = f"could not open {path}: {error.strerror}: raise the limit of open files"
                raise ResourceShortage(reason) from error
            raise ConfigurationError(f"could not open {path}: {error.strerror}; choose another --data-dir") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError as error:
            holder = _read_pid(self._descriptor)
            self.release()
            raise ConfigurationError(
                f"{directory} is in use by process {holder or '(unknown)'}: stop it, or choose another --data-dir"
            ) from error
        except OSError as error:
            self.release()
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFailed(
                    f"not enough disk space to start in {directory}: free some space ({error.strerror})"
                ) from error
            raise ConfigurationError(f"could not lock {path}: {error.strerror}; choose another --data-dir") from error

    @staticmethod
    def owner(directory: Path) -> int | None:
        """Return the id of the process that uses `directory`, None if none does, 0 if it has not written its id yet.

        Changes nothing. A process that starts at this very moment may find that the folder is in use.

        Raises:
            ConfigurationError: the lock file cannot be read.
        """
        path = directory / LOCK_FILE_NAME
        try:
            descriptor = open_descriptor(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigurationError(f"could not open {path}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _read_pid(descriptor)
        except OSError as error:
            raise ConfigurationError(f"could not examine {path}: {error.strerror}") from error
        finally:
            os.close(descriptor)
        return None

    def release(self) -> None:
        """Release the folder. Releasing twice is harmless."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _read_pid(descriptor: int) -> int:
    """Return the process id in a lock file, 0 if it contains none."""
    text = os.pread(descriptor, 20, 0).strip()
    return int(text) if text.isdigit() else 0
