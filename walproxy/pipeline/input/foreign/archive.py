"""An archive of WAL-G, pgBackRest or Barman, or a store of segments without a tool, as a source of WAL.

Each file is a complete segment: the WAL reaches to the end of the last one. What a server has archived is taken for
the log, committed or not. Segments are compressed, so any part of one is read as a whole.

All names are listed again at most so often that a twentieth of the time is spent on it.
"""

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from safekeeper.archive.objects import NO_OPTIONS
from safekeeper.archive.store import ObjectStore
from safekeeper.base.errors import ConfigurationError, RemoteProtocolError
from safekeeper.base.lsn import SEGMENT_SIZE_MAX, Lsn, parse_segment_name, segment_start
from safekeeper.base.timelines import Lineage, parse_timeline_history
from safekeeper.waldecode.format import LONG_PAGE_HEADER_SIZE
from walproxy.pipeline.input.foreign.codecs import read_plain
from walproxy.pipeline.input.foreign.roots import ForeignFile, find_root, history_of, segment_of
from walproxy.wal_sources.asking import ask
from walproxy.wal_sources.ranges import by_segment, check_first_page, extents_of_files, missing
from walproxy.wal_sources.segment_listing import FirstPage, parse_first_page
from walproxy.wal_sources.source import Extent, LogPath, Origin, SourceCorrupt, WalMissing
from walproxy.wal_sources.timeline_choice import choose_path

_LIST_FACTOR = 20
_HISTORY_MAX_BYTES = 1 << 20


class ForeignArchive:
    """An archive of another tool. See ByteSource. Nothing is read yet when it is made."""

    def __init__(
        self,
        url: str,
        options: Mapping[str, str] = NO_OPTIONS,
        *,
        timeout_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open it.

        Raises:
            ConfigurationError: the URL or an option cannot be used, or the local folder does not exist.
        """
        self.store = ObjectStore.open(url, options=options, timeout_s=timeout_s)
        self.name = f"the archive {self.store.url}"
        self._clock = clock
        self._segments = Segments(self.store)
        self._lock = threading.Lock()
        self._list_at = float("-inf")
        self._names: list[ForeignFile] = []
        self._files: dict[tuple[int, Lsn], list[ForeignFile]] = {}
        self._histories: dict[int, ForeignFile] = {}
        self._lineages: dict[int, Lineage] = {}
        self._known_origin: Origin | None = None

    def origin(self) -> Origin:
        """See WalSource. It does not change, so one answer is enough.

        Raises:
            ConfigurationError: there is no segment, or the first one is encrypted, or compressed in an unknown way.
            SourceCorrupt: the first segment is damaged.
        """
        with self._lock:
            self._refresh()
            return self._origin()

    def log_path(self, tli: int | None = None) -> LogPath:
        """See ByteSource."""
        with self._lock:
            self._refresh()
            segment_size = self._origin().segment_size
            timelines, histories = {each for each, _ in self._files}, set(self._histories)
        return choose_path(self.name, timelines, histories, self._lineage, tli, segment_size)

    def extents(self, path: LogPath, begin_lsn: Lsn = 0) -> list[Extent]:
        """See WalSource."""
        with self._lock:
            self._refresh()
            self._origin()
            return extents_of_files(path, {named: named[1] + path.segment_size for named in self._files})

    def read_into(self, path: LogPath, begin_lsn: Lsn, room: memoryview) -> None:
        """See ByteSource.

        Raises:
            ConfigurationError: a segment is encrypted, or its compression is not supported.
        """
        for part in by_segment(begin_lsn, begin_lsn + len(room), path.segment_size):
            segment_lsn = segment_start(part.begin_lsn, path.segment_size)
            segment = self._segment(path, part, segment_lsn)
            into = room[part.begin_lsn - begin_lsn : part.end_lsn - begin_lsn]
            into[:] = segment[part.begin_lsn - segment_lsn : part.end_lsn - segment_lsn]

    def _segment(self, path: LogPath, part: Extent, segment_lsn: Lsn) -> bytes:
        """Return the segment that has a part of the log."""
        origin = self.origin()
        for tli, useful_end_lsn in path.names(segment_lsn):
            files = self._files.get((tli, segment_lsn))
            if files is None or part.end_lsn > useful_end_lsn:
                continue
            sha1s = {file.sha1 for file in files}
            if len(sha1s - {""}) > 1:
                raise self._contradiction(files)
            try:
                # Names with a SHA-1 show that the contents are the same, others do not.
                needed = files if "" in sha1s else files[:1]
                first, *others = [self._segments.read(file, tli, segment_lsn, origin) for file in needed]
                if any(other != first for other in others):
                    raise self._contradiction(files)
                return first
            except WalMissing:
                self._list_at = float("-inf")  # It was removed since it was listed.
                raise
        raise missing(self.name, path, *part)

    def _contradiction(self, files: list[ForeignFile]) -> SourceCorrupt:
        names = " and ".join(sorted(self._segments.what(file) for file in files))
        return SourceCorrupt(f"{names} are different contents of one segment: remove the wrong one")

    def _origin(self) -> Origin:
        if self._known_origin is None:
            if not self._names:
                raise ConfigurationError(f"{self.name} has no segments of WAL: correct the input's URL")
            self._known_origin = self._segments.first_page(self._names[0]).origin
            self._sort()
        return self._known_origin

    def _refresh(self) -> None:
        """List what is there, unless it was listed just before."""
        if self._clock() < self._list_at:
            return
        began = self._clock()
        root = ask(lambda: find_root(self.store))
        folder = root.folder if root is not None else ""
        listed = [(info.key, folder, info.size) for info in ask(lambda: self.store.list(folder))] if root else []
        segments, histories = (
            [file for each in listed if (file := kind(*each)) is not None] for kind in (segment_of, history_of)
        )
        self._names = sorted(segments, key=lambda file: file.name)
        self._histories = {int(file.name, 16): file for file in histories}
        self._sort()
        ended = self._clock()
        self._list_at = ended + _LIST_FACTOR * (ended - began)

    def _sort(self) -> None:
        """Find out which segments the names are, which needs the size of segments."""
        if self._known_origin is None:
            return
        files: dict[tuple[int, Lsn], list[ForeignFile]] = {}
        for file in self._names:
            named = parse_segment_name(file.name, self._known_origin.segment_size)
            if named is not None:
                files.setdefault(named, []).append(file)
        self._files = files

    def _lineage(self, tli: int) -> Lineage:
        """Return the ancestors that a history file lists. It never changes, so it is read once."""
        if tli not in self._lineages:
            file = self._histories[tli]
            what = self._segments.what(file)
            content = self._segments.stored(file, _HISTORY_MAX_BYTES, "a history file")
            try:
                self._lineages[tli] = parse_timeline_history(
                    tli, read_plain(what, file.suffix, content, _HISTORY_MAX_BYTES)
                )
            except RemoteProtocolError as error:
                raise SourceCorrupt(f"{what}: {error}") from error
        return self._lineages[tli]


_KEPT_BYTES = 64 << 20


class Segments:
    """The segments of an archive. Blocking, thread-safe."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Future[bytes]] = OrderedDict()

    def first_page(self, file: ForeignFile) -> FirstPage:
        """Return what a segment's first page contains.

        Raises:
            As `read`.
        """
        what = self.what(file)
        content = self._stored_segment(file, SEGMENT_SIZE_MAX)
        page = parse_first_page(read_plain(what, file.suffix, content, LONG_PAGE_HEADER_SIZE))
        if page is None:
            raise _not_wal(what, file)
        return page

    def read(self, file: ForeignFile, tli: int, begin_lsn: Lsn, origin: Origin) -> bytes:
        """Return a whole segment, which begins at `begin_lsn` of timeline `tli`.

        Raises:
            ConfigurationError: it is encrypted, or its compression is not supported.
            SourceCorrupt: it is truncated or damaged, has another SHA-1 than its name, or is another segment.
            SourceUnavailable, WalMissing
        """
        with self._lock:
            kept = self._kept.get(file.key)
            fetched: Future[bytes] = kept or Future()
            self._kept[file.key] = fetched
            self._kept.move_to_end(file.key)
            while len(self._kept) > max(_KEPT_BYTES // origin.segment_size, 1):
                self._kept.popitem(last=False)
        if kept is None:
            try:
                fetched.set_result(self._fetched(file, tli, begin_lsn, origin))
            except BaseException as error:
                with self._lock:
                    self._kept.pop(file.key, None)
                fetched.set_exception(error)  # For the threads that wait for it.
                raise
        return fetched.result()

    def stored(self, file: ForeignFile, max_bytes: int, kind: str) -> bytes:
        """Return a file as it is stored.

        Args:
            max_bytes: the limit of its size, so that a file of another kind does not fill the memory.
            kind: what it should be, for a person.

        Raises:
            SourceCorrupt: it is larger.
            SourceUnavailable, WalMissing
        """
        if file.size > max_bytes:
            raise SourceCorrupt(
                f"{self.what(file)} has {file.size} bytes, more than {kind} can have: remove it if it is not one"
            )
        return ask(lambda: self._store.get(file.key))

    def what(self, file: ForeignFile) -> str:
        """Return what a file is called in messages."""
        return f"{self._store.url.rstrip('/')}/{file.key}"

    def _stored_segment(self, file: ForeignFile, segment_size: int) -> bytes:
        # A compressor makes what it cannot compress a little larger.
        return self.stored(file, segment_size + segment_size // 16, "a segment")

    def _fetched(self, file: ForeignFile, tli: int, begin_lsn: Lsn, origin: Origin) -> bytes:
        what = self.what(file)
        content = self._stored_segment(file, origin.segment_size)
        # One byte more than there should be: then the end of the compressed stream, with its checksum, is read too.
        segment = read_plain(what, file.suffix, content, origin.segment_size + 1)
        if file.sha1:
            sha1 = hashlib.sha1(segment, usedforsecurity=False).hexdigest()
            if sha1 != file.sha1:
                raise SourceCorrupt(f"{what} has the SHA-1 {sha1}, but another one in its name: it is damaged")
        if parse_first_page(segment[:LONG_PAGE_HEADER_SIZE]) is None:
            raise _not_wal(what, file)
        check_first_page(memoryview(segment), begin_lsn, tli, origin, what)
        if len(segment) != origin.segment_size:
            size = "more" if len(segment) > origin.segment_size else f"{len(segment)} bytes"
            raise SourceCorrupt(
                f"{what} has {size} where a segment has {origin.segment_size} bytes: it is truncated or damaged"
            )
        return segment


def _not_wal(what: str, file: ForeignFile) -> SourceCorrupt:
    if file.suffix:
        return SourceCorrupt(f"{what} does not contain WAL: it is encrypted or damaged")
    return SourceCorrupt(
        f"{what} is neither WAL nor compressed with gzip, bzip2, xz, zstd or lz4: it is encrypted or damaged"
    )
