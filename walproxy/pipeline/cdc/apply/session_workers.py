"""Threads that do the tasks of a copy, each with a session of its own.

A thread opens its session with its first task. A task whose session is lost is given to another session, or to a new
one of the same thread, `_ATTEMPTS` times at most. A session that cannot be opened (the server is at its limit) is done
without, as long as another thread may have one; its thread tries again every `_REOPEN_S`. No thread ends before the
work is over, because it may be the one that takes over the last task.
"""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, Generic, NamedTuple, Self, TypeVar

import psycopg

from walproxy.pipeline.cdc.server import Connection, SourceUnavailable

_log = logging.getLogger(__name__)

_ATTEMPTS: Final = 3
_REOPEN_S: Final = 10.0
_CANCEL_TIMEOUT_S: Final = 5.0
_CANCEL_INTERVAL_S: Final = 0.2
_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


class _Pending(NamedTuple, Generic[_Task]):
    task: _Task
    attempts: int


class SessionWorkers(Generic[_Task, _Result]):
    """The threads, while the context is entered.

    Args:
        open_session: opens a session; raises SourceUnavailable, SourceRefused.
        work: does a task, with a session; its last argument returns whether the result is of use no longer.
    """

    def __init__(
        self,
        open_session: Callable[[], Connection],
        work: Callable[[Connection, _Task, Callable[[], bool]], _Result],
        sessions: int,
    ) -> None:
        self._open_session = open_session
        self._work = work
        self._changed = threading.Condition()
        self._tasks: deque[_Pending[_Task]] = deque()
        self._results: list[tuple[_Task, _Result]] = []
        self._failure: BaseException | None = None
        self._is_over = False
        self._busy: set[Connection] = set()
        self._without: set[threading.Thread] = set()
        self._threads = [
            threading.Thread(target=self._run, name=f"copy session {number + 1}", daemon=True)
            for number in range(sessions)
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
        # A session that is busy may not have sent its query yet: that is cancelled the next time.
        while any(thread.is_alive() for thread in self._threads):
            with self._changed:
                busy = list(self._busy)
            for connection in busy:
                with contextlib.suppress(psycopg.Error):
                    connection.cancel_safe(timeout=_CANCEL_TIMEOUT_S)
            until = time.monotonic() + _CANCEL_INTERVAL_S
            for thread in self._threads:
                thread.join(max(until - time.monotonic(), 0))

    @property
    def queued(self) -> int:
        """The number of tasks that no thread has taken yet."""
        with self._changed:
            return len(self._tasks)

    def add(self, tasks: Iterable[_Task]) -> None:
        """Add tasks; they are taken in their order."""
        with self._changed:
            self._tasks.extend(_Pending(task, 0) for task in tasks)
            self._changed.notify_all()

    def results(self, timeout_s: float) -> list[tuple[_Task, _Result]]:
        """Return the tasks that were done since the last call, with their results; none if that takes too long.

        Raises:
            WalproxyError: what a thread has failed with.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._results or self._failure is not None, timeout_s)
            if self._failure is not None:
                raise self._failure
            return self.left()

    def left(self) -> list[tuple[_Task, _Result]]:
        """Return the tasks that were done since the last call, when the context was left."""
        results, self._results = self._results, []
        return results

    def _run(self) -> None:
        try:
            while (pending := self._next()) is not None:
                try:
                    connection = self._open_session()
                except SourceUnavailable as error:
                    self._put_first(pending)
                    self._do_without(error)
                    continue
                self._count_in()
                with contextlib.closing(connection):
                    self._serve(connection, pending)
        except BaseException as error:  # It is raised in the thread that waits for the results.
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify_all()

    def _do_without(self, error: SourceUnavailable) -> None:
        """Pause, while others do the tasks. Raises the error if no other thread may have a session."""
        thread = threading.current_thread()
        with self._changed:
            is_new = thread not in self._without
            self._without.add(thread)
            remaining = len(self._threads) - len(self._without)
            if not remaining:
                raise error
        if is_new:
            _log.warning("%s; sessions that continue the copy: %d", error, remaining)
        with self._changed:
            self._changed.wait_for(lambda: self._is_over, _REOPEN_S)

    def _count_in(self) -> None:
        """Note that this thread has a session."""
        thread = threading.current_thread()
        with self._changed:
            if thread not in self._without:
                return
            self._without.remove(thread)
            remaining = len(self._threads) - len(self._without)
        _log.info("sessions that continue the copy: %d", remaining)

    def _serve(self, connection: Connection, first: _Pending[_Task]) -> None:
        """Do tasks until the work is over, or the session is lost."""
        pending: _Pending[_Task] | None = first
        while pending is not None:
            with self._changed:
                if self._is_over:
                    return
                self._busy.add(connection)
            try:
                result = self._work(connection, pending.task, lambda: self._is_over)
            except SourceUnavailable as error:
                self._put_back(pending, error)
                return
            finally:
                with self._changed:
                    self._busy.discard(connection)
            with self._changed:
                self._results.append((pending.task, result))
                self._changed.notify_all()
            pending = self._next()

    def _next(self) -> _Pending[_Task] | None:
        """Wait for a task and return it; None if the work is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._tasks or self._is_over)
            return None if self._is_over else self._tasks.popleft()

    def _put_back(self, pending: _Pending[_Task], error: SourceUnavailable) -> None:
        """Have a task done again. Raises the error if that was tried often enough, or the work is over."""
        attempts = pending.attempts + 1
        with self._changed:
            if self._is_over or attempts >= _ATTEMPTS:
                raise error
        self._put_first(_Pending(pending.task, attempts))
        _log.warning("%s; the range is read again", error)

    def _put_first(self, pending: _Pending[_Task]) -> None:
        with self._changed:
            self._tasks.appendleft(pending)
            self._changed.notify_all()
