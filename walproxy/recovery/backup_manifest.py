"""The backup_manifest of a base backup: which files it must have, with their sizes and checksums.

PostgreSQL 13 and newer write one: a JSON object whose last line is the SHA-256 of all lines above it
(https://www.postgresql.org/docs/current/backup-manifest-format.html). Version 2, of PostgreSQL 17, adds the system
identifier.

`ManifestCheck` compares a backup with it while the backup is read: each file once, for copying and for checking at the
same time. The files that pg_verifybackup does not compare are not compared here: WAL has checksums of its own, and
postgresql.auto.conf and the signal files are written after the backup, by pg_basebackup -R or by hand.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Protocol

import google_crc32c
import msgspec

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import Lsn, parse_lsn

MANIFEST_NAME = "backup_manifest"
_VERSIONS = (1, 2)
_NOT_COMPARED = {MANIFEST_NAME, "postgresql.auto.conf", "recovery.signal", "standby.signal"}


class BackupDamaged(ConfigurationError):
    """A backup differs from its manifest, or the manifest is damaged."""


class _File(msgspec.Struct):
    size: int = msgspec.field(name="Size")
    path: str | None = msgspec.field(name="Path", default=None)
    encoded_path: str | None = msgspec.field(name="Encoded-Path", default=None)
    algorithm: str = msgspec.field(name="Checksum-Algorithm", default="NONE")
    checksum: str = msgspec.field(name="Checksum", default="")


class _WalRange(msgspec.Struct):
    end_lsn: str = msgspec.field(name="End-LSN")


class _Content(msgspec.Struct):
    version: int = msgspec.field(name="PostgreSQL-Backup-Manifest-Version")
    files: list[_File] = msgspec.field(name="Files")
    wal_ranges: list[_WalRange] = msgspec.field(name="WAL-Ranges")
    checksum: str = msgspec.field(name="Manifest-Checksum")
    system_id: int | None = msgspec.field(name="System-Identifier", default=None)


class ManifestFile(NamedTuple):
    """The entry of one file in the manifest. Without a checksum `algorithm` is NONE."""

    size: int
    algorithm: str
    checksum: bytes


class BackupManifest(NamedTuple):
    """A manifest whose own checksum is correct.

    Attributes:
        files: by their paths in the data folder.
        end_lsn: the end of the WAL that the backup needs, 0 if there is no range of WAL.
        system_id: None in version 1.
    """

    files: dict[PurePosixPath, ManifestFile]
    end_lsn: Lsn
    system_id: int | None


def parse_manifest(content: bytes) -> BackupManifest:
    """Return the manifest in the file's `content`.

    Raises:
        ValueError: it is damaged, or of a version that this release does not read.
    """
    try:
        parsed = msgspec.json.decode(content, type=_Content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"its JSON is invalid ({error})") from error
    last_line = content.rfind(b"\n", 0, len(content) - 1) + 1
    if b"Manifest-Checksum" not in content[last_line:]:
        raise ValueError("its last line does not have its checksum")
    actual = hashlib.sha256(content[:last_line]).hexdigest()
    if parsed.checksum.lower() != actual:
        raise ValueError(f"its own SHA-256 is {actual}, and its last line has {parsed.checksum[:64]}")
    if parsed.version not in _VERSIONS:
        raise ValueError(f"it has version {parsed.version}, and this release reads versions 1 and 2")
    files: dict[PurePosixPath, ManifestFile] = {}
    for file in parsed.files:
        path = _path_of(file)
        if path in files:
            raise ValueError(f"it lists {path} twice")
        if file.algorithm not in _CHECKSUMS:
            raise ValueError(f"it has an unknown checksum algorithm, {file.algorithm[:20]!r}, for {path}")
        files[path] = ManifestFile(file.size, file.algorithm, bytes.fromhex(file.checksum))
    try:
        end_lsn = max((parse_lsn(each.end_lsn) for each in parsed.wal_ranges), default=0)
    except ConfigurationError as error:
        raise ValueError(str(error)) from error
    return BackupManifest(files, end_lsn, parsed.system_id)


def _path_of(file: _File) -> PurePosixPath:
    if file.path is not None:
        return PurePosixPath(file.path)
    if file.encoded_path is None:
        raise ValueError("it lists a file without a path")
    return PurePosixPath(os.fsdecode(bytes.fromhex(file.encoded_path)))


class ManifestCheck:
    """The comparison of one reading of a backup with its manifest.

    Args:
        backup: the path that was given, for messages.
    """

    def __init__(self, manifest: BackupManifest, backup: Path) -> None:
        self._manifest = manifest
        self._backup = backup
        self._found: set[PurePosixPath] = set()

    def found(self, path: PurePosixPath, size: int) -> None:
        """Record a file of the backup, before it is read.

        Raises:
            BackupDamaged: the manifest does not list it, or with another size.
        """
        if _is_compared(path):
            expected = self._manifest.files.get(path)
            if expected is None:
                raise BackupDamaged(f"the backup {self._backup} is damaged: {path} is not in its backup_manifest")
            if path in self._found:
                raise BackupDamaged(f"the backup {self._backup} is damaged: it has {path} twice")
            self._found.add(path)
            self._compare_size(path, size, expected)

    def skipped(self, path: PurePosixPath) -> None:
        """Record a file that is neither read nor restored."""
        self._found.add(path)

    def checked(self, path: PurePosixPath, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield `pieces`, the content of a file that `found` has taken; compare it when it ends.

        Raises:
            BackupDamaged: its size or its checksum differs.
        """
        expected = self._manifest.files.get(path)
        if expected is None or not _is_compared(path):
            yield from pieces
            return
        checksum, size = _CHECKSUMS[expected.algorithm](), 0
        for piece in pieces:
            checksum.update(piece)
            size += len(piece)
            yield piece
        self._compare_size(path, size, expected)
        if checksum.digest() != expected.checksum:
            raise BackupDamaged(
                f"the backup {self._backup} is damaged: the {expected.algorithm} of {path} is "
                f"{checksum.digest().hex()}, and its backup_manifest has {expected.checksum.hex()}"
            )

    def finish(self) -> None:
        """End the comparison: all files have been taken.

        Raises:
            BackupDamaged: files are missing.
        """
        missing = [path for path in self._manifest.files if path not in self._found and _is_compared(path)]
        if missing:
            more = f", and so are {len(missing) - 1} more" if len(missing) > 1 else ""
            raise BackupDamaged(
                f"the backup {self._backup} is damaged: {missing[0]}, which its backup_manifest lists, is missing{more}"
            )

    def _compare_size(self, path: PurePosixPath, size: int, expected: ManifestFile) -> None:
        if size != expected.size:
            raise BackupDamaged(
                f"the backup {self._backup} is damaged: {path} has {size} bytes, and its backup_manifest has "
                f"{expected.size}"
            )


def _is_compared(path: PurePosixPath) -> bool:
    return path.parts[:1] != ("pg_wal",) and path.as_posix() not in _NOT_COMPARED


class _Checksum(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...


class _Crc32c:
    """CRC-32C as PostgreSQL writes it: the bytes of the number, the lowest first."""

    def __init__(self) -> None:
        self._crc = 0

    def update(self, data: bytes, /) -> None:
        self._crc = google_crc32c.extend(self._crc, data)

    def digest(self) -> bytes:
        return self._crc.to_bytes(4, "little")


class _NoChecksum:
    """Of a manifest that has sizes only (pg_basebackup --manifest-checksums=NONE)."""

    def update(self, data: bytes, /) -> None:
        """Ignore `data`."""

    def digest(self) -> bytes:
        return b""


_CHECKSUMS: dict[str, Callable[[], _Checksum]] = {
    "NONE": _NoChecksum,
    "CRC32C": _Crc32c,
    "SHA224": hashlib.sha224,
    "SHA256": hashlib.sha256,
    "SHA384": hashlib.sha384,
    "SHA512": hashlib.sha512,
}
