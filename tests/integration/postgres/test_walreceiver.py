"""The replication client against real servers: bytes, positions that gate commits, and every end of a stream."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import uvloop

from safekeeper.base.errors import ConfigurationError, LocalProtocolError
from safekeeper.base.lsn import Lsn, format_lsn, parse_lsn, segment_name, segment_start
from safekeeper.base.timelines import format_timeline_history, tli_of_byte
from tests.integration.conftest import EVERY, NEWEST, NewCluster
from walproxy.postgres.local_server import LocalPostgres, LocalPostgresFailed
from walproxy.postgres.problems import PrimaryProblem, ProblemKind
from walproxy.postgres.replication_protocol import TimelineEnd
from walproxy.postgres.walreceiver import ReplicationConnection

SEGMENT_SIZE = 16 << 20
DEADLINE_S = 20.0
SYNCHRONOUS = {"synchronous_standby_names": "walproxy"}


class Receiver:
    """A stream that is read in the background, and all that came of it."""

    def __init__(self, connection: ReplicationConnection, begin_lsn: Lsn) -> None:
        self.connection = connection
        self.begin_lsn = begin_lsn
        self.wal = bytearray()
        self.keepalives: list[tuple[Lsn, bool]] = []
        self.task = asyncio.create_task(connection.stream(self.on_wal, self.on_keepalive))

    @property
    def end_lsn(self) -> Lsn:
        return self.begin_lsn + len(self.wal)

    def on_wal(self, begin_lsn: Lsn, chunks: list[memoryview]) -> None:
        assert begin_lsn == self.end_lsn
        for chunk in chunks:
            self.wal += chunk
        assert self.connection.received_lsn == self.end_lsn

    def on_keepalive(self, server_end_lsn: Lsn, reply_requested: bool) -> None:
        self.keepalives.append((server_end_lsn, reply_requested))

    def acknowledge(self) -> None:
        self.connection.send_status(self.end_lsn, self.end_lsn, self.end_lsn)

    async def until(self, condition: Callable[[], bool], *, acknowledge: bool = False) -> None:
        """Wait until `condition` holds; meanwhile the stream must not fail."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                if self.task.done():
                    self.task.result()
                if acknowledge and not self.task.done():
                    self.acknowledge()
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def connected(server: LocalPostgres, **settings: str) -> AsyncIterator[ReplicationConnection]:
    connection = await ReplicationConnection.connect(server.conninfo(), settings=settings)
    try:
        yield connection
    finally:
        connection.close()


@contextlib.asynccontextmanager
async def streaming(server: LocalPostgres, slot: str | None = None, **settings: str) -> AsyncIterator[Receiver]:
    """Stream from the start of the current segment."""
    async with connected(server, **settings) as connection:
        identity = await connection.identify()
        if slot is not None:
            await connection.ensure_slot(slot)
        begin_lsn = segment_start(identity.flush_lsn, identity.segment_size)
        await connection.start_replication(slot, begin_lsn, identity.tli)
        receiver = Receiver(connection, begin_lsn)
        try:
            yield receiver
        finally:
            receiver.task.cancel()
            await asyncio.gather(receiver.task, return_exceptions=True)


def flush_lsn(server: LocalPostgres) -> Lsn:
    return parse_lsn(server.execute("SELECT pg_current_wal_flush_lsn()::text")[0][0])


def wal_on_disk(server: LocalPostgres, tli: int, begin_lsn: Lsn, end_lsn: Lsn) -> bytes:
    """Return the bytes of the server's own segments."""
    found = bytearray()
    for lsn in range(begin_lsn, end_lsn, SEGMENT_SIZE):
        found += (server.pg_wal / segment_name(tli, lsn, SEGMENT_SIZE)).read_bytes()
    return bytes(found[: end_lsn - begin_lsn])


async def check_bytes(primary: LocalPostgres) -> None:
    async with streaming(primary) as receiver:
        for _ in range(3):
            await asyncio.to_thread(
                primary.execute,
                "CREATE TABLE load AS SELECT g, repeat('x', 300) FROM generate_series(1, 15000) g;"
                "DROP TABLE load; SELECT pg_switch_wal(); SELECT txid_current()",
            )
        end_lsn = flush_lsn(primary)
        await receiver.until(lambda: receiver.end_lsn >= end_lsn)
        assert end_lsn - receiver.begin_lsn > 2 * SEGMENT_SIZE
        assert receiver.wal[: end_lsn - receiver.begin_lsn] == wal_on_disk(primary, 1, receiver.begin_lsn, end_lsn)
        assert receiver.connection.server_end_lsn >= end_lsn


@EVERY
async def test_streamed_bytes_equal_the_segments_on_disk(primary: LocalPostgres) -> None:
    await check_bytes(primary)


@NEWEST
def test_streamed_bytes_equal_the_segments_on_disk_under_uvloop(primary: LocalPostgres) -> None:
    uvloop.run(check_bytes(primary))


@EVERY
async def test_identity_is_what_the_server_reports(primary: LocalPostgres, major: int) -> None:
    async with connected(primary) as connection:
        identity = await connection.identify()
    [(system_id,)] = primary.execute("SELECT system_identifier FROM pg_control_system()")
    assert (identity.system_id, identity.tli, identity.segment_size) == (system_id, 1, SEGMENT_SIZE)
    assert identity.server_version // 10000 == major
    assert 0 < identity.flush_lsn <= flush_lsn(primary)
    assert (identity.in_recovery, identity.fsync) == (False, True)
    assert (identity.lineage, identity.timeline_history, identity.wal_level) == ((), b"", "replica")


async def test_settings_and_application_name_reach_the_walsender(primary: LocalPostgres) -> None:
    async with streaming(primary) as receiver:
        await receiver.until(lambda: bool(receiver.wal))
        # The walsender of the test before may need a moment to end.
        await receiver.until(
            lambda: primary.execute("SELECT application_name FROM pg_stat_replication") == [("walproxy",)]
        )
    async with connected(primary, wal_sender_timeout="7s", search_path="a, b") as connection:
        assert await connection._show("wal_sender_timeout") == "7s"
        assert await connection._show("search_path") == "a, b"


async def test_slot_is_made_once_and_holds_wal_back(new_cluster: NewCluster) -> None:
    server = new_cluster()
    async with connected(server) as connection:
        assert await connection.ensure_slot("walproxy") is True
        assert await connection.ensure_slot("walproxy") is False
    query = "SELECT slot_type, restart_lsn IS NOT NULL, temporary FROM pg_replication_slots"
    assert server.execute(query) == [("physical", True, False)]
    assert "ERROR" not in server.log_tail(100)


@NEWEST
async def test_name_that_no_slot_can_have_is_refused(primary: LocalPostgres) -> None:
    async with connected(primary) as connection:
        for name in ("", "Walproxy", 'a"b', "x" * 64):
            with pytest.raises(ConfigurationError, match="slot's name"):
                await connection.ensure_slot(name)


@pytest.mark.parametrize("level", ["on", "remote_write"])
async def test_commit_waits_for_the_position_of_its_level(new_cluster: NewCluster, level: str) -> None:
    server = new_cluster(**SYNCHRONOUS, synchronous_commit=level)
    async with streaming(server, "walproxy") as receiver:
        connection = receiver.connection
        await receiver.until(
            lambda: (
                server.execute("SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'") == [("sync",)]
            ),
            acknowledge=True,
        )
        before_lsn = receiver.end_lsn
        commit = asyncio.create_task(asyncio.to_thread(server.execute, "CREATE TABLE t (a int)"))
        await receiver.until(
            lambda: len(server.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'")) == 1
        )
        await receiver.until(lambda: receiver.end_lsn >= flush_lsn(server))
        # What does not count at this level does not release it: the server has seen it, and the commit still waits.
        end_lsn = receiver.end_lsn
        connection.send_status(end_lsn if level == "on" else before_lsn, before_lsn, 0)
        seen = "SELECT write_lsn = %s::pg_lsn, flush_lsn = %s::pg_lsn FROM pg_stat_replication"
        reported = format_lsn(end_lsn if level == "on" else before_lsn), format_lsn(before_lsn)
        await receiver.until(lambda: server.execute(seen, *reported) == [(True, True)])
        assert not commit.done()
        connection.send_status(end_lsn, end_lsn if level == "on" else before_lsn, 0)
        await receiver.until(commit.done)
        await commit


async def test_paused_stream_hands_over_nothing_and_keeps_its_walsender(new_cluster: NewCluster) -> None:
    server = new_cluster(wal_sender_timeout="3s")
    async with streaming(server) as receiver:
        first_lsn = flush_lsn(server)
        await receiver.until(lambda: receiver.end_lsn >= first_lsn, acknowledge=True)
        [(pid,)] = server.execute("SELECT pid FROM pg_stat_replication")
        receiver.connection.pause_reading()
        paused_lsn, messages = receiver.end_lsn, len(receiver.keepalives)
        made = asyncio.create_task(
            asyncio.to_thread(
                server.execute, "CREATE TABLE t AS SELECT g, repeat('x', 500) FROM generate_series(1, 40000) g"
            )
        )
        await receiver.until(made.done, acknowledge=True)
        await made
        # Twice as long as PostgreSQL would wait for an answer to a ping that is not read.
        until_s = asyncio.get_running_loop().time() + 6.0
        await receiver.until(lambda: asyncio.get_running_loop().time() > until_s, acknowledge=True)
        assert (receiver.end_lsn, len(receiver.keepalives)) == (paused_lsn, messages)
        assert server.execute("SELECT pid FROM pg_stat_replication") == [(pid,)]
        receiver.connection.resume_reading()
        end_lsn = flush_lsn(server)
        await receiver.until(lambda: receiver.end_lsn >= end_lsn, acknowledge=True)
        assert receiver.wal[: end_lsn - receiver.begin_lsn] == wal_on_disk(server, 1, receiver.begin_lsn, end_lsn)


async def test_server_answers_a_status_update_that_requests_a_reply(primary: LocalPostgres) -> None:
    async with streaming(primary) as receiver:
        await receiver.until(lambda: receiver.end_lsn >= flush_lsn(primary))
        before = len(receiver.keepalives)
        receiver.connection.send_status(0, 0, 0, reply_requested=True)
        await receiver.until(lambda: len(receiver.keepalives) > before)
        assert receiver.connection.last_message_s <= asyncio.get_running_loop().time()


@NEWEST
async def test_position_beyond_the_wal_received_is_never_reported(primary: LocalPostgres) -> None:
    async with streaming(primary) as receiver:
        await receiver.until(lambda: bool(receiver.wal))
        for positions in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
            with pytest.raises(LocalProtocolError, match="beyond the WAL received"):
                receiver.connection.send_status(*(part and receiver.end_lsn + part for part in positions))


async def test_killed_server_is_lost_after_all_that_it_sent_was_handed_over(new_cluster: NewCluster) -> None:
    server = new_cluster()
    async with streaming(server) as receiver:
        await receiver.until(lambda: receiver.end_lsn >= flush_lsn(server))
        end_lsn = flush_lsn(server)
        await asyncio.to_thread(server.kill9)
        with pytest.raises(PrimaryProblem) as caught:
            await asyncio.wait_for(receiver.task, DEADLINE_S)
        assert (caught.value.kind, caught.value.retry) == (ProblemKind.LOST, True)
        assert "\n" not in caught.value.message
        assert receiver.end_lsn >= end_lsn
        with pytest.raises(PrimaryProblem, match="cannot identify PostgreSQL"):
            await receiver.connection.identify()


async def test_fast_shutdown_ends_when_flush_reaches_its_last_byte(new_cluster: NewCluster) -> None:
    server = new_cluster(**SYNCHRONOUS)
    async with streaming(server, "walproxy") as receiver:
        await receiver.until(lambda: receiver.end_lsn >= flush_lsn(server))
        with pytest.raises(LocalPostgresFailed, match="has not stopped"):
            await asyncio.to_thread(server.stop, "fast", 0.5)
        stop = asyncio.create_task(asyncio.to_thread(server.stop, "fast", DEADLINE_S))
        while not stop.done() and not receiver.task.done():
            receiver.acknowledge()
            await asyncio.sleep(0.005)
        await stop
        # The server may be gone before the stream has read the end of it.
        with pytest.raises(PrimaryProblem) as caught:
            await asyncio.wait_for(receiver.task, DEADLINE_S)
    assert (caught.value.kind, caught.value.retry) == (ProblemKind.SHUT_DOWN, True)
    server.start()
    # The checkpoint of the shutdown is the last record, and we have it.
    [(checkpoint,)] = server.execute("SELECT checkpoint_lsn::text FROM pg_control_checkpoint()")
    assert receiver.begin_lsn <= parse_lsn(checkpoint) < receiver.end_lsn


async def test_timeline_ends_at_the_fork_and_the_next_one_goes_on(new_cluster: NewCluster, folder: Path) -> None:
    server = new_cluster()
    with server.base_backup(folder / "standby") as standby:
        standby.start()
        server.execute("CREATE TABLE t (a int)")
        end = server.execute("SELECT pg_current_wal_flush_lsn()::text")[0][0]
        async with connected(standby) as connection:
            assert (await connection.identify()).in_recovery
        replayed = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        async with asyncio.timeout(DEADLINE_S):
            while standby.execute(replayed, end) != [(True,)]:
                await asyncio.sleep(0.01)
        await asyncio.to_thread(standby.promote)
        standby.execute("INSERT INTO t VALUES (1)")
        async with connected(standby) as connection:
            identity = await connection.identify()
            assert identity.tli == 2
            [(parent, fork_lsn)] = identity.lineage
            assert (parent, identity.in_recovery) == (1, False)
            history = (standby.pg_wal / "00000002.history").read_bytes()
            assert identity.timeline_history == history == await connection.timeline_history(2)
            assert format_timeline_history(identity.lineage) == history
            assert [tli_of_byte(2, identity.lineage, lsn) for lsn in (fork_lsn - 1, fork_lsn)] == [1, 2]

            begin_lsn = segment_start(fork_lsn, SEGMENT_SIZE)
            await connection.start_replication(None, begin_lsn, 1)
            old = Receiver(connection, begin_lsn)
            assert await asyncio.wait_for(old.task, DEADLINE_S) == TimelineEnd(2, fork_lsn)
            assert old.end_lsn == fork_lsn

            # At the fork itself there is nothing to stream of the old one.
            await connection.start_replication(None, fork_lsn, 1)
            assert await connection.stream(old.on_wal, old.on_keepalive) == TimelineEnd(2, fork_lsn)

            # The first segment of the new one begins with the parent's bytes.
            await connection.start_replication(None, begin_lsn, 2)
            new = Receiver(connection, begin_lsn)
            await new.until(lambda: new.end_lsn >= flush_lsn(standby))
            assert new.wal[: len(old.wal)] == old.wal
            assert new.wal == wal_on_disk(standby, 2, begin_lsn, new.end_lsn)
            new.task.cancel()
            await asyncio.gather(new.task, return_exceptions=True)


@NEWEST
async def test_close_ends_a_stream_and_callbacks_errors_reach_its_task(primary: LocalPostgres) -> None:
    async with streaming(primary) as receiver:
        await receiver.until(lambda: bool(receiver.wal))
        receiver.connection.close()
        with pytest.raises(PrimaryProblem, match="the connection is closed"):
            await asyncio.wait_for(receiver.task, DEADLINE_S)
    async with connected(primary) as connection:
        identity = await connection.identify()
        await connection.start_replication(None, segment_start(identity.flush_lsn, SEGMENT_SIZE), 1)

        def broken(begin_lsn: Lsn, chunks: list[memoryview]) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(connection.stream(broken, lambda *_: None), DEADLINE_S)


@NEWEST
async def test_server_that_stops_answering_is_lost_in_time(primary: LocalPostgres) -> None:
    connection = await ReplicationConnection.connect(primary.conninfo())
    # Of the command alone: a busy server may take longer to connect.
    connection._timeout_s = 1.0
    walsender = connection._pgconn.backend_pid
    os.kill(walsender, signal.SIGSTOP)
    try:
        with pytest.raises(PrimaryProblem, match="no answer within 1 s") as caught:
            await connection.identify()
        assert caught.value.kind is ProblemKind.LOST
    finally:
        os.kill(walsender, signal.SIGCONT)
