"""What a lone node has instead of threads, sockets and time, and a record of all that it does with them.

Nothing happens by itself: the driver (lone_node.py) lets a thread do its next job, lets the loop learn of it, delivers
bytes, and lets timers expire. Each thing that the node does is recorded in `Process.seen` in its order, with the
result; the reference (node_reference.py) takes it from there.
"""

import asyncio
import random
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.acceptor.effects import Effect, FindRecordEnd, FindRecords, FindTimedRecord
from safekeeper.base.errors import InvariantViolation, StorageFailed, StorageFull
from safekeeper.base.lsn import Lsn
from safekeeper.consensus.control_state import ControlState
from safekeeper.consensus.messages import AppendRequest
from safekeeper.node import node as node_module
from safekeeper.node import peer_reads
from safekeeper.storage import disk_space
from safekeeper.storage.data_folder import DataFolder
from safekeeper.storage.disk_work import Flush, Removal
from safekeeper.storage.wal_log import WalStorage
from tests.simulation.disk import ModelDisk
from tests.simulation.lone_node_space import AGAIN_AFTER_S, LinesLog
from tests.simulation.shell_seams import RESOLUTION_S
from tests.simulation.violation import Violation

READ_BYTES_MAX = 5000
# How long flushes take that the loop's thread waits for.
QUICK_S, SLOW_S = (0.0, 0.001, 0.002), (0.003, 0.005, 0.02)


def log_state(acceptor: Acceptor) -> tuple[Any, ...]:
    """Return what readers must know of an acceptor."""
    leader = acceptor.leader, acceptor.leader_connection
    return acceptor.write_lsn, acceptor.flush_lsn, acceptor.commit_lsn, acceptor.readable_lsn, *leader


class Process:
    """A process of a node.

    Attributes:
        seen: what it has done, and nobody has looked at.
        loop, workers: its own; the threads by name.
        disk: what is on its disk, as far as records are looked for.
        has_trouble: returns whether its disk has failed or refused something since the start.
        published: what its readers were informed of last.
    """

    name = "S1"

    def __init__(self, rng: random.Random, disk: ModelDisk, now_s: float, has_trouble: Callable[[], bool]) -> None:
        self.rng = rng
        self.disk = disk
        self.has_trouble = has_trouble
        self.seen: deque[tuple[Any, ...]] = deque()
        self.loop = LoneLoop(self, now_s)
        self.workers: dict[str, LoneWorker] = {}
        self.is_slow = rng.random() < 0.3
        self.published: tuple[Any, ...] = ()
        self.acceptor: Acceptor
        self.breaks = False  # The state of the acceptor is impossible.
        self._spent_s = 0.0  # In flushes on the loop's thread.
        self._is_in_thread = True  # As long as it starts.

    def started(self) -> None:
        """From now on the loop's thread works for the node."""
        self._is_in_thread = False

    def saw(self, *what: Any) -> None:
        """Record something that the node has done."""
        self.seen.append(what)

    def monotonic(self) -> float:
        """Return the time that has passed for the process."""
        return self.loop.now + self._spent_s

    def event_ended(self) -> None:
        """Its readers are informed."""
        self.published = log_state(self.acceptor)

    def require_published(self, what: str) -> None:
        """Check that the readers know the present state."""
        if self.published and self.published != log_state(self.acceptor):
            self.fail(Violation("ReadersKnow", f"{what}, before its readers know the state before it"))

    def fail(self, error: BaseException) -> None:
        """Let the run fail, whatever the node does with the error."""
        self.loop.failure = self.loop.failure or error

    # ------------------------------------------------------------------ the disk

    def observe(self, storage: WalStorage) -> None:
        """Record what is done with a storage."""
        append, forget_below, flush_now = storage.append, storage.forget_below, storage.flush_now
        start_flush = storage.start_flush

        def observed_append(begin_lsn: Lsn, data: bytes | memoryview) -> None:
            with self._recorded("write", begin_lsn, bytes(data)):
                append(begin_lsn, data)

        def observed_forget_below(lsn: Lsn) -> Removal | None:
            with self._recorded("trim", lsn):
                return forget_below(lsn)

        def observed_flush_now() -> Lsn:
            if self._is_in_thread:
                return flush_now()
            took_s = self.rng.choice(SLOW_S if self.is_slow else QUICK_S)
            began_at, self._spent_s = self.monotonic(), self._spent_s + took_s
            with self._recorded("flush", storage.write_lsn, began_at, took_s, self._is_segment_due(storage)):
                return flush_now()

        def observed_start_flush() -> Flush | None:
            self.saw("snapshot", storage.write_lsn, self.monotonic(), self._is_segment_due(storage))
            return start_flush()

        storage.append = observed_append  # type: ignore[method-assign]
        storage.forget_below = observed_forget_below  # type: ignore[method-assign]
        storage.flush_now = observed_flush_now  # type: ignore[method-assign]
        storage.start_flush = observed_start_flush  # type: ignore[method-assign]

    def is_at_work(self, name: str) -> bool:
        """Return whether a thread has a job, or a result of which the loop has still to learn."""
        worker = self.workers.get(name)
        return worker is not None and (worker.has_jobs or worker.has_results)

    def _is_segment_due(self, storage: WalStorage) -> bool:
        """Return whether the next segment should be prepared, and nobody does it."""
        if storage._preparation is not None:
            return not self.is_at_work("preparer")
        if storage._prepared or not storage._writing:
            return False
        tail = storage._writing[-1]
        return tail.write_lsn - tail.begin_lsn > storage._segment_size // 2

    @contextmanager
    def _recorded(self, *what: Any) -> Iterator[None]:
        if self._is_in_thread:  # What the folder executes is recorded as an effect.
            yield
            return
        try:
            yield
        except (StorageFailed, StorageFull) as error:
            self.saw(*what, error)
            raise
        except Exception as error:
            self.fail(error)
            raise
        self.saw(*what, None)

    def perform(self, effect: Effect, perform: Callable[[], Any]) -> Any:
        """Let the folder execute an effect, and record it."""
        result, disk = None, self.disk
        try:
            # Records are those of synthetic_wal.py.
            if isinstance(effect, FindRecords):
                result = disk.find_records(effect.lsn)
            elif isinstance(effect, FindRecordEnd):
                result = disk.find_records(effect.lsn)[0]
            elif isinstance(effect, FindTimedRecord):
                result = disk.find_timed_record(effect.begin_lsn, effect.end_lsn)
            else:
                result = perform()
        except Exception as error:
            self.saw("perform", effect, None, error)
            raise
        self.saw("perform", effect, result, None)
        return result

    def work(self, worker: "LoneWorker") -> Any:
        """Let a thread do its next job; return what the job is for."""
        self._is_in_thread = True
        try:
            return worker.work()
        finally:
            self._is_in_thread = False


class ObservedFolder(DataFolder):
    """A data folder whose work is recorded."""

    process: Process

    def perform(self, effect: Effect) -> Any:
        return self.process.perform(effect, partial(super().perform, effect))

    def _open_storage(self, control: ControlState) -> WalStorage:
        storage = super()._open_storage(control)
        self.process.observe(storage)
        return storage


def observed_acceptor(current: Callable[[], Process]) -> type[Acceptor]:
    """Return an acceptor before whose events the readers must know what was before."""

    def checked(name: str) -> Any:
        handle = getattr(Acceptor, name)

        def checking(acceptor: Acceptor, *arguments: Any) -> Any:
            if not (name == "receive" and isinstance(arguments[1], AppendRequest)):
                current().require_published(f"handles {name} {arguments}")
            return handle(acceptor, *arguments)

        return checking

    def check(acceptor: Acceptor) -> None:
        if current().breaks:
            raise InvariantViolation("an impossible state")
        Acceptor.check(acceptor)

    names = ("receive", "pulled", "pull_failed", "readers_changed", "archive_reported", "trim", "disconnected")
    return type("Observed", (Acceptor,), {"check": check, **{name: checked(name) for name in names}})


class LoneLoop(asyncio.AbstractEventLoop):
    """A loop that does only what it is told to do.

    Attributes:
        process: whose loop it is.
        now: its time.
        failure: what the run must fail with.
        timers: those that were set, in the order in which they were.
    """

    def __init__(self, process: Process, now_s: float) -> None:
        self.process = process
        self.now = now_s
        self.failure: BaseException | None = None
        self.timers: list[asyncio.TimerHandle] = []
        self._ready: deque[asyncio.Handle] = deque()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Be the running loop, and do what is ready at the end."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            yield
            while self._ready:
                self._ready.popleft()._run()
        finally:
            events._set_running_loop(before)
        if self.failure is not None:
            raise self.failure

    def pending(self) -> list[float]:
        """Return when the timers expire."""
        self.timers = [timer for timer in self.timers if not timer.cancelled()]
        return sorted(timer.when() for timer in self.timers)

    def expire(self) -> None:
        """Let the timer expire that is next, at its time."""
        self.pending()
        timer = min(self.timers, key=asyncio.TimerHandle.when)  # Of two the one that was set first.
        self.timers.remove(timer)
        self.now = max(self.now, timer.when())
        timer._run()

    def time(self) -> float:
        return self.now

    def get_debug(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **_: Any) -> "asyncio.Task[Any]":  # type: ignore[override]
        return asyncio.Task(coro, loop=self)

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now + max(delay, RESOLUTION_S), callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self.timers.append(handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """`pending` forgets it."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Fail with what a callback has raised."""
        self.failure = self.failure or context.get("exception") or AssertionError(context["message"])


class LoneWorker:
    """A thread that does a job when it is told to, and its queue."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self.busy_s = 0.0
        self.is_stopped = False
        self._process = cast(LoneLoop, loop).process
        self._jobs: deque[tuple[Callable[[], Any], Callable[..., Any], Any]] = deque()
        self._done: deque[tuple[Callable[..., Any], Any, Any, BaseException | None]] = deque()
        self._process.workers[name] = self

    def submit(self, job: Callable[[], Any], done: Callable[..., Any], token: Any = None) -> None:
        """See Worker."""
        self._jobs.append((job, done, token))
        self._process.saw("submit", self.name, token)

    def stop(self) -> None:
        """See Worker."""
        self.is_stopped = True

    @property
    def has_jobs(self) -> bool:
        """Whether a job waits."""
        return bool(self._jobs)

    @property
    def has_results(self) -> bool:
        """Whether the loop has still to learn of a result."""
        return bool(self._done)

    def work(self) -> Any:
        """Do the next job; return its token and its error."""
        job, done, token = self._jobs.popleft()
        result: Any = None
        error: Exception | None = None
        try:
            result = job()
        except Exception as raised:
            error = raised
        self._done.append((done, token, result, error))
        return token, error

    def deliver(self) -> Any:
        """Let the loop learn of the oldest result; return it, with its token and error."""
        done, token, result, error = self._done.popleft()
        done(token, result, error)
        return token, result, error


class ObservedTime:
    """`time` of a node: its pauses take no time."""

    def __init__(self, current: Callable[[], Process]) -> None:
        self._current = current

    def sleep(self, seconds: float) -> None:
        """Record a pause."""
        self._current().saw("sleep", seconds)


@contextmanager
def replaced_for(current: Callable[[], Process], space_log: LinesLog) -> Iterator[None]:
    """Put the threads, the clock and the acceptor of a lone node in place.

    Args:
        current: returns the process that runs.
        space_log: gets the lines about disk space.
    """
    values: tuple[tuple[Any, str, Any], ...] = (
        (node_module, "Worker", LoneWorker),
        (node_module, "monotonic", lambda: current().monotonic()),
        (node_module, "time", ObservedTime(current)),
        (node_module, "Acceptor", observed_acceptor(current)),
        (peer_reads, "READ_BYTES_MAX", READ_BYTES_MAX),
        (disk_space, "WARN_AGAIN_AFTER_S", AGAIN_AFTER_S),
        (disk_space, "_log", space_log),
    )
    before = [(module, name, getattr(module, name)) for module, name, _ in values]
    for module, name, value in values:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
