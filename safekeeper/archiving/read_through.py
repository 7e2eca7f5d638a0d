"""WAL that is no longer retained here, from the archive, for readers that request it.

A segment is downloaded as a whole by separate threads, verified (archive/fetch.py), and read like local ones; the next
one is downloaded meanwhile. So a slow archive delays only the readers that read from it.

    DIR/archive-cache/    the last few segments, for all readers together; emptied at the start, by another thread

A segment that a reader reads is never dropped: there are SEGMENTS_KEPT, plus at most one for each reader (S14). A
segment that is not in the archive is an error for the reader. Any other failure is retried as long as a reader waits.

To be used on the event loop's thread, except the jobs of the threads.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from safekeeper.archive.access import ArchiveAccess
from safekeeper.archive.objects import MANIFEST_KEY, ArchivedFile
from safekeeper.base.errors import (
    ArchiveConflict,
    ArchiveCorrupt,
    ArchiveRefused,
    ConfigurationError,
    ObjectMissing,
    WalproxyError,
)
from safekeeper.base.logs import ProblemLog, describe_bug, one_line
from safekeeper.base.lsn import Lsn
from safekeeper.base.worker import Worker
from safekeeper.consensus.control_state import ControlState
from safekeeper.storage.filesystem import File, FileSystem
from safekeeper.storage.segment_file import read_exactly

if TYPE_CHECKING:
    from safekeeper.archive.fetch import ArchiveReader

CACHE_FOLDER = "archive-cache"
SEGMENTS_KEPT = 4
FETCHES_AT_ONCE = 2
RETRY_S_MIN = 1.0
RETRY_S_MAX = 30.0

# Errors that an operator must correct.
_SERIOUS = (ArchiveConflict, ArchiveCorrupt, ArchiveRefused, ConfigurationError)
_log = logging.getLogger(__name__)


class CachedSegment:
    """A whole segment from the archive. Returned by `ReadThrough.acquire`, to be given back with `release`.

    It has the methods of `storage.wal_reading.WalReader`, for several readers at once.
    """

    def __init__(self, handle: File, path: Path, file: ArchivedFile) -> None:
        self._handle = handle
        self.path = path
        self.file = file
        self.users = 0

    def holds(self, lsn: Lsn) -> bool:
        """Return whether it contains byte `lsn`."""
        return self.file.begin_lsn <= lsn < self.file.end_lsn

    def at_hand(self, begin_lsn: Lsn, end_lsn: Lsn, *, recent: bool) -> bytes | bytearray:
        """See WalReader. `recent` has no effect."""
        return self._handle.pread_at_hand(end_lsn - begin_lsn, begin_lsn - self.file.begin_lsn) or b""

    def fetch(self, begin_lsn: Lsn, end_lsn: Lsn) -> Callable[[], bytes]:
        """See WalReader."""
        return lambda: read_exactly(self._handle, self.path, end_lsn - begin_lsn, begin_lsn - self.file.begin_lsn)

    def fetched(self) -> None:
        """See WalReader."""

    def close(self) -> None:
        """Release the file; it is no longer read."""
        self._handle.close()


class ReadThrough:
    """The readers' access to the archive.

    Attributes:
        problem: why nothing can be fetched from the archive at present, empty if it can.
        segments: number of segments downloaded since the start.
        errors: number of failed attempts.
    """

    def __init__(
        self, fs: FileSystem, directory: Path, access: ArchiveAccess, control: Callable[[], ControlState]
    ) -> None:
        """Begin with an empty cache.

        Args:
            directory: the data folder.
            control: returns the control state, which identifies the cluster and the archive.
        """
        self._fs = fs
        self._directory = directory / CACHE_FOLDER
        self._access = access
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._idle = [Worker("archive reader", self._loop) for _ in range(FETCHES_AT_ONCE)]
        self._cleaner = Worker("archive cache", self._loop)
        self._workers = (*self._idle, self._cleaner)
        self._cached: OrderedDict[ArchivedFile, CachedSegment] = OrderedDict()  # The most recently used one is last.
        self._queue: deque[ArchivedFile] = deque()
        self._coming: set[ArchivedFile] = set()  # Queued, being downloaded, or to be retried later.
        self._asked: set[ArchivedFile] = set()  # By a reader that waits for it.
        self._missing: dict[ArchivedFile, str] = {}
        self._is_clean = False
        self._downloads = 0
        self._reader: ArchiveReader | None = None  # Of an archive that was verified to be this cluster's.
        self._problems = ProblemLog(_log)
        self._retry_s = RETRY_S_MIN
        self._arrived: Callable[[], None] = lambda: None
        self._timers: set[asyncio.TimerHandle] = set()
        self.segments = 0
        self.errors = 0
        self._cleaner.submit(self._clean, self._cleaned)

    def attach(self, arrived: Callable[[], None]) -> None:
        """Set the function to call when a segment has arrived or failed."""
        self._arrived = arrived

    @property
    def problem(self) -> str:
        """Why nothing can be fetched at present."""
        return self._problems.text

    def acquire(self, file: ArchivedFile) -> CachedSegment | None:
        """Return a segment, to be used until `release`; None while it is fetched: call again after the notification.

        Raises:
            ObjectMissing: it is not in the archive.
        """
        cached = self._cached.get(file)
        if cached is not None:
            self._cached.move_to_end(file)
            cached.users += 1
            return cached
        reason = self._missing.pop(file, None)
        if reason is not None:
            raise ObjectMissing(reason)
        self._asked.add(file)
        self.prefetch(file)
        return None

    def prefetch(self, file: ArchivedFile) -> None:
        """Start to fetch a segment that will soon be needed."""
        if file not in self._cached and file not in self._coming:
            self._coming.add(file)
            self._queue.append(file)
            self._begin_fetches()

    def release(self, segment: CachedSegment) -> None:
        """End the use of a segment; it must not be read afterwards."""
        segment.users -= 1
        self._make_room(0)

    def close(self) -> None:
        """End the threads and the timers."""
        for timer in self._timers:
            timer.cancel()
        for worker in self._workers:
            worker.stop()

    # Downloads.

    def _begin_fetches(self) -> None:
        while self._is_clean and self._idle and self._queue:
            worker, file = self._idle.pop(), self._queue.popleft()
            self._downloads += 1
            # A unique name: an older file of that name may still be waiting to be removed.
            path = self._directory / f"{file.name}.{self._downloads}"
            worker.submit(partial(self._fetch, file, path), self._fetched, (worker, file))

    def _fetch(self, file: ArchivedFile, path: Path) -> tuple[File, Path]:
        """Download a segment and open it. Runs in a thread."""
        reader = self._reader_of_ours()
        candidates = [found for found in reader.candidates(file.tli, file.begin_lsn) if found.file == file]
        if not candidates:
            raise ObjectMissing(f"{file.name} is not in the archive {self._access.url}")
        for number, candidate in enumerate(candidates, 1):
            try:
                reader.fetch(candidate, path)
                break
            except ArchiveCorrupt as error:
                if number == len(candidates):
                    raise
                _log.error("%s: trying another object of the same segment", error)
        return self._fs.open(path, read_only=True), path

    def _reader_of_ours(self) -> "ArchiveReader":
        """Return a reader of the archive, after verifying that it belongs to this cluster."""
        reader = self._reader or self._access.reader()
        self._reader = None
        manifest, control = reader.manifest(), self._control()
        if manifest is None:
            # WAL that this safekeeper has removed was archived, so this cannot be the right place.
            raise ArchiveRefused(
                f"{self._access.url} has no {MANIFEST_KEY}: mount the archive there, or correct --archive"
            )
        theirs = (manifest.system_id, manifest.segment_size)
        if theirs != (control.system_id, control.segment_size) or control.cluster_id not in manifest.cluster_ids:
            raise ArchiveRefused(
                f"{self._access.url} is the archive of another cluster (system identifier {manifest.system_id}): "
                "correct --archive"
            )
        self._reader = reader
        return reader

    def _clean(self) -> None:
        """Remove the files of an earlier process. Runs in a thread."""
        self._fs.make_directory(self._directory)
        for name in self._fs.listdir(self._directory):
            self._fs.unlink(self._directory / name)

    def _cleaned(self, _: object, result: None, error: BaseException | None) -> None:
        if error is not None:
            _log.warning("could not empty %s: %s", self._directory, error)
        self._is_clean = True
        self._begin_fetches()

    def _fetched(
        self, token: tuple[Worker, ArchivedFile], result: tuple[File, Path] | None, error: BaseException | None
    ) -> None:
        worker, file = token
        self._idle.append(worker)
        was_asked = file in self._asked
        self._asked.discard(file)
        if result is not None:
            self._coming.discard(file)
            self.segments += 1
            self._retry_s = RETRY_S_MIN
            self._problems.over("reading WAL from the archive resumed")
            self._make_room(1)
            self._cached[file] = CachedSegment(*result, file)
            self._arrived()
        elif isinstance(error, ObjectMissing):
            self._coming.discard(file)
            if was_asked:
                _log.error("a reader needs WAL that was removed: %s", error)
                self._missing[file] = str(error)
                self._arrived()
        elif error is not None:
            self._try_again_later(file, error)
        self._begin_fetches()

    def _try_again_later(self, file: ArchivedFile, error: BaseException) -> None:
        self.errors += 1
        reason = one_line(str(error) if isinstance(error, WalproxyError) else describe_bug(error))
        is_serious = isinstance(error, _SERIOUS) or not isinstance(error, WalproxyError)
        level = logging.ERROR if is_serious else logging.WARNING
        self._problems.note(reason, "could not read WAL from the archive: %s", reason, level=level)
        wait_s, self._retry_s = self._retry_s, min(2 * self._retry_s, RETRY_S_MAX)

        def retry() -> None:
            self._timers.discard(timer)
            self._coming.discard(file)
            self._arrived()  # Readers that still need it request it again.

        timer = self._loop.call_later(wait_s, retry)
        self._timers.add(timer)

    def _make_room(self, segments: int) -> None:
        """Drop the least recently used segments until there is room for the given number of new ones."""
        unused = [file for file, segment in self._cached.items() if not segment.users]
        for file in unused[: max(0, len(self._cached) + segments - SEGMENTS_KEPT)]:
            self._cleaner.submit(partial(self._drop, self._cached.pop(file)), self._dropped)

    def _drop(self, segment: CachedSegment) -> None:
        segment.close()
        self._fs.unlink(segment.path)

    def _dropped(self, _: object, result: None, error: BaseException | None) -> None:
        if error is not None:
            _log.warning("could not remove a segment from the cache: %s", error)
