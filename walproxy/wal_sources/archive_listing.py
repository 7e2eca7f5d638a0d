"""The content of an archive, kept up to date without listing everything each time.

Keys are grouped by folder: one timeline's segments of 4 GiB of WAL. What a folder holds is worked out when its keys
change. Two ways to notice that:

- of a local archive each folder's time of modification is looked at. One that was changed less than two seconds before
  it was listed is listed again: a second change would not show in its time;
- of a remote one only the keys after the end of the WAL in question are listed, which is one request. What else may
  happen, a hole that is filled or old WAL that is removed, is seen when everything is listed again: after a minute, or
  after twenty times as long as that takes.

To read single segments never lists everything: the segment's folder is enough.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from safekeeper.archive.catalog import best_first
from safekeeper.archive.objects import (
    WAL_FOLDER,
    ArchivedFile,
    ArchivedObject,
    ObjectInfo,
    parse_keys,
    wal_folder,
)
from safekeeper.archive.store import ObjectStore
from safekeeper.archive.store_errors import translated
from safekeeper.base.lsn import Lsn, segment_name, segment_start
from walproxy.wal_sources.ranges import union
from walproxy.wal_sources.source import Extent, LogPath

_UNSETTLED_NS = 2_000_000_000
_LIST_ALL_AFTER_S = 60.0
_LIST_ALL_FACTOR = 20


class _Folder(NamedTuple):
    """A folder of segments.

    Attributes:
        tli: their timeline; 0 if there are none.
        keys: all that lie in it.
        objects: those with a receipt, by segment, the best first.
        conflicts: files whose receipts contradict each other.
        extents: what they hold together.
        settled_at: its time of modification; 0 if that cannot be trusted.
    """

    tli: int
    keys: frozenset[str]
    objects: dict[Lsn, list[ArchivedObject]]
    conflicts: dict[Lsn, tuple[ArchivedFile, list[ArchivedObject]]]
    extents: list[Extent]
    settled_at: int


class ArchiveListing:
    """The segments of an archive. Blocking, thread-safe; the store's errors pass."""

    def __init__(self, store: ObjectStore, segment_size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._segment_size = segment_size
        self._clock = clock
        self._lock = threading.Lock()
        self._folders: dict[str, _Folder] = {}
        self._listed_all_until = float("-inf")

    def timelines(self) -> set[int]:
        """Return the timelines that have a segment or a partial. Everything is listed if it never was."""
        with self._lock:
            self._look_at_all()
            return {folder.tli for folder in self._folders.values() if folder.tli}

    def segments(self) -> list[tuple[int, Lsn]]:
        """Return (TLI, start) of each segment of which something is there. Everything is listed if it never was."""
        with self._lock:
            self._look_at_all()
            return [(folder.tli, begin_lsn) for folder in self._folders.values() for begin_lsn in folder.objects]

    def extents(self, path: LogPath, known_end_lsn: Lsn) -> Callable[[int], list[Extent]]:
        """Bring up to date what is known of `path`; return what the files of a timeline hold.

        Args:
            known_end_lsn: up to where `path` was known before; what follows is looked for.
        """
        with self._lock:
            if self._store.folder is not None:
                self._look_at_folders()
            elif self._clock() >= self._listed_all_until:
                self._list_all()
            else:
                self._list_behind(path, known_end_lsn)
            by_tli: dict[int, list[Extent]] = {}
            for name in sorted(self._folders):
                folder = self._folders[name]
                by_tli.setdefault(folder.tli, []).extend(folder.extents)
        return lambda tli: by_tli.get(tli, [])

    def find(self, tli: int, lsn: Lsn) -> list[ArchivedObject]:
        """Return the objects of `tli` for the segment that holds byte `lsn`, the best first."""
        return list(self._folder_of(tli, lsn).objects.get(segment_start(lsn, self._segment_size), ()))

    def conflict(self, tli: int, lsn: Lsn) -> tuple[ArchivedFile, list[ArchivedObject]] | None:
        """Return the receipts of that segment that contradict each other."""
        return self._folder_of(tli, lsn).conflicts.get(segment_start(lsn, self._segment_size))

    def reload(self, tli: int, lsn: Lsn) -> None:
        """List the folder of that segment again."""
        with self._lock:
            self._list_folder(wal_folder(tli, lsn, self._segment_size))

    def _folder_of(self, tli: int, lsn: Lsn) -> _Folder:
        name = wal_folder(tli, lsn, self._segment_size)
        with self._lock:
            return self._folders.get(name) or self._list_folder(name)

    def _list_folder(self, name: str) -> _Folder:
        changed_at = self._changed_at(name)
        folder = self._folders[name] = self._parsed((info.key for info in self._store.list(name)), changed_at)
        return folder

    def _changed_at(self, name: str) -> int:
        if self._store.folder is None:
            return 0
        try:
            changed_at = (self._store.folder / name).stat().st_mtime_ns
        except OSError:
            return 0  # The listing shows why, or is empty.
        return changed_at if changed_at < time.time_ns() - _UNSETTLED_NS else 0

    def _look_at_all(self) -> None:
        if self._store.folder is not None:
            self._look_at_folders()
        elif self._clock() >= self._listed_all_until:
            self._list_all()

    def _look_at_folders(self) -> None:
        """List the folders of a local archive that have changed."""
        top = (self._store.folder or Path()) / WAL_FOLDER
        try:
            names = {
                f"{WAL_FOLDER}/{entry.name}": entry.stat().st_mtime_ns for entry in os.scandir(top) if entry.is_dir()
            }
        except FileNotFoundError:
            names = {}
        except OSError as error:
            raise translated(error, f"list {top}") from error
        for name in self._folders.keys() - names.keys():
            del self._folders[name]
        for name, changed_at in names.items():
            known = self._folders.get(name)
            if known is None or known.settled_at != changed_at:
                self._list_folder(name)

    def _list_all(self) -> None:
        began = self._clock()
        grouped = _by_folder(self._store.list(WAL_FOLDER))
        self._folders = {name: self._parsed(keys) for name, keys in grouped.items()}
        ended = self._clock()
        self._listed_all_until = ended + max(_LIST_ALL_AFTER_S, (ended - began) * _LIST_ALL_FACTOR)

    def _list_behind(self, path: LogPath, end_lsn: Lsn) -> None:
        """List the keys after `end_lsn`, and those of its segment."""
        tli = path.tli_of(end_lsn)
        first = wal_folder(tli, end_lsn, self._segment_size)
        # A digit less than the segment's name: sorts before all its objects, and before fifteen more segments' at most.
        after = f"{first}/{segment_name(tli, end_lsn, self._segment_size)}"[:-1]
        found = _by_folder(self._store.list(WAL_FOLDER, after=after))
        for name in found.keys() | {name for name in self._folders if name >= first}:
            known = self._folders.get(name, _NOTHING)
            keys = found.get(name, set()).union(key for key in known.keys if key <= after)
            if keys != known.keys:
                self._folders[name] = self._parsed(keys)

    def _parsed(self, keys: Iterable[str], changed_at: int = 0) -> _Folder:
        known = frozenset(keys)
        listing = parse_keys([ObjectInfo(key, 0, 0) for key in known], self._segment_size)
        objects: dict[Lsn, list[ArchivedObject]] = {}
        for archived in listing.objects:
            objects.setdefault(archived.file.begin_lsn, []).append(archived)
        for candidates in objects.values():
            candidates.sort(key=best_first)
        return _Folder(
            listing.objects[0].file.tli if listing.objects else 0,
            known,
            objects,
            {file.begin_lsn: (file, claims) for file, claims in listing.conflicts},
            union(Extent(lsn, candidates[0].file.end_lsn) for lsn, candidates in objects.items()),
            changed_at,
        )


_NOTHING = _Folder(0, frozenset(), {}, {}, [], 0)


def _by_folder(infos: Iterable[ObjectInfo]) -> dict[str, set[str]]:
    grouped: dict[str, set[str]] = {}
    for info in infos:
        grouped.setdefault(info.key.rpartition("/")[0], set()).add(info.key)
    return grouped
