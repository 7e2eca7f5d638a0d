"""The check that SQL on the primary is possible."""

import asyncio
import logging

import pytest

from walproxy.postgres.problems import PrimaryProblem, ProblemKind, problem_of_connect
from walproxy.proxy.sql_watch import CHECK_INTERVAL_S, SqlWatch

WRONG = problem_of_connect('FATAL:  database "shop" does not exist')


class Watched:
    """A proxy with a primary, and the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        self.now = 0.0
        self.conninfo: str | None = None
        self.checks: list[str] = []
        self.problem: PrimaryProblem | None = None
        self.watch = SqlWatch(lambda: self.conninfo, lambda: self.now)
        self._caplog = caplog
        monkeypatch.setattr("walproxy.proxy.sql_watch.try_session", self._try)

    async def _try(self, conninfo: str, *, timeout_s: float) -> None:
        self.checks.append(conninfo)
        if self.problem is not None:
            raise self.problem

    def lines(self, after_s: float) -> list[str]:
        """Let time pass and check; return what was logged."""
        self._caplog.clear()
        self.now += after_s
        asyncio.run(self.watch.check_if_due())
        return [f"{record.levelname} {record.getMessage()}" for record in self._caplog.records]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Watched:
    return Watched(monkeypatch, caplog)


def test_each_primary_is_checked_when_it_is_connected_and_every_minute(watched: Watched) -> None:
    assert (watched.lines(1.0), watched.checks) == ([], [])
    for conninfo in ("host=db1", "host=db2"):
        watched.conninfo = conninfo
        watched.lines(1.0)
        watched.lines(CHECK_INTERVAL_S - 1)
        assert watched.checks.count(conninfo) == 1
        watched.lines(1.0)
        assert watched.checks.count(conninfo) == 2


def test_a_problem_is_logged_once_and_its_end_too(watched: Watched) -> None:
    watched.conninfo, watched.problem = "host=db1", WRONG
    [line] = watched.lines(1.0)
    assert line.startswith("WARNING SQL on the primary is not possible") and 'database "shop" does not exist' in line
    assert watched.watch.problem == WRONG.message
    assert watched.lines(CHECK_INTERVAL_S) == []
    watched.problem = None
    assert watched.lines(CHECK_INTERVAL_S) == ["INFO SQL on the primary is possible"]
    assert watched.watch.problem == ""


@pytest.mark.parametrize("kind", [ProblemKind.NO_FREE_WALSENDER, ProblemKind.STARTING, ProblemKind.UNREACHABLE])
def test_a_server_that_takes_no_session_now_leaves_the_result_of_the_last_check(
    watched: Watched, kind: ProblemKind
) -> None:
    watched.conninfo, watched.problem = "host=db1", WRONG
    watched.lines(1.0)
    watched.problem = PrimaryProblem(kind, "not now")
    assert watched.lines(CHECK_INTERVAL_S) == []
    assert watched.watch.problem == WRONG.message
