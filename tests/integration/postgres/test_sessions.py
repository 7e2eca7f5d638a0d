"""Our SQL sessions on real servers: their settings, a pool's sessions, and failures that come at once or on time."""

import asyncio
import contextlib
import os
import signal

import psycopg
import pytest

from tests.integration.conftest import EVERY, NEWEST, NewCluster
from walproxy.limbo.sessions import read_waiting_sessions
from walproxy.postgres import command_connection
from walproxy.postgres.bounded_sql import bounded_connection
from walproxy.postgres.local_server import LocalPostgres
from walproxy.postgres.problems import PrimaryProblem, ProblemKind
from walproxy.postgres.sessions import SESSIONS_MAX, SqlSession, SqlSessions, one_session, open_blocking
from walproxy.postgres.sql_walsender import urgent_sql
from walproxy.postgres.walreceiver import ReplicationConnection

# What a site sets for all sessions, each of which ended or changed something of ours.
OF_THE_SITE = {
    "statement_timeout": "200ms",
    "lock_timeout": "100ms",
    "idle_in_transaction_session_timeout": "100ms",
    "default_transaction_isolation": "serializable",
    "search_path": "public",
}
SINCE = {"idle_session_timeout": 14, "transaction_timeout": 17}
COUNT = "SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE application_name = %s"


def sessions_of(server: LocalPostgres, name: str) -> int:
    [(count,)] = server.execute(COUNT, name)
    return int(count)


async def backend_of(session: SqlSession) -> int:
    row = await (await session.execute("SELECT pg_backend_pid()")).fetchone()
    assert row is not None
    return int(row[0])


async def use(sessions: SqlSessions) -> int:
    async with sessions.session("look") as session:
        return await backend_of(session)


@EVERY
async def test_no_setting_that_a_site_makes_for_everybody_reaches_our_sessions(new_cluster: NewCluster) -> None:
    server = new_cluster()
    of_the_site = OF_THE_SITE | {name: "200ms" for name, major in SINCE.items() if server.binaries.major >= major}
    for name, value in of_the_site.items():
        server.execute(f"ALTER ROLE postgres IN DATABASE postgres SET {name} = '{value}'")
    names = ", ".join(f"'{name}'" for name in of_the_site)
    ask = f"SELECT name, setting FROM pg_settings WHERE name IN ({names})"
    patience = "SELECT pg_sleep(0.5)"
    found = []
    async with one_session(server.conninfo(), "look") as session:
        await session.execute(patience)
        found.append(dict(await (await session.execute(ask.encode())).fetchall()))
    with open_blocking(server.conninfo(), application_name="test", statement_timeout_s=30) as blocking:
        blocking.execute(patience)
        found.append(dict(blocking.execute(ask.encode()).fetchall()))
    with bounded_connection(server.conninfo(), whose="the server", timeout_s=29) as bounded:
        bounded.rows(patience, "wait")
        found.append({str(name): value for name, value in bounded.rows(ask, "look")})
    wanted = dict.fromkeys(of_the_site, "0") | {
        "statement_timeout": "30000",
        "default_transaction_isolation": "read committed",
        "search_path": "pg_catalog,pg_temp",
    }
    assert found == [wanted] * 3


@NEWEST
async def test_a_session_that_does_not_write_cannot(new_cluster: NewCluster) -> None:
    server = new_cluster()
    with pytest.raises(PrimaryProblem, match="read-only transaction"):
        async with one_session(server.conninfo(), "write") as session:
            await session.execute("CREATE TABLE public.written ()")
    async with one_session(server.conninfo(), "write", writes=True) as session:
        await session.execute("CREATE TABLE public.written ()")


@NEWEST
async def test_the_sessions_of_a_pool_are_used_again_and_are_two_at_most(new_cluster: NewCluster) -> None:
    server = new_cluster()
    async with SqlSessions(server.conninfo(), "pooled") as sessions:
        assert sessions_of(server, "pooled") == 0
        async with sessions.session("look") as session:
            first = await backend_of(session)
        async with sessions.session("look") as session:
            assert await backend_of(session) == first

        async def look() -> int:
            async with sessions.session("look", 30.0) as session:
                await session.execute("SELECT pg_sleep(0.1)")
                return await backend_of(session)

        assert len(set(await asyncio.gather(*(look() for _ in range(8))))) <= SESSIONS_MAX
    async with one_session(server.conninfo(), "look") as session:
        while (await (await session.execute(COUNT, ("pooled",))).fetchone()) != (0,):
            await asyncio.sleep(0.05)


@NEWEST
async def test_a_session_that_the_server_has_ended_is_replaced_before_use(new_cluster: NewCluster) -> None:
    server = new_cluster()
    async with SqlSessions(server.conninfo(), "pooled") as sessions:
        async with sessions.session("look") as session:
            first = await backend_of(session)
        server.execute("SELECT pg_terminate_backend(%s, 10000)", first)
        async with sessions.session("look") as session:
            assert await backend_of(session) != first
        server.restart()
        async with sessions.session("look") as session:
            assert await backend_of(session)


@NEWEST
async def test_the_reason_of_a_refused_session_comes_at_once_and_the_next_use_tries_again(
    new_cluster: NewCluster,
) -> None:
    server = new_cluster()
    async with SqlSessions(server.conninfo(dbname="shop"), "pooled") as sessions:
        for _ in range(2):
            with pytest.raises(PrimaryProblem, match='database "shop" does not exist'):
                async with asyncio.timeout(20), sessions.session("look", 30.0):
                    pass
        server.execute("CREATE DATABASE shop")
        async with sessions.session("look") as session:
            assert await backend_of(session)
        server.stop()
        with pytest.raises(PrimaryProblem) as caught:
            async with asyncio.timeout(20), sessions.session("look", 30.0):
                pass
        assert caught.value.kind is ProblemKind.UNREACHABLE


@NEWEST
async def test_connections_that_are_used_up_leave_the_session_that_a_pool_has(new_cluster: NewCluster) -> None:
    server = new_cluster(max_connections="6", superuser_reserved_connections="0", max_wal_senders="2")
    async with SqlSessions(server.conninfo(), "pooled") as sessions:
        async with sessions.session("look") as session:
            first = await backend_of(session)
        clients = []
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            while True:
                clients.append(psycopg.connect(server.conninfo()))
        async with sessions.session("look") as session:
            assert await backend_of(session) == first
            # A session that is lent may be returned until then.
            with pytest.raises(PrimaryProblem, match="too many clients"):
                async with sessions.session("look", 1.0):
                    pass
            waiting = asyncio.create_task(use(sessions))
            done, _ = await asyncio.wait([waiting], timeout=0.5)
            assert not done
        assert await waiting == first
        async with sessions.session("look") as session:
            assert await backend_of(session) == first
        for client in clients:
            client.close()


@NEWEST
async def test_the_limbo_reads_sessions_by_the_pool_of_the_proxy(new_cluster: NewCluster) -> None:
    server = new_cluster(max_connections="10", superuser_reserved_connections="0")
    conninfo = server.conninfo()
    async with SqlSessions(conninfo, "pooled") as sessions:
        assert await read_waiting_sessions(conninfo, sessions, timeout_s=10) == []
        with contextlib.ExitStack() as stack:
            with pytest.raises(psycopg.OperationalError, match="too many clients"):
                while True:
                    stack.enter_context(psycopg.connect(conninfo))
            assert await read_waiting_sessions(conninfo, sessions, timeout_s=10) == []
            # The pool is that of another primary.
            with pytest.raises(PrimaryProblem) as refused:
                await read_waiting_sessions(
                    server.conninfo(user="postgres", dbname="template1"), sessions, timeout_s=10
                )
            assert refused.value.kind is ProblemKind.NO_FREE_WALSENDER


async def test_a_backend_that_hangs_holds_no_session_beyond_the_limit(new_cluster: NewCluster) -> None:
    server = new_cluster()
    async with SqlSessions(server.conninfo(), "pooled") as sessions:
        stopped = 0
        try:
            with pytest.raises(PrimaryProblem, match="no answer within 1 s"):
                async with asyncio.timeout(4), sessions.session("look", 1.0) as session:
                    stopped = await backend_of(session)
                    os.kill(stopped, signal.SIGSTOP)
                    await session.execute("SELECT 1")
            async with sessions.session("look") as session:
                assert await backend_of(session) != stopped
        finally:
            os.kill(stopped, signal.SIGCONT)


@NEWEST
async def test_a_closed_pool_connects_again(new_cluster: NewCluster) -> None:
    server = new_cluster()
    async with SqlSessions(server.conninfo(), "pooled") as sessions:
        async with sessions.session("look") as session:
            first = await backend_of(session)
            await sessions.close()
            assert await backend_of(session) == first
        async with sessions.session("look") as session:
            assert await backend_of(session) != first


@EVERY
async def test_timeouts_of_a_site_end_no_connection_for_replication(new_cluster: NewCluster) -> None:
    server = new_cluster()
    of_the_site = ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"]
    of_the_site += [name for name, major in SINCE.items() if server.binaries.major >= major]
    server.execute("CREATE ROLE replicator SUPERUSER LOGIN REPLICATION")
    for name in of_the_site:
        server.execute(f"ALTER ROLE replicator SET {name} = '100ms'")
        server.execute(f"ALTER SYSTEM SET {name} = '500ms'")
    server.reload()
    spare = await ReplicationConnection.connect(server.conninfo(user="replicator"))
    try:
        identity = await spare.identify()
        async with urgent_sql(server.conninfo(user="replicator"), "wait", 10.0) as value:
            await value("SELECT 1 FROM pg_sleep(1)")
        assert (await spare.identify()).system_id == identity.system_id
    finally:
        spare.close()


@NEWEST
async def test_a_server_without_a_limit_for_idle_sessions_is_connected_without_it(
    new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_connection, "_IDLE_TIMEOUT", "no_such_timeout")
    connection = await ReplicationConnection.connect(new_cluster().conninfo())
    assert (await connection.identify()).fsync
    connection.close()
