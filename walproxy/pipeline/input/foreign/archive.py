"""An archive of WAL-G, pgBackRest or Barman, or a store of segments without a tool, as a source of WAL.

Each file is a complete segment: the WAL reaches to the end of the last one. What a server has archived is taken for
the log, committed or not. Segments are compressed, so any part of one is read as a whole.

All names are listed again at most so often that a twentieth of the time is spent on it.
"""

import threading
import time
from collections.abc import Callable, Mapping

from safekeeper.archive.objects import NO_OPTIONS
from safekeeper.archive.store import ObjectStore
from safekeeper.base.errors import ConfigurationError, RemoteProtocolError
from safekeeper.base.lsn import Lsn, parse_segment_name, segment_start
from safekeeper.base.timelines import Lineage, parse_timeline_history
from walproxy.pipeline.input.foreign.codecs import read_plain
from walproxy.pipeline.input.foreign.names import ForeignFile, history_of, segment_of
from walproxy.pipeline.input.foreign.roots import find_root
from walproxy.pipeline.input.foreign.segments import Segments
from walproxy.wal_sources.asking import ask
from walproxy.wal_sources.ranges import by_segment, extents_of_files, missing
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
