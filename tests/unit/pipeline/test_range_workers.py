"""Threads with sessions that are lost, cannot be opened, or are of no use any longer."""

import threading
from collections.abc import Callable
from typing import cast

import psycopg
import pytest

from walproxy.pipeline.cdc.apply.copy_ranges import CopyRange
from walproxy.pipeline.cdc.apply.copy_state import CopiedRange
from walproxy.pipeline.cdc.apply.range_workers import RangeWorkers, Task
from walproxy.pipeline.cdc.server import Connection, SourceRefused, SourceUnavailable

TIMEOUT_S = 30.0


class Session:
    """A session of which only its end is of interest."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.is_closed = False

    def cancel_safe(self, *, timeout: float) -> None:
        self.cancelled.set()
        raise psycopg.OperationalError("the session has ended meanwhile")

    def close(self) -> None:
        self.is_closed = True


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


def tasks(count: int) -> list[Task]:
    return [Task(number, CopyRange("public", "t", number, number + 1), None) for number in range(count)]


def copied(task: Task) -> CopiedRange:
    return CopiedRange(1, 2, task.number)


def all_of(workers: RangeWorkers, count: int) -> set[int]:
    found: set[int] = set()
    while len(found) < count:
        results = workers.results(TIMEOUT_S)
        assert results and all(number == each.rows and number not in found for number, each in results)
        found |= {number for number, _ in results}
    return found


def run(house: House, work: Callable[[Connection, Task], CopiedRange], count: int = 6, sessions: int = 3) -> set[int]:
    with RangeWorkers(house.open, lambda connection, task, _: work(connection, task), tasks(count), sessions) as each:
        return all_of(each, count)


def test_each_task_is_done_once_by_no_more_sessions_than_there_are_tasks() -> None:
    house = House()
    assert run(house, lambda _, task: copied(task), 2, 9) == {0, 1}
    assert len(house.sessions) <= 2 and all(session.is_closed for session in house.sessions)


def test_a_task_whose_session_is_lost_is_done_by_another_one_that_waits() -> None:
    house = House()
    begun = threading.Barrier(3)
    lost: list[int] = []

    def work(connection: Connection, task: Task) -> CopiedRange:
        if task.attempts == 0:
            begun.wait(TIMEOUT_S)  # No task is left when this one is lost.
        if task.number == 1 and not lost:
            lost.append(1)
            raise SourceUnavailable("terminating connection")
        return copied(task)

    assert run(house, work, 3, 3) == {0, 1, 2}
    assert lost and all(session.is_closed for session in house.sessions)


def test_a_task_that_loses_each_session_ends_the_work() -> None:
    house = House()
    attempts: list[int] = []

    def work(connection: Connection, task: Task) -> CopiedRange:
        if task.number == 0:
            attempts.append(task.attempts)
            raise SourceUnavailable("terminating connection")
        return copied(task)

    with pytest.raises(SourceUnavailable, match="terminating"):
        run(house, work)
    assert attempts == [0, 1, 2]


def test_sessions_that_cannot_be_opened_are_done_without(caplog: pytest.LogCaptureFixture) -> None:
    house = House(1, 3)

    def work(connection: Connection, task: Task) -> CopiedRange:
        assert house.has_refused_all.wait(TIMEOUT_S)
        return copied(task)

    assert run(house, work) == set(range(6))
    assert [number in caplog.text for number in ("continue the copy: 2", "continue the copy: 1")] == [True, True]
    with pytest.raises(SourceUnavailable, match="too many clients"):
        run(House(1, 2, 3), lambda _, task: copied(task))


def test_any_other_error_ends_the_work_and_cancels_what_the_other_sessions_do() -> None:
    house = House()
    begun = threading.Barrier(2)

    def work(connection: Connection, task: Task) -> CopiedRange:
        begun.wait(TIMEOUT_S)
        if task.number == 0:
            raise SourceRefused("permission denied")
        assert cast(Session, connection).cancelled.wait(TIMEOUT_S)
        raise SourceUnavailable("canceling statement due to user request")

    with pytest.raises(SourceRefused, match="permission denied"):
        run(house, work, 2, 2)
    assert all(session.is_closed for session in house.sessions)
    assert any(session.cancelled.is_set() for session in house.sessions)


def test_what_is_over_is_not_begun() -> None:
    house = House()
    done: list[int] = []
    over = threading.Event()

    def work(connection: Connection, task: Task, is_over: Callable[[], bool]) -> CopiedRange:
        assert not is_over()
        over.wait(TIMEOUT_S)
        done.append(task.number)
        return copied(task)

    def end(workers: RangeWorkers) -> None:
        threading.Timer(0.05, over.set).start()
        workers.__exit__(None, None, None)

    workers = RangeWorkers(house.open, work, tasks(5), 1)
    with workers:
        while not house.sessions:
            assert workers.results(0.01) == []
        end(workers)
    assert len(done) <= 1
