"""A folder of segments as an input: a server's pg_wal, what pg_receivewal or an archive_command writes, a copy of any.

A segment that another one of the log follows is complete. The last one, and one before a hole, holds as much as there
are valid records in it; so does a `.partial`. Files that a server keeps for later use bear the names of segments to
come: their first page tells.

Whose WAL it is stands in the segments themselves. A folder with the WAL of two systems is refused.
"""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from safekeeper.errors import ConfigurationError, RemoteProtocolError
from safekeeper.lsn import (
    SEGMENT_SIZE_MAX,
    SEGMENT_SIZE_MIN,
    Lsn,
    parse_segment_name,
    segment_start,
)
from safekeeper.timelines import parse_timeline_history, timeline_history_name
from safekeeper.wal.format import (
    LONG_HEADER,
    LONG_PAGE_HEADER_SIZE,
    LONG_PAGE_HEADER_TAIL,
    MAJOR_OF_MAGIC,
    PAGE_HEADER,
    PAGE_SIZE,
)
from walproxy.pipeline.input.archived_bytes import read_at
from walproxy.pipeline.input.segment_index import by_segment, extents_along, missing
from walproxy.pipeline.input.valid_end import ValidEnd
from walproxy.pipeline.input.wal_input import Buffer, Extent, WalMissing, room_for
from walproxy.recovery.sources import LogPath, Origin, SourceCorrupt, SourceUnavailable

_NAME_DIGITS = 24
_PARTIAL = ".partial"
_SOME_SEGMENT_SIZE = SEGMENT_SIZE_MIN  # Whatever name a segment may have, it has one with these.


class _File(NamedTuple):
    """One file of a segment, whole or partial."""

    tli: int
    begin_lsn: Lsn
    path: Path
    size: int


class _FirstPage(NamedTuple):
    """What the header at the beginning of a segment says."""

    tli: int
    address: Lsn
    origin: Origin


class FolderInput:
    """A folder of segments. See WalInput."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self.name = f"the folder {self._folder}"
        self._lock = threading.Lock()
        self._known_origin: Origin | None = None
        self._valid_ends: dict[tuple[Path, int], ValidEnd] = {}  # By file, with its inode.

    def __reduce__(self) -> tuple[object, ...]:
        return FolderInput, (self._folder,)

    def origin(self) -> Origin:
        """See WalInput."""
        with self._lock:
            return self._origin()

    def log_path(self, tli: int | None = None) -> LogPath:
        """See WalInput. Without its history file a timeline is taken to have no ancestors."""
        origin = self.origin()
        timelines = {file.tli for file in self._files(origin)}
        histories = {int(name[:8], 16) for name in self._names() if _is_history(name)}
        if not timelines:
            raise WalMissing(f"{self.name} has no segments of WAL")
        wanted = max(timelines | histories) if tli is None else tli
        if wanted not in timelines | histories:
            known = ", ".join(str(each) for each in sorted(timelines))
            raise WalMissing(f"{self.name} has no timeline {wanted}: there is {known}")
        if wanted not in histories:
            return LogPath(wanted, (), origin.segment_size)
        try:
            content = (self._folder / timeline_history_name(wanted)).read_bytes()
            return LogPath(wanted, parse_timeline_history(wanted, content), origin.segment_size)
        except RemoteProtocolError as error:
            raise SourceCorrupt(f"{self.name}: {error}") from error
        except OSError as error:
            raise self._unavailable(error) from error

    def extents(self, path: LogPath) -> list[Extent]:
        """See WalInput."""
        origin = self.origin()
        with self._lock:
            found = self._by_segment(origin)
            held: dict[int, list[Extent]] = {}
            for (tli, begin_lsn), files in found.items():
                following_lsn = begin_lsn + origin.segment_size
                is_followed = any((each, following_lsn) in found for each, _ in path.names(following_lsn))
                for file in files:
                    end_lsn = begin_lsn + file.size
                    if not is_followed or file.size < origin.segment_size:
                        end_lsn = self._valid_end(file, origin.segment_size)
                    held.setdefault(tli, []).append(Extent(begin_lsn, end_lsn))
            return extents_along(path, lambda tli: held.get(tli, []))

    def read(self, path: LogPath, begin_lsn: Lsn, end_lsn: Lsn, into: Buffer | None = None) -> Buffer:
        """See WalInput."""
        room = room_for(begin_lsn, end_lsn, into)
        for part in by_segment(begin_lsn, end_lsn, path.segment_size):
            self._read_segment(path, part, room[part.begin_lsn - begin_lsn : part.end_lsn - begin_lsn])
        return room

    def _read_segment(self, path: LogPath, part: Extent, into: Buffer) -> None:
        """Read a part of one segment from the first file that has it."""
        segment_lsn = segment_start(part.begin_lsn, path.segment_size)
        for tli, useful_end_lsn in path.names(segment_lsn):
            if part.end_lsn > useful_end_lsn:
                continue
            name = path._replace(tli=tli, lineage=()).name_of(segment_lsn)
            for candidate in (self._folder / name, self._folder / f"{name}{_PARTIAL}"):
                try:
                    with candidate.open("rb", buffering=0) as file:
                        first_page = _first_page(os.pread(file.fileno(), LONG_PAGE_HEADER_SIZE, 0))
                        if first_page is None or first_page.address != segment_lsn:
                            continue  # Kept for later use, by a name that is to come.
                        self._check_system(candidate, first_page, self.origin())
                        if read_at(file.fileno(), part.begin_lsn - segment_lsn, into) == into.nbytes:
                            return
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise self._unavailable(error, candidate) from error
        raise missing(self.name, path, *part)

    def _origin(self) -> Origin:
        if self._known_origin is None:
            first_pages = (self._look(self._folder / name) for name in sorted(self._names()) if _is_segment(name))
            found = next((first_page for first_page in first_pages if first_page is not None), None)
            if found is None:
                inside = self._folder / "pg_wal"
                hint = f"name {inside}" if inside.is_dir() else "correct the input's path"
                raise ConfigurationError(f"{self.name} has neither a manifest.json nor segments of WAL: {hint}")
            self._known_origin = found.origin
        return self._known_origin

    def _by_segment(self, origin: Origin) -> dict[tuple[int, Lsn], list[_File]]:
        """Return the files that are the segment that their name says."""
        found: dict[tuple[int, Lsn], list[_File]] = {}
        for file in self._files(origin):
            first_page = self._look(file.path)
            if first_page is not None and first_page.address == file.begin_lsn and first_page.tli <= file.tli:
                self._check_system(file.path, first_page, origin)
                found.setdefault((file.tli, file.begin_lsn), []).append(file)
        return found

    def _files(self, origin: Origin) -> Iterator[_File]:
        for name in self._names():
            named = parse_segment_name(name[:_NAME_DIGITS], origin.segment_size) if _is_segment(name) else None
            if named is not None:
                path = self._folder / name
                try:
                    yield _File(*named, path, min(path.stat().st_size, origin.segment_size))
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise self._unavailable(error, path) from error

    def _names(self) -> list[str]:
        try:
            return [entry.name for entry in os.scandir(self._folder)]
        except OSError as error:
            raise self._unavailable(error) from error

    def _look(self, path: Path) -> _FirstPage | None:
        try:
            with path.open("rb", buffering=0) as file:
                return _first_page(file.read(LONG_PAGE_HEADER_SIZE))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unavailable(error, path) from error

    def _valid_end(self, file: _File, segment_size: int) -> Lsn:
        try:
            with file.path.open("rb", buffering=0) as opened:
                descriptor = opened.fileno()
                key = file.path, os.fstat(descriptor).st_ino
                known = self._valid_ends.setdefault(key, ValidEnd(file.begin_lsn, segment_size))

                def read(begin_lsn: Lsn, end_lsn: Lsn) -> bytes:
                    return os.pread(descriptor, end_lsn - begin_lsn, begin_lsn - file.begin_lsn)

                return known.look(read, file.begin_lsn + file.size)
        except FileNotFoundError:
            return file.begin_lsn
        except OSError as error:
            raise self._unavailable(error, file.path) from error

    def _check_system(self, path: Path, first_page: _FirstPage, origin: Origin) -> None:
        if first_page.origin != origin:
            raise SourceCorrupt(
                f"{path} is WAL of the system {first_page.origin.system_id} in segments of "
                f"{first_page.origin.segment_size} bytes, but others there are of {origin.system_id} in segments of "
                f"{origin.segment_size}: keep each server's WAL in a folder of its own"
            )

    def _unavailable(self, error: OSError, path: Path | None = None) -> SourceUnavailable:
        return SourceUnavailable(f"cannot read {path or self._folder}: {error.strerror}")


def _is_segment(name: str) -> bool:
    stem = name.removesuffix(_PARTIAL)
    return len(stem) == _NAME_DIGITS and parse_segment_name(stem, _SOME_SEGMENT_SIZE) is not None


def _is_history(name: str) -> bool:
    stem = name[:8]
    return name == f"{stem}.history" and all(digit in "0123456789ABCDEF" for digit in stem) and int(stem, 16) > 1


def _first_page(header: bytes) -> _FirstPage | None:
    """Return what the header at the beginning of a segment says; None if it is none."""
    if len(header) < LONG_PAGE_HEADER_SIZE:
        return None
    magic, flags, tli, address, _ = PAGE_HEADER.unpack_from(header)
    system_id, segment_size, page_size = LONG_PAGE_HEADER_TAIL.unpack_from(header, PAGE_HEADER.size)
    if magic not in MAJOR_OF_MAGIC or not flags & LONG_HEADER or page_size != PAGE_SIZE or tli == 0:
        return None
    if not SEGMENT_SIZE_MIN <= segment_size <= SEGMENT_SIZE_MAX or segment_size & (segment_size - 1):
        return None
    return _FirstPage(tli, address, Origin(system_id, segment_size))
