"""List which files of a folder are segments of WAL, without reading each of them every time.

A name shows which segment a file should be, and its first page whether it is that one: servers keep files for later use
under the names of segments to come. A file that is a whole segment stays one until its name is gone; a shorter one, and
one that is none yet, are looked at each time. Names are listed when the folder has changed.
"""

import os
import time
from pathlib import Path
from typing import NamedTuple

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import SEGMENT_SIZE_MAX, SEGMENT_SIZE_MIN, Lsn, parse_segment_name
from safekeeper.base.regular_files import open_regular
from safekeeper.waldecode.format import (
    LONG_HEADER,
    LONG_PAGE_HEADER_SIZE,
    LONG_PAGE_HEADER_TAIL,
    MAJOR_OF_MAGIC,
    PAGE_HEADER,
    PAGE_SIZE,
)
from walproxy.wal_sources.source import Origin, SourceCorrupt, SourceUnavailable

PARTIAL_SUFFIX = ".partial"
_NAME_DIGITS = 24
_HISTORY_SUFFIX = ".history"
# A change of the folder this soon after another one need not show in its time.
_UNSETTLED_NS = 2_000_000_000


class ListedSegment(NamedTuple):
    """A segment, or the beginning of one: `size` bytes from `begin_lsn` on, valid or not."""

    tli: int
    begin_lsn: Lsn
    path: Path
    size: int


class FirstPage(NamedTuple):
    """The header at the beginning of a segment."""

    tli: int
    address: Lsn
    origin: Origin


class FolderListing:
    """The segments of a folder. Blocking, for one thread at a time.

    Attributes:
        files: by timeline and where the segment begins; there may be a whole one and a partial.
        histories: the timelines that have a history file.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: set[str] = set()
        self._settled_at = 0
        self._by_name: dict[str, ListedSegment] = {}
        self._origin: Origin | None = None
        self.files: dict[tuple[int, Lsn], list[ListedSegment]] = {}
        self.histories: set[int] = set()

    def origin(self) -> Origin:
        """Return which system wrote the WAL, by the header of the first file that is a segment.

        Raises:
            ConfigurationError: none is.
        """
        if self._origin is None:
            self._list()
            pages = (read_first_page(self._folder / name) for name in sorted(self._names) if _is_segment(name))
            found = next((page for page in pages if page is not None), None)
            if found is None:
                inside = self._folder / "pg_wal"
                hint = f"name {inside}" if inside.is_dir() else "correct the input's path"
                raise ConfigurationError(
                    f"the folder {self._folder} has neither a manifest.json nor segments of WAL: {hint}"
                )
            self._origin = found.origin
        return self._origin

    def refresh(self) -> bool:
        """Look at what may have changed; return whether a file came, went, grew, or became a segment."""
        origin = self.origin()
        self._list()
        changed = False
        for name in self._by_name.keys() - self._names:
            del self._by_name[name]
            changed = True
        for name in self._names:
            known = self._by_name.get(name)
            if (known is None or known.size < origin.segment_size) and _is_segment(name):
                found = self._look(name, origin)
                if found is not None and found != known:
                    self._by_name[name] = found
                    changed = True
        if changed:
            self.files = {}
            for file in self._by_name.values():
                self.files.setdefault((file.tli, file.begin_lsn), []).append(file)
        return changed

    def _list(self) -> None:
        try:
            changed_at = self._folder.stat().st_mtime_ns
            if changed_at == self._settled_at:
                return
            self._settled_at = changed_at if changed_at < time.time_ns() - _UNSETTLED_NS else 0
            self._names = {entry.name for entry in os.scandir(self._folder)}
        except OSError as error:
            raise unreadable(self._folder, error) from error
        self.histories = {int(name[:8], 16) for name in self._names if _is_history(name)}

    def _look(self, name: str, origin: Origin) -> ListedSegment | None:
        """Return the segment that a file is, None if it is none, or not the one that it is called."""
        named = parse_segment_name(name[:_NAME_DIGITS], origin.segment_size)
        path = self._folder / name
        first_page = read_first_page(path) if named is not None else None
        if named is None or first_page is None or first_page.address != named[1] or first_page.tli > named[0]:
            return None
        check_origin(path, first_page, origin)
        try:
            return ListedSegment(*named, path, min(path.stat().st_size, origin.segment_size))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unreadable(path, error) from error


def read_first_page(path: Path) -> FirstPage | None:
    """Return a file's segment, by its header; None if it is not a segment, or is gone."""
    try:
        with open_regular(path) as file:
            return parse_first_page(file.read(LONG_PAGE_HEADER_SIZE))
    except (FileNotFoundError, IsADirectoryError):
        return None
    except OSError as error:
        raise unreadable(path, error) from error


def parse_first_page(header: bytes) -> FirstPage | None:
    """Return the header in the first bytes of a segment; None if they are not one."""
    if len(header) < LONG_PAGE_HEADER_SIZE:
        return None
    magic, flags, tli, address, _ = PAGE_HEADER.unpack_from(header)
    system_id, segment_size, page_size = LONG_PAGE_HEADER_TAIL.unpack_from(header, PAGE_HEADER.size)
    if magic not in MAJOR_OF_MAGIC or not flags & LONG_HEADER or page_size != PAGE_SIZE or tli == 0:
        return None
    if not SEGMENT_SIZE_MIN <= segment_size <= SEGMENT_SIZE_MAX or segment_size & (segment_size - 1):
        return None
    return FirstPage(tli, address, Origin(system_id, segment_size))


def check_origin(path: Path, first_page: FirstPage, origin: Origin) -> None:
    """Make sure that a segment is of the same server as the others.

    Raises:
        SourceCorrupt: it is not.
    """
    if first_page.origin != origin:
        raise SourceCorrupt(
            f"{path} is WAL of the system {first_page.origin.system_id} in segments of "
            f"{first_page.origin.segment_size} bytes, but others there are of {origin.system_id} in segments of "
            f"{origin.segment_size}: keep each server's WAL in a folder of its own"
        )


def unreadable(path: Path, error: OSError) -> SourceUnavailable:
    """Return what the operating system's refusal means to a reader."""
    return SourceUnavailable(f"cannot read {path}: {error.strerror}")


def _is_segment(name: str) -> bool:
    stem = name.removesuffix(PARTIAL_SUFFIX)
    # Whatever name a segment may have, it may have it when segments are of the smallest size.
    return len(stem) == _NAME_DIGITS and parse_segment_name(stem, SEGMENT_SIZE_MIN) is not None


def _is_history(name: str) -> bool:
    stem = name[:8]
    return name == stem + _HISTORY_SUFFIX and not stem.strip("0123456789ABCDEF") and int(stem, 16) > 1
