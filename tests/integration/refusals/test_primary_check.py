"""Everything that can be wrong with a primary, on real servers: one line, and whether waiting can help."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import psycopg
import pytest

from safekeeper.base.errors import EXIT_CONFIGURATION, EXIT_PRIMARY_REFUSED, ConfigurationError
from safekeeper.base.lsn import Lsn, segment_start
from tests.integration.conftest import EVERY, NEWEST, NewCluster
from tests.primary_answer import answer_to
from walproxy.postgres.local_server import LocalPostgres, LocalPostgresFailed
from walproxy.postgres.problems import PrimaryProblem, ProblemKind, problem_of_identity
from walproxy.postgres.replication import PrimaryFacts
from walproxy.postgres.slot_holder import SlotHolder
from walproxy.postgres.sql import read_slot
from walproxy.postgres.walreceiver import ReplicationConnection

SEGMENT_SIZE = 16 << 20


@contextlib.asynccontextmanager
async def connected(conninfo: str, timeout_s: float = 10.0) -> AsyncIterator[ReplicationConnection]:
    connection = await ReplicationConnection.connect(conninfo, timeout_s=timeout_s)
    try:
        yield connection
    finally:
        connection.close()


async def identity_of(server: LocalPostgres) -> PrimaryFacts:
    async with connected(server.conninfo()) as connection:
        return await connection.identify()


async def problem_of(action: Coroutine[Any, Any, object]) -> PrimaryProblem:
    """Return the problem that `action` meets, after checks that hold for each."""
    with pytest.raises(PrimaryProblem) as caught:
        await asyncio.wait_for(action, 20)
    problem = caught.value
    assert str(problem) == problem.message
    assert "\n" not in problem.message
    assert (problem.retry, problem.exit_code) == (problem.kind.retry, problem.kind.exit_code)
    assert "Error" not in problem.message and "FATAL" not in problem.message
    return problem


async def problem_of_connecting(conninfo: str) -> PrimaryProblem:
    async def connect() -> None:
        async with connected(conninfo):
            pass

    return await problem_of(connect())


async def stream_from(connection: ReplicationConnection, slot: str | None, begin_lsn: Lsn) -> None:
    await connection.start_replication(slot, begin_lsn, 1)
    await connection.stream(lambda *_: None, lambda *_: None)


@NEWEST
async def test_connection_string_that_cannot_be_read_is_a_configuration_error(major: int) -> None:
    for conninfo in ("host", "nonsense=1", "postgresql://[::1", "host=a sslmode"):
        with pytest.raises(ConfigurationError, match="connection string is wrong") as caught:
            await ReplicationConnection.connect(conninfo)
        assert "\n" not in str(caught.value)


@NEWEST
async def test_values_that_libpq_refuses_are_wrong_whatever_the_server(primary: LocalPostgres) -> None:
    for options in ({"sslmode": "some"}, {"port": "x"}, {"service": "nowhere"}, {"keepalives_idle": "soon"}):
        problem = await problem_of_connecting(psycopg.conninfo.make_conninfo(primary.conninfo(), **options))
        assert problem.kind is ProblemKind.WRONG_CONNINFO, problem.message
        assert problem.exit_code == EXIT_CONFIGURATION


@NEWEST
async def test_server_that_is_not_there_is_waited_for(new_cluster: NewCluster) -> None:
    server = new_cluster(start=False)
    gone = psycopg.conninfo.make_conninfo(server.conninfo(), port="1")
    for conninfo in (
        gone,
        psycopg.conninfo.make_conninfo(gone, host="/nowhere"),
        psycopg.conninfo.make_conninfo(gone, host="no-such-host.invalid"),
        psycopg.conninfo.make_conninfo(gone, host="127.0.0.1,127.0.0.1", port="1,2"),
    ):
        problem = await problem_of_connecting(conninfo)
        assert (problem.kind, problem.retry) == (ProblemKind.UNREACHABLE, True), problem.message


async def test_server_that_shuts_down_is_waited_for(new_cluster: NewCluster) -> None:
    server = new_cluster()
    with psycopg.connect(server.conninfo()):
        with pytest.raises(LocalPostgresFailed, match="has not stopped"):
            server.stop("smart", 0.5)  # it waits for the session above, and lets no session in
        problem = await problem_of_connecting(server.conninfo())
    assert (problem.kind, problem.retry) == (ProblemKind.STARTING, True), problem.message


async def test_server_without_replication_needs_another_configuration(new_cluster: NewCluster) -> None:
    server = new_cluster(wal_level="minimal", max_wal_senders="0")
    problem = await problem_of_connecting(server.conninfo())
    assert (problem.kind, problem.exit_code) == (ProblemKind.NO_REPLICATION, EXIT_CONFIGURATION), problem.message
    assert "wal_level = replica" in problem.message


async def test_exhausted_walsenders_and_slots_are_waited_for(new_cluster: NewCluster) -> None:
    server = new_cluster(max_wal_senders="1", max_replication_slots="1")
    async with connected(server.conninfo()) as connection:
        assert await connection.ensure_slot("first")
        problem = await problem_of(connection.ensure_slot("second"))
        assert (problem.kind, problem.retry) == (ProblemKind.NO_FREE_SLOT, True), problem.message
        assert "raise max_replication_slots or drop" in problem.message
        problem = await problem_of_connecting(server.conninfo())
        assert (problem.kind, problem.retry) == (ProblemKind.NO_FREE_WALSENDER, True), problem.message
        assert "raise max_wal_senders" in problem.message
        assert await connection.ensure_slot("first") is False  # a refused command leaves the connection usable


@EVERY
async def test_server_without_slots_needs_another_configuration(new_cluster: NewCluster) -> None:
    server = new_cluster(max_replication_slots="0")
    async with connected(server.conninfo()) as connection:
        problem = await problem_of(connection.ensure_slot("walproxy"))
    assert (problem.kind, problem.exit_code) == (ProblemKind.NO_REPLICATION, EXIT_CONFIGURATION), problem.message


async def test_roles_that_may_not_replicate_are_refused(new_cluster: NewCluster) -> None:
    server = new_cluster()
    server.execute("CREATE ROLE plain LOGIN; CREATE ROLE secret LOGIN REPLICATION PASSWORD 'right'")
    (server.data_directory / "pg_hba.conf").write_text(
        "host all postgres 127.0.0.1/32 trust\n"
        "host replication plain 127.0.0.1/32 trust\n"
        "host replication nobody 127.0.0.1/32 trust\n"
        "host replication secret 127.0.0.1/32 scram-sha-256\n"
    )
    server.restart()
    for user, kind, advice in (
        ("plain", ProblemKind.NO_REPLICATION_RIGHT, "ALTER ROLE ... REPLICATION"),
        ("nobody", ProblemKind.NO_LOGIN, 'role "nobody" does not exist'),
        ("postgres", ProblemKind.NO_LOGIN, "pg_hba.conf"),  # no line for it
        ("secret", ProblemKind.NO_LOGIN, ""),  # no password
    ):
        problem = await problem_of_connecting(server.conninfo(user=user))
        assert (problem.kind, problem.exit_code) == (kind, EXIT_CONFIGURATION), problem.message
        assert advice in problem.message
    problem = await problem_of_connecting(server.conninfo(user="secret", password="wrong"))
    assert (problem.kind, problem.exit_code) == (ProblemKind.NO_LOGIN, EXIT_CONFIGURATION), problem.message
    assert "wrong" not in problem.message
    # A role that may replicate and nothing else reads all that is needed, without a database.
    async with connected(server.conninfo(user="secret", password="right")) as connection:
        assert (await connection.identify()).fsync
        assert await connection.ensure_slot("walproxy")
    problem = await problem_of(read_slot(server.conninfo(user="secret", password="right"), "walproxy"))
    assert problem.kind is ProblemKind.NO_LOGIN, problem.message
    problem = await problem_of_connecting(server.conninfo(sslmode="require"))
    assert problem.kind is ProblemKind.NO_LOGIN, problem.message


@EVERY
async def test_slot_in_use_is_waited_for_until_its_holder_is_ended(new_cluster: NewCluster) -> None:
    server = new_cluster()
    conninfo = server.conninfo()
    assert await read_slot(conninfo, "walproxy") is None
    async with connected(conninfo) as deposed, connected(conninfo) as winner:
        await deposed.ensure_slot("walproxy")
        assert await SlotHolder(conninfo, "walproxy", 10.0).end() is None
        begin_lsn = segment_start((await deposed.identify()).flush_lsn, SEGMENT_SIZE)
        await deposed.start_replication("walproxy", begin_lsn, 1)
        stream = asyncio.create_task(deposed.stream(lambda *_: None, lambda *_: None))

        problem = await problem_of(winner.start_replication("walproxy", begin_lsn, 1))
        assert (problem.kind, problem.retry) == (ProblemKind.SLOT_IN_USE, True), problem.message
        slot = await read_slot(conninfo, "walproxy")
        assert slot is not None
        assert slot.wal_status == "reserved"
        [(slot_type, pid)] = server.execute("SELECT slot_type, active_pid FROM pg_replication_slots")
        assert slot_type == "physical"

        holder = SlotHolder(conninfo, "walproxy", 10.0)
        holder.refused(problem.plain)
        assert await holder.end() == pid
        problem = await problem_of(stream)
        assert (problem.kind, problem.retry) == (ProblemKind.ENDED, True), problem.message
        await winner.start_replication("walproxy", begin_lsn, 1)
        # The walsender of a later winner is none of a deposed proxy.
        problem = await problem_of(holder.end())
        assert problem.kind is ProblemKind.SLOT_IN_USE and holder.is_another, problem.message
        [(later,)] = server.execute("SELECT active_pid FROM pg_replication_slots")
        assert later not in (None, pid)


@EVERY
async def test_logical_slot_is_refused(new_cluster: NewCluster) -> None:
    server = new_cluster(wal_level="logical")
    server.execute("SELECT pg_create_logical_replication_slot('walproxy', 'pgoutput')")
    async with connected(server.conninfo()) as connection:
        problem = await problem_of(connection.ensure_slot("walproxy"))
        assert (problem.kind, problem.exit_code) == (ProblemKind.WRONG_SLOT, EXIT_CONFIGURATION), problem.message
        begin_lsn = segment_start((await connection.identify()).flush_lsn, SEGMENT_SIZE)
        problem = await problem_of(connection.start_replication("walproxy", begin_lsn, 1))
        assert (problem.kind, problem.exit_code) == (ProblemKind.WRONG_SLOT, EXIT_CONFIGURATION), problem.message


async def test_slot_that_was_dropped_is_waited_for(primary: LocalPostgres) -> None:
    async with connected(primary.conninfo()) as connection:
        problem = await problem_of(connection.start_replication("nowhere", SEGMENT_SIZE, 1))
        assert (problem.kind, problem.retry) == (ProblemKind.SLOT_MISSING, True), problem.message


@EVERY
async def test_removed_wal_and_invalidated_slot_are_refused(new_cluster: NewCluster, major: int) -> None:
    server = new_cluster(max_slot_wal_keep_size="16MB", wal_keep_size="0", min_wal_size="32MB", max_wal_size="32MB")
    async with connected(server.conninfo()) as connection:
        await connection.ensure_slot("walproxy")
        begin_lsn = segment_start((await connection.identify()).flush_lsn, SEGMENT_SIZE)
    for _ in range(5):
        server.execute("SELECT pg_switch_wal(); SELECT txid_current()")
        server.execute("CHECKPOINT")
    slot = await read_slot(server.conninfo(), "walproxy")
    assert slot is not None
    assert slot.wal_status == "lost"
    async with connected(server.conninfo()) as connection:
        problem = await problem_of(stream_from(connection, "walproxy", begin_lsn))
        assert problem.kind is (ProblemKind.SLOT_INVALIDATED if major >= 18 else ProblemKind.WAL_REMOVED), (
            problem.message
        )
        assert problem.exit_code == EXIT_PRIMARY_REFUSED
    async with connected(server.conninfo()) as connection:
        problem = await problem_of(stream_from(connection, None, begin_lsn))
        assert (problem.kind, problem.exit_code) == (ProblemKind.WAL_REMOVED, EXIT_PRIMARY_REFUSED), problem.message


@EVERY
async def test_positions_and_timelines_that_the_server_does_not_have_are_refused(primary: LocalPostgres) -> None:
    identity = await identity_of(primary)
    ahead_lsn = segment_start(identity.flush_lsn, SEGMENT_SIZE) + 10 * SEGMENT_SIZE
    async with connected(primary.conninfo()) as connection:
        problem = await problem_of(stream_from(connection, None, ahead_lsn))
        assert (problem.kind, problem.exit_code) == (ProblemKind.WRONG_POSITION, EXIT_PRIMARY_REFUSED), problem.message
    async with connected(primary.conninfo()) as connection:
        problem = await problem_of(connection.start_replication(None, identity.flush_lsn, 7))
        assert (problem.kind, problem.exit_code) == (ProblemKind.WRONG_POSITION, EXIT_PRIMARY_REFUSED), problem.message


async def test_fsync_off_is_refused_and_full_page_writes_off_is_fine(new_cluster: NewCluster) -> None:
    server = new_cluster(full_page_writes="off")
    identity = await identity_of(server)
    assert problem_of_identity(identity) is None
    server.configure({"fsync": "off"})
    server.restart()
    problem = problem_of_identity(await identity_of(server))
    assert problem is not None
    assert (problem.kind, problem.exit_code) == (ProblemKind.FSYNC_OFF, EXIT_PRIMARY_REFUSED)


async def test_standby_is_waited_for(new_cluster: NewCluster) -> None:
    server = new_cluster()
    server.stop()
    (server.data_directory / "standby.signal").touch()
    server.start()
    problem = problem_of_identity(await identity_of(server))
    assert problem is not None
    assert (problem.kind, problem.retry) == (ProblemKind.IN_RECOVERY, True)


async def test_the_slots_of_logical_subscribers_can_be_read_on_every_version(primary: LocalPostgres) -> None:
    subscribers = (await answer_to(primary.conninfo())).subscribers
    version = int(primary.execute("SHOW server_version_num")[0][0])
    assert subscribers.slots == {}
    assert subscribers.synchronized_standby_slots == ("" if version >= 170000 else None)
