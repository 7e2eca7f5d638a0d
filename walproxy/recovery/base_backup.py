"""A base backup as pg_basebackup leaves it: a folder (-Fp), or tars (-Ft), plain or compressed.

    FOLDER/                       backup_label, PG_VERSION, global/pg_control, ...
    FOLDER/base.tar[.gz|.zst]     the same; FOLDER/pg_wal.tar[...] beside it (-X stream), backup_manifest beside it
    base.tar[.gz|.zst]            named directly

Both give the same two things: the few small files that tell what kind of backup it is, and all entries, one after the
other, to be written elsewhere. Tablespaces outside of the data folder are refused: their places belong to the machine
that the backup was taken on.
"""

import contextlib
import gzip
import json
import os
import re
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple, cast

import zstandard

from safekeeper.errors import ConfigurationError
from safekeeper.lsn import Lsn, parse_lsn

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
_LABEL_CHECKPOINT = re.compile(r"^CHECKPOINT LOCATION: ([0-9A-F]+/[0-9A-F]+)$", re.MULTILINE)
_COPY_BYTES = 1 << 20
# What belongs to the server that the backup was taken of, or to another recovery of it.
_LEFT_OUT = {
    "postmaster.pid",
    "postmaster.opts",
    "recovery.signal",
    "standby.signal",
    "backup_label.old",
    "recovery.done",
}


class BackupFacts(NamedTuple):
    """What a backup says about itself.

    Attributes:
        major: of the PostgreSQL that it is of.
        start_lsn, start_tli: recovery begins there.
        checkpoint_lsn: the checkpoint that it was begun with.
        end_lsn: recovery must reach it to be consistent; 0 if there is no backup_manifest to say so.
        started_at: when it was begun, as it was written.
        start_segment: the file that holds start_lsn.
    """

    system_id: int
    major: int
    start_lsn: Lsn
    start_tli: int
    checkpoint_lsn: Lsn
    end_lsn: Lsn
    started_at: str
    start_segment: str


class Entry(NamedTuple):
    """One file or folder of a backup: its path in the data folder, and a file's size and content."""

    path: PurePosixPath
    is_folder: bool
    size: int
    open: Callable[[], IO[bytes] | None]


class BaseBackup:
    """A backup.

    Attributes:
        path: what was named.
        facts: what it says about itself.
        has_wal: it came with WAL of its own.
    """

    def __init__(self, path: Path) -> None:
        """Look at it. A tar is read up to the files that tell what it is.

        Raises:
            ConfigurationError: it is no backup that can be restored.
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
        self.facts = _facts(path, small)

    def entries(self) -> Iterator[Entry]:
        """Yield everything that belongs into the data folder, folders before what is in them.

        Raises:
            ConfigurationError: the backup cannot be read, or holds what cannot be restored.
        """
        with _readable(self.path):
            for entry in self._all_entries():
                if entry.path.as_posix() not in _LEFT_OUT and entry.path.parts[:1] != ("pg_wal",):
                    yield entry

    def wal_entries(self) -> Iterator[Entry]:
        """Yield the files of pg_wal that came with it."""
        with _readable(self.path):
            for entry in self._all_entries(wal=True):
                if entry.path.parts[:1] == ("pg_wal",) and not entry.is_folder:
                    yield entry

    def size(self) -> int:
        """Return how many bytes there are to read, for a progress bar."""
        if self._archives:
            return sum(archive.stat().st_size for archive in self._archives)
        return sum(entry.size for entry in self.entries())

    def _all_entries(self, wal: bool = False) -> Iterator[Entry]:
        if not self._archives:
            yield from _folder_entries(self.path)
            return
        for archive in self._archives:
            is_wal = archive.name.startswith("pg_wal.")
            if wal or not is_wal:
                yield from _tar_entries(archive, PurePosixPath("pg_wal" if is_wal else ""))

    def _small_files(self) -> Iterator[tuple[str, bytes]]:
        if self._archives:
            beside = self._archives[0].with_name("backup_manifest")
            if beside.is_file():
                yield "backup_manifest", beside.read_bytes()
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
            wanted = set(_SMALL_FILES) - {"backup_manifest"}
            for entry in self._all_entries():
                name = entry.path.as_posix()
                if name in wanted and not entry.is_folder and entry.size <= _SMALL_BYTES_MAX:
                    content = entry.open()
                    yield name, content.read() if content is not None else b""


_REFUSALS = {
    "tablespace_map": "{path} has tablespaces outside of the data folder, which restore does not place: restore it by "
    "hand, and use walproxy wal-fetch as restore_command",
    "postmaster.pid": "{path} is the data folder of a server, not a backup of it: take one with pg_basebackup",
}
_MISSING = {
    "PG_VERSION": "is no base backup: there is no PG_VERSION; name what pg_basebackup has written",
    "backup_label": "has no backup_label, without which recovery would begin at the wrong place: take a backup with "
    "pg_basebackup, and do not start a server on it",
    "global/pg_control": "has no global/pg_control: the backup is not complete",
}


def parse_label(label: str) -> tuple[Lsn, int, Lsn, str, str]:
    """Return (start LSN, start TLI, checkpoint LSN, start time as written, start segment) of a backup_label.

    Raises:
        ValueError: it is not understood.
    """
    start, checkpoint = _LABEL_START.search(label), _LABEL_CHECKPOINT.search(label)
    if start is None or checkpoint is None:
        raise ValueError("it does not say where the WAL of the backup starts")
    tli, time = _LABEL_TLI.search(label), _LABEL_TIME.search(label)
    return (
        parse_lsn(start[1]),
        int(tli[1]) if tli is not None else int(start[2][:8], 16),
        parse_lsn(checkpoint[1]),
        time[1] if time is not None else "",
        start[2],
    )


def _facts(path: Path, small: dict[str, bytes]) -> BackupFacts:
    version = small["PG_VERSION"].decode(errors="replace").strip()
    if not version.isdecimal() or len(small["global/pg_control"]) < 8:
        raise ConfigurationError(f"{path} is no base backup: PG_VERSION says {version[:20]!r}")
    try:
        start_lsn, tli, checkpoint_lsn, started_at, segment = parse_label(small["backup_label"].decode())
    except (ValueError, ConfigurationError) as error:
        raise ConfigurationError(f"the backup_label of {path} is not understood: {error}") from error
    end_lsn = _end_of(path, small.get("backup_manifest", b""))
    system_id = int.from_bytes(small["global/pg_control"][:8], "little")
    return BackupFacts(system_id, int(version), start_lsn, tli, checkpoint_lsn, end_lsn, started_at, segment)


def _end_of(path: Path, manifest: bytes) -> Lsn:
    """Return where the WAL ends that the backup needs, 0 if its manifest does not say."""
    if not manifest:
        return 0
    try:
        return max(parse_lsn(each["End-LSN"]) for each in json.loads(manifest)["WAL-Ranges"])
    except (ValueError, KeyError, TypeError, ConfigurationError) as error:
        raise ConfigurationError(f"the backup_manifest of {path} is damaged: {error}") from error


# Folders.


def _children(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def _folder_entries(directory: Path) -> Iterator[Entry]:
    for parent, folders, files in os.walk(directory):
        folders.sort()
        for name in folders:
            path = Path(parent, name)
            if path.is_symlink() and path != directory / "pg_wal":
                raise ConfigurationError(
                    f"{path} is a link, which restore does not follow: replace it by what it names"
                )
            yield Entry(PurePosixPath(path.relative_to(directory)), True, 0, lambda: None)
        if Path(parent) == directory and (directory / "pg_wal").is_symlink():
            for file in _children(directory / "pg_wal"):
                if file.is_file():
                    yield _file_entry(file, PurePosixPath("pg_wal", file.name))
        for name in sorted(files):
            path = Path(parent, name)
            if stat.S_ISREG(path.lstat().st_mode):
                yield _file_entry(path, PurePosixPath(path.relative_to(directory)))


def _file_entry(path: Path, inside: PurePosixPath) -> Entry:
    return Entry(inside, False, path.stat().st_size, lambda: path.open("rb"))


# Tars.


def _archives(path: Path) -> list[Path]:
    """Return the tars that a backup consists of, that of the data folder first; none if it is a folder."""
    if path.is_file():
        if not path.name.endswith(_ARCHIVE_SUFFIXES):
            raise ConfigurationError(f"{path} is neither a folder nor a tar (.tar, .tar.gz, .tar.zst)")
        return [path, *_named(path.parent, "pg_wal")]
    if not path.is_dir():
        raise ConfigurationError(f"there is no backup at {path}: correct --backup")
    base = _named(path, "base")
    if base and not (path / "PG_VERSION").exists():
        others = [each.name for each in path.iterdir() if re.fullmatch(r"\d+\.tar(\.\w+)?", each.name)]
        if others:
            raise ConfigurationError(_REFUSALS["tablespace_map"].format(path=path))
        return [base[0], *_named(path, "pg_wal")]
    return []


def _named(directory: Path, stem: str) -> list[Path]:
    found = [directory / (stem + suffix) for suffix in _ARCHIVE_SUFFIXES]
    return [each for each in found if each.is_file()][:1]


def _tar_entries(archive: Path, below: PurePosixPath) -> Iterator[Entry]:
    with _opened(archive) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            inside = below / PurePosixPath(member.name)
            if inside.is_absolute() or ".." in inside.parts:
                raise ConfigurationError(f"{archive} has an entry {member.name!r} that leads out of the data folder")
            if member.issym() or member.islnk():
                raise ConfigurationError(f"{archive} has a link, {member.name!r}: tablespaces are not supported")
            if inside.parts and (member.isdir() or member.isreg()):
                yield Entry(inside, member.isdir(), member.size, lambda member=member: tar.extractfile(member))  # type: ignore[misc]


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
    except (OSError, EOFError, tarfile.TarError, zstandard.ZstdError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigurationError(f"the backup {path} cannot be read: {reason}") from error


def write_entry(entry: Entry, target: Path, done: Callable[[int], None]) -> None:
    """Write one entry into the data folder `target`; `done` is told how many bytes were written."""
    path = target / entry.path
    if entry.is_folder:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = entry.open()
    if content is None:
        raise ConfigurationError(f"{entry.path} of the backup cannot be read")
    with content, os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        while piece := content.read(_COPY_BYTES):
            file.write(piece)
            done(len(piece))
