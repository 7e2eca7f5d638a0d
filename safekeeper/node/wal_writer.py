"""Writes a node's WAL, and flushes it: on the loop's thread while the disk is quick, else in the disk's thread.

What is written during a flush is covered by the next one: at most one runs.
"""

import asyncio
from functools import partial
from time import monotonic

from safekeeper.base.errors import StorageFull
from safekeeper.base.histogram import Histogram, RecentHistogram
from safekeeper.base.lsn import Lsn
from safekeeper.node.segment_files import SegmentFiles, WalOwner
from safekeeper.storage.disk_work import Flush
from safekeeper.storage.wal_log import WalStorage

# A leader that waits this long for a flush receives a report of the WAL received meanwhile.
REPORT_WRITE_AFTER_S = 0.001
# While a flush takes less than this on average, it runs on the loop's thread, because passing it to another thread
# costs more than the fdatasync. Measured with 8 appends of 8 KiB in flight, alternately, on two shared cores: 84-100 us
# of CPU per append through the thread, 47-59 on the loop; 5,300-6,400 appends a second against 9,000-10,800. The price
# is that the loop blocks during a flush, and that WAL that is received meanwhile is acknowledged only after it. Where
# the processor is the bottleneck, flushes of a quick disk take milliseconds, because a flush also waits for the
# processor: with 1 ms for this, such a machine used the thread and was slower still (pgbench -N, three safekeepers
# beside PostgreSQL: 0.87 of the transactions at 8 clients, 0.90 at 32, for a third more CPU; 10 ms is no better
# than 4).
QUICK_FLUSH_S = 0.004
# The average is a moving one over about this number of flushes. It starts as slow.
FLUSHES_AVERAGED = 8


class WalWriter:
    """The writes and flushes of one node.

    Attributes:
        segments: its segment files.
        flush_times: durations of the flushes of WAL, on the loop's thread or in the disk's. Counting one costs 0.2 to
            1 us of CPU time, a flush on a quick disk 50 us and more.
        append_sizes: bytes of WAL in each append, from 64 bytes to 1 MiB.
        average_flush_s: decides on which thread the next flush runs.
    """

    def __init__(self, node: WalOwner, loop: asyncio.AbstractEventLoop) -> None:
        self.segments = SegmentFiles(node, loop)
        self.flush_times = RecentHistogram()
        self.append_sizes = Histogram(6, 20)
        self.average_flush_s = 10 * QUICK_FLUSH_S
        self._node = node
        self._loop = loop
        self._flush: Flush | None = None  # The flush that runs in the disk's thread.
        self._flush_began_at = 0.0
        self._report_timer_runs = False

    @property
    def is_flushing(self) -> bool:
        """Whether a flush runs in the disk's thread."""
        return self._flush is not None

    def write(self, begin_lsn: Lsn, payload: bytes | memoryview) -> None:
        """Write WAL to the operating system.

        Raises:
            StorageFull: nothing was written.
            StorageFailed: the node must end (S12).
        """
        try:
            self._node.folder.opened_storage().append(begin_lsn, payload)
        except StorageFull as full:
            self.segments.no_room(full)
            raise
        self.append_sizes.observe(len(payload))

    def flush(self) -> Lsn | None:
        """Flush what was written, or start to. Only between events.

        Returns:
            The end of the WAL if it was flushed; None if there was none to flush, or a flush runs in the disk's thread.

        Raises:
            StorageFailed: the node must end (S12).
        """
        storage = self._node.folder.storage
        if storage is None or self._flush is not None or storage.flush_lsn == storage.write_lsn:
            return None
        began_at = monotonic()
        self.segments.prepare_if_due(storage.write_lsn, began_at)
        if self.average_flush_s >= QUICK_FLUSH_S:
            self._start_flush(storage, began_at)
            return None
        flush_lsn = storage.flush_now()
        self._count_flush(flush_lsn, began_at)
        return flush_lsn

    def take_flush(self) -> Flush | None:
        """Return the flush that runs, for an effect that includes it; None without one. The end of it is ignored."""
        flush, self._flush = self._flush, None
        return flush

    def _start_flush(self, storage: WalStorage, began_at: float) -> None:
        """Start a flush in the disk's thread."""
        flush = self._flush = storage.start_flush()
        assert flush is not None  # WAL is unflushed, and no flush runs.
        self._flush_began_at = began_at
        self._node.disk.submit(flush.run, self._flush_returned, flush)
        if not self._report_timer_runs:
            self._report_timer_runs = True
            self._loop.call_later(REPORT_WRITE_AFTER_S, self._report_timer)

    def _flush_returned(self, flush: Flush, _: object, error: BaseException | None) -> None:
        if error is not None:
            self._node.fail(error)
        else:
            self._node.post(partial(self._flushed, flush))

    def _flushed(self, flush: Flush) -> None:
        """Count a flush of the disk's thread that has ended, and acknowledge what it made durable."""
        if flush is not self._flush:
            return  # An effect has included it.
        self._node.folder.opened_storage().finish_flush(flush)
        self._flush = None
        self._count_flush(flush.end_lsn, self._flush_began_at)
        self._node.acknowledge(flush.end_lsn)

    def _count_flush(self, flush_lsn: Lsn, began_at: float) -> None:
        took_s = monotonic() - began_at
        self.average_flush_s += (took_s - self.average_flush_s) / FLUSHES_AVERAGED
        self.flush_times.observe(took_s)
        self.segments.note_room(flush_lsn)

    def _report_timer(self) -> None:
        """Report received WAL to the leader if a flush takes long. One timer serves all flushes."""
        self._report_timer_runs = False
        if self._flush is None or self._node.failed.done():
            return
        age_s = monotonic() - self._flush_began_at
        if age_s >= REPORT_WRITE_AFTER_S and self._node.is_between_events:
            self._node.report_write()
        self._report_timer_runs = True
        wait_s = REPORT_WRITE_AFTER_S - age_s if age_s < REPORT_WRITE_AFTER_S else REPORT_WRITE_AFTER_S
        self._loop.call_later(wait_s, self._report_timer)
