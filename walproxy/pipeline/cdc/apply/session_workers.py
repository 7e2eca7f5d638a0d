"""Threads that do the tasks of a copy, each with a session of its own. A task is a range of a table, or a whole table.

A task whose session is lost is given to another session, or to a new one of the same thread, `_ATTEMPTS` times at
most. A session that cannot be opened (the server is at its limit) is done without, as long as another thread has one.
No thread ends before all tasks are done, because it may be the one that takes over the last task.

What only one thread may do, such as writing the job's file, a task asks for by `Turn.request`, and waits. The thread
that collects the results does it, once for all requests that have come in meanwhile.
"""

import contextlib
import functools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, Generic, NamedTuple, Self, TypeVar

import psycopg

from walproxy.pipeline.cdc.server import Connection, SourceUnavailable
from walproxy.pipeline.cdc.slot_stream import Stopped

_log = logging.getLogger(__name__)

_ATTEMPTS: Final = 3
_CANCEL_TIMEOUT_S: Final = 5.0
_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


class Turn(NamedTuple):
    """One attempt at a task.

    Attributes:
        attempt: 0, 1, ...
        is_over: returns whether the result is of use no longer.
        request: has `on_requests` called for the task, and returns after that. Raises Stopped: the work is over.
    """

    attempt: int
    is_over: Callable[[], bool]
    request: Callable[[], None]


class _Pending(NamedTuple, Generic[_Task]):
    task: _Task
    attempts: int


class _Request(Generic[_Task]):
    def __init__(self, task: _Task) -> None:
        self.task = task
        self.is_done = False


class SessionWorkers(Generic[_Task, _Result]):
    """The threads, while the context is entered.

    Args:
        open_session: opens a session; raises SourceUnavailable, SourceRefused.
        work: does a task, with a session.
        unit: what a task is, for messages: "range".
        on_requests: called by `results` with the tasks that wait for it.
    """

    def __init__(
        self,
        open_session: Callable[[], Connection],
        work: Callable[[Connection, _Task, Turn], _Result],
        tasks: Iterable[_Task],
        sessions: int,
        unit: str,
        on_requests: Callable[[list[_Task]], None] = lambda tasks: None,
    ) -> None:
        self._open_session = open_session
        self._work = work
        self._unit = unit
        self._on_requests = on_requests
        self._changed = threading.Condition()
        self._tasks = deque(_Pending(task, 0) for task in tasks)
        self._remaining = len(self._tasks)
        self._requests: list[_Request[_Task]] = []
        self._results: list[tuple[_Task, _Result]] = []
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

    def results(self, timeout_s: float) -> list[tuple[_Task, _Result]]:
        """Deal with the requests that wait; return the tasks that were done since the last call, with their results.

        Returns:
            Nothing if there was neither for `timeout_s`, or only requests.

        Raises:
            WalproxyError: what a thread has failed with, or `on_requests`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._results or self._requests or self._failure is not None, timeout_s)
            if self._failure is not None:
                raise self._failure
            requests, self._requests = self._requests, []
            results, self._results = self._results, []
        if requests:
            self._on_requests([each.task for each in requests])
            with self._changed:
                for each in requests:
                    each.is_done = True
                self._changed.notify_all()
        return results

    def left(self) -> list[tuple[_Task, _Result]]:
        """Return the tasks that were done since the last call of `results`, when the context was left."""
        return self._results

    def _request(self, task: _Task) -> None:
        request = _Request(task)
        with self._changed:
            self._requests.append(request)
            self._changed.notify_all()
            self._changed.wait_for(lambda: request.is_done or self._is_over)
            if not request.is_done:
                raise Stopped("the copy is over")

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
        """Do tasks until none is left, or the session is lost, or a task has closed it."""
        with self._changed:
            self._connections.add(connection)
        try:
            while not connection.closed and (pending := self._next()) is not None:
                task = pending.task
                turn = Turn(pending.attempts, lambda: self._is_over, functools.partial(self._request, task))
                try:
                    result = self._work(connection, task, turn)
                except SourceUnavailable as error:
                    self._put_back(pending, error)
                    return
                with self._changed:
                    self._results.append((task, result))
                    self._remaining -= 1
                    self._changed.notify_all()
        finally:
            with self._changed:
                self._connections.discard(connection)

    def _next(self) -> _Pending[_Task] | None:
        """Wait for a task and return it; None if no more will come."""
        with self._changed:
            while not self._tasks and self._remaining and not self._is_over:
                self._changed.wait()
            return None if self._is_over or not self._remaining else self._tasks.popleft()

    def _put_back(self, pending: _Pending[_Task], error: SourceUnavailable) -> None:
        """Have a task done again. Raises the error if that was tried often enough, or the work is over."""
        attempts = pending.attempts + 1
        with self._changed:
            if self._is_over or attempts >= _ATTEMPTS:
                raise error
            self._tasks.appendleft(_Pending(pending.task, attempts))
            self._changed.notify_all()
        _log.warning("%s; the %s is read again", error, self._unit)
