"""The sessions of a daemon: what a failed login ends, how often one is tried, and uses that are cancelled."""

import asyncio
import math
from typing import Any

import pytest

import walproxy.postgres.sessions
from tests.unit.event_loop import on_the_loop, until
from tests.unit.tiny_postgres import TinyPostgres
from walproxy.postgres.problems import PrimaryProblem, ProblemKind
from walproxy.postgres.sessions import SqlSessions, _Failure, _Logins

FULL = ("53300", "sorry, too many clients already")


def tries(sessions: SqlSessions) -> int:
    """Return how many sessions the pool has, or tries to open."""
    assert sessions._pool is not None
    return sessions._pool.get_stats()["pool_size"]


async def use(sessions: SqlSessions, timeout_s: float = 10.0) -> None:
    async with sessions.session("look", timeout_s) as session:
        await session.execute("")


@on_the_loop
async def test_a_wait_for_a_reply_that_is_cancelled_is_cancelled() -> None:
    """And is not an error of the connection, which is dropped for it."""
    async with TinyPostgres().listening() as server, SqlSessions(server.conninfo) as sessions:

        async def hang() -> None:
            async with sessions.session("look") as session:
                await session.execute("SELECT pg_sleep(1000)")

        hanging = asyncio.create_task(hang())
        await until(lambda: bool(server.queries))
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        assert hanging.cancelled()


@on_the_loop
async def test_a_refused_login_leaves_a_wait_for_a_session_that_is_lent() -> None:
    """Clients use all connections; the session that the pool has is in use for a moment."""
    async with TinyPostgres().listening() as server, SqlSessions(server.conninfo) as sessions:
        async with sessions.session("look"):
            server.refuse = lambda parameters: FULL
            waiting = asyncio.create_task(use(sessions))
            await until(lambda: server.refused > 0 and tries(sessions) == 1)
            assert not waiting.done()
        await waiting
        assert len(server.clients) == 1


@on_the_loop
async def test_a_wait_for_a_lent_session_that_ends_names_the_reason_of_the_refused_login() -> None:
    async with TinyPostgres().listening() as server, SqlSessions(server.conninfo) as sessions:
        async with sessions.session("look"):
            server.refuse = lambda parameters: FULL
            with pytest.raises(PrimaryProblem, match="too many clients") as refused:
                await use(sessions, 0.2)
            assert refused.value.kind is ProblemKind.NO_FREE_WALSENDER
        await use(sessions)


@on_the_loop
async def test_a_lent_session_that_breaks_ends_the_wait_for_it() -> None:
    async with TinyPostgres().listening() as server, SqlSessions(server.conninfo) as sessions:
        with pytest.raises(PrimaryProblem, match="look: "):
            async with sessions.session("look") as session:
                server.refuse = lambda parameters: FULL
                waiting = asyncio.create_task(use(sessions, 600.0))
                await until(lambda: server.refused > 0 and tries(sessions) == 1)
                server.clients[0].close()
                await session.execute("SELECT 1")
        with pytest.raises(PrimaryProblem, match="too many clients"):
            await waiting


@on_the_loop
async def test_a_session_is_kept_for_as_long_as_it_works() -> None:
    """One that is closed for its age while clients use all connections cannot be replaced."""
    async with (
        TinyPostgres().listening() as server,
        SqlSessions(server.conninfo) as sessions,
        sessions.session("look") as session,
    ):
        assert session._expire_at == math.inf  # type: ignore[attr-defined]


@on_the_loop
async def test_a_failed_use_logs_in_once_and_so_does_the_next() -> None:
    async with TinyPostgres().listening() as server, SqlSessions(server.conninfo) as sessions:
        server.refuse = lambda parameters: FULL
        for count in (1, 2):
            with pytest.raises(PrimaryProblem, match="too many clients"):
                await use(sessions)
            await until(lambda: tries(sessions) == 0)
            assert server.refused == count
        server.refuse = lambda parameters: None
        await use(sessions)


@on_the_loop
async def test_a_session_that_is_dropped_is_replaced_at_the_next_use() -> None:
    async with TinyPostgres().listening() as server, SqlSessions(server.conninfo) as sessions:
        with pytest.raises(PrimaryProblem, match=r"no answer within 0\.1 s"):
            async with sessions.session("look", 0.1) as session:
                await session.execute("SELECT pg_sleep(1000)")
        await until(lambda: tries(sessions) == 0)
        assert len(server.logins) == 1
        await use(sessions)
        assert len(server.logins) == 2


class FakePool:
    """A pool whose only wait for a session takes a moment to end. It is made with the arguments of a real one."""

    made: "FakePool"

    def __init__(self, text: str, *, kwargs: dict[str, Any], **others: object) -> None:
        self.logins: _Logins = kwargs["logins"]
        self.began = asyncio.Event()
        self.ends = asyncio.Event()
        self.may_end = asyncio.Event()
        FakePool.made = self

    @staticmethod
    async def check_connection(connection: object) -> None:
        raise AssertionError("there is none")

    async def open(self) -> None:
        pass

    async def close(self, timeout: float) -> None:
        pass

    async def getconn(self, timeout: float) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ends.set()
            await self.may_end.wait()

    async def putconn(self, session: object) -> None:
        raise AssertionError("there is none")


@on_the_loop
async def test_a_use_that_is_cancelled_while_its_login_fails_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walproxy.postgres.sessions, "AsyncConnectionPool", FakePool)
    async with SqlSessions("host=db1") as sessions:
        using = asyncio.create_task(use(sessions))
        await until(lambda: hasattr(FakePool, "made"))
        pool = FakePool.made
        await pool.began.wait()
        pool.logins.failed(_Failure(math.inf, "refused"))
        await pool.ends.wait()
        using.cancel()
        pool.may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await using
