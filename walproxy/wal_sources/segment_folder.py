"""A folder of segments as a source of WAL: a server's pg_wal, what pg_receivewal or an archive_command writes, a copy.

A segment that another one of the log follows is complete. The last one, and one before a hole, holds as much as there
are valid records in it; so does a `.partial`. To find where those end records must be decoded, which is the pipeline's:
it hands in a `ValidEnd`. What a server has written is taken for the log, committed or not.

Whose WAL it is stands in the segments themselves. A folder with the WAL of two systems is refused.
"""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.lsn import Lsn, segment_name, segment_start
from safekeeper.base.regular_files import open_regular, read_regular
from safekeeper.base.timelines import parse_timeline_history, timeline_history_name
from safekeeper.waldecode.format import LONG_PAGE_HEADER_SIZE
from walproxy.wal_sources.archived_bytes import read_at
from walproxy.wal_sources.ranges import by_segment, extents_along, missing, union
from walproxy.wal_sources.segment_listing import (
    PARTIAL_SUFFIX,
    FolderListing,
    ListedSegment,
    check_origin,
    parse_first_page,
    unreadable,
)
from walproxy.wal_sources.source import Extent, LogPath, Origin, SourceCorrupt
from walproxy.wal_sources.timeline_choice import choose_path


class ValidEnd(Protocol):
    """The end of valid WAL in one segment that is still being written, or in the part of it that a file has."""

    def look(self, read: Callable[[Lsn, Lsn], memoryview], end_lsn: Lsn) -> Lsn:
        """Return where valid WAL ends, which is never before where it ended the last time.

        Args:
            read: returns the bytes [begin, end) of the segment, fewer where the file ends.
            end_lsn: the file ends there, or the segment.
        """
        ...


MakeValidEnd: TypeAlias = Callable[[Lsn, int], ValidEnd]
"""Called with where a segment begins, and with the size of segments."""


class _Inventory(NamedTuple):
    """The files of one path.

    Attributes:
        complete: what complete segments hold, by timeline.
        open: files whose end has to be searched for, with what is known of it.
    """

    complete: dict[int, list[Extent]]
    open: list[tuple[ListedSegment, ValidEnd]]


class SegmentFolder:
    """A folder of segments. See ByteSource."""

    def __init__(self, folder: Path, make_valid_end: MakeValidEnd) -> None:
        self._folder = folder.absolute()
        self._make_valid_end = make_valid_end
        self.name = f"the folder {self._folder}"
        self._lock = threading.Lock()
        self._listing = FolderListing(self._folder)
        self._inventories: dict[LogPath, _Inventory] = {}
        self._ends: dict[ListedSegment, ValidEnd] = {}

    def origin(self) -> Origin:
        """See WalSource."""
        with self._lock:
            return self._listing.origin()

    def log_path(self, tli: int | None = None) -> LogPath:
        """See ByteSource, and `choose_path`."""
        with self._lock:
            self._refresh()
            segment_size = self._listing.origin().segment_size
            histories = set(self._listing.histories)
            timelines = {each for each, _ in self._listing.files}
        return choose_path(self.name, timelines, histories, self._lineage, tli, segment_size)

    def extents(self, path: LogPath, begin_lsn: Lsn = 0) -> list[Extent]:
        """See WalSource."""
        with self._lock:
            self._refresh()
            inventory = self._inventories.get(path)
            if inventory is None:
                inventory = self._inventories[path] = self._taken(path)
            held = {tli: list(extents) for tli, extents in inventory.complete.items()}
            for file, known in inventory.open:
                held.setdefault(file.tli, []).append(Extent(file.begin_lsn, _valid_end(file, known)))
            return extents_along(path, lambda tli: held.get(tli, []))

    def read_into(self, path: LogPath, begin_lsn: Lsn, room: memoryview) -> None:
        """See ByteSource."""
        for part in by_segment(begin_lsn, begin_lsn + len(room), path.segment_size):
            self._read_segment(path, part, room[part.begin_lsn - begin_lsn : part.end_lsn - begin_lsn])

    def _refresh(self) -> None:
        if self._listing.refresh():
            self._inventories.clear()
            there = {file for files in self._listing.files.values() for file in files}
            self._ends = {file: known for file, known in self._ends.items() if file in there}

    def _taken(self, path: LogPath) -> _Inventory:
        """Return which files are complete segments of `path`: whole, and followed by another one of it."""
        files = self._listing.files
        complete: dict[int, list[Extent]] = {}
        unfinished = []
        for (tli, begin_lsn), candidates in files.items():
            following_lsn = begin_lsn + path.segment_size
            is_followed = any((each, following_lsn) in files for each, _ in path.names(following_lsn))
            for file in candidates:
                if is_followed and file.size == path.segment_size:
                    complete.setdefault(tli, []).append(Extent(begin_lsn, following_lsn))
                else:
                    known = self._ends.setdefault(file, self._make_valid_end(begin_lsn, path.segment_size))
                    unfinished.append((file, known))
        return _Inventory({tli: union(extents) for tli, extents in complete.items()}, unfinished)

    def _read_segment(self, path: LogPath, part: Extent, into: memoryview) -> None:
        """Read a part of one segment from the first file that has it."""
        segment_lsn = segment_start(part.begin_lsn, path.segment_size)
        for tli, useful_end_lsn in path.names(segment_lsn):
            if part.end_lsn > useful_end_lsn:
                continue
            name = segment_name(tli, segment_lsn, path.segment_size)
            for candidate in (self._folder / name, self._folder / f"{name}{PARTIAL_SUFFIX}"):
                if self._read_file(candidate, segment_lsn, part, into):
                    return
        raise missing(self.name, path, *part)

    def _read_file(self, file_path: Path, segment_lsn: Lsn, part: Extent, into: memoryview) -> bool:
        """Read a part of a segment; return whether the file is that segment, and long enough."""
        try:
            with open_regular(file_path) as file:
                first_page = parse_first_page(os.pread(file.fileno(), LONG_PAGE_HEADER_SIZE, 0))
                if first_page is None or first_page.address != segment_lsn:
                    return False
                check_origin(file_path, first_page, self.origin())
                return read_at(file.fileno(), part.begin_lsn - segment_lsn, into) == len(into)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise unreadable(file_path, error) from error

    def _lineage(self, tli: int) -> tuple[tuple[int, Lsn], ...]:
        file_path = self._folder / timeline_history_name(tli)
        try:
            return parse_timeline_history(tli, read_regular(file_path))
        except RemoteProtocolError as error:
            raise SourceCorrupt(f"{self.name}: {error}") from error
        except OSError as error:
            raise unreadable(file_path, error) from error


def _valid_end(file: ListedSegment, known: ValidEnd) -> Lsn:
    """Return where valid WAL ends in a file, where it begins if the file is gone."""

    def read(begin_lsn: Lsn, end_lsn: Lsn) -> memoryview:
        wal = memoryview(bytearray(end_lsn - begin_lsn))
        return wal[: read_at(opened.fileno(), begin_lsn - file.begin_lsn, wal)]

    try:
        with open_regular(file.path) as opened:
            return known.look(read, file.begin_lsn + file.size)
    except FileNotFoundError:
        return file.begin_lsn
    except OSError as error:
        raise unreadable(file.path, error) from error
