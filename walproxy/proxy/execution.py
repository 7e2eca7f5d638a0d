"""How a proxy executes the actions of its events: one event at a time, until it ends.

An event that is raised while actions are executed is queued until they are done. After a bug, the queue is no longer
emptied: actions of events that still arrive are not executed.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from safekeeper.base.errors import WalproxyError
from walproxy.proposer.actions import Action

logger = logging.getLogger(__name__)


class Execution:
    """The execution of one proxy, on its event loop.

    Attributes:
        clock: the event loop's time; 0 before `begin`.
        queued: the actions of the events that were raised during the present one; None between two events.
        is_draining: the proxy is to end as soon as a quorum has the received WAL: reading is not resumed.
        next_tick: the timer of the next tick.
        link_tasks: of the links, by safekeeper id.
        ended: its result is the error that has ended the proxy, None after `stop`; its exception is a bug.
    """

    def __init__(self) -> None:
        self.clock: Callable[[], float] = lambda: 0.0
        self._loop: asyncio.AbstractEventLoop
        self.queued: list[list[Action]] | None = None
        self.is_draining = False
        self.next_tick: asyncio.TimerHandle | None = None
        self.link_tasks: dict[int, asyncio.Task[None]] = {}
        self.ended: asyncio.Future[WalproxyError | None]

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin on an event loop."""
        self._loop, self.clock = loop, loop.time
        self.ended = loop.create_future()

    def run(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run a part of the proxy until it is cancelled; if it fails, that is a bug, and the proxy ends."""
        task = asyncio.create_task(coroutine)
        task.add_done_callback(self._task_ended)
        return task

    def schedule(self, delay_s: float, tick: Callable[[], None]) -> None:
        """Let the next tick occur after a delay."""
        self.next_tick = self._loop.call_later(delay_s, tick)

    def finish(self, error: WalproxyError | None) -> None:
        """End the proxy."""
        if not self.ended.done():
            self.ended.set_result(error)

    def fail(self, error: BaseException) -> None:
        """End the proxy because of a bug."""
        self.queued = []
        if not self.ended.done():
            self.ended.set_exception(error)

    def _task_ended(self, task: "asyncio.Task[None]") -> None:
        error = task.exception() if not task.cancelled() else None
        if error is not None:
            self.fail(error)

    def callback_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the proxy if a callback has failed, which the event loop would only log."""
        error = context.get("exception")
        if error is None or isinstance(error, OSError):
            logger.warning("%s%s", context["message"], f": {error}" if error is not None else "")
        else:
            self.fail(error)
