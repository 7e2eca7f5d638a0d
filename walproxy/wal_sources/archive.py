"""The archive that safekeepers write, as a source of WAL: local or in an object store.

Whole objects are compared with their receipts. Of several objects of one segment, plain and compressed or the parent's
and the child's of a fork, the next is tried when one is corrupt. Archivers remove partials when something longer is
there, so an object that is gone is looked for once more.
"""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from safekeeper.archive.fetch import ArchiveReader, conflict
from safekeeper.archive.location import REQUEST_RETRIES
from safekeeper.archive.objects import HISTORY_FOLDER, MANIFEST_KEY, NO_OPTIONS, ArchivedObject, parse_keys
from safekeeper.archive.store import ObjectStore
from safekeeper.base.errors import (
    ArchiveCorrupt,
    ArchiveRefused,
    ArchiveUnavailable,
    ObjectMissing,
    RemoteProtocolError,
)
from safekeeper.base.lsn import Lsn, format_lsn, segment_start
from safekeeper.base.timelines import Lineage, parse_timeline_history, timeline_history_name
from walproxy.wal_sources.archive_listing import ArchiveListing
from walproxy.wal_sources.archived_bytes import read_object
from walproxy.wal_sources.asking import ask
from walproxy.wal_sources.ranges import by_segment, check_first_page, extents_along, later_of, missing
from walproxy.wal_sources.source import (
    Extent,
    LogPath,
    Offer,
    Origin,
    SourceCorrupt,
    SourceUnavailable,
    WalMissing,
)

_ATTEMPTS = 3


class ArchiveSource:
    """An archive. See SegmentSource and ByteSource.

    Which files there are to offer is looked up each time. `extents` and `has_later` use a listing that is kept up to
    date.
    """

    def __init__(
        self,
        url: str,
        options: Mapping[str, str] = NO_OPTIONS,
        *,
        timeout_s: float = 30.0,
        retries: int = REQUEST_RETRIES,
    ) -> None:
        """Open it; nothing is read yet.

        Raises:
            ConfigurationError: the URL or an option cannot work, or the local folder does not exist.
        """
        store = ObjectStore.open(url, options=options, timeout_s=timeout_s, retries=retries)
        self.name = f"the archive {store.url}"
        self.store = store
        self._reader = ArchiveReader(store)
        self._lock = threading.Lock()
        self._known_origin: Origin | None = None
        self._known_listing: ArchiveListing | None = None
        self._histories: dict[int, Lineage] = {}
        self._known_ends: dict[LogPath, Lsn] = {}

    def origin(self) -> Origin:
        """See WalSource. It does not change, so one answer is enough."""
        with self._lock:
            if self._known_origin is None:
                manifest = ask(self._reader.manifest, ArchiveRefused)
                if manifest is None:
                    raise ArchiveRefused(
                        f"{self.name} has no {MANIFEST_KEY}: nothing was ever archived there; correct the URL"
                    )
                self._known_origin = Origin(manifest.system_id, manifest.segment_size)
            return self._known_origin

    def extents(self, path: LogPath, begin_lsn: Lsn = 0) -> list[Extent]:
        """See WalSource."""
        listing = self._listing()
        known_end_lsn = self._known_ends.get(path, 0)
        extents = extents_along(path, ask(lambda: listing.extents(path, known_end_lsn)))
        if extents:
            self._known_ends[path] = extents[-1].end_lsn
        return extents

    # Files.

    def offers(self, tli: int, begin_lsn: Lsn) -> list[Offer]:
        """See SegmentSource."""
        self.origin()
        found = ask(lambda: self._reader.candidates(tli, begin_lsn))
        return [Offer(self.name, begin_lsn, each.file.end_lsn, each.file.end_lsn, self._writer(each)) for each in found]

    def history(self, tli: int) -> bytes | None:
        """See SegmentSource."""
        self.origin()
        return ask(lambda: self._reader.history(tli))

    def has_later(self, tli: int, begin_lsn: Lsn) -> str | None:
        """See SegmentSource."""
        listing = self._listing()
        return later_of(ask(listing.segments), tli, begin_lsn, self.origin().segment_size)

    def _writer(self, archived: ArchivedObject) -> Callable[[Path], None]:
        return lambda path: ask(lambda: self._reader.fetch(archived, path))

    # Bytes.

    def log_path(self, tli: int | None = None) -> LogPath:
        """See ByteSource."""
        segment_size = self.origin().segment_size
        listing = self._listing()
        # In this order: a timeline's history file is archived before anything of it.
        timelines = ask(listing.timelines)
        archived = ask(lambda: parse_keys(self.store.list(HISTORY_FOLDER), segment_size)).objects
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
                    f"{self.name} has WAL of timeline {wanted}, but no {timeline_history_name(wanted)}, which records "
                    "where it begins: archive that file, or name another timeline"
                )
            known = ", ".join(str(each) for each in sorted(timelines))
            raise WalMissing(f"{self.name} has no timeline {wanted}: it has {known}")
        return LogPath(wanted, self._lineage(files[wanted]), segment_size)

    def read_into(self, path: LogPath, begin_lsn: Lsn, room: memoryview) -> None:
        """See ByteSource."""
        for part in by_segment(begin_lsn, begin_lsn + len(room), path.segment_size):
            self._read_segment(path, part, room[part.begin_lsn - begin_lsn : part.end_lsn - begin_lsn])

    def _read_segment(self, path: LogPath, part: Extent, into: memoryview) -> None:
        """Read a part of one segment from the first object that turns out to have it."""
        segment_lsn = segment_start(part.begin_lsn, path.segment_size)
        problem: Exception | None = None
        for attempt in range(_ATTEMPTS):
            if attempt:
                for tli, _ in path.names(segment_lsn):
                    ask(lambda tli=tli: self._listing().reload(tli, segment_lsn))  # type: ignore[misc]
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
            for archived in ask(lambda tli=tli: listing.find(tli, part.begin_lsn))  # type: ignore[misc]
            if part.end_lsn <= archived.file.end_lsn
        ]

    def _fill(self, archived: ArchivedObject, part: Extent, into: memoryview) -> None:
        begin = part.begin_lsn - archived.file.begin_lsn
        try:
            read_object(self.store, archived, begin, begin + len(into), into)
        except ArchiveUnavailable as error:
            raise SourceUnavailable(str(error)) from error
        if begin == 0:
            what = f"{self.store.url.rstrip('/')}/{archived.key}"
            check_first_page(into, archived.file.begin_lsn, archived.file.tli, self.origin(), what)

    def _missing(self, path: LogPath, part: Extent) -> Exception:
        for tli, _ in path.names(segment_start(part.begin_lsn, path.segment_size)):
            disputed = self._listing().conflict(tli, part.begin_lsn)
            if disputed is not None:
                return SourceCorrupt(str(conflict(self.store, *disputed)))
        return missing(self.name, path, *part)

    def _listing(self) -> ArchiveListing:
        segment_size = self.origin().segment_size
        with self._lock:
            if self._known_listing is None:
                self._known_listing = ArchiveListing(self.store, segment_size)
            return self._known_listing

    def _lineages(self, files: Mapping[int, ArchivedObject]) -> list[Lineage]:
        return [self._lineage(file) for file in files.values()]

    def _lineage(self, archived: ArchivedObject) -> Lineage:
        """Return the ancestors that a history file lists. It never changes, so it is read once."""
        tli = archived.file.tli
        if tli not in self._histories:
            content = ask(lambda: self._reader.fetch_bytes(archived))
            try:
                self._histories[tli] = parse_timeline_history(tli, content)
            except RemoteProtocolError as error:
                raise SourceCorrupt(f"{self.name}: {error}") from error
        return self._histories[tli]
