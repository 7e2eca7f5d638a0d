"""The node: executes the acceptor's effects, in order, on the disk and on the connections.

Events are handled one after the other: a message, a lost connection, the end of a flush. Each is a generator of effects
that ends before the next event begins, so the acceptor's code is the order in which things happen.

    append     written to the operating system at once, on the loop's thread; then a flush starts if none runs. One that
               the acceptor `accepts` takes no generator (docs/design/adr/0040-everyday-events.md)
    trim       the log drops its oldest segments at once; a separate thread removes their files
    flush      on the loop's thread while the disk is quick, else in the disk's thread; what is received or written
               meanwhile is covered by the next flush
    the rest   control file, cuts, reads: in the disk's thread, after a flush that runs; until then the node accepts no
               message (`ready` is False), and the loop continues to answer HTTP

Messages that wait are not stored here: while the node is not ready they stay in the sockets, and `Outbox.resume`
reports when it is ready (S14). Only events that cannot wait outside are queued: the end of a flush, a lost connection,
a timer; there are at most as many of these as connections and threads.

A failed write or sync, or a violated invariant, ends the node: from then on it does nothing at all, and `failed` makes
the process exit (S12).
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any, Protocol

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.acceptor.effects import (
    Close,
    Effect,
    Effects,
    FlushWal,
    Persist,
    ResetWal,
    Send,
    ServeAgent,
    ServeEvents,
    ServeRead,
    SetWalAside,
    TrimWal,
    TruncateWal,
    WriteWal,
)
from safekeeper.acceptor.trimming import TrimRequest
from safekeeper.base.errors import (
    InvariantViolation,
    RemoteProtocolError,
    ResourceShortage,
    StorageFailed,
    StorageFull,
)
from safekeeper.base.histogram import Histogram, RecentHistogram
from safekeeper.base.lsn import Lsn, segment_start
from safekeeper.base.worker import Worker
from safekeeper.consensus.answer_counts import AnswerCounts
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.messages import AcceptorMessage, AppendRequest, ProposerMessage, PullWal, Standby
from safekeeper.node.agent_registry import AgentRegistry
from safekeeper.node.event_keeper import EventKeeper
from safekeeper.node.peer_reads import PeerReads
from safekeeper.node.state_log import ChangeLog
from safekeeper.storage.data_folder import DataFolder
from safekeeper.storage.disk_space import CONTROL_FILE, WAL, DiskSpace
from safekeeper.storage.disk_work import Flush, Preparation, Removal
from safekeeper.storage.filesystem import Space
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
# The pause before the preparation of the next segment is retried for want of disk space.
PREPARE_AGAIN_AFTER_S = 1.0
# The pauses before a file is opened again for which no descriptor was free: each is twice the last. An effect in the
# disk's thread is retried after each of these, 0.63 s in all; then it is refused, as for want of disk space.
SHORTAGE_PAUSES_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)

_log = logging.getLogger(__name__)
# These make the WAL durable themselves or replace it: a flush that runs is counted with them, and not once more.
INCLUDES_FLUSH = (FlushWal, TruncateWal, ResetWal, SetWalAside)


class Outbox(Protocol):
    """The node's interface to its connections: sends replies and closes connections."""

    def send(self, connection: int, message: AcceptorMessage) -> None:
        """Send `message`; do nothing if the connection is closed."""

    def close(self, connection: int, reason: str, *, broken: bool) -> None:
        """Close the connection once everything written is sent; drop its messages. `broken`: it broke the protocol."""

    def resume(self) -> None:
        """Pass messages to the node again: it is ready."""


class LogReaders(Protocol):
    """A component that reads committed WAL from this safekeeper (S7).

    Attributes:
        wakes_at_lsn: appends and flushes are reported only while write_lsn is not below this; LSN_MAX for none.
    """

    wakes_at_lsn: Lsn

    def update(self) -> None:
        """Check for new positions, history or leader. Called after every event, so it must be cheap."""


class Node:
    """One safekeeper's acceptor, its data folder, and the threads that wait for the disk.

    Attributes:
        acceptor: the state machine; only read its positions.
        folder: the data folder.
        disk: the thread that flushes.
        disk_space: the disk's free space, and what could not be written for want of it.
        failed: done, with the error, once the node has failed.
        peer_reads: serves the members that pull WAL from here.
        agents: serves the agents.
        flush_times: durations of the flushes of WAL, on the loop's thread or in the disk's. Counting one costs 0.2 to
            1 us of CPU time, a flush on a quick disk 50 us and more.
        append_sizes: bytes of WAL in each append, from 64 bytes to 1 MiB.
        answers: its votes and refusals.
        events: keeps events.
    """

    def __init__(self, folder: DataFolder, loop: asyncio.AbstractEventLoop) -> None:
        """Finish what a crash interrupted (blocking). The node is ready for messages after `attach`.

        Raises:
            StorageFailed: it cannot be finished. Want of disk space alone is not an error: the acceptor does not claim
                what is unfinished, and retries.
        """
        self.folder = folder
        self.disk_space = DiskSpace(clock=loop.time)
        self.acceptor = Acceptor(folder.control, folder.flush_lsn)
        try:
            folder.perform_all(self.acceptor.start())
        except StorageFull as full:
            self.disk_space.note(CONTROL_FILE, full)
        self.disk = Worker("disk", loop)
        # Preparing a segment takes far longer than a flush may wait, hence a thread of its own.
        self._preparer = Worker("preparer", loop)
        # A busy disk may take seconds to remove a segment.
        self._remover = Worker("remover", loop)
        self.failed: asyncio.Future[None] = loop.create_future()
        self._has_failed = False  # `failed` is done.
        self._loop = loop
        self._outbox: Outbox
        self.peer_reads = PeerReads(self.acceptor, folder, partial(Worker, "peer reader", loop), self._send)
        self.events = EventKeeper(
            folder.control.safekeeper_id,
            folder.event_file(),
            self.disk_space,
            partial(Worker, "events", loop),
            self._send,
        )
        self.agents = AgentRegistry(self.acceptor, folder.agents_file(), self.disk, self._send, loop.time)
        self.flush_times = RecentHistogram()
        self.append_sizes = Histogram(6, 20)
        self.answers = AnswerCounts()
        self._effects: Effects | None = None  # Those of the event that is being handled.
        self._connection = 0  # From which its message was received.
        self._events: deque[Callable[[], Effects | None]] = deque()
        self._flush: Flush | None = None  # The flush that runs.
        self._flush_began_at = 0.0
        self._average_flush_s = 10 * QUICK_FLUSH_S
        self._report_timer_runs = False
        self._prepare_at_lsn: Lsn = 0  # Until then it is not time for the next segment.
        self._prepare_not_before = 0.0
        self._shortages_in_a_row = 0  # Of the preparer.
        self._deaf = False  # It is drained or has failed: no further message is accepted.
        self._quiet: asyncio.Future[None] | None = None
        self._change_log = ChangeLog(self.acceptor)
        self._log_readers: list[LogReaders] = []

    def attach(self, outbox: Outbox) -> None:
        """Set where replies are sent. Call it before the first message."""
        self._outbox = outbox

    def attach_readers(self, readers: LogReaders) -> None:
        """Add readers to update after each event. There may be several."""
        self._log_readers.append(readers)

    @property
    def ready(self) -> bool:
        """Whether `receive` may be called."""
        return self._effects is None and not self._deaf

    @property
    def is_between_events(self) -> bool:
        """Whether the log is stable at this moment: no event waits for the disk's thread, and the node works."""
        return self._effects is None and not self._has_failed

    # Events.

    def append(self, connection: int, message: AppendRequest, now: float, *, is_last: bool) -> bool:
        """Write the WAL of a usual append, and return True. Otherwise return False: then it is for `receive`.

        May be called at any time.

        Args:
            now: the loop's time.
            is_last: whether no further message is available: what was written is flushed, as by `messages_handled`.
        """
        acceptor = self.acceptor
        if self._effects is not None or self._deaf or not acceptor.accepts(connection, message):
            return False
        try:
            payload = message.payload
            if payload:
                storage = self.folder.storage
                assert storage is not None  # The acceptor has a write position.
                storage.append(message.begin_lsn, payload)
                self.append_sizes.observe(len(payload))
            answer = acceptor.wrote(message, now)
            if answer is not None:
                self._outbox.send(connection, answer)
        except StorageFull as full:
            self._no_room_for_wal(full)
            self._begin(connection, acceptor.no_room(connection, full))
        except Exception as error:
            self._fail(error)
        if is_last:
            self.messages_handled()
        return True

    def receive(self, connection: int, message: ProposerMessage) -> None:
        """Handle a message; only while `ready`. Call `messages_handled` after the last one available."""
        # Publish the state before this event: it may wait for the disk.
        self._check()
        if self._has_failed:
            return
        self._after_events()
        self._begin(connection, self.acceptor.receive(connection, message, self._loop.time()))

    def messages_handled(self) -> None:
        """Flush what was written, or start to: no further message is available.

        If a flush runs, the next one will cover it.
        """
        if self._effects is not None or self._has_failed:
            return
        acceptor, storage = self.acceptor, self.folder.storage
        try:
            if storage is None or self._flush is not None or storage.flush_lsn == storage.write_lsn:
                acceptor.check()
            else:
                began_at = monotonic()
                if storage.write_lsn >= self._prepare_at_lsn and began_at >= self._prepare_not_before:
                    self._prepare_ahead()
                if self._average_flush_s < QUICK_FLUSH_S:
                    # As `_finish_flush`, without its call.
                    flush_lsn = storage.flush_now()
                    took_s = monotonic() - began_at
                    self._average_flush_s += (took_s - self._average_flush_s) / FLUSHES_AVERAGED
                    self.flush_times.observe(took_s)
                    if self.disk_space.lacking:
                        self._note_room(flush_lsn)
                    answer = acceptor.flushed(flush_lsn)
                    if answer is not None and acceptor.leader_connection is not None:
                        self._outbox.send(acceptor.leader_connection, answer)
                else:
                    self._start_flush(storage, began_at)
                    acceptor.check()
        except Exception as error:
            self._fail(error)
            return
        write_lsn = acceptor.write_lsn
        for readers in self._log_readers:
            if write_lsn >= readers.wakes_at_lsn:
                readers.update()

    def disconnected(self, connection: int) -> None:
        """Handle the end of a connection, closed by either side."""
        self.peer_reads.disconnected(connection)
        self.agents.disconnected(connection)
        self._post(lambda: self.acceptor.disconnected(connection))

    def pulled(self, leader_id: LeaderId, begin_lsn: Lsn, payload: bytes | memoryview) -> "asyncio.Future[None]":
        """Append WAL that was pulled from another member; return a future that is done when that is handled.

        It may be refused without an error: `acceptor` has the positions and the pull that is under way.
        """
        handled: asyncio.Future[None] = self._loop.create_future()

        def effects() -> Effects:
            try:
                yield from self.acceptor.pulled(leader_id, begin_lsn, payload)
            finally:
                if not handled.done():
                    handled.set_result(None)

        self._post(effects)
        return handled

    def pull_failed(self, pull: PullWal, problem: str) -> None:
        """Report to the leader that no source of a pull can be read."""
        self._post(lambda: self.acceptor.pull_failed(pull, problem))

    def readers_changed(self, has_readers: bool, standbys: tuple[Standby, ...]) -> None:
        """Set whether readers stream from here, and the standbys' last positions; changes are sent to the leader."""
        self._post(lambda: self.acceptor.readers_changed(has_readers, standbys))

    def archive_reported(self, archived_lsn: Lsn, problem: str, archive_id: str = "") -> None:
        """Record the archive's state: the end of the WAL that it contains (0: unknown), or why it cannot be used."""
        self._post(lambda: self.acceptor.archive_reported(archived_lsn, problem, archive_id))

    def trim(self, request: Callable[[], TrimRequest]) -> None:
        """Remove part of the old WAL that need not be retained. `request` is called when the event is handled."""
        self._post(lambda: self.acceptor.trim(request()))

    def checkpoint(self) -> None:
        """Write the lazily written positions if they have moved; retry what failed for want of disk space."""
        self.flush_times.mark(self._loop.time())
        self._post(self._checkpoint)

    async def drain(self) -> None:
        """Stop accepting messages. Return once all WAL is durable and acknowledged, and lazy positions are saved."""
        self._deaf = True
        await self._become_quiet()
        self._post(self._checkpoint)
        await self._become_quiet()

    def stop(self) -> None:
        """End the threads after their present work."""
        self.disk.stop()
        self._preparer.stop()
        self._remover.stop()
        self.peer_reads.stop()

    # The event queue.

    def _send(self, connection: int, message: AcceptorMessage) -> None:
        if not self._has_failed:
            self.answers.count(message)
            self._outbox.send(connection, message)

    def _post(self, event: Callable[[], Effects | None]) -> None:
        self._events.append(event)
        if self._effects is None:
            self._handle_events()

    def _handle_events(self) -> None:
        """Handle queued events until the queue is empty or an effect waits for the disk."""
        while self._events and self._effects is None and not self._has_failed:
            # Publish the state before this event begins: it may wait for the disk.
            self._after_events()
            try:
                effects = self._events.popleft()()
            except Exception as error:
                self._fail(error)
                return
            if self._has_failed:
                return  # A checkpoint has found that the storage has failed: nothing is written after that (S12).
            if effects is None:
                self._check()
            else:
                self._effects = effects
                self._step(None, None)
        if self._effects is not None or self._has_failed:
            return
        self.messages_handled()
        self._after_events()
        if self._quiet is not None and self._flush is None:
            quiet, self._quiet = self._quiet, None
            if not quiet.done():  # The task that waited was cancelled.
                quiet.set_result(None)
        if not self._deaf:
            self._outbox.resume()

    def _begin(self, connection: int, effects: Effects) -> None:
        """Handle the message of a connection whose effects these are."""
        self._connection = connection
        self._effects = effects
        self._prepare_at_lsn = 0  # The log may end elsewhere afterwards.
        self._step(None, None)
        if self._events:
            self._handle_events()
        if self._effects is None and not self._has_failed:
            self._after_events()

    def _after_events(self) -> None:
        """Update the log lines and the readers."""
        self._change_log.update()
        for readers in self._log_readers:
            readers.update()

    def _step(self, result: Any, full: StorageFull | None) -> None:
        """Continue the present event with the result of the effect that it waited for."""
        effects = self._effects
        assert effects is not None  # Called only during an event.
        try:
            effect = effects.send(result) if full is None else effects.throw(full)
            while True:
                if isinstance(effect, WriteWal):
                    try:
                        self.folder.opened_storage().append(effect.begin_lsn, effect.payload)
                        self.append_sizes.observe(len(effect.payload))
                    except StorageFull as no_room:
                        self._no_room_for_wal(no_room)
                        effect = effects.throw(no_room)
                        continue
                elif isinstance(effect, TrimWal):
                    removal = self.folder.opened_storage().forget_below(effect.lsn)
                    if removal is not None:
                        self._remover.submit(removal.run, self._removed, removal)
                elif isinstance(effect, Send):
                    self.answers.count(effect.message)
                    self._outbox.send(effect.connection, effect.message)
                elif isinstance(effect, ServeRead):
                    self.peer_reads.serve(effect.connection, effect.request)
                elif isinstance(effect, ServeAgent):
                    self.agents.serve(effect.connection, effect.exchange)
                elif isinstance(effect, ServeEvents):
                    self.events.serve(effect.connection, effect.exchange)
                elif isinstance(effect, Close):
                    self._outbox.close(effect.connection, effect.reason, broken=False)
                else:
                    self._hand_to_disk(effect)
                    return
                effect = next(effects)
        except StopIteration:
            self._effects = None
        except RemoteProtocolError as broken:
            self._effects = None
            self._outbox.close(self._connection, str(broken), broken=True)
        except StorageFull:
            self._effects = None  # A checkpoint, for which no message waits. `disk_space` has logged it.
        except Exception as error:
            self._fail(error)
        self._check()

    def _check(self) -> None:
        """Check the acceptor's invariants after an event."""
        try:
            self.acceptor.check()
        except InvariantViolation as violation:
            self._fail(violation)

    def _hand_to_disk(self, effect: Effect) -> None:
        flush: Flush | None = None
        if isinstance(effect, INCLUDES_FLUSH):
            # The thread finishes the flush before this effect, which counts it; its completion is then ignored by the
            # loop.
            flush, self._flush = self._flush, None

        def job() -> Any:
            if flush is not None:
                self.folder.opened_storage().finish_flush(flush)
            for pause_s in SHORTAGE_PAUSES_S:
                try:
                    return self.folder.perform(effect)
                except ResourceShortage as short:
                    self._loop.call_soon_threadsafe(self.disk_space.short_of_resources, short)
                    time.sleep(pause_s)
            return self.folder.perform(effect)

        self.disk.submit(job, self._effect_done, effect)

    def _effect_done(self, effect: Effect, result: Any, error: BaseException | None) -> None:
        if self._has_failed:
            return
        if error is not None and not isinstance(error, StorageFull):
            self._fail(error)
            return
        if isinstance(effect, Persist):
            self.disk_space.note(CONTROL_FILE, error)
        elif isinstance(error, ResourceShortage):
            self.disk_space.short_of_resources(error)
        elif error is not None:
            self._no_room_for_wal(error)
        self._step(result, error)
        self._handle_events()

    def _fail(self, error: BaseException) -> None:
        """Fail: nothing more is executed or sent."""
        self._deaf = True
        if not self._has_failed:
            self._has_failed = True
            self.failed.set_exception(error)

    async def _become_quiet(self) -> None:
        quiet = self._quiet = self._loop.create_future()
        self._post(lambda: None)
        await quiet

    def _checkpoint(self) -> Effects:
        self._prepare_ahead()
        return self._write_lazy_positions()

    def _write_lazy_positions(self) -> Effects:
        yield from self.acceptor.checkpoint()
        if CONTROL_FILE in self.disk_space.lacking:
            yield Persist(self.acceptor.control)

    # Flushes.

    def _start_flush(self, storage: WalStorage, began_at: float) -> None:
        """Start a flush in the disk's thread."""
        flush = self._flush = storage.start_flush()
        assert flush is not None  # WAL is unflushed, and no flush runs.
        self._flush_began_at = began_at
        self.disk.submit(flush.run, self._flush_returned, flush)
        if not self._report_timer_runs:
            self._report_timer_runs = True
            self._loop.call_later(REPORT_WRITE_AFTER_S, self._report_timer)

    def _flush_returned(self, flush: Flush, _: Any, error: BaseException | None) -> None:
        if error is not None:
            self._fail(error)
        else:
            self._post(partial(self._flushed, flush))

    def _flushed(self, flush: Flush) -> None:
        if flush is self._flush:  # Otherwise an effect has included it.
            self._finish_flush(flush)

    def _finish_flush(self, flush: Flush) -> None:
        """Count a flush of the disk's thread that has ended, and acknowledge what it made durable."""
        self.folder.opened_storage().finish_flush(flush)
        self._flush = None
        acceptor, took_s = self.acceptor, monotonic() - self._flush_began_at
        self._average_flush_s += (took_s - self._average_flush_s) / FLUSHES_AVERAGED
        self.flush_times.observe(took_s)
        self._note_room(flush.end_lsn)
        answer = acceptor.flushed(flush.end_lsn)
        if answer is not None and acceptor.leader_connection is not None:
            self._outbox.send(acceptor.leader_connection, answer)

    def _note_room(self, flush_lsn: Lsn) -> None:
        """Record that there is disk space for WAL again, if a flush has ended in a segment that was created since."""
        space = self.disk_space
        if WAL in space.lacking and flush_lsn > space.wal_ends_at_lsn:
            space.note(WAL, None)

    def _report_timer(self) -> None:
        """Report received WAL to the leader if a flush takes long. One timer serves all flushes."""
        self._report_timer_runs = False
        if self._flush is None or self._has_failed:
            return
        age_s = monotonic() - self._flush_began_at
        if age_s >= REPORT_WRITE_AFTER_S and self._effects is None:
            self._post(self.acceptor.report_write)
        self._report_timer_runs = True
        wait_s = REPORT_WRITE_AFTER_S - age_s if age_s < REPORT_WRITE_AFTER_S else REPORT_WRITE_AFTER_S
        self._loop.call_later(wait_s, self._report_timer)

    def _prepare_ahead(self) -> None:
        """Start to prepare the next segment if it is time."""
        storage = self.folder.storage
        if storage is None or self._effects is not None or self._has_failed:
            return
        try:
            preparation = storage.prepare_ahead()
        except StorageFailed as error:
            self._fail(error)
            return
        size = self.folder.control.segment_size
        half_lsn = segment_start(storage.write_lsn, size) + size // 2
        self._prepare_at_lsn = half_lsn + 1 if storage.write_lsn <= half_lsn else half_lsn + size + 1
        if preparation is not None:
            self._preparer.submit(preparation.run, self._prepared, preparation)

    def _prepared(self, preparation: Preparation, _: Any, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, StorageFull):
            self._fail(error)
            return
        self._post(partial(self._count_prepared, preparation, error))

    def _count_prepared(self, preparation: Preparation, full: StorageFull | None) -> None:
        self._prepare_at_lsn = 0
        if self.folder.storage is not None:
            self.folder.storage.finish_preparation(preparation)
        if full is not None:
            pause_s = PREPARE_AGAIN_AFTER_S
            if isinstance(full, ResourceShortage):
                pause_s = SHORTAGE_PAUSES_S[min(self._shortages_in_a_row, len(SHORTAGE_PAUSES_S) - 1)]
                self._shortages_in_a_row += 1
                # Without a write meanwhile there is no flush that would retry it.
                self._loop.call_later(pause_s, self._prepare_ahead)
            self._prepare_not_before = monotonic() + pause_s
            self._no_room_for_wal(full)
        else:
            self._shortages_in_a_row = 0
            self.disk_space.note(WAL, None)

    def _removed(self, removal: Removal, _: Any, error: BaseException | None) -> None:
        if error is not None:
            self._fail(error)
        elif self.folder.storage is not None:
            self.folder.storage.finish_removal(removal)

    def _no_room_for_wal(self, full: StorageFull) -> None:
        storage, segment_size = self.folder.storage, self.folder.control.segment_size
        ends_at_lsn = 0
        if storage is not None and segment_size:
            ends_at_lsn = segment_start(storage.write_lsn - 1, segment_size) + segment_size
        self.disk_space.wal_ends_at_lsn = ends_at_lsn
        self.disk_space.note(WAL, full)

    # For /status and warnings.

    def measure_room(self) -> None:
        """Start to measure the disk's free space."""
        self.disk.submit(self.folder.space, self._room_measured)

    def _room_measured(self, _: Any, space: Space | None, error: BaseException | None) -> None:
        if space is not None:
            self.disk_space.measured(space)
        else:
            _log.warning("could not measure the disk's space: %s", error)
