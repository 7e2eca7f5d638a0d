"""An event loop on virtual time, for one process that asyncio runs: the commands of walproxy/failover, as they are.

Its callbacks are events of the simulation's clock. The process can be suspended, and does at once then what it would
have done meanwhile; and it can be killed at any moment. What it has asked a thread to do is done nevertheless: a server
finishes a statement whose client is gone. But a thread that is stopped with its process may send it only later.
"""

import asyncio
import contextvars
import random
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from safekeeper.base.errors import WalproxyError
from tests.simulation.model.clock import Clock, MachineClock

# How often a coroutine may begin something else when it is cancelled.
_CANCELLED_AT_MOST = 5


class _Handle(events.TimerHandle):
    """What asyncio makes of a callback, without its means of debugging: there is one for most events of a run."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: "VirtualLoop",
        context: contextvars.Context | None,
    ) -> None:
        self._when, self._callback, self._args, self._loop = when, callback, args, loop
        self._context = contextvars.copy_context() if context is None else context
        self._cancelled = self._scheduled = False
        self._repr = self._source_traceback = None

    __hash__ = object.__hash__
    __eq__ = object.__eq__


class VirtualLoop(asyncio.AbstractEventLoop):
    """The loop of one process.

    Attributes:
        owner: whose loop it is.
        failure: what the simulation must fail with, None for nothing: a process that only logs it cannot hide it.

    Args:
        delay_s: the longest time that a thread's work takes, there and back.
    """

    def __init__(self, clock: Clock | MachineClock, rng: random.Random, delay_s: float, owner: Any) -> None:
        self.owner = owner
        self.failure: BaseException | None = None
        self._clock = clock
        self._rng = rng
        self._delay_s = delay_s
        self._soon: dict[events.Handle, None] = {}
        self._backlog: list[events.Handle] | None = None
        self._dying: deque[events.Handle] | None = None
        self._is_closed = False

    def run_task(self, coroutine: Coroutine[Any, Any, Any], on_end: "Callable[[asyncio.Task[Any]], None]") -> None:
        """Begin to run the process."""
        self._task = self.create_task(coroutine)
        self._task.add_done_callback(on_end)

    def suspend(self, for_s: float) -> None:
        """Do nothing for so long."""
        if self._backlog is None and not self._is_closed:
            self._backlog = []
            self._clock.after(for_s, self._go_on)

    @property
    def is_suspended(self) -> bool:
        """Whether the process stands still."""
        return self._backlog is not None

    def freeze(self) -> None:
        """Do nothing until `go_on`."""
        if self._backlog is None and not self._is_closed:
            self._backlog = []

    def go_on(self) -> None:
        """Do what was to be done meanwhile."""
        self._go_on()

    def end(self) -> None:
        """End a process that has no coroutines: nothing more happens."""
        self._is_closed, self._backlog = True, None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Be the running loop of what the block calls."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            yield
        finally:
            events._set_running_loop(before)

    def _go_on(self) -> None:
        backlog, self._backlog = self._backlog, None
        for handle in backlog or ():
            self._run(handle)

    def kill(self) -> None:
        """End the process, wherever it is. Its coroutines see that they are cancelled, and nothing else happens."""
        if self._is_closed:
            return
        self._dying, self._backlog = deque(self._soon), None
        for _ in range(_CANCELLED_AT_MOST):
            if self._task.done():
                break
            self._task.cancel()  # Again where a coroutine still awaits something: it is dead.
            while self._dying:
                self._run(self._dying.popleft())
        self._is_closed = True

    def time(self) -> float:
        return self._clock.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self._is_closed

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: contextvars.Context | None = None
    ) -> "asyncio.Task[Any]":
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> events.Handle:
        handle = _Handle(0.0, callback, args, self, context)
        if self._dying is not None:
            self._dying.append(handle)
        elif not self._is_closed:
            self._soon[handle] = None
            self._clock.soon(self._run, handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> events.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> events.TimerHandle:
        return self.call_at(self._clock.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> events.TimerHandle:
        handle = _Handle(when, callback, args, self, context)
        self._clock.after(max(0.0, when - self._clock.now), self._run, handle)
        return handle

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """Let a thread do something: it happens some time from now, and its result arrives some time after that."""
        future = self.create_future()
        self._clock.after(self._rng.random() * self._delay_s, self._work, future, func, args)
        return future

    def _work(self, future: "asyncio.Future[Any]", func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if self._backlog is not None and self._rng.random() < 0.5:
            # Its thread has not sent the statement before the process was stopped.
            self._backlog.append(_Handle(0.0, self._work, (future, func, args), self, None))
            return
        result, error = None, None
        try:
            result = func(*args)
        except WalproxyError as raised:  # The coroutine gets it; what a checker raises ends the run.
            error = raised
        if not self._is_closed:
            self._clock.after(self._rng.random() * self._delay_s, self.call_soon, _finish, future, result, error)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Fail with what a callback has raised. What else asyncio reports is of processes that were killed."""
        if "handle" in context:
            self.failure = self.failure or context.get("exception")

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        """It stays on the clock, and does nothing then."""

    def _run(self, handle: events.Handle) -> None:
        if self._is_closed or handle._cancelled:
            return
        if self._backlog is not None:
            self._backlog.append(handle)
            return
        self._soon.pop(handle, None)
        before = events._get_running_loop()  # An agent's, which ends its proxy.
        events._set_running_loop(self)
        try:
            handle._run()
        finally:
            events._set_running_loop(before)
        if self.failure is not None and self._dying is None:
            raise self.failure


def _finish(future: "asyncio.Future[Any]", result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
