"""Threads with sessions that are lost, cannot be opened, or are of no use any longer."""

import logging
import threading
from collections.abc import Callable
from typing import cast

import psycopg
import pytest

from tests.waiting import wait_for
from walproxy.pipeline.cdc.apply import session_workers
from walproxy.pipeline.cdc.apply.session_workers import SessionWorkers
from walproxy.pipeline.cdc.server import Connection, SourceRefused, SourceUnavailable

TIMEOUT_S = 30.0


class Session:
    """A session of which only its end is of interest."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.cancels = 0
        self.closed = False

    def cancel_safe(self, *, timeout: float) -> None:
        self.cancelled.set()
        self.cancels += 1
        raise psycopg.OperationalError("the session has ended meanwhile")

    def close(self) -> None:
        self.closed = True


class House:
    """Opens sessions; some cannot be opened."""

    def __init__(self, *refused: int) -> None:
        self.sessions: list[Session] = []
        self._refused = refused
        self._lock = threading.Lock()
        self._calls = 0
        self.has_refused_all = threading.Event()

    def open(self) -> Connection:
        with self._lock:
            self._calls += 1
            if self._calls == max(self._refused, default=0):
                self.has_refused_all.set()
            if self._calls in self._refused:
                raise SourceUnavailable("too many clients already")
            self.sessions.append(Session())
            return cast(Connection, self.sessions[-1])


def done(task: int) -> str:
    return f"done: {task}"


def all_of(workers: SessionWorkers[int, str], count: int) -> set[int]:
    found: set[int] = set()
    while len(found) < count:
        results = workers.results(TIMEOUT_S)
        assert all(result == done(task) and task not in found for task, result in results)
        found |= {task for task, _ in results}
    return found


def run(
    house: House, work: Callable[[Connection, int, Callable[[], bool]], str], count: int = 6, sessions: int = 3
) -> set[int]:
    with SessionWorkers(house.open, work, sessions) as workers:
        workers.add(range(count))
        return all_of(workers, count)


def test_each_task_is_done_once_by_no_more_sessions_than_there_are_tasks() -> None:
    house = House()
    assert run(house, lambda _, task, is_over: done(task), 2, 9) == {0, 1}
    assert len(house.sessions) <= 2 and all(session.closed for session in house.sessions)


def test_a_task_whose_session_is_lost_is_done_by_another_one_that_waits() -> None:
    house = House()
    begun = threading.Barrier(3)
    lost: list[int] = []

    def work(connection: Connection, task: int, is_over: Callable[[], bool]) -> str:
        if not lost:
            begun.wait(TIMEOUT_S)  # No task is left when this one is lost.
        if task == 1 and not lost:
            lost.append(1)
            raise SourceUnavailable("terminating connection")
        return done(task)

    assert run(house, work, 3, 3) == {0, 1, 2}
    assert lost and all(session.closed for session in house.sessions)


def test_a_task_that_loses_each_session_ends_the_work() -> None:
    house = House()
    attempts: list[int] = []

    def work(connection: Connection, task: int, is_over: Callable[[], bool]) -> str:
        if task == 0:
            attempts.append(task)
            raise SourceUnavailable("terminating connection")
        return done(task)

    with pytest.raises(SourceUnavailable, match="terminating"):
        run(house, work)
    assert attempts == [0, 0, 0]


def test_sessions_that_cannot_be_opened_are_done_without(caplog: pytest.LogCaptureFixture) -> None:
    house = House(1, 3)

    def work(connection: Connection, task: int, is_over: Callable[[], bool]) -> str:
        assert house.has_refused_all.wait(TIMEOUT_S)
        return done(task)

    assert run(house, work) == set(range(6))
    assert [number in caplog.text for number in ("continue the copy: 2", "continue the copy: 1")] == [True, True]
    with pytest.raises(SourceUnavailable, match="too many clients"):
        run(House(1, 2, 3), lambda _, task, is_over: done(task))


def test_a_session_that_could_not_be_opened_is_opened_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(session_workers, "_REOPEN_S", 0.01)
    caplog.set_level(logging.INFO)
    both = threading.Barrier(2)

    def work(connection: Connection, task: int, is_over: Callable[[], bool]) -> str:
        both.wait(TIMEOUT_S)
        return done(task)

    assert run(House(1), work, 4, 2) == set(range(4))
    assert caplog.text.count("too many clients already; sessions that continue the copy: 1") == 1
    assert caplog.text.count("sessions that continue the copy: 2") == 1


def test_any_other_error_ends_the_work_and_cancels_what_the_other_sessions_do() -> None:
    house = House()
    begun = threading.Barrier(2)

    def work(connection: Connection, task: int, is_over: Callable[[], bool]) -> str:
        begun.wait(TIMEOUT_S)
        if task == 0:
            raise SourceRefused("permission denied")
        assert cast(Session, connection).cancelled.wait(TIMEOUT_S)
        raise SourceUnavailable("canceling statement due to user request")

    with pytest.raises(SourceRefused, match="permission denied"):
        run(house, work, 2, 2)
    assert all(session.closed for session in house.sessions)
    assert any(session.cancelled.is_set() for session in house.sessions)


def test_what_is_over_is_not_begun() -> None:
    house = House()
    begun: list[tuple[int, bool]] = []
    over = threading.Event()

    def work(connection: Connection, task: int, is_over: Callable[[], bool]) -> str:
        begun.append((task, is_over()))
        over.wait(TIMEOUT_S)
        return done(task)

    def end_the_first() -> None:
        wait_for(lambda: workers._is_over, "it is over", TIMEOUT_S)
        over.set()

    workers = SessionWorkers(house.open, work, 1)
    workers.add(range(5))
    with workers:
        while not begun:
            assert workers.results(0.01) == []
        threading.Thread(target=end_the_first, daemon=True).start()
    assert begun == [(0, False)]


def test_a_session_that_is_opened_when_the_work_is_over_does_nothing() -> None:
    house, opening = House(), threading.Event()
    begun: list[int] = []

    def open_late() -> Connection:
        opening.set()
        wait_for(lambda: workers._is_over, "it is over", TIMEOUT_S)
        return house.open()

    def work(connection: Connection, task: int, is_over: Callable[[], bool]) -> str:
        begun.append(task)
        return done(task)

    workers = SessionWorkers(open_late, work, 1)
    with workers:
        workers.add([0])
        assert opening.wait(TIMEOUT_S)
    assert not begun and all(session.closed for session in house.sessions)


def test_a_query_that_was_sent_after_the_first_cancel_is_cancelled() -> None:
    house, begun = House(), threading.Event()

    def work(connection: Connection, task: int, is_over: Callable[[], bool]) -> str:
        begun.set()
        assert cast(Session, connection).cancelled.wait(TIMEOUT_S)
        wait_for(lambda: cast(Session, connection).cancels > 1, "the query is cancelled", TIMEOUT_S)
        raise SourceUnavailable("canceling statement due to user request")

    with SessionWorkers(house.open, work, 1) as workers:
        workers.add([0])
        assert begun.wait(TIMEOUT_S)
    assert house.sessions[0].cancels > 1 and house.sessions[0].closed
