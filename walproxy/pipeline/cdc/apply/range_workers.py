"""Threads that work on the ranges of a copy, each with a session of its own.

A range whose session is lost is given to another session, or to a new one of the same thread, `_ATTEMPTS` times at
most. A session that cannot be opened (the server is at its limit) is done without, as long as another thread has one.
No thread ends before all ranges are done, because it may be the one that takes over the last range.
"""

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, NamedTuple, Self

import psycopg

from walproxy.pipeline.cdc.apply.copy_ranges import CopyRange
from walproxy.pipeline.cdc.apply.copy_state import CopiedRange
from walproxy.pipeline.cdc.server import Connection, SourceUnavailable

_log = logging.getLogger(__name__)

_ATTEMPTS: Final = 3
_CANCEL_TIMEOUT_S: Final = 5.0


class Task(NamedTuple):
    """A range, by its number, and what it had become in an earlier snapshot."""

    number: int
    range: CopyRange
    copied: CopiedRange | None
    attempts: int = 0


class RangeWorkers:
    """The threads, while the context is entered.

    Args:
        open_session: opens a session; raises SourceUnavailable, SourceRefused.
        work: does a task, with a session; its third argument returns whether the result is of use any longer.
    """

    def __init__(
        self,
        open_session: Callable[[], Connection],
        work: Callable[[Connection, Task, Callable[[], bool]], CopiedRange],
        tasks: Iterable[Task],
        sessions: int,
    ) -> None:
        self._open_session = open_session
        self._work = work
        self._changed = threading.Condition()
        self._tasks = deque(tasks)
        self._remaining = len(self._tasks)
        self._results: list[tuple[int, CopiedRange]] = []
        self._failure: BaseException | None = None
        self._is_over = False
        self._connections: set[Connection] = set()
        self._working = min(sessions, self._remaining)
        self._threads = [
            threading.Thread(target=self._run, name=f"copy session {number + 1}", daemon=True)
            for number in range(self._working)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
            busy = list(self._connections) if self._remaining else []
        for connection in busy:
            with contextlib.suppress(psycopg.Error):
                connection.cancel_safe(timeout=_CANCEL_TIMEOUT_S)
        for thread in self._threads:
            thread.join()

    def results(self, timeout_s: float) -> list[tuple[int, CopiedRange]]:
        """Return the tasks that were done since the last call, by number; none if none is for `timeout_s`.

        Raises:
            WalproxyError: what a thread has failed with.
        """
        with self._changed:
            if not self._results and self._failure is None:
                self._changed.wait(timeout_s)
            if self._failure is not None:
                raise self._failure
            results, self._results = self._results, []
            return results

    def left(self) -> list[tuple[int, CopiedRange]]:
        """Return the tasks that were done since the last call of `results`, when the context was left."""
        return self._results

    def _run(self) -> None:
        try:
            while not self._is_idle():
                try:
                    connection = self._open_session()
                except SourceUnavailable as error:
                    if self._may_leave(error):
                        return
                    raise
                with contextlib.closing(connection):
                    self._serve(connection)
        except BaseException as error:  # It is raised in the thread that waits for the results.
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify_all()

    def _is_idle(self) -> bool:
        with self._changed:
            return self._is_over or not self._remaining

    def _may_leave(self, error: SourceUnavailable) -> bool:
        """Return whether others can do without this thread, and count it out then."""
        with self._changed:
            if self._working == 1:
                return False
            self._working -= 1
            remaining = self._working
        _log.warning("%s; sessions that continue the copy: %d", error, remaining)
        return True

    def _serve(self, connection: Connection) -> None:
        """Do tasks until none is left, or the session is lost."""
        with self._changed:
            self._connections.add(connection)
        try:
            while (task := self._next()) is not None:
                try:
                    copied = self._work(connection, task, lambda: self._is_over)
                except SourceUnavailable as error:
                    self._put_back(task, error)
                    return
                with self._changed:
                    self._results.append((task.number, copied))
                    self._remaining -= 1
                    self._changed.notify_all()
        finally:
            with self._changed:
                self._connections.discard(connection)

    def _next(self) -> Task | None:
        """Wait for a task and return it; None if no more will come."""
        with self._changed:
            while not self._tasks and self._remaining and not self._is_over:
                self._changed.wait()
            return None if self._is_over or not self._remaining else self._tasks.popleft()

    def _put_back(self, task: Task, error: SourceUnavailable) -> None:
        """Have a task done again. Raises the error if that was tried often enough, or the work is over."""
        task = task._replace(attempts=task.attempts + 1)
        with self._changed:
            if self._is_over or task.attempts >= _ATTEMPTS:
                raise error
            self._tasks.appendleft(task)
            self._changed.notify_all()
        _log.warning("%s; the range is read again", error)
