"""The node: carries out what the acceptor decides, in order, on the disk and on the connections.

Events come one at a time: a message, a lost connection, a flush that has returned. Each becomes a generator of effects
that runs to its end before the next event is looked at, so the acceptor's text is the order in which things happen.

    append     written into the operating system at once, on the loop's thread; then a flush begins if none runs
    trim       the log forgets its oldest segments at once; a thread of its own removes their files
    flush      on the loop's thread while the disk is quick, else in the disk's thread; what is received or written
               meanwhile gathers, and the next flush covers all of it
    the rest   control file, cuts, reads: in the disk's thread, behind a flush that runs; until then the node takes no
               message (`ready` is False) and the loop stays free to answer HTTP

What waits is not stored here: messages for a node that is not ready stay where they are, in the
sockets, and is told by `Outbox.resume` (S14). Only what cannot wait outside is queued: a flush's return, a lost
connection, a timer; there are no more of these than connections and threads.

A failed write or sync, and an invariant that does not hold, end the node: from then on it does nothing at all, and
`failed` tells the process to exit (S12).
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
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
from safekeeper.base.lsn import Lsn, segment_start
from safekeeper.base.worker import Worker
from safekeeper.consensus.messages import AcceptorMessage, ProposerMessage, Standby
from safekeeper.node.state_log import ChangeLog
from safekeeper.storage.data_folder import DataFolder
from safekeeper.storage.disk_space import CONTROL_FILE, WAL, DiskSpace
from safekeeper.storage.disk_work import Flush, Preparation, Removal
from safekeeper.storage.filesystem import Space

# A leader that waits this long for a flush is told what has been received meanwhile.
REPORT_WRITE_AFTER_S = 0.001
# While a flush takes less than this on average, the loop's thread does it itself: to hand over to a thread and back
# costs more than the fdatasync. Measured with 8 appends of 8 KiB in flight, alternately, on two shared cores: 84-100 us
# of CPU per append through the thread, 47-59 on the loop; 5,300-6,400 appends a second against 9,000-10,800. The price
# is that the loop blocks during a flush, and that WAL that is received meanwhile is acknowledged only after it. Where
# the processor is the bottleneck, flushes of a quick disk take milliseconds, because a flush also waits for the
# processor: with 1 ms for this, such a machine used the thread and was slower still (pgbench -N, three safekeepers
# beside PostgreSQL: 0.87 of the transactions at 8 clients, 0.90 at 32, for a third more CPU; 10 ms is no better
# than 4).
QUICK_FLUSH_S = 0.004
# The average is a moving one over about this many flushes. It begins slow.
FLUSHES_AVERAGED = 8
# How long to wait for space before the next segment is tried again.
PREPARE_AGAIN_AFTER_S = 1.0
# How long to wait before a file is opened again for which there was no descriptor: twice as long each time. An effect
# in the disk's thread is tried again after each of these, 0.63 s in all; then it is refused, as for want of space.
SHORTAGE_PAUSES_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)

_log = logging.getLogger(__name__)
# What these do to the WAL, or say about it, includes a flush that runs: it is counted by them and not once more.
_INCLUDES_FLUSH = (FlushWal, TruncateWal, ResetWal, SetWalAside)


class Outbox(Protocol):
    """Where a node's words go."""

    def send(self, connection: int, message: AcceptorMessage) -> None:
        """Send `message`; nothing happens if the connection is closed."""

    def close(self, connection: int, reason: str, *, broken: bool) -> None:
        """Close it after what was sent; pass on no further message of it. `broken`: it broke the protocol."""

    def resume(self) -> None:
        """The node is ready for messages again."""


class LogReaders(Protocol):
    """Whoever reads committed WAL from this safekeeper (S7)."""

    def update(self) -> None:
        """Positions, the history or the leader may have changed. Called after every event, so it must be cheap."""


class Node:
    """One safekeeper's acceptor, its data folder, and the threads that wait for the disk.

    Attributes:
        acceptor: the state machine; read its positions, leave the rest alone.
        folder: the data folder.
        disk: the thread that flushes.
        room: what there is no room for at present.
        failed: done, with the error, when the node has come to its end.
    """

    def __init__(self, folder: DataFolder, loop: asyncio.AbstractEventLoop) -> None:
        """Finish what a crash interrupted (blocking), and be ready for messages once `attach` was called.

        Raises:
            StorageFailed: it cannot be finished. For want of room alone it need not be: the acceptor does not claim
                what is unfinished, and tries again.
        """
        self.folder = folder
        self.disk_space = DiskSpace()
        self.acceptor = Acceptor(folder.control, folder.flush_lsn)
        try:
            folder.perform_all(self.acceptor.start())
        except StorageFull as full:
            self.disk_space.note(CONTROL_FILE, full)
        self.disk = Worker("disk", loop)
        # A segment takes far longer to prepare than a flush may wait, hence a thread of its own.
        self._preparer = Worker("preparer", loop)
        # A busy disk may take seconds to remove a segment.
        self._remover = Worker("remover", loop)
        self.failed: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._outbox: Outbox
        self._effects: Effects | None = None  # Those of the event that is being handled.
        self._connection = 0  # On which its message came.
        self._events: deque[Callable[[], Effects | None]] = deque()
        self._flush: Flush | None = None  # The one that runs.
        self._flush_began_at = 0.0
        self._average_flush_s = 10 * QUICK_FLUSH_S
        self._report_timer_runs = False
        self._prepare_not_before = 0.0
        self._shortages_in_a_row = 0  # Of the preparer.
        self._deaf = False  # It is drained or has failed: no further message is accepted.
        self._quiet: asyncio.Future[None] | None = None
        self._change_log = ChangeLog(self.acceptor)
        self._log_readers: list[LogReaders] = []

    def attach(self, outbox: Outbox) -> None:
        """Say where words go. Before the first message."""
        self._outbox = outbox

    def attach_readers(self, readers: LogReaders) -> None:
        """Say who is to hear of what becomes readable. There may be several."""
        self._log_readers.append(readers)

    @property
    def ready(self) -> bool:
        """Whether `receive` may be called."""
        return self._effects is None and not self._deaf

    @property
    def is_between_events(self) -> bool:
        """Whether the log is left alone at this moment: no event waits for the disk's thread, and nothing failed."""
        return self._effects is None and not self.failed.done()

    # Events.

    def receive(self, connection: int, message: ProposerMessage) -> None:
        """Handle a message; only while `ready`. After the last one at hand, call `messages_handled`."""
        self._connection = connection
        self._effects = self.acceptor.receive(connection, message, self._loop.time())
        self._step(None, None)
        if self._events:
            self._handle_events()

    def messages_handled(self) -> None:
        """No further message is at hand: what was written is flushed, or begins to be."""
        if self._effects is None and not self.failed.done():
            self._start_flush()
            self._after_events()

    def disconnected(self, connection: int) -> None:
        """The connection is closed, by whomever."""
        self._post(lambda: self.acceptor.disconnected(connection))

    def readers_changed(self, has_readers: bool, standbys: tuple[Standby, ...]) -> None:
        """Who streams from here, and what the standbys have said last; the leader hears of what is new."""
        self._post(lambda: self.acceptor.readers_changed(has_readers, standbys))

    def archive_reported(self, archived_lsn: Lsn, problem: str, archive_id: str = "") -> None:
        """Report the archive: up to where it contains the WAL here (0: unknown), or why it cannot be used."""
        self._post(lambda: self.acceptor.archive_reported(archived_lsn, problem, archive_id))

    def trim(self, request: Callable[[], TrimRequest]) -> None:
        """Remove old WAL that need not be kept, some of it at a time. `request` is called when it comes to that."""
        self._post(lambda: self.acceptor.trim(request()))

    def checkpoint(self) -> None:
        """Write the positions that are kept lazily, if they have moved; try again what there was no room for."""
        self._post(self._checkpoint)

    async def drain(self) -> None:
        """Stop accepting messages. Return once all WAL is durable and acknowledged, and lazy positions are saved."""
        self._deaf = True
        await self._become_quiet()
        self._post(self._checkpoint)
        await self._become_quiet()

    def stop(self) -> None:
        """End the threads after what they are at."""
        self.disk.stop()
        self._preparer.stop()
        self._remover.stop()

    # The engine.

    def _post(self, event: Callable[[], Effects | None]) -> None:
        self._events.append(event)
        if self._effects is None:
            self._handle_events()

    def _handle_events(self) -> None:
        """Handle what is queued, until there is nothing left to do or an effect has to wait for the disk."""
        while self._events and self._effects is None and not self.failed.done():
            # What has happened is shown before this event begins, which may wait for the disk.
            self._after_events()
            try:
                effects = self._events.popleft()()
            except Exception as error:
                self._fail(error)
                return
            if effects is None:
                self._check()
            else:
                self._effects = effects
                self._step(None, None)
        if self._effects is not None or self.failed.done():
            return
        self._start_flush()
        self._after_events()
        if self._quiet is not None and self._flush is None:
            quiet, self._quiet = self._quiet, None
            if not quiet.done():  # The waiting task has been cancelled.
                quiet.set_result(None)
        if not self._deaf:
            self._outbox.resume()

    def _after_events(self) -> None:
        """Let everybody know who looks at the acceptor from outside."""
        self._change_log.update()
        for readers in self._log_readers:
            readers.update()

    def _step(self, result: Any, full: StorageFull | None) -> None:
        """Go on with the event under way, with the result of the effect that it waits for."""
        effects = self._effects
        assert effects is not None  # There is one under way whenever this is called.
        try:
            effect = effects.send(result) if full is None else effects.throw(full)
            while True:
                if isinstance(effect, WriteWal):
                    try:
                        self.folder.opened_storage().append(effect.begin_lsn, effect.payload)
                    except StorageFull as no_room:
                        self._no_room_for_wal(no_room)
                        effect = effects.throw(no_room)
                        continue
                elif isinstance(effect, TrimWal):
                    removal = self.folder.opened_storage().forget_below(effect.lsn)
                    if removal is not None:
                        self._remover.submit(removal.run, self._removed, removal)
                elif isinstance(effect, Send):
                    self._outbox.send(effect.connection, effect.message)
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
            self._effects = None  # A checkpoint, for which no message waits. `disk_space` has noted it.
        except Exception as error:
            self._fail(error)
        self._check()

    def _check(self) -> None:
        """Check the acceptor after an event."""
        try:
            self.acceptor.check()
        except InvariantViolation as violation:
            self._fail(violation)

    def _hand_to_disk(self, effect: Effect) -> None:
        flush: Flush | None = None
        if isinstance(effect, _INCLUDES_FLUSH):
            # Its thread has carried it out before it comes to this effect; its return, when the loop hears of it, is
            # no longer news.
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
        if self.failed.done():
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
        if not self.failed.done():
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

    def _start_flush(self) -> None:
        """Flush what is written, or begin to, unless a flush runs: then the next one will cover it."""
        storage = self.folder.storage
        if storage is None or self._flush is not None or storage.flush_lsn == storage.write_lsn or self.failed.done():
            return
        try:
            flush = self._flush = storage.start_flush()
            assert flush is not None  # There is something to flush, and no flush runs.
            self._flush_began_at = time.monotonic()
            if self._flush_began_at >= self._prepare_not_before:
                self._prepare_ahead()
            if self._average_flush_s < QUICK_FLUSH_S:
                flush.run()
                self._effects = self._flushed(flush)
        except Exception as error:
            self._fail(error)
            return
        if self._effects is not None:
            self._step(None, None)  # It sends the answer, no more: what it may do to the disk is nothing.
            return
        self.disk.submit(flush.run, self._flush_returned, flush)
        if not self._report_timer_runs:
            self._report_timer_runs = True
            self._loop.call_later(REPORT_WRITE_AFTER_S, self._report_timer)

    def _flush_returned(self, flush: Flush, _: Any, error: BaseException | None) -> None:
        if error is not None:
            self._fail(error)
        else:
            self._post(partial(self._flushed, flush))

    def _flushed(self, flush: Flush) -> Effects | None:
        if flush is not self._flush:
            return None  # An effect has included it.
        storage = self.folder.opened_storage()
        storage.finish_flush(flush)
        self._flush = None
        took_s = time.monotonic() - self._flush_began_at
        self._average_flush_s += (took_s - self._average_flush_s) / FLUSHES_AVERAGED
        if WAL in self.disk_space.lacking and storage.flush_lsn > self.disk_space.wal_ends_at_lsn:
            self.disk_space.note(WAL, None)
        return self.acceptor.flushed(flush.end_lsn)

    def _report_timer(self) -> None:
        """Tell the leader what is received when a flush takes its time. One timer, however many flushes there are."""
        self._report_timer_runs = False
        if self._flush is None or self.failed.done():
            return
        age_s = time.monotonic() - self._flush_began_at
        if age_s >= REPORT_WRITE_AFTER_S and self._effects is None:
            self._post(self.acceptor.report_write)
        self._report_timer_runs = True
        wait_s = REPORT_WRITE_AFTER_S - age_s if age_s < REPORT_WRITE_AFTER_S else REPORT_WRITE_AFTER_S
        self._loop.call_later(wait_s, self._report_timer)

    def _prepare_ahead(self) -> None:
        """Have the next segment prepared if it is time."""
        storage = self.folder.storage
        if storage is None or self._effects is not None or self.failed.done():
            return
        try:
            preparation = storage.prepare_ahead()
        except StorageFailed as error:
            self._fail(error)
            return
        if preparation is not None:
            self._preparer.submit(preparation.run, self._prepared, preparation)

    def _prepared(self, preparation: Preparation, _: Any, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, StorageFull):
            self._fail(error)
            return
        self._post(partial(self._count_prepared, preparation, error))

    def _count_prepared(self, preparation: Preparation, full: StorageFull | None) -> None:
        if self.folder.storage is not None:
            self.folder.storage.finish_preparation(preparation)
        if full is not None:
            pause_s = PREPARE_AGAIN_AFTER_S
            if isinstance(full, ResourceShortage):
                pause_s = SHORTAGE_PAUSES_S[min(self._shortages_in_a_row, len(SHORTAGE_PAUSES_S) - 1)]
                self._shortages_in_a_row += 1
                # There may be no write meanwhile, and so no flush that tries it again.
                self._loop.call_later(pause_s, self._prepare_ahead)
            self._prepare_not_before = time.monotonic() + pause_s
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
        if storage is not None and segment_size:
            self.disk_space.wal_ends_at_lsn = segment_start(storage.write_lsn - 1, segment_size) + segment_size
        self.disk_space.note(WAL, full)

    # What a person wants to know.

    def measure_room(self) -> None:
        """Look how much room the disk has."""
        self.disk.submit(self.folder.space, self._room_measured)

    def _room_measured(self, _: Any, space: Space | None, error: BaseException | None) -> None:
        if space is not None:
            self.disk_space.measured(space)
        else:
            _log.warning("could not measure the disk's space: %s", error)
