"""Work on the log in other threads, so that the event loop need not wait: flush, prepare a segment, remove old ones.

The loop's thread creates each object and later takes over its result; in between another thread calls its `run`.
`run` uses files, and of the storage only the attribute that records a failure.
"""

import threading
from collections.abc import Callable
from pathlib import Path

from safekeeper.base.errors import LocalProtocolError, StorageFailed, StorageFull
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.storage.segment_file import FooterSlot, SegmentFile

Fail = Callable[[StorageFailed | StorageFull], StorageFailed]


class Flush:
    """Everything that was written but not durable when the snapshot was taken. `run` is for the disk's thread."""

    __slots__ = ("_fail", "_slots", "done", "end_lsn")

    def __init__(self, slots: list[tuple[SegmentFile, FooterSlot]], end_lsn: Lsn, fail: Fail) -> None:
        self._slots = slots
        self._fail = fail
        self.end_lsn = end_lsn
        self.done = False

    def run(self) -> None:
        """Make it durable: write the slot of each segment, in order, and sync.

        Raises:
            StorageFailed: it did not become durable. The storage is unusable from now on (S12).
            LocalProtocolError: it has run before; the places of its slots may have been reused.
        """
        if self.done:
            raise LocalProtocolError(f"the flush to {format_lsn(self.end_lsn)} has been carried out already")
        try:
            for segment, slot in self._slots:
                segment.write_slot(slot)
                segment.sync()
        except (StorageFailed, StorageFull) as error:
            raise self._fail(error) from error
        self.done = True


class Removal:
    """The removal of segment files that the log dropped. Any thread may call `run`; only one call does the work."""

    def __init__(self, unlink: Callable[[Path], None], paths: list[Path]) -> None:
        self._unlink = unlink
        self._paths = paths
        self._lock = threading.Lock()

    def run(self) -> None:
        """Remove the files that still exist, the oldest first. Wait if another thread is doing so.

        Raises:
            StorageFailed, StorageFull: one could not be removed.
        """
        with self._lock:
            while self._paths:
                self._unlink(self._paths[0])
                del self._paths[0]


class Preparation:
    """The preparation of the next segment. `run` may be called by the disk's and the loop's thread; one does it."""

    def __init__(self, create: Callable[[], SegmentFile]) -> None:
        self._create = create
        self._lock = threading.Lock()
        self._segment: SegmentFile | None = None
        self._cancelled = False

    def run(self) -> None:
        """Create the file, unless it exists or is no longer needed. Wait if another thread is doing so.

        Raises:
            StorageFull: no disk space. Nothing is left of the attempt; it may be retried.
            StorageFailed: any other error. The storage is unusable from now on (S12).
        """
        with self._lock:
            if self._segment is None and not self._cancelled:
                self._segment = self._create()

    def take(self) -> SegmentFile | None:
        """Return the segment if it was created. Afterwards `run` does nothing."""
        with self._lock:
            self._cancelled = True
            segment, self._segment = self._segment, None
            return segment
