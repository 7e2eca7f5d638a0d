"""What other threads do for the log, so that the loop's need not wait: flush, prepare a segment, remove old ones.

Each is an object that the loop's thread makes and later counts, and whose `run` another thread calls in between.
`run` touches files, and of the storage nothing but the one word that says that it has failed.
"""

import threading
from collections.abc import Callable
from pathlib import Path

from safekeeper.base.errors import LocalProtocolError, StorageFailed, StorageFull
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.storage.segment_file import SegmentFile, Slot

Fail = Callable[[StorageFailed | StorageFull], StorageFailed]


class Flush:
    """Everything that was written and not yet durable when it was taken. `run` belongs to the disk's thread."""

    __slots__ = ("_fail", "_slots", "done", "end_lsn")

    def __init__(self, slots: list[tuple[SegmentFile, Slot]], end_lsn: Lsn, fail: Fail) -> None:
        self._slots = slots
        self._fail = fail
        self.end_lsn = end_lsn
        self.done = False

    def run(self) -> None:
        """Make it durable: per segment, in order, write the slot and sync.

        Raises:
            StorageFailed: it did not become durable. The storage is unusable from now on (S12).
            LocalProtocolError: it has been run before; its slots' places may be others' by now.
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
    """Files of segments that the log has left behind. `run` may be called from any thread; one does the work."""

    def __init__(self, unlink: Callable[[Path], None], paths: list[Path]) -> None:
        self._unlink = unlink
        self._paths = paths
        self._lock = threading.Lock()

    def run(self) -> None:
        """Remove them, the oldest first, as far as they are still there. Waits if another thread is at it.

        Raises:
            StorageFailed, StorageFull: one could not be removed.
        """
        with self._lock:
            while self._paths:
                self._unlink(self._paths[0])
                del self._paths[0]


class Preparation:
    """The next segment, in the making. `run` may be called from the disk's thread and the loop's; one does the work."""

    def __init__(self, create: Callable[[], SegmentFile]) -> None:
        self._create = create
        self._lock = threading.Lock()
        self._segment: SegmentFile | None = None
        self._cancelled = False

    def run(self) -> None:
        """Create the file, unless it is there or no longer wanted. Waits if another thread is at it.

        Raises:
            StorageFull: no room. Nothing is left of the attempt; it may be tried again.
            StorageFailed: anything else. The storage is unusable from now on (S12).
        """
        with self._lock:
            if self._segment is None and not self._cancelled:
                self._segment = self._create()

    def take(self) -> SegmentFile | None:
        """Return the segment if it was created. From then on `run` does nothing."""
        with self._lock:
            self._cancelled = True
            segment, self._segment = self._segment, None
            return segment
