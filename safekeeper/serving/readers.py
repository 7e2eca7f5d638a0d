"""The hub of all readers: sends each the WAL that it may read, and reports their positions to the leader.

After every event of the node the hub checks whether more WAL is readable. If so, it serves the readers in a later
callback of the event loop, after the reply to the append, because appends come first. `acceptor.readable` decides what
may be sent (S7). A reader receives the bytes exactly as in the segment file.

    bytes        at most SERVED_BYTES_PER_TURN per callback, then the event loop runs its other callbacks first
    readers      round robin, a chunk each; readers at the same position share its bytes and header
    cold WAL     is read in the thread "reader", at most one job per reader
    older WAL    that is not retained here comes from the archive, if there is one (archiving/read_through.py)
    a slow one   is skipped while its connection is full, at no cost (S14)

Nothing is read while an event of the node waits for the disk, because the disk's thread may be changing the log.

Measured on two shared cores, commits of 300 bytes: 1.3 us of CPU per reader and commit here, 3.6 to 5.4 with the write
to its socket; an event that makes nothing readable costs 0.8 us.
"""

import asyncio
import logging
import time
from typing import NamedTuple

from safekeeper.acceptor.readable import Gone, ReadableLog, Removed, SendRange, TimelineEnd, next_step
from safekeeper.archive.objects import ArchivedFile, segment_file
from safekeeper.archiving.read_through import CachedSegment, ReadThrough
from safekeeper.base.errors import ObjectMissing, ResourceShortage, StorageFailed
from safekeeper.base.logs import RateLimit, describe_bug
from safekeeper.base.lsn import LSN_MAX, Lsn, format_lsn, segment_name, segment_start
from safekeeper.base.timelines import tli_of_byte
from safekeeper.base.worker import Worker
from safekeeper.node.node import Node
from safekeeper.node.readable_log import LogView
from safekeeper.pgwire.backend import xlog_data_header
from safekeeper.serving.reader import Reader
from safekeeper.serving.standby_feedback import FeedbackTimer
from safekeeper.storage.wal_reading import WalReader

# Maximum size of one XLogData. Chunks end at multiples of it, and therefore at the borders of segments.
CHUNK_BYTES = 128 << 10
SERVED_BYTES_PER_TURN = 512 << 10
# WAL this close to the end was written so recently that it is in memory, also if the system cannot report that.
RECENT_BYTES = 1 << 20
# How long a reader waits when there was no file descriptor to open its segment with.
SHORTAGE_PAUSE_S = 0.5

_log = logging.getLogger(__name__)


class _Chunk(NamedTuple):
    """WAL ready to be sent. `wanted_end_lsn`: the requested end; the chunk may be shorter."""

    begin_lsn: Lsn
    end_lsn: Lsn
    wanted_end_lsn: Lsn
    header: bytes
    payload: memoryview


class ReaderHub:
    """All readers of one safekeeper; the node's `LogReaders`.

    Attributes:
        wakes_at_lsn: see LogReaders. Without readers the log is looked at when one asks for it.
    """

    def __init__(self, node: Node, loop: asyncio.AbstractEventLoop, read_through: ReadThrough | None = None) -> None:
        """Prepare to serve readers.

        Args:
            read_through: the source of WAL that is no longer retained here, None without an archive.
        """
        self._node = node
        self._loop = loop
        self._readers: dict[int, Reader] = {}
        self._awake: dict[int, Reader] = {}  # Those to which WAL may have to be sent.
        self._at_archive: dict[int, Reader] = {}  # Those that wait for the archive.
        self._read_through = read_through
        self._thread = Worker("reader", loop)
        self._feedback = FeedbackTimer(loop, self._report_to_node)
        self._pump_scheduled = False
        self._chunk: _Chunk | None = None  # The last one.
        self._unserved = RateLimit(lines=10, interval_s=60)
        self._quiet: asyncio.Future[None] | None = None
        self._view = LogView(node)
        self.wakes_at_lsn: Lsn = LSN_MAX
        if read_through is not None:
            read_through.attach(self._archive_has_news)

    # The log.

    def log(self) -> ReadableLog:
        """Return the log that is readable at present."""
        if self._node.is_between_events:
            self._refresh_if_changed()
        return self._view.log

    def update(self) -> None:
        """See LogReaders."""
        # Also without readers: a request during the next event is answered from the log before it.
        self._refresh_if_changed()
        if self._awake:
            self._schedule_pump()

    def _refresh_if_changed(self) -> None:
        """Take over the node's present log. Only between events."""
        view, cluster_id, epoch = self._view, self._view.cluster_id, self._view.epoch
        before = view.refresh()
        if before is None:
            return
        if view.epoch != epoch:
            self._chunk = None
        if view.cluster_id != cluster_id and cluster_id:
            for reader in list(self._readers.values()):
                self._fail(reader, "57P01", "this safekeeper now belongs to another cluster", fatal=True)
        elif view.log.end_lsn < before.end_lsn:
            self._note_retreat()
        for number, reader in self._readers.items():
            if not reader.paused and not reader.fetching:
                self._awake[number] = reader

    def _note_retreat(self) -> None:
        """Record that the readable end has gone back: a new timeline begins there (S9)."""
        end_lsn = self._view.log.end_lsn
        for reader in self._readers.values():
            if reader.has_sent and reader.position_lsn > end_lsn:
                reader.retreated_to_lsn = min(end_lsn, reader.retreated_to_lsn or end_lsn)
                _log.warning(
                    "replication connection %d (%s) was sent WAL of timeline %d up to %s, of which the part above %s "
                    "is truncated",
                    reader.number,
                    reader.name,
                    reader.tli,
                    format_lsn(reader.position_lsn),
                    format_lsn(end_lsn),
                )

    # The readers.

    @property
    def readers(self) -> list[Reader]:
        """All of them, in the order in which they started."""
        return list(self._readers.values())

    def start(self, reader: Reader) -> None:
        """Serve `reader` from now on."""
        self._readers[reader.number] = reader
        self.wakes_at_lsn = 0
        self._wake(reader)
        self._feedback.changed(urgent=True)

    def stop(self, reader: Reader) -> None:
        """Stop serving `reader`. Stopping twice is harmless."""
        if self._readers.get(reader.number) is not reader:
            return
        del self._readers[reader.number]
        if not self._readers:
            self.wakes_at_lsn = LSN_MAX
        self._awake.pop(reader.number, None)
        self._at_archive.pop(reader.number, None)
        reader.wal.close()
        if not reader.fetching:
            self._leave_archive(reader)
        self._feedback.changed(urgent=True)
        self._notice_quiet()

    def pause(self, reader: Reader) -> None:
        """Send nothing more to `reader` for now: its connection is full."""
        reader.paused = True
        self._awake.pop(reader.number, None)

    def resume(self, reader: Reader) -> None:
        """Send to `reader` again: its connection is no longer full."""
        reader.paused = False
        self._wake(reader)

    def readable_end(self, reader: Reader) -> Lsn:
        """Return how far the log that `reader` follows is readable: the end of WAL that is reported to it."""
        fork = self._view.log.fork_of(reader.tli) if reader.tli != self._view.log.tli else None
        return min(self._view.log.end_lsn, fork[1]) if fork is not None else self._view.log.end_lsn

    def take_status(self, reader: Reader, write_lsn: Lsn, flush_lsn: Lsn, apply_lsn: Lsn) -> None:
        """Record positions that a reader reported, limited to WAL that it was sent and that no fork has replaced."""
        if self._readers.get(reader.number) is not reader:
            return
        limit_lsn = min(reader.position_lsn, self.readable_end(reader))
        said = (min(write_lsn, limit_lsn), min(flush_lsn, limit_lsn), min(apply_lsn, limit_lsn))
        if said != (reader.write_lsn, reader.flush_lsn, reader.apply_lsn):
            self._feedback.changed(urgent=said[2] > reader.apply_lsn)
            reader.write_lsn, reader.flush_lsn, reader.apply_lsn = said

    def take_feedback(self, reader: Reader, xmin: int, catalog_xmin: int) -> None:
        """Record the oldest transactions that a standby reported as still needed."""
        if (xmin, catalog_xmin) != (reader.xmin, reader.catalog_xmin):
            reader.xmin, reader.catalog_xmin = xmin, catalog_xmin
            self._feedback.changed(urgent=False)

    async def become_quiet(self) -> None:
        """Return once everything readable was sent to every reader."""
        self._quiet = self._loop.create_future()
        self._schedule_pump()
        await self._quiet

    def close(self) -> None:
        """End the threads and the timers."""
        self._feedback.stop()
        self._thread.stop()
        if self._read_through is not None:
            self._read_through.close()

    def _report_to_node(self) -> None:
        self._node.readers_changed(bool(self._readers), tuple(reader.standby() for reader in self._readers.values()))

    # Serving.

    def _wake(self, reader: Reader) -> None:
        if not reader.fetching and not reader.paused and reader.number in self._readers:
            self._awake[reader.number] = reader
            self._schedule_pump()

    def _schedule_pump(self) -> None:
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_scheduled = False
        if not self._node.is_between_events:
            return  # `update` is called when the event has been handled.
        self._refresh_if_changed()
        awake, budget_bytes = self._awake, SERVED_BYTES_PER_TURN
        while awake and budget_bytes > 0:
            budget_bytes -= self._serve(awake.pop(next(iter(awake))))
        if awake:
            self._schedule_pump()
        else:
            self._notice_quiet()

    def _serve(self, reader: Reader) -> int:
        """Send the reader its next chunk, if there is one. Return the number of bytes sent."""
        step = next_step(self._view.log, reader.tli, reader.position_lsn, reader.retreated_to_lsn)
        reader.waiting = False
        if isinstance(step, SendRange):
            if reader.archived is not None:
                self._leave_archive(reader)
            return self._serve_bytes(reader, reader.wal, *step, recent=step.end_lsn - step.begin_lsn <= RECENT_BYTES)
        if isinstance(step, Removed):
            return self._serve_from_archive(reader, step)
        if isinstance(step, TimelineEnd):
            self.stop(reader)
            reader.client.end_timeline(step)
        elif isinstance(step, Gone):
            reason = f"timeline {reader.tli} is no longer in this server's history"
            self._fail(reader, "58P01", reason, fatal=True)
        else:
            reader.waiting = reader.caught_up = True
        return 0

    def _serve_bytes(
        self, reader: Reader, wal: WalReader | CachedSegment, begin_lsn: Lsn, end_lsn: Lsn, *, recent: bool
    ) -> int:
        end_lsn = min(end_lsn, begin_lsn - begin_lsn % CHUNK_BYTES + CHUNK_BYTES)
        chunk = self._chunk
        if chunk is None or chunk.begin_lsn != begin_lsn or chunk.wanted_end_lsn != end_lsn:
            try:
                payload = wal.at_hand(begin_lsn, end_lsn, recent=recent)
                if not payload:
                    self._fetch(reader, wal, begin_lsn, end_lsn)
                    return 0
            except ResourceShortage as short:
                self._wait_for_resources(reader, short)
                return 0
            except StorageFailed as error:
                self._fail_read(reader, error)
                return 0
            chunk = self._chunk = self._make_chunk(begin_lsn, end_lsn, self.readable_end(reader), payload)
        self._send(reader, chunk)
        if chunk.end_lsn == self._view.log.end_lsn:
            reader.waiting = reader.caught_up = True
        elif not reader.paused:
            self._awake[reader.number] = reader  # More is readable, or its timeline ends here.
        return len(chunk.payload)

    def _make_chunk(
        self, begin_lsn: Lsn, wanted_end_lsn: Lsn, readable_end_lsn: Lsn, payload: bytes | bytearray
    ) -> _Chunk:
        header = xlog_data_header(begin_lsn, readable_end_lsn, time.time_ns() // 1000, len(payload))
        return _Chunk(begin_lsn, begin_lsn + len(payload), wanted_end_lsn, header, memoryview(payload))

    def _send(self, reader: Reader, chunk: _Chunk) -> None:
        reader.position_lsn = chunk.end_lsn
        reader.has_sent = True
        reader.client.write(chunk.header, chunk.payload)

    # Cold WAL.

    def _fetch(self, reader: Reader, wal: WalReader | CachedSegment, begin_lsn: Lsn, end_lsn: Lsn) -> None:
        reader.fetching = True
        token = (reader, wal, self._view.epoch, begin_lsn, end_lsn)
        self._thread.submit(wal.fetch(begin_lsn, end_lsn), self._fetched, token)

    def _fetched(
        self,
        token: tuple[Reader, WalReader | CachedSegment, int, Lsn, Lsn],
        payload: bytes | None,
        error: BaseException | None,
    ) -> None:
        reader, wal, epoch, begin_lsn, end_lsn = token
        reader.fetching = False
        wal.fetched()
        if self._readers.get(reader.number) is not reader:
            self._leave_archive(reader)
            return
        if self._node.is_between_events:
            self._refresh_if_changed()
        if payload is not None and epoch == self._view.epoch and self._node.is_between_events:
            self._chunk = self._make_chunk(begin_lsn, end_lsn, self.readable_end(reader), payload)
            self._send(reader, self._chunk)
        elif isinstance(error, ResourceShortage):
            self._wait_for_resources(reader, error)
            return
        elif isinstance(error, StorageFailed):
            may_be_removed = not self._node.is_between_events or reader.position_lsn < self._view.log.begin_lsn
            if wal is not reader.wal or not may_be_removed:
                self._fail_read(reader, error)
        elif error is not None:
            self._log_unserved(reader, describe_bug(error))
            self._fail(reader, "XX000", "an unexpected error, which this safekeeper's log describes", fatal=True)
        # WAL read during an event may be void after it, and is then read again.
        self._wake(reader)

    def _wait_for_resources(self, reader: Reader, short: ResourceShortage) -> None:
        """Serve the reader again after a pause, because its segment could not be opened."""
        self._node.disk_space.short_of_resources(short)
        self._loop.call_later(SHORTAGE_PAUSE_S, self._wake, reader)

    # Older WAL.

    def _serve_from_archive(self, reader: Reader, step: Removed) -> int:
        """Send the reader WAL that is not retained here, or start to fetch it."""
        archive, segment = self._read_through, reader.archived
        if archive is None:
            self._fail_removed(reader)
            return 0
        if segment is None or not segment.holds(step.begin_lsn):
            self._leave_archive(reader)
            try:
                segment = reader.archived = archive.acquire(self._archived_segment(step.begin_lsn))
            except ObjectMissing:
                self._fail_removed(reader)
                return 0
            if segment is None:
                self._at_archive[reader.number] = reader
                return 0
            if segment.file.end_lsn < self._view.log.begin_lsn:
                archive.prefetch(self._archived_segment(segment.file.end_lsn))
        self._at_archive.pop(reader.number, None)
        return self._serve_bytes(reader, segment, *step, recent=False)

    def _archived_segment(self, lsn: Lsn) -> ArchivedFile:
        """Return the segment of byte `lsn`, under its name in this log: that of its last byte's timeline."""
        log, size = self._view.log, self._node.acceptor.control.segment_size
        begin_lsn = segment_start(lsn, size)
        return segment_file(tli_of_byte(log.tli, log.lineage, begin_lsn + size - 1), begin_lsn, size)

    def _leave_archive(self, reader: Reader) -> None:
        segment, reader.archived = reader.archived, None
        if segment is not None and self._read_through is not None:
            self._read_through.release(segment)

    def _archive_has_news(self) -> None:
        for reader in list(self._at_archive.values()):
            self._wake(reader)

    # The ends.

    def _fail_removed(self, reader: Reader) -> None:
        name = segment_name(reader.tli, reader.position_lsn, self._node.acceptor.control.segment_size)
        self._fail(reader, "58P01", f"requested WAL segment {name} has already been removed", fatal=False)

    def _fail_read(self, reader: Reader, error: StorageFailed) -> None:
        self._log_unserved(reader, str(error))
        self._fail(reader, "58030", str(error), fatal=True)

    def _log_unserved(self, reader: Reader, reason: str) -> None:
        """Log why a reader is disconnected, rate-limited: its client connects again."""
        more = self._unserved.admit()
        if more is not None:
            _log.error("connection %d cannot be served: %s%s", reader.number, reason, more)

    def _fail(self, reader: Reader, sqlstate: str, message: str, *, fatal: bool) -> None:
        self.stop(reader)
        reader.client.fail(sqlstate, message, fatal=fatal)

    def _notice_quiet(self) -> None:
        if (
            self._quiet is not None
            and not self._quiet.done()
            and all(r.waiting or n in self._at_archive for n, r in self._readers.items())
        ):
            self._quiet.set_result(None)
