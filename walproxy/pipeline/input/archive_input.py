"""The archive that safekeepers write, as an input: local or in an object store.

Whole objects are compared with their receipts. Of several objects of one segment, plain and compressed or the parent's
and the child's of a fork, the next is tried when one is corrupt. Archivers remove partials when something longer is
there, so an object that is gone is looked for once more.
"""

import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from safekeeper.archive.fetch import ArchiveReader, conflict
from safekeeper.archive.objects import HISTORY_FOLDER, ArchivedObject, parse_keys
from safekeeper.archive.store import ObjectStore
from safekeeper.base.errors import (
    ArchiveCorrupt,
    ArchiveUnavailable,
    ObjectMissing,
    RemoteProtocolError,
)
from safekeeper.base.lsn import Lsn, format_lsn, segment_start
from safekeeper.base.timelines import Lineage, parse_timeline_history, timeline_history_name
from walproxy.pipeline.input.archive_listing import ArchiveListing
from walproxy.pipeline.input.archived_bytes import read_object
from walproxy.pipeline.input.segment_index import by_segment, check_first_page, extents_along, missing
from walproxy.pipeline.input.wal_input import NO_OPTIONS, Buffer, Extent, WalMissing, room_for
from walproxy.wal_sources.archive_access import archive_origin, ask_archive
from walproxy.wal_sources.source import LogPath, Origin, SourceCorrupt, SourceUnavailable

_ATTEMPTS = 3
_TIMEOUT_S = 30.0
_Result = TypeVar("_Result")


class ArchiveInput:
    """An archive. See WalInput."""

    def __init__(self, url: str, options: Mapping[str, str] = NO_OPTIONS) -> None:
        """Open it; nothing is asked yet.

        Raises:
            ConfigurationError: the URL or an option cannot work, or the local folder does not exist.
        """
        self._options = dict(options)
        self._store = ObjectStore.open(url, options=self._options, timeout_s=_TIMEOUT_S)
        self.name = f"the archive {self._store.url}"
        self._reader = ArchiveReader(self._store)
        self._lock = threading.Lock()
        self._known_origin: Origin | None = None
        self._known_listing: ArchiveListing | None = None
        self._histories: dict[int, Lineage] = {}
        self._known_ends: dict[LogPath, Lsn] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return ArchiveInput, (self._store.url, self._options)

    def origin(self) -> Origin:
        """See WalInput."""
        with self._lock:
            if self._known_origin is None:
                self._known_origin = archive_origin(self.name, self._reader)
            return self._known_origin

    def log_path(self, tli: int | None = None) -> LogPath:
        """See WalInput."""
        segment_size = self.origin().segment_size
        listing = self._listing()
        # In this order: a timeline's history file is archived before anything of it.
        timelines = self._ask(listing.timelines)
        archived = self._ask(lambda: parse_keys(self._store.list(HISTORY_FOLDER), segment_size)).objects
        files = {each.file.tli: each for each in archived}
        timelines |= files.keys()
        if not timelines:
            raise WalMissing(f"{self.name} has no WAL yet")
        wanted = max(timelines) if tli is None else tli
        if wanted == 1 and 1 in timelines | {each for lineage in self._lineages(files) for each, _ in lineage}:
            return LogPath(1, (), segment_size)
        if wanted not in files:
            if wanted in timelines:
                raise WalMissing(
                    f"{self.name} has WAL of timeline {wanted}, but no {timeline_history_name(wanted)}, which says "
                    "where it begins: archive that file, or name another timeline"
                )
            known = ", ".join(str(each) for each in sorted(timelines))
            raise WalMissing(f"{self.name} has no timeline {wanted}: there is {known}")
        return LogPath(wanted, self._lineage(files[wanted]), segment_size)

    def extents(self, path: LogPath) -> list[Extent]:
        """See WalInput."""
        listing = self._listing()
        known_end_lsn = self._known_ends.get(path, 0)
        extents = extents_along(path, self._ask(lambda: listing.extents(path, known_end_lsn)))
        if extents:
            self._known_ends[path] = extents[-1].end_lsn
        return extents

    def read(self, path: LogPath, begin_lsn: Lsn, end_lsn: Lsn, into: Buffer | None = None) -> Buffer:
        """See WalInput."""
        room = room_for(begin_lsn, end_lsn, into)
        for part in by_segment(begin_lsn, end_lsn, path.segment_size):
            self._read_segment(path, part, room[part.begin_lsn - begin_lsn : part.end_lsn - begin_lsn])
        return room

    def _read_segment(self, path: LogPath, part: Extent, into: Buffer) -> None:
        """Read a part of one segment from the first object that turns out to have it."""
        segment_lsn = segment_start(part.begin_lsn, path.segment_size)
        problem: Exception | None = None
        for attempt in range(_ATTEMPTS):
            if attempt:
                for tli, _ in path.names(segment_lsn):
                    self._ask(lambda tli=tli: self._listing().reload(tli, segment_lsn))  # type: ignore[misc]
            for archived in self._holders(path, part):
                try:
                    self._fill(archived, part, into)
                except ArchiveCorrupt as error:
                    problem = problem or SourceCorrupt(f"{error}; {format_lsn(part.begin_lsn)} was to be read")
                except ObjectMissing as error:
                    problem = problem or WalMissing(str(error))
                else:
                    return
            if isinstance(problem, SourceCorrupt):
                raise problem
        raise problem or self._missing(path, part)

    def _holders(self, path: LogPath, part: Extent) -> list[ArchivedObject]:
        """Return the objects that hold all of a part of a segment, those of the newest timeline first."""
        listing = self._listing()
        return [
            archived
            for tli, useful_end_lsn in path.names(segment_start(part.begin_lsn, path.segment_size))
            if part.end_lsn <= useful_end_lsn
            for archived in self._ask(lambda tli=tli: listing.find(tli, part.begin_lsn))  # type: ignore[misc]
            if part.end_lsn <= archived.file.end_lsn
        ]

    def _fill(self, archived: ArchivedObject, part: Extent, into: Buffer) -> None:
        begin = part.begin_lsn - archived.file.begin_lsn
        try:
            read_object(self._store, archived, begin, begin + into.nbytes, into)
        except ArchiveUnavailable as error:
            raise SourceUnavailable(str(error)) from error
        if begin == 0:
            what = f"{self._store.url.rstrip('/')}/{archived.key}"
            check_first_page(into, archived.file.begin_lsn, archived.file.tli, self.origin(), what)

    def _missing(self, path: LogPath, part: Extent) -> Exception:
        for tli, _ in path.names(segment_start(part.begin_lsn, path.segment_size)):
            disputed = self._listing().conflict(tli, part.begin_lsn)
            if disputed is not None:
                return SourceCorrupt(str(conflict(self._store, *disputed)))
        return missing(self.name, path, *part)

    def _listing(self) -> ArchiveListing:
        segment_size = self.origin().segment_size
        with self._lock:
            if self._known_listing is None:
                self._known_listing = ArchiveListing(self._store, segment_size)
            return self._known_listing

    def _lineages(self, files: Mapping[int, ArchivedObject]) -> list[Lineage]:
        return [self._lineage(file) for file in files.values()]

    def _lineage(self, archived: ArchivedObject) -> Lineage:
        """Return the ancestors that a history file lists. It never changes, so it is read once."""
        tli = archived.file.tli
        if tli not in self._histories:
            content = self._ask(lambda: self._reader.fetch_bytes(archived))
            try:
                self._histories[tli] = parse_timeline_history(tli, content)
            except RemoteProtocolError as error:
                raise SourceCorrupt(f"{self.name}: {error}") from error
        return self._histories[tli]

    def _ask(self, question: Callable[[], _Result]) -> _Result:
        return ask_archive(question, WalMissing)
