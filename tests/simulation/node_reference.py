"""What a node and its listener must do, stated once more: without a fast path, buffers, files and threads.

Theory of operation. The reference has an acceptor of its own and handles the same events in the same order: messages
one after the other while the node is ready; meanwhile what cannot wait outside in a queue; at the end of each the
flush, if WAL is not durable and none runs; then the connections whose messages had to wait, the longest first. Whatever
that leads to must be the next thing that the process has done (`Process.seen`): a message on a connection, a write, a
job for a thread, an effect on the disk. Of these only results are taken from the process: what the disk said, how long
it took. So nothing is missing, nothing is repeated, and nothing happens later or earlier than it must.

Afterwards `compare` looks at the states: which connections are open and read, timers, positions, what lacks space, and
the counts that status pages show.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.acceptor.effects import (
    Close,
    Effect,
    Effects,
    Persist,
    ResetWal,
    RestoreWal,
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
from safekeeper.base.errors import InvariantViolation, RemoteProtocolError, ResourceShortage, StorageFull
from safekeeper.base.histogram import Histogram
from safekeeper.base.lsn import Lsn, segment_start
from safekeeper.consensus.control_state import ControlState
from safekeeper.consensus.messages import (
    AcceptorMessage,
    AgentView,
    AppendResponse,
    EventPage,
    PeerRead,
    ReadResponse,
    Refusal,
    RefusalCode,
    VoteResponse,
)
from safekeeper.node import node as product
from safekeeper.node.peer_reads import QUEUED_MAX
from safekeeper.storage.disk_work import Flush, Preparation, Removal
from tests.simulation.disk import ModelDisk
from tests.simulation.lone_node_process import READ_BYTES_MAX, Process
from tests.simulation.node_effects import message_effects
from tests.simulation.shell_seams import RESOLUTION_S
from tests.simulation.trace import shown
from tests.simulation.violation import Violation

WAL, CONTROL_FILE = "WAL", "control file"


class NodeReference(ABC):
    """The node: its events, its flushes, its threads.

    Attributes:
        acceptor: its own.
        disk: the bytes of the WAL.
        has_failed: it must do nothing any more.
        is_deaf: it handles no messages any more.
        lacking: what lacks space on the disk.
        flushes, appends, granted, refused, refusals, served_bytes, shortages: counts since the start.
        average_s: the average time of a flush.
        drained: how far `drain` is: 0 if it was not called, 3 at the end.
    """

    def __init__(self, process: Process, control: ControlState, flush_lsn: Lsn, disk: ModelDisk) -> None:
        self.acceptor = Acceptor(control, flush_lsn)
        self.disk = disk
        self.has_failed = self.is_deaf = False
        self.lacking: set[str] = set()
        self.granted = self.refused = self.served_bytes = self.shortages = 0
        self.flushes, self.appends = Histogram(), Histogram(6, 20)
        self.refusals = 0
        self.drained = 0
        self.timers: list[tuple[float, int, str]] = []
        self._process = process
        self._flushing_s = 0.0  # On the loop's thread, since the start.
        self._seen = process.seen
        self._effects: Effects | None = None
        self._pending: Effect | None = None  # The effect that the disk's thread has.
        self._performed: tuple[Any, StorageFull | None] = (None, None)
        self._connection = 0
        self._queue: deque[Callable[[], Effects | None]] = deque()
        self._flush: Flush | None = None
        self._flush_began_at = 0.0
        self._is_storage_broken = False
        self.average_s = 10 * product.QUICK_FLUSH_S
        self._has_report_timer = False
        self._paused_until = 0.0  # No segment is prepared.
        self._shortages_in_a_row = 0
        self.wal_ends_at: Lsn = 0
        self._quiet = False
        self._wakes = False
        self._reads: dict[int, deque[PeerRead]] = {}
        self._timers_set = 0

    # ------------------------------------------------------------------ the start

    def start(self) -> None:
        """The process has finished what was interrupted."""
        effects = self.acceptor.start()
        try:
            effect = next(effects)
            while True:
                self._pending = effect
                self._take("perform", effect)
                result, error = self._last[2:]
                if error is None:
                    self._apply(effect, result)
                effect = effects.send(result) if error is None else effects.throw(error)
        except StopIteration:
            pass
        except StorageFull as full:
            self._note(CONTROL_FILE, full)

    # ------------------------------------------------------------------ what the process has done

    def violate(self, text: str) -> None:
        """Fail the run."""
        raise Violation("NodeAsReference", text)

    def _next_is(self, *what: Any) -> bool:
        return bool(self._seen) and self._seen[0][: len(what)] == what

    def _take(self, *what: Any) -> None:
        """Take what the process has done next, which must begin like this."""
        if not self._next_is(*what):
            done = shown(self._seen[0]) if self._seen else "nothing"
            self.violate(f"the node does {done}, not {shown(what)}")
        self._last = self._seen.popleft()
        if what[0] == "flush":
            self._flushing_s += self._last[3]

    def _monotonic(self) -> float:
        """Return the time that has passed for the node."""
        return self._process.loop.now + self._flushing_s

    def _send(self, connection: int, message: AcceptorMessage) -> None:
        if self.has_failed:
            return
        self._count(message)
        self.sent(connection, message)

    @abstractmethod
    def sent(self, connection: int, message: AcceptorMessage | type) -> None:
        """A message leaves, unless the connection is closed; of some only the kind is compared."""

    @abstractmethod
    def close(self, connection: int, *, is_aborted: bool = False) -> None:
        """A connection is closed by this side."""

    @abstractmethod
    def resume(self) -> None:
        """Messages that have waited are handled."""

    def _count(self, message: AcceptorMessage) -> None:
        if isinstance(message, VoteResponse):
            self.granted += message.granted
            self.refused += not message.granted
        self.refusals += isinstance(message, Refusal)

    # ------------------------------------------------------------------ events

    @property
    def ready(self) -> bool:
        """Whether messages are handled."""
        return self._effects is None and not self.is_deaf

    @property
    def is_between_events(self) -> bool:
        """Whether no event waits for the disk."""
        return self._effects is None and not self.has_failed

    def handle(self, connection: int, message: Any) -> None:
        """Handle a message; the node is ready."""
        self._connection = connection
        self._effects = message_effects(self.acceptor, connection, message, self._process.loop.now)
        self._go_on(None, None)
        if self._queue:
            self._handle_queue()

    def post(self, event: Callable[[], Effects | None]) -> None:
        """Handle an event that is not a message, now or after those that wait."""
        self._queue.append(event)
        if self._effects is None:
            self._handle_queue()

    def _handle_queue(self) -> None:
        while self._queue and self._effects is None and not self.has_failed:
            effects = self._queue.popleft()()
            if effects is not None:
                self._effects = effects
                self._go_on(None, None)
        if self._effects is not None or self.has_failed:
            return
        self.idle()
        if self._quiet and self._flush is None:
            self._quiet, self._wakes = False, True
        if not self.is_deaf:
            self.resume()

    def breaks(self) -> None:
        """The state of the acceptor is found to be impossible."""
        self._fail()

    def _fail(self) -> None:
        self.has_failed = self.is_deaf = True

    def _go_on(self, result: Any, full: StorageFull | None) -> None:
        effects = self._effects
        assert effects is not None
        try:
            effect = effects.send(result) if full is None else effects.throw(full)
            while True:
                self._require_alone(effect)
                if isinstance(effect, WriteWal):
                    self._take("write", effect.begin_lsn, bytes(effect.payload))
                    error = self._last[-1]
                    if isinstance(error, StorageFull):
                        self._no_room(error)
                        effect = effects.throw(error)
                        continue
                    if error is not None:
                        self._fail()
                        return
                    self.disk.write(effect.begin_lsn, bytes(effect.payload))
                    self.appends.observe(len(effect.payload))
                elif isinstance(effect, TrimWal):
                    self._take("trim", effect.lsn)
                    if self._last[-1] is not None:
                        self._fail()
                        return
                    if self.disk.begin_lsn < effect.lsn:
                        self._take("submit", "remover")
                    self.disk.trim(effect.lsn)
                elif isinstance(effect, Send):
                    self._send(effect.connection, effect.message)
                elif isinstance(effect, ServeRead):
                    self._serve_read(effect.connection, effect.request)
                elif isinstance(effect, ServeAgent | ServeEvents):
                    self.sent(effect.connection, AgentView if isinstance(effect, ServeAgent) else EventPage)
                elif isinstance(effect, Close):
                    self.close(effect.connection)
                else:
                    self._pending = effect
                    if isinstance(effect, product.INCLUDES_FLUSH):
                        self._flush = None
                    self._take("submit", "disk", effect)
                    return
                effect = next(effects)
        except StopIteration:
            self._effects = None
        except RemoteProtocolError:
            self._effects = None
            self.close(self._connection)
        except StorageFull:
            self._effects = None
        self._check()

    def _require_alone(self, effect: Effect) -> None:
        if self.has_failed:
            self.violate(f"{effect} after the end")

    def _check(self) -> None:
        try:
            self.acceptor.check()
        except InvariantViolation:
            self._fail()

    # ------------------------------------------------------------------ the disk

    def idle(self) -> None:
        """No further message is available: flush."""
        if self._effects is not None or self.has_failed:
            return
        if self._flush is not None or self.disk.durable_lsn == self.disk.write_lsn:
            self._check()
            return
        if self._is_storage_broken:
            self._seen.clear()
            self._fail()
            return
        self._prepare()
        kind = "flush" if self.average_s < product.QUICK_FLUSH_S else "snapshot"
        self._take(kind, self.disk.write_lsn)
        began_at, is_due = self._last[2], self._last[-1] if kind == "snapshot" else self._last[4]
        if is_due and began_at >= self._paused_until:
            self.violate("the next segment is not prepared")
        if kind == "flush":
            if self._last[-1] is not None:
                self._fail()
                return
            self._flushed(self.disk.write_lsn, self._last[3])
            return
        self._take("submit", "disk")
        self._flush, self._flush_began_at = self._last[2], began_at
        if not self._has_report_timer:
            self._has_report_timer = True
            self.set_timer(product.REPORT_WRITE_AFTER_S, "report")
        self._check()

    def _flushed(self, flush_lsn: Lsn, took_s: float) -> None:
        self.average_s += (took_s - self.average_s) / product.FLUSHES_AVERAGED
        self.flushes.observe(took_s)
        self.disk.durable_lsn = flush_lsn
        if flush_lsn > self.wal_ends_at:
            self.lacking.discard(WAL)
        answer: AppendResponse | None = self.acceptor.flushed(flush_lsn)
        if answer is not None and self.acceptor.leader_connection is not None:
            self.sent(self.acceptor.leader_connection, answer)

    def _prepare(self) -> None:
        if self._monotonic() >= self._paused_until and self._next_is("submit", "preparer"):
            self._take("submit", "preparer")

    def _no_room(self, full: StorageFull) -> None:
        self.shortages += isinstance(full, ResourceShortage)
        self.wal_ends_at = self._segment_end(self.disk.write_lsn - 1) if self.disk.begin_lsn else 0
        self.lacking.add(WAL)

    def _segment_end(self, lsn: Lsn) -> Lsn:
        # The first greeting determines the size, which is not the same in every run.
        segment_size = self.acceptor.control.segment_size
        return segment_start(lsn, segment_size) + segment_size

    def worked(self, token: Any, error: BaseException | None) -> None:
        """A thread has done a job."""
        if isinstance(token, Flush | Preparation) and error is not None:
            # Until the loop learns of it the storage refuses whatever it is asked for.
            self._is_storage_broken = self._is_storage_broken or not isinstance(error, StorageFull)
        if not isinstance(token, Effect):
            return
        if self.has_failed or (error is not None and not isinstance(error, StorageFull)):
            self.shortages += sum(what[0] == "sleep" for what in self._seen)
            self._seen.clear()
            return
        if token != self._pending:
            self.violate(f"the disk's thread executes {token}, not {self._pending}")
        for pause_s in (*product.SHORTAGE_PAUSES_S, None):
            self._take("perform", token)
            result, full = self._last[2:]
            if not isinstance(full, ResourceShortage) or pause_s is None:
                break
            self._take("sleep", pause_s)
            self.shortages += 1
        if full is None:
            self._apply(token, result)
        elif isinstance(token, SetWalAside):
            # The log is closed before its files are moved, which is repeated: it has no position any more.
            self.disk.set_aside(token.label)
        self._performed = result, full

    def _apply(self, effect: Effect, result: Any) -> None:
        if isinstance(effect, TruncateWal):
            self.disk.truncate(effect.lsn, effect.tli)
        elif isinstance(effect, ResetWal):
            self.disk.reset(effect.base_lsn, effect.tli)
        elif isinstance(effect, SetWalAside):
            self.disk.set_aside(effect.label)
        elif isinstance(effect, RestoreWal):
            self.disk.restore(effect.label)
        if isinstance(effect, product.INCLUDES_FLUSH):
            self.disk.durable_lsn = self.disk.write_lsn

    def returned(self, token: Any, result: Any, error: BaseException | None) -> None:
        """The loop learns of the end of a job."""
        is_full = isinstance(error, StorageFull)
        if isinstance(token, tuple):
            self._has_read(token[0], token[1], result, error)
        elif isinstance(token, Effect):
            if self.has_failed:
                return
            if error is not None and not is_full:
                self._fail()
                return
            self._effect_done(token)
        elif isinstance(token, Flush | Preparation | Removal):
            if error is not None and not (is_full and isinstance(token, Preparation)):
                self._fail()
            elif isinstance(token, Flush):
                self.post(lambda: self._flush_returned(token))
            elif isinstance(token, Preparation):
                self.post(lambda: self._prepared(error))

    def _effect_done(self, effect: Effect) -> None:
        result, full = self._performed
        if isinstance(effect, Persist):
            self._note(CONTROL_FILE, full)
        elif isinstance(full, ResourceShortage):
            self.shortages += 1
        elif full is not None:
            self._no_room(full)
        self._go_on(result, full)
        self._handle_queue()

    def _note(self, what: str, full: BaseException | None) -> None:
        if full is None:
            self.lacking.discard(what)
        else:
            self.lacking.add(what)
            self.shortages += isinstance(full, ResourceShortage)

    def _flush_returned(self, flush: Flush) -> None:
        if flush is self._flush and self._is_storage_broken:
            self._fail()
        elif flush is self._flush:
            self._flush = None
            self._flushed(flush.end_lsn, self._monotonic() - self._flush_began_at)

    def _prepared(self, full: BaseException | None) -> None:
        if full is None:
            self._shortages_in_a_row = 0
            self.lacking.discard(WAL)
            return
        pause_s = product.PREPARE_AGAIN_AFTER_S
        if isinstance(full, ResourceShortage):
            pause_s = product.SHORTAGE_PAUSES_S[min(self._shortages_in_a_row, len(product.SHORTAGE_PAUSES_S) - 1)]
            self._shortages_in_a_row += 1
            self.set_timer(pause_s, "prepare")
        self._paused_until = self._monotonic() + pause_s
        self._no_room(full)

    # ------------------------------------------------------------------ reads of members

    def _serve_read(self, connection: int, request: PeerRead) -> None:
        queue = self._reads.setdefault(connection, deque())
        if len(queue) == QUEUED_MAX:
            self._refuse_read(connection, request, "more than")
            return
        queue.append(request)
        if len(queue) == 1:
            self._read(connection)

    def _read(self, connection: int) -> None:
        """The next read begins, or is refused at once: its file does not exist."""
        request = self._reads[connection][0]
        if self._next_is("submit", "peer reader"):
            self._take("submit", "peer reader")
            if self._last[2][:2] != (connection, request):
                self.violate(f"reads {self._last[2][:2]}, not {(connection, request)}")
        else:
            self._end_read(connection, request, None)

    def _has_read(self, connection: int, request: PeerRead, data: bytes | None, error: BaseException | None) -> None:
        queue = self._reads.get(connection)
        if queue and queue[0] == request:
            self._end_read(connection, request, data)

    def _end_read(self, connection: int, request: PeerRead, data: bytes | None) -> None:
        queue = self._reads[connection]
        if data is None:
            self._refuse_read(connection, request, "")
        elif not self.acceptor.serves(request):
            self._refuse_read(connection, request, "the log has changed")
        else:
            segment_end = self._segment_end(request.begin_lsn)
            end_lsn = min(request.end_lsn, request.begin_lsn + READ_BYTES_MAX, segment_end)
            self.served_bytes += end_lsn - request.begin_lsn
            wal = self.disk.read(request.begin_lsn, end_lsn)
            self._send(connection, ReadResponse(request.request_id, request.begin_lsn, wal))
        queue.popleft()
        if queue:
            self._read(connection)

    def _refuse_read(self, connection: int, request: PeerRead, begins: str) -> None:
        if self.has_failed:
            return
        self._take("send", connection)
        message = self._last[2]
        is_right = isinstance(message, Refusal) and message.code is RefusalCode.RANGE
        if not begins and (self.acceptor.serves(request) or message.reason.startswith("more than")):
            # What the log has is refused only if its files cannot be opened or read.
            is_right = is_right and self._process.has_trouble()
        if not is_right or not message.reason.startswith(begins) or message.promised != self.acceptor.control.promised:
            self.violate(f"a read is answered with {message}")
        self._seen.appendleft(self._last)
        self._send(connection, message)

    # ------------------------------------------------------------------ what others ask of the node

    def disconnected(self, connection: int) -> None:
        """A connection has ended."""
        self._reads.pop(connection, None)
        self.post(lambda: self.acceptor.disconnected(connection))

    def happens(self, event: str, *arguments: Any) -> None:
        """An event of the acceptor, which is not a message."""
        if event == "checkpoint":
            self.post(self._checkpoint)
        else:
            self.post(lambda: getattr(self.acceptor, event)(*arguments))

    def trim(self, request: TrimRequest) -> None:
        """Old WAL may be removed."""
        self.post(lambda: self.acceptor.trim(request))

    def _checkpoint(self) -> Effects | None:
        if self._is_storage_broken:
            self._fail()
            return None
        if self._next_is("submit", "preparer"):
            self._take("submit", "preparer")
        return self._lazy_positions()

    def _lazy_positions(self) -> Effects:
        yield from self.acceptor.checkpoint()
        if CONTROL_FILE in self.lacking:
            yield Persist(self.acceptor.control)

    def drain(self) -> None:
        """The process is to end."""
        self.is_deaf = True
        self.drained = 1
        self._become_quiet()

    def _become_quiet(self) -> None:
        self._quiet = True
        self.post(lambda: None)

    def loop_ran(self) -> None:
        """What was ready in the loop has been done."""
        while self._wakes:
            self._wakes = False
            self.drained += 1
            if self.drained == 2:
                self.post(self._checkpoint)
                self._become_quiet()

    # ------------------------------------------------------------------ timers

    def set_timer(self, delay_s: float, kind: str) -> None:
        """A timer is set."""
        self._timers_set += 1
        self.timers.append((self._process.loop.now + max(delay_s, RESOLUTION_S), self._timers_set, kind))

    def expire(self) -> str:
        """The next timer expires; return its kind."""
        timer = min(self.timers)
        self.timers.remove(timer)
        if timer[2] == "report":
            self._report()
        elif timer[2] == "prepare" and self.is_between_events and self._is_storage_broken:
            self._fail()
        elif timer[2] == "prepare" and self.is_between_events and self._next_is("submit", "preparer"):
            self._take("submit", "preparer")
        return timer[2]

    def _report(self) -> None:
        self._has_report_timer = False
        if self._flush is None or self.has_failed:
            return
        age_s = self._monotonic() - self._flush_began_at
        if age_s >= product.REPORT_WRITE_AFTER_S and self._effects is None:
            self.post(self.acceptor.report_write)
        self._has_report_timer = True
        self.set_timer(
            product.REPORT_WRITE_AFTER_S - age_s
            if age_s < product.REPORT_WRITE_AFTER_S
            else product.REPORT_WRITE_AFTER_S,
            "report",
        )
