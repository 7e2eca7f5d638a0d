"""A thread that runs jobs one after the other and passes each result to the event loop.

The disk may block indefinitely; the loop must not. So an operation that waits for the disk is a job here. The thread is
a daemon, so that a process whose disk hangs can still end.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

Job = Callable[[], Any]
Done = Callable[[Any, Any, BaseException | None], None]
_Result = TypeVar("_Result")


class Worker:
    """One thread and its queue, first in, first out.

    Args:
        name: the thread's name, as debuggers and profilers show it.
        loop: the event loop that calls the `done` callbacks.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[tuple[Job, Done, Any] | None] = SimpleQueue()
        self._began_at: float | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def busy_s(self) -> float:
        """The time since the present job started, in seconds; 0 if there is none."""
        began_at = self._began_at
        return 0.0 if began_at is None else time.monotonic() - began_at

    def submit(self, job: Job, done: Done, token: Any = None) -> None:
        """Run `job` after the earlier ones, then call `done(token, its result, its error)` on the loop."""
        self._jobs.put((job, done, token))

    async def run(self, job: Callable[[], _Result]) -> _Result:
        """Run `job` as `submit` does; return its result, or raise its error. Cancelling does not interrupt it."""
        returned: asyncio.Future[_Result] = self._loop.create_future()
        self.submit(job, _hand_over, returned)
        return await returned

    def stop(self) -> None:
        """End the thread after the jobs already submitted. Does not wait for it."""
        self._jobs.put(None)

    def _work(self) -> None:
        jobs, loop = self._jobs, self._loop
        while (work := jobs.get()) is not None:
            job, done, token = work
            self._began_at = time.monotonic()
            try:
                result, error = job(), None
            except BaseException as raised:  # The loop's side handles any error.
                result, error = None, raised
            self._began_at = None
            try:
                loop.call_soon_threadsafe(done, token, result, error)
            except RuntimeError:
                return  # The loop is closed: the result has no receiver.


def _hand_over(returned: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if returned.done():
        return  # The task that waited for it was cancelled.
    if error is not None:
        returned.set_exception(error)
    else:
        returned.set_result(result)
