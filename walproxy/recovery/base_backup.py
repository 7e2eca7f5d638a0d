"""A base backup as pg_basebackup writes it: a folder (-Fp), or tars (-Ft), plain or compressed.

    FOLDER/                       backup_label, PG_VERSION, global/pg_control, ...
    FOLDER/base.tar[.gz|.zst]     the same; FOLDER/pg_wal.tar[...] beside it (-X stream), backup_manifest beside it
    base.tar[.gz|.zst]            named directly

Both provide the few small files that identify the backup, and all entries, one after the other, to be written
elsewhere. All content is compared with the backup_manifest. Tablespaces outside of the data folder are refused: their
paths are those of the machine on which the backup was taken.
"""

import contextlib
import gzip
import os
import re
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple, cast

import zstandard

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import Lsn, parse_lsn
from walproxy.postgres.replay_state import parameters_of
from walproxy.recovery.backup_manifest import (
    MANIFEST_NAME,
    BackupDamaged,
    BackupManifest,
    ManifestCheck,
    parse_manifest,
)

_ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.zst")
_SMALL_FILES = (
    "backup_label",
    "PG_VERSION",
    "global/pg_control",
    "backup_manifest",
    "tablespace_map",
    "postmaster.pid",
)
_SMALL_BYTES_MAX = 1 << 28
_LABEL_START = re.compile(r"^START WAL LOCATION: ([0-9A-F]+/[0-9A-F]+) \(file ([0-9A-F]{24})\)$", re.MULTILINE)
_LABEL_TLI = re.compile(r"^START TIMELINE: (\d+)$", re.MULTILINE)
_LABEL_TIME = re.compile(r"^START TIME: (.+)$", re.MULTILINE)
_LABEL_INCREMENTAL = re.compile(r"^INCREMENTAL FROM LSN: ", re.MULTILINE)
_LABEL_CHECKPOINT = re.compile(r"^CHECKPOINT LOCATION: ([0-9A-F]+/[0-9A-F]+)$", re.MULTILINE)
_COPY_BYTES = 1 << 20
# Files of the server that was backed up, or of another recovery of it.
_LEFT_OUT = {
    "postmaster.pid",
    "postmaster.opts",
    "recovery.signal",
    "standby.signal",
    "backup_label.old",
    "recovery.done",
}


class BackupFacts(NamedTuple):
    """The facts in the small files of a backup.

    Attributes:
        major: the major version of PostgreSQL.
        start_lsn, start_tli: recovery begins there.
        checkpoint_lsn: the checkpoint at its beginning.
        end_lsn: recovery must reach it to be consistent; 0 if there is no backup_manifest.
        started_at: the time of its beginning, as it was written.
        start_segment: the file that contains start_lsn.
        parameters: settings of the server that a server which replays its WAL must have at least (replay_state.py).
    """

    system_id: int
    major: int
    start_lsn: Lsn
    start_tli: int
    checkpoint_lsn: Lsn
    end_lsn: Lsn
    started_at: str
    start_segment: str
    parameters: Mapping[str, int]


class BackupEntry(NamedTuple):
    """One file or folder of a backup: its path in the data folder, and a file's size and content.

    The content of a file in a tar can be read only before the next entry is requested.
    """

    path: PurePosixPath
    is_folder: bool
    size: int
    pieces: Callable[[], Iterator[bytes]]


class BaseBackup:
    """A backup.

    Attributes:
        path: the path that was given.
        facts: those in its small files.
        manifest: its manifest; None if it has none, or if that is ignored.
    """

    def __init__(self, path: Path, *, ignore_manifest: bool = False) -> None:
        """Read the small files. A tar is read up to them.

        Args:
            ignore_manifest: do not compare the content with the manifest.

        Raises:
            BackupDamaged: its manifest is damaged, or of another system.
            ConfigurationError: it is not a backup that can be restored.
        """
        self.path = path
        self._archives = _archives(path)
        small = dict(self._small_files())
        for name in ("tablespace_map", "postmaster.pid"):
            if small.get(name, b"").strip():
                raise ConfigurationError(_REFUSALS[name].format(path=path))
        for name in ("PG_VERSION", "backup_label", "global/pg_control"):
            if name not in small:
                raise ConfigurationError(f"{path} {_MISSING[name]}")
        manifest = _manifest(path, small, ignore_manifest)
        self.facts = _facts(path, small, manifest)
        self.manifest = manifest if not ignore_manifest else None

    def entries(self) -> Iterator[BackupEntry]:
        """Yield all files and folders of the data folder, folders before their content.

        With a manifest all of them are compared: names and sizes here, the content while it is read.

        Raises:
            BackupDamaged: it differs from its manifest; also raised by `pieces` of the entries.
            ConfigurationError: the backup cannot be read, or contains what cannot be restored.
        """
        check = ManifestCheck(self.manifest, self.path) if self.manifest is not None else None
        with _readable(self.path):
            for entry in self._all_entries():
                if entry.path.as_posix() in _LEFT_OUT:
                    if check is not None:
                        check.skipped(entry.path)
                elif entry.path.parts[:1] != ("pg_wal",):
                    yield _checked(entry, check) if check is not None else entry
        if check is not None:
            check.finish()

    def verify(self, done: Callable[[int], None]) -> None:
        """Read everything and compare it with the manifest; `done` is given the size of each piece.

        Raises:
            As `entries`.
        """
        for entry in self.entries():
            for piece in entry.pieces():
                done(len(piece))

    def wal_entries(self) -> Iterator[BackupEntry]:
        """Yield the files of pg_wal that it contains."""
        with _readable(self.path):
            for entry in self._all_entries(wal=True):
                if entry.path.parts[:1] == ("pg_wal",) and not entry.is_folder:
                    yield entry

    def size(self) -> int:
        """Return the number of bytes to read, for a progress bar."""
        if self._archives:
            return sum(archive.stat().st_size for archive in self._archives)
        return sum(entry.size for entry in self.entries())

    def _all_entries(self, wal: bool = False) -> Iterator[BackupEntry]:
        if not self._archives:
            yield from _folder_entries(self.path)
            return
        for archive in self._archives:
            is_wal = archive.name.startswith("pg_wal.")
            if wal or not is_wal:
                yield from _tar_entries(archive, PurePosixPath("pg_wal" if is_wal else ""))

    def _small_files(self) -> Iterator[tuple[str, bytes]]:
        wanted = set(_SMALL_FILES)
        if self._archives:
            # With pg_basebackup -D - it is in the tar itself.
            beside = self._archives[0].with_name(MANIFEST_NAME)
            if beside.is_file():
                wanted.remove(MANIFEST_NAME)
                yield MANIFEST_NAME, beside.read_bytes()
        with _readable(self.path):
            if not self._archives:
                for name in _SMALL_FILES:
                    file = self.path / name
                    if file.is_file():
                        yield name, file.read_bytes()
                links = [link.name for link in _children(self.path / "pg_tblspc")]
                if links:
                    yield "tablespace_map", " ".join(links).encode()
                return
            for entry in self._all_entries():
                name = entry.path.as_posix()
                if name in wanted and not entry.is_folder and entry.size <= _SMALL_BYTES_MAX:
                    yield name, b"".join(entry.pieces())


_REFUSALS = {
    "tablespace_map": "{path} has tablespaces outside of the data folder, which restore does not place: restore it by "
    "hand, and use walproxy wal-fetch as restore_command",
    "postmaster.pid": "{path} is the data folder of a server, not a backup of it: take one with pg_basebackup",
}
_MISSING = {
    "PG_VERSION": "is not a base backup: PG_VERSION is missing; use the output of pg_basebackup",
    "backup_label": "has no backup_label, without which recovery would begin at the wrong place: take a backup with "
    "pg_basebackup, and do not start a server on it",
    "global/pg_control": "has no global/pg_control: the backup is not complete",
}


def parse_label(label: str) -> tuple[Lsn, int, Lsn, str, str]:
    """Return (start LSN, start TLI, checkpoint LSN, start time as written, start segment) of a backup_label.

    Raises:
        ValueError: its format is unknown.
    """
    start, checkpoint = _LABEL_START.search(label), _LABEL_CHECKPOINT.search(label)
    if start is None or checkpoint is None:
        raise ValueError("it lacks the start of the backup's WAL")
    tli, time = _LABEL_TLI.search(label), _LABEL_TIME.search(label)
    return (
        parse_lsn(start[1]),
        int(tli[1]) if tli is not None else int(start[2][:8], 16),
        parse_lsn(checkpoint[1]),
        time[1] if time is not None else "",
        start[2],
    )


def _manifest(path: Path, small: dict[str, bytes], ignored: bool) -> BackupManifest | None:
    """Return the manifest of the backup, None if there is none, or if it is damaged and ignored."""
    content = small.get(MANIFEST_NAME)
    if content is None:
        return None
    try:
        manifest = parse_manifest(content)
    except ValueError as error:
        if ignored:
            return None
        raise BackupDamaged(f"the backup_manifest of {path} is damaged: {error}") from error
    system_id = int.from_bytes(small["global/pg_control"][:8], "little")
    if manifest.system_id not in (None, system_id) and not ignored:
        raise BackupDamaged(
            f"the backup_manifest of {path} is of system {manifest.system_id}, and its pg_control of {system_id}: it "
            "belongs to another backup"
        )
    return manifest


def _facts(path: Path, small: dict[str, bytes], manifest: BackupManifest | None) -> BackupFacts:
    version = small["PG_VERSION"].decode(errors="replace").strip()
    if not version.isdecimal() or len(small["global/pg_control"]) < 8:
        raise ConfigurationError(f"{path} is not a base backup: PG_VERSION contains {version[:20]!r}")
    label = small["backup_label"].decode(errors="replace")
    if _LABEL_INCREMENTAL.search(label):
        raise ConfigurationError(
            f"{path} is an incremental backup: combine it with those before it by pg_combinebackup, and restore the "
            "result"
        )
    try:
        start_lsn, tli, checkpoint_lsn, started_at, segment = parse_label(label)
    except (ValueError, ConfigurationError) as error:
        raise ConfigurationError(f"the backup_label of {path} cannot be parsed: {error}") from error
    end_lsn = manifest.end_lsn if manifest is not None else 0
    control = small["global/pg_control"]
    system_id = int.from_bytes(control[:8], "little")
    return BackupFacts(
        system_id, int(version), start_lsn, tli, checkpoint_lsn, end_lsn, started_at, segment, parameters_of(control)
    )


# Folders.


def _children(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def _folder_entries(directory: Path) -> Iterator[BackupEntry]:
    for parent, folders, files in os.walk(directory, onerror=_raise):
        folders.sort()
        for name in folders:
            path = Path(parent, name)
            if path.is_symlink() and path != directory / "pg_wal":
                raise ConfigurationError(f"{path} is a link, which restore does not follow: replace it with its target")
            yield BackupEntry(PurePosixPath(path.relative_to(directory)), True, 0, lambda: iter(()))
        if Path(parent) == directory and (directory / "pg_wal").is_symlink():
            for file in _children(directory / "pg_wal"):
                if file.is_file():
                    yield _file_entry(file, PurePosixPath("pg_wal", file.name))
        for name in sorted(files):
            path = Path(parent, name)
            if stat.S_ISREG(path.lstat().st_mode):
                yield _file_entry(path, PurePosixPath(path.relative_to(directory)))


def _raise(error: OSError) -> None:
    raise error


def _file_entry(path: Path, inside: PurePosixPath) -> BackupEntry:
    return BackupEntry(inside, False, path.stat().st_size, lambda: _pieces(path, lambda: path.open("rb")))


def _pieces(place: Path, open_content: Callable[[], IO[bytes] | None]) -> Iterator[bytes]:
    """Yield the content of a file of the backup at `place`.

    Raises:
        ConfigurationError: it cannot be read.
    """
    with _readable(place):
        content = open_content()
        if content is not None:
            with content:
                while piece := content.read(_COPY_BYTES):
                    yield piece


def _checked(entry: BackupEntry, check: ManifestCheck) -> BackupEntry:
    if entry.is_folder:
        return entry
    check.found(entry.path, entry.size)
    return entry._replace(pieces=lambda: check.checked(entry.path, entry.pieces()))


# Tars.


def _archives(path: Path) -> list[Path]:
    """Return the tars that a backup consists of, that of the data folder first; none if it is a folder."""
    if path.is_file():
        if not path.name.endswith(_ARCHIVE_SUFFIXES):
            raise ConfigurationError(f"{path} is neither a folder nor a tar (.tar, .tar.gz, .tar.zst)")
        return [path, *_named(path.parent, "pg_wal")]
    if not path.is_dir():
        raise ConfigurationError(f"{path} does not exist: correct --backup")
    base = _named(path, "base")
    if base and not (path / "PG_VERSION").exists():
        others = [each.name for each in path.iterdir() if re.fullmatch(r"\d+\.tar(\.\w+)?", each.name)]
        if others:
            raise ConfigurationError(_REFUSALS["tablespace_map"].format(path=path))
        return [base[0], *_named(path, "pg_wal")]
    unknown = next(iter(sorted(path.glob("base.tar.*"))), None)
    if unknown is not None and not (path / "PG_VERSION").exists():
        raise ConfigurationError(
            f"{unknown} is compressed in a way that is not supported (only gzip and zstd): unpack it"
        )
    return []


def _named(directory: Path, stem: str) -> list[Path]:
    found = [directory / (stem + suffix) for suffix in _ARCHIVE_SUFFIXES]
    return [each for each in found if each.is_file()][:1]


def _tar_entries(archive: Path, below: PurePosixPath) -> Iterator[BackupEntry]:
    with _opened(archive) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            inside = below / PurePosixPath(member.name)
            if inside.is_absolute() or ".." in inside.parts:
                raise ConfigurationError(f"{archive} has an entry {member.name!r} outside of the data folder")
            if member.issym() or member.islnk():
                raise ConfigurationError(f"{archive} has a link, {member.name!r}: tablespaces are not supported")
            if inside.parts and (member.isdir() or member.isreg()):
                yield _member_entry(archive, tar, member, inside)


def _member_entry(archive: Path, tar: tarfile.TarFile, member: tarfile.TarInfo, inside: PurePosixPath) -> BackupEntry:
    size = member.size if member.isreg() else 0
    return BackupEntry(inside, member.isdir(), size, lambda: _pieces(archive, lambda: tar.extractfile(member)))


@contextlib.contextmanager
def _opened(archive: Path) -> Iterator[IO[bytes]]:
    with archive.open("rb") as file:
        if archive.name.endswith(".zst"):
            with zstandard.ZstdDecompressor().stream_reader(file) as plain:
                yield plain
        elif archive.name.endswith("gz"):
            with gzip.open(file, "rb") as unzipped:
                yield cast("IO[bytes]", unzipped)
        else:
            yield file


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, tarfile.TarError, zlib.error, zstandard.ZstdError) as error:
        reason: object = error
        if isinstance(error, OSError) and error.strerror:
            where = f": {error.filename}" if error.filename is not None and str(error.filename) != str(path) else ""
            reason = error.strerror + where
        raise ConfigurationError(f"the backup {path} cannot be read: {reason}") from error


def write_entry(entry: BackupEntry, target: Path, done: Callable[[int], None]) -> None:
    """Write one entry into the data folder `target`; `done` is called with the number of bytes written."""
    path = target / entry.path
    if entry.is_folder:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        for piece in entry.pieces():
            file.write(piece)
            done(len(piece))
