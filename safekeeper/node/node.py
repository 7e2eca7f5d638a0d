"""The node: executes the acceptor's effects, in order, on the disk and on the connections.

Events are handled one after the other: a message, a lost connection, the end of a flush. Each is a generator of effects
that ends before the next event begins, so the acceptor's code is the order in which things happen.

    append     written to the operating system at once, on the loop's thread, and flushed (wal_writer.py). One that the
               acceptor `accepts` takes no generator (docs/design/adr/0040-everyday-events.md)
    trim       the log drops its oldest segments at once; a separate thread removes their files (segment_files.py)
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
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, Protocol

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
    StorageFull,
)
from safekeeper.base.lsn import Lsn
from safekeeper.base.worker import Worker
from safekeeper.consensus.answer_counts import AnswerCounts
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.messages import AcceptorMessage, AppendRequest, ProposerMessage, PullWal, Standby
from safekeeper.node.agent_registry import AgentRegistry
from safekeeper.node.event_keeper import EventKeeper
from safekeeper.node.peer_reads import PeerReads
from safekeeper.node.segment_files import SHORTAGE_PAUSES_S
from safekeeper.node.state_log import ChangeLog
from safekeeper.node.wal_writer import WalWriter
from safekeeper.storage.data_folder import DataFolder
from safekeeper.storage.disk_space import CONTROL_FILE, DiskSpace
from safekeeper.storage.filesystem import Space

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


class NodePhase(Enum):
    """Whether a node works; each comment names the events that end the phase."""

    OPEN = "open"  # `drain`: DRAINING; a failure: FAILED
    DRAINING = "draining"  # no message is accepted, events are handled; a failure: FAILED
    FAILED = "failed"  # nothing is executed or sent


class Services(NamedTuple):
    """The parts of a node that answer messages beside its events."""

    peer_reads: PeerReads
    agents: AgentRegistry
    events: EventKeeper


class _Handled(NamedTuple):
    """The event that is being handled. `connection`: from which its message was received, 0 without a message."""

    effects: Effects
    connection: int = 0


class Node:
    """One safekeeper's acceptor, its data folder, and the threads that wait for the disk.

    Attributes:
        acceptor: the state machine; only read its positions.
        folder: the data folder.
        disk: the thread that flushes.
        disk_space: the disk's free space, and what could not be written for want of it.
        wal: writes and flushes the WAL.
        failed: done, with the error, once the node has failed.
        services: serve the members that pull WAL from here, the agents, and the readers of events.
        answers: its votes and refusals.
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
        self.wal = WalWriter(self, loop)
        self.failed: asyncio.Future[None] = loop.create_future()
        self.services = Services(
            PeerReads(self.acceptor, folder, partial(Worker, "peer reader", loop), self._send),
            AgentRegistry(self.acceptor, folder.agents_file(), self.disk, self._send, loop.time),
            EventKeeper(
                folder.control.safekeeper_id,
                folder.event_file(),
                self.disk_space,
                partial(Worker, "events", loop),
                self._send,
            ),
        )
        self.answers = AnswerCounts()
        self._loop = loop
        self._outbox: Outbox
        self._phase = NodePhase.OPEN
        self._handled: _Handled | None = None
        self._queue: deque[Callable[[], Effects | None]] = deque()
        self._quiet: asyncio.Future[None] | None = None
        self._readers: list[LogReaders] = [ChangeLog(self.acceptor)]

    def attach(self, outbox: Outbox) -> None:
        """Set where replies are sent. Call it before the first message."""
        self._outbox = outbox

    def attach_readers(self, readers: LogReaders) -> None:
        """Add readers to update after each event. There may be several."""
        self._readers.append(readers)

    @property
    def ready(self) -> bool:
        """Whether `receive` may be called."""
        return self._handled is None and self._phase is NodePhase.OPEN

    @property
    def is_between_events(self) -> bool:
        """Whether the log is stable at this moment: no event waits for the disk's thread, and the node works."""
        return self._handled is None and self._phase is not NodePhase.FAILED

    def append(self, connection: int, message: AppendRequest, now: float, *, is_last: bool) -> bool:
        """Write the WAL of a usual append, and return True. Otherwise return False: then it is for `receive`.

        May be called at any time.

        Args:
            now: the loop's time.
            is_last: whether no further message is available: what was written is flushed, as by `messages_handled`.
        """
        acceptor = self.acceptor
        if not self.ready or not acceptor.accepts(connection, message):
            return False
        try:
            if message.payload:
                self.wal.write(message.begin_lsn, message.payload)
            answer = acceptor.wrote(message, now)
            if answer is not None:
                self._send(connection, answer)
        except StorageFull as full:
            self._begin(connection, acceptor.no_room(connection, full))
        except Exception as error:
            self.fail(error)
        if is_last:
            self.messages_handled()
        return True

    def receive(self, connection: int, message: ProposerMessage) -> None:
        """Handle a message; only while `ready`. Call `messages_handled` after the last one available."""
        # Publish the state before this event: it may wait for the disk.
        self._check()
        if self._phase is NodePhase.FAILED:
            return
        self._after_events()
        self._begin(connection, self.acceptor.receive(connection, message, self._loop.time()))

    def messages_handled(self) -> None:
        """Flush what was written, or start to: no further message is available.

        If a flush runs, the next one will cover it.
        """
        if not self.is_between_events:
            return
        try:
            flush_lsn = self.wal.flush()
            if flush_lsn is not None:
                self.acknowledge(flush_lsn)
            else:
                self.acceptor.check()
        except Exception as error:
            self.fail(error)
            return
        write_lsn = self.acceptor.write_lsn
        for readers in self._readers:
            if write_lsn >= readers.wakes_at_lsn:
                readers.update()

    def disconnected(self, connection: int) -> None:
        """Handle the end of a connection, closed by either side."""
        self.services.peer_reads.disconnected(connection)
        self.services.agents.disconnected(connection)
        self.post(lambda: self.acceptor.disconnected(connection))

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

        self.post(effects)
        return handled

    def pull_failed(self, pull: PullWal, problem: str) -> None:
        """Report to the leader that no source of a pull can be read."""
        self.post(lambda: self.acceptor.pull_failed(pull, problem))

    def readers_changed(self, has_readers: bool, standbys: tuple[Standby, ...]) -> None:
        """Set whether readers stream from here, and the standbys' last positions; changes are sent to the leader."""
        self.post(lambda: self.acceptor.readers_changed(has_readers, standbys))

    def archive_reported(self, archived_lsn: Lsn, problem: str, archive_id: str = "") -> None:
        """Record the archive's state: the end of the WAL that it contains (0: unknown), or why it cannot be used."""
        self.post(lambda: self.acceptor.archive_reported(archived_lsn, problem, archive_id))

    def trim(self, request: Callable[[], TrimRequest]) -> None:
        """Remove part of the old WAL that need not be retained. `request` is called when the event is handled."""
        self.post(lambda: self.acceptor.trim(request()))

    def checkpoint(self) -> None:
        """Write the lazily written positions if they have moved; retry what failed for want of disk space."""
        self.wal.flush_times.mark(self._loop.time())
        self.post(self._checkpoint)

    async def drain(self) -> None:
        """Stop accepting messages. Return once all WAL is durable and acknowledged, and lazy positions are saved."""
        if self._phase is NodePhase.OPEN:
            self._phase = NodePhase.DRAINING
        await self._become_quiet()
        self.post(self._checkpoint)
        await self._become_quiet()

    def stop(self) -> None:
        """End the threads after their present work."""
        self.disk.stop()
        self.wal.segments.stop()
        self.services.peer_reads.stop()

    def acknowledge(self, flush_lsn: Lsn) -> None:
        """Report to the leader that the WAL below `flush_lsn` is durable."""
        answer, connection = self.acceptor.flushed(flush_lsn), self.acceptor.leader_connection
        if answer is not None and connection is not None:
            self._send(connection, answer)

    def report_write(self) -> None:
        """Report to the leader what is received and not yet durable."""
        self.post(self.acceptor.report_write)

    def post(self, event: Callable[[], Effects | None]) -> None:
        """Handle an event after those that are queued."""
        self._queue.append(event)
        if self._handled is None:
            self._handle_events()

    def fail(self, error: BaseException) -> None:
        """Fail: nothing more is executed or sent."""
        if self._phase is not NodePhase.FAILED:
            self._phase = NodePhase.FAILED
            self.failed.set_exception(error)

    def _send(self, connection: int, message: AcceptorMessage) -> None:
        if self._phase is not NodePhase.FAILED:
            self.answers.count(message)
            self._outbox.send(connection, message)

    def _handle_events(self) -> None:
        """Handle queued events until the queue is empty or an effect waits for the disk."""
        while self._queue and self.is_between_events:
            # Publish the state before this event begins: it may wait for the disk.
            self._after_events()
            try:
                effects = self._queue.popleft()()
            except Exception as error:
                self.fail(error)
                return
            if self._phase is NodePhase.FAILED:
                return  # A checkpoint has found that the storage has failed: nothing is written after that (S12).
            if effects is None:
                self._check()
            else:
                self._handled = _Handled(effects)
                self._step(None, None)
        if not self.is_between_events:
            return
        self.messages_handled()
        self._after_events()
        if self._quiet is not None and not self.wal.is_flushing:
            quiet, self._quiet = self._quiet, None
            if not quiet.done():  # The task that waited was cancelled.
                quiet.set_result(None)
        if self._phase is NodePhase.OPEN:
            self._outbox.resume()

    def _begin(self, connection: int, effects: Effects) -> None:
        """Handle the message of a connection whose effects these are."""
        self._handled = _Handled(effects, connection)
        self.wal.segments.log_may_change()
        self._step(None, None)
        if self._queue:
            self._handle_events()
        if self.is_between_events:
            self._after_events()

    def _after_events(self) -> None:
        """Update the log lines and the readers."""
        for readers in self._readers:
            readers.update()

    def _step(self, result: Any, full: StorageFull | None) -> None:
        """Continue the present event with the result of the effect that it waited for."""
        assert self._handled is not None  # Called only during an event.
        effects, connection = self._handled
        try:
            effect = effects.send(result) if full is None else effects.throw(full)
            while True:
                if isinstance(effect, WriteWal):
                    try:
                        self.wal.write(effect.begin_lsn, effect.payload)
                    except StorageFull as no_room:
                        effect = effects.throw(no_room)
                        continue
                elif isinstance(effect, TrimWal):
                    self.wal.segments.remove_below(effect.lsn)
                elif isinstance(effect, Send):
                    self._send(effect.connection, effect.message)
                elif isinstance(effect, ServeRead):
                    self.services.peer_reads.serve(effect.connection, effect.request)
                elif isinstance(effect, ServeAgent):
                    self.services.agents.serve(effect.connection, effect.exchange)
                elif isinstance(effect, ServeEvents):
                    self.services.events.serve(effect.connection, effect.exchange)
                elif isinstance(effect, Close):
                    self._outbox.close(effect.connection, effect.reason, broken=False)
                else:
                    self._hand_to_disk(effect)
                    return
                effect = next(effects)
        except StopIteration:
            self._handled = None
        except RemoteProtocolError as broken:
            self._handled = None
            self._outbox.close(connection, str(broken), broken=True)
        except StorageFull:
            self._handled = None  # A checkpoint, for which no message waits. `disk_space` has logged it.
        except Exception as error:
            self.fail(error)
        self._check()

    def _check(self) -> None:
        """Check the acceptor's invariants after an event."""
        try:
            self.acceptor.check()
        except InvariantViolation as violation:
            self.fail(violation)

    def _hand_to_disk(self, effect: Effect) -> None:
        # The thread finishes the flush before an effect that includes it, which counts it.
        flush = self.wal.take_flush() if isinstance(effect, INCLUDES_FLUSH) else None

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
        if self._phase is NodePhase.FAILED:
            return
        if error is not None and not isinstance(error, StorageFull):
            self.fail(error)
            return
        if isinstance(effect, Persist):
            self.disk_space.note(CONTROL_FILE, error)
        elif isinstance(error, ResourceShortage):
            self.disk_space.short_of_resources(error)
        elif error is not None:
            self.wal.segments.no_room(error)
        self._step(result, error)
        self._handle_events()

    async def _become_quiet(self) -> None:
        quiet = self._quiet = self._loop.create_future()
        self.post(lambda: None)
        await quiet

    def _checkpoint(self) -> Effects:
        self.wal.segments.prepare_ahead()
        return self._write_lazy_positions()

    def _write_lazy_positions(self) -> Effects:
        yield from self.acceptor.checkpoint()
        if CONTROL_FILE in self.disk_space.lacking:
            yield Persist(self.acceptor.control)

    def measure_room(self) -> None:
        """Start to measure the disk's free space."""
        self.disk.submit(self.folder.space, self._room_measured)

    def _room_measured(self, _: Any, space: Space | None, error: BaseException | None) -> None:
        if space is not None:
            self.disk_space.measured(space)
        else:
            _log.warning("could not measure the disk's space: %s", error)
