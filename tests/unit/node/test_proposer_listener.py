"""The proposers' listener: what strangers, the impatient and the slow can do to it, which is nothing."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.acceptor.following import Following
from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import LSN_MAX
from safekeeper.base.networks import Networks
from safekeeper.base.settings import Address, Secret
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.membership import Member, Membership, bootstrap_cluster_id
from safekeeper.consensus.messages import (
    PROTOCOL_VERSION,
    AcceptorGreeting,
    AcceptorMessage,
    AppendRequest,
    AppendResponse,
    ArchiveReport,
    Bootstrap,
    Bootstrapped,
    Elected,
    FolderStates,
    PreVoteRequest,
    PreVoteResponse,
    ProposerGreeting,
    ProposerMessage,
    ReadRequest,
    ReadResponse,
    Refusal,
    RefusalCode,
    VoteRequest,
    VoteResponse,
)
from safekeeper.consensus.term_history import HistoryEntry
from safekeeper.net.admission import Budget
from safekeeper.net.tls import ClientTls, ServerTls
from safekeeper.node.node import Node
from safekeeper.node.proposer_listener import (
    WRITE_HIGH_WATER_BYTES,
    WRITE_LOW_WATER_BYTES,
    Connection,
    ProposerListener,
)
from safekeeper.peers.codec import ACCEPTOR_DIALECT, FrameDecoder, encode, encode_authentication
from safekeeper.peers.peer_auth import Hello, Reason, Refused
from safekeeper.peers.shared_secret import SharedSecret
from safekeeper.storage.data_folder import DataFolder
from tests.unit.certificates import Authority
from tests.unit.event_loop import DEADLINE_S, on_the_loop, until
from tests.unit.faulty_filesystem import FaultyFileSystem
from tests.unit.held_turns import HeldTurns
from tests.unit.node.test_node import ALWAYS_QUICK_S

SEGMENT_SIZE = 1 << 20
BASE_LSN = 3 << 20
LEADER = LeaderId(1, "run1")
MIB = 1 << 20


class Client:
    """A proposer on an asyncio connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.received: list[AcceptorMessage] = []
        self.cluster_id = ""
        self.membership = Membership(1, (Member(1, "a"),))
        self._decoder: FrameDecoder[AcceptorMessage] = FrameDecoder(ACCEPTOR_DIALECT)

    def send(self, *messages: ProposerMessage) -> None:
        self.writer.write(b"".join(b"".join(encode(message)) for message in messages))

    async def receive(self) -> AcceptorMessage | None:
        """Return the next message, None if the connection was closed."""
        async with asyncio.timeout(DEADLINE_S):
            while not self.received:
                try:
                    data = await self.reader.read(1 << 16)
                except ConnectionResetError:
                    return None
                if not data:
                    return None
                # What is said of the archive and of data folders is passed over.
                messages = self._decoder.feed(data)
                self.received += [each for each in messages if not isinstance(each, ArchiveReport | FolderStates)]
        return self.received.pop(0)

    async def greet(self) -> AcceptorGreeting:
        self.send(ProposerGreeting(PROTOCOL_VERSION, "run1", 1))
        greeting = await self.receive()
        assert isinstance(greeting, AcceptorGreeting)
        return greeting

    def asks(self, leader_id: LeaderId) -> VoteRequest:
        """Return a request for a vote in the cluster that it has led."""
        return VoteRequest(leader_id, 1, self.cluster_id, self.membership)

    async def lead(self) -> None:
        greeting = await self.greet()
        members = (Member(1, greeting.incarnation),)
        membership, cluster = Membership(1, members), bootstrap_cluster_id(5, members)
        self.membership, self.cluster_id = membership, cluster
        self.send(Bootstrap(cluster, 5, SEGMENT_SIZE, 150018, membership))
        assert isinstance(await self.receive(), Bootstrapped)
        self.send(self.asks(LEADER))
        assert isinstance(await self.receive(), VoteResponse)
        history = (HistoryEntry(1, BASE_LSN, 1),)
        self.send(Elected(LEADER, cluster, 5, SEGMENT_SIZE, 150018, membership, history, (), BASE_LSN, 0))
        assert isinstance(await self.receive(), AppendResponse)

    async def append(self, begin_lsn: int, payload: bytes) -> None:
        """Append and wait until it is on disk."""
        self.send(append(begin_lsn, payload))
        while True:
            answer = await self.receive()
            assert isinstance(answer, AppendResponse)
            if answer.flush_lsn == begin_lsn + len(payload):
                return


def append(begin_lsn: int, payload: bytes) -> AppendRequest:
    return AppendRequest(LEADER, 1, begin_lsn, 0, 0, 0, True, payload)


class House:
    """A node and its listener."""

    def __init__(
        self,
        directory: Path,
        *,
        connections_max: int,
        greeting_timeout_s: float,
        idle_timeout_s: float,
        tls: ServerTls | None,
        secret: SharedSecret | None,
        networks: Networks | None,
    ):
        self.fs = FaultyFileSystem()
        self.node = Node(DataFolder.open(self.fs, directory, 1, "a" * 32), asyncio.get_running_loop())
        self.listener = ProposerListener(
            self.node,
            budget=Budget(connections_max),
            greeting_timeout_s=greeting_timeout_s,
            idle_timeout_s=idle_timeout_s,
            tls=tls,
            secret=secret,
            networks=networks,
        )
        self.node.attach(self.listener)
        self.clients: list[Client] = []

    async def client(self, tls: ssl.SSLContext | None = None) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.listener.address.port, ssl=tls))
        self.clients.append(client)
        return client

    async def leader_with_wal(self) -> Client:
        """Return a client that leads and has appended 100 bytes."""
        client = await self.client()
        await client.lead()
        await client.append(BASE_LSN, b"x" * 100)
        return client

    async def before_a_usual_append(self) -> tuple[Connection, Acceptor]:
        """Return the connection of such a client, whose next append is a usual one, and the acceptor."""
        await self.leader_with_wal()
        self.node.acceptor._open_fork_lsn = LSN_MAX
        return self.connection(), self.node.acceptor

    def connection(self) -> Connection:
        """The only connection there is."""
        (connection,) = self.listener._connections.values()
        return connection


@contextlib.asynccontextmanager
async def house(
    directory: Path,
    *,
    connections_max: int = 8,
    greeting_timeout_s: float = 60,
    idle_timeout_s: float = 60,
    tls: ServerTls | None = None,
    secret: SharedSecret | None = None,
    networks: Networks | None = None,
) -> AsyncIterator[House]:
    there = House(
        directory / "sk",
        connections_max=connections_max,
        greeting_timeout_s=greeting_timeout_s,
        idle_timeout_s=idle_timeout_s,
        tls=tls,
        secret=secret,
        networks=networks,
    )
    await there.listener.open(Address("127.0.0.1", 0))
    try:
        yield there
    finally:
        there.fs.release()
        there.listener.stop_accepting()
        there.listener.close_all()
        for client in there.clients:
            client.writer.close()
            with contextlib.suppress(ConnectionError):
                await client.writer.wait_closed()
        await until(lambda: there.listener.connection_count == 0)
        await there.node.drain()
        there.node.stop()
        there.node.folder.close()


@on_the_loop
async def test_garbage_closes_its_connection_with_one_warning_and_disturbs_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with house(tmp_path) as there:
        leader = await there.client()
        await leader.lead()
        stranger = await there.client()
        stranger.writer.write(b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await stranger.receive() is None
        assert [r.levelno for r in caplog.records if r.levelno >= logging.WARNING] == [logging.WARNING]
        assert "127.0.0.1:" in caplog.text and "magic" in caplog.text
        await leader.append(BASE_LSN, b"goes on")


@on_the_loop
async def test_a_scanner_cannot_fill_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with house(tmp_path) as there:
        for _ in range(40):
            stranger = await there.client()
            stranger.writer.write(b"\x00" * 16)
            assert await stranger.receive() is None
            stranger.writer.close()
        assert len(caplog.records) == 10


@on_the_loop
async def test_a_proxy_that_is_refused_again_and_again_cannot_fill_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with house(tmp_path) as there:
        for _ in range(40):
            lost = await there.client()
            lost.send(ProposerGreeting(PROTOCOL_VERSION, "run1", 2))
            while await lost.receive() is not None:
                pass
            lost.writer.close()
        reported = [record for record in caplog.records if "this is safekeeper 1, not 2" in record.getMessage()]
        assert len(reported) == 30


@on_the_loop
async def test_messages_in_single_bytes_are_understood(tmp_path: Path) -> None:
    async with house(tmp_path) as there:
        client = await there.client()
        for byte in b"".join(encode(ProposerGreeting(PROTOCOL_VERSION, "run1", 1))):
            client.writer.write(bytes([byte]))
            await client.writer.drain()
            await asyncio.sleep(0)
        assert isinstance(await client.receive(), AcceptorGreeting)


@on_the_loop
async def test_nothing_behind_a_refused_message_is_looked_at(tmp_path: Path) -> None:
    async with house(tmp_path) as there:
        client = await there.client()
        await client.lead()
        client.send(append(BASE_LSN + 5, b"gap"), append(BASE_LSN, b"fits"), append(BASE_LSN + 5, b"gap"))
        refusal = await client.receive()
        assert isinstance(refusal, Refusal) and refusal.code is RefusalCode.POSITION
        assert await client.receive() is None
        assert there.node.acceptor.write_lsn == BASE_LSN
        await until(lambda: there.node.acceptor.leader is None)


@on_the_loop
async def test_what_arrives_while_the_node_waits_for_the_disk_is_handled_afterwards_in_order(tmp_path: Path) -> None:
    async with house(tmp_path) as there:
        client, other = await there.client(), await there.client()
        await client.lead()
        await other.greet()
        there.fs.hold()
        client.send(client.asks(LeaderId(2, "run1")), PreVoteRequest("run1"), client.asks(LeaderId(3, "run1")))
        await until(lambda: not there.node.ready)
        other.send(PreVoteRequest("run2"))
        await until(lambda: len(there.listener.waiting) == 2)
        there.fs.release()
        assert [type(await client.receive()) for _ in range(3)] == [VoteResponse, PreVoteResponse, VoteResponse]
        assert isinstance(await other.receive(), PreVoteResponse)
        assert not there.listener.waiting


@on_the_loop
async def test_connections_that_wait_for_the_node_are_not_read_and_the_first_one_is_handled_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(tmp_path) as there:
        leader, one, other = await there.client(), await there.client(), await there.client()
        await leader.lead()
        await one.greet()
        await other.greet()
        there.fs.hold()
        leader.send(leader.asks(LeaderId(2, "run1")))
        await until(lambda: not there.node.ready)
        for count, client in enumerate((other, one), 2):
            client.send(PreVoteRequest("run2"))
            await until(lambda count=count: len(there.listener.waiting) == count)
        waiting = dict(there.listener.waiting)
        assert not any(connection._transport.is_reading() for connection in waiting.values())
        handled: list[int] = []
        receive = there.node.receive

        def observed(number: int, message: ProposerMessage) -> None:
            handled.append(number)
            receive(number, message)

        monkeypatch.setattr(there.node, "receive", observed)
        there.fs.release()
        await until(lambda: not there.listener.waiting)
        assert handled == list(waiting)[1:], "the leader's connection waits first, and has sent nothing more"
        assert all(connection._transport.is_reading() for connection in waiting.values())


def levels_of(text: str, caplog: pytest.LogCaptureFixture) -> list[int]:
    """Return the levels of the log's lines that contain `text`."""
    return [record.levelno for record in caplog.records if text in record.getMessage()]


def deliver(connection: Connection, message: ProposerMessage) -> None:
    """Let the connection receive a message in two parts, as the event loop does."""
    data = b"".join(encode(message))
    for part in (data[:20], data[20:]):
        connection.get_buffer(-1)[: len(part)] = part
        connection.buffer_updated(len(part))


@on_the_loop
async def test_what_arrives_although_the_connection_is_not_read_is_handled_afterwards_in_order(tmp_path: Path) -> None:
    async with house(tmp_path) as there:
        client = await there.leader_with_wal()
        connection = there.connection()
        there.fs.hold()
        deliver(connection, client.asks(LeaderId(2, "run1")))
        assert not there.node.ready
        deliver(connection, PreVoteRequest("run1"))
        deliver(connection, client.asks(LeaderId(3, "run1")))
        there.fs.release()
        answers = [await client.receive() for _ in range(3)]
        assert [type(answer) for answer in answers] == [VoteResponse, PreVoteResponse, VoteResponse]


@on_the_loop
async def test_an_append_waits_while_its_peer_reads_no_answers(tmp_path: Path) -> None:
    async with house(tmp_path) as there:
        connection, acceptor = await there.before_a_usual_append()
        connection.pause_writing()
        deliver(connection, append(BASE_LSN + 100, b"y" * 10))
        assert acceptor.write_lsn == BASE_LSN + 100
        connection.resume_writing()
        assert acceptor.write_lsn == BASE_LSN + 110


@on_the_loop
async def test_what_arrives_after_the_connection_was_closed_is_ignored(tmp_path: Path) -> None:
    async with house(tmp_path) as there:
        connection, acceptor = await there.before_a_usual_append()
        connection.close()
        for _ in range(2):
            deliver(connection, append(BASE_LSN + 100, b"y" * 10))
        assert acceptor.write_lsn == BASE_LSN + 100


@on_the_loop
async def test_what_arrives_after_a_refused_message_is_ignored(tmp_path: Path) -> None:
    async with house(tmp_path) as there:
        connection, acceptor = await there.before_a_usual_append()
        deliver(connection, append(BASE_LSN + 101, b"gap"))
        await until(lambda: not connection._open)
        # The acceptor has forgotten the closed connection, which alone would suffice.
        acceptor.following = Following(LEADER, connection.number, 0, seen_at=0.0)
        deliver(connection, append(BASE_LSN + 100, b"y" * 10))
        assert acceptor.write_lsn == BASE_LSN + 100


@on_the_loop
async def test_each_leader_gets_answers_with_its_own_term(tmp_path: Path) -> None:
    async with house(tmp_path) as there:
        client = await there.leader_with_wal()
        client.send(client.asks(LeaderId(2, "run1")))
        vote = await client.receive()
        assert isinstance(vote, VoteResponse)
        control = there.node.acceptor.control
        assert control.membership is not None
        history = (*vote.history, HistoryEntry(2, BASE_LSN + 100, 1))
        cluster = (control.cluster_id, 5, SEGMENT_SIZE, 150018, control.membership)
        client.send(Elected(LeaderId(2, "run1"), *cluster, history, (), BASE_LSN, 0))
        answer = await client.receive()
        assert isinstance(answer, AppendResponse) and answer.leader_id == LeaderId(2, "run1")


@pytest.mark.parametrize("over_tls", [False, True], ids=["plaintext", "TLS"])
@on_the_loop
async def test_a_peer_that_does_not_read_its_answers_costs_a_bounded_amount_of_memory(
    tmp_path: Path, over_tls: bool
) -> None:
    authority = Authority(tmp_path)
    tls = ServerTls(*authority.sign("server")) if over_tls else None
    context = ClientTls(authority.ca).context if over_tls else None
    async with house(tmp_path, tls=tls) as there:
        client = await there.client(context)
        await client.lead()
        await client.append(BASE_LSN, bytes(MIB))
        client.send(*(ReadRequest(LEADER, number, BASE_LSN, BASE_LSN + MIB) for number in range(40)))
        connection = there.connection()
        await until(lambda: connection._writing_paused)
        # The node goes on with others meanwhile, and this one's requests wait.
        other = await there.client(context)
        await other.greet()
        for _ in range(100):
            other.send(PreVoteRequest("run2"))
            assert isinstance(await other.receive(), PreVoteResponse)
        assert connection._transport.get_write_buffer_size() <= WRITE_HIGH_WATER_BYTES + 2 * MIB
        numbers = []
        for _ in range(40):
            answer = await client.receive()
            assert isinstance(answer, ReadResponse) and answer.payload == bytes(MIB)
            numbers.append(answer.request_id)
        assert numbers == list(range(40))


@on_the_loop
async def test_a_connection_without_a_greeting_is_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with house(tmp_path, greeting_timeout_s=1.0) as there:
        greeted, silent = await there.client(), await there.client()
        await greeted.greet()
        assert await silent.receive() is None
        assert "no greeting" in caplog.text
        assert there.listener.connection_count == 1


@on_the_loop
async def test_a_connection_that_falls_silent_is_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with house(tmp_path, idle_timeout_s=30) as there:
        client = await there.client()
        await client.lead()
        there.connection().received_at -= 31
        there.listener.watch()
        assert await client.receive() is None
        await until(lambda: there.node.acceptor.leader is None)
        assert levels_of("no data for 30 s", caplog) == [logging.INFO]


@on_the_loop
async def test_a_connection_that_sends_anything_is_not_silent(tmp_path: Path) -> None:
    async with house(tmp_path, idle_timeout_s=30) as there:
        client = await there.client()
        await client.lead()
        connection = there.connection()
        for number in range(2):
            connection.received_at = there.listener.now() - 31
            connection._is_usual = number == 1
            if number:
                await client.append(BASE_LSN, b"x")
            else:
                client.send(PreVoteRequest("run1"))
                assert isinstance(await client.receive(), PreVoteResponse)
            there.listener.watch()
            assert there.listener.connection_count == 1


@on_the_loop
async def test_an_unreachable_peer_is_detected_and_little_is_kept_for_it(tmp_path: Path) -> None:
    async with house(tmp_path) as there:
        await (await there.client()).greet()
        transport = there.connection()._transport
        sock = transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert transport.get_write_buffer_limits() == (WRITE_LOW_WATER_BYTES, WRITE_HIGH_WATER_BYTES)


@on_the_loop
async def test_a_peer_that_does_not_use_tls_is_closed_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = ServerTls(*Authority(tmp_path).sign("server"))
    async with house(tmp_path, tls=tls) as there:
        client = await there.client()
        client.writer.write(b"GET / HTTP/1.0\r\n\r\n")
        async with asyncio.timeout(DEADLINE_S):
            assert (await client.reader.read())[:1] == b"\x15", "an alert"
        await until(lambda: there.listener.connection_count == 0)
        (line,) = [record for record in caplog.records if record.levelname == "WARNING"]
        assert "TLS" in line.getMessage()


@on_the_loop
async def test_a_connection_whose_messages_wait_for_the_node_is_not_silent(tmp_path: Path) -> None:
    async with house(tmp_path, idle_timeout_s=30) as there:
        client = await there.client()
        await client.lead()
        connection = there.connection()
        there.fs.hold()
        client.send(client.asks(LeaderId(2, "run1")), PreVoteRequest("run1"))
        await until(lambda: bool(there.listener.waiting))
        connection.received_at = there.listener.now() - 31
        there.listener.watch()
        assert there.listener.connection_count == 1
        there.fs.release()
        assert [type(await client.receive()) for _ in range(2)] == [VoteResponse, PreVoteResponse]
        connection.received_at = there.listener.now() - 29
        there.listener.watch()
        assert there.listener.connection_count == 1
        connection.received_at = there.listener.now() - 31
        there.listener.watch()
        assert there.listener.connection_count == 0 and await client.receive() is None


@on_the_loop
async def test_the_end_of_a_connection_is_logged_as_a_warning_only_if_it_broke_the_protocol(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with house(tmp_path) as there:
        for broken, level in ((True, logging.WARNING), (False, logging.INFO)):
            client = await there.client()
            await client.greet()
            caplog.clear()
            there.listener.close(there.connection().number, "a reason", broken=broken)
            assert levels_of("a reason", caplog) == [level]
            assert await client.receive() is None
            await until(lambda: there.listener.connection_count == 0)
        caplog.clear()
        there.listener.close(99, "a reason", broken=True)
        there.listener.send(99, PreVoteResponse(True))
        assert caplog.records == []


@on_the_loop
async def test_an_append_that_is_not_a_usual_one_is_handled_as_every_other_message(tmp_path: Path) -> None:
    async with house(tmp_path) as there:
        connection, acceptor = await there.before_a_usual_append()
        deliver(connection, append(BASE_LSN + 99, b"gap"))
        assert acceptor.write_lsn == BASE_LSN + 100
        await until(lambda: there.listener.connection_count == 0)


@on_the_loop
async def test_usual_appends_that_are_received_together_are_flushed_together(tmp_path: Path) -> None:
    async with house(tmp_path) as there:
        connection, acceptor = await there.before_a_usual_append()
        there.node.wal.average_flush_s = ALWAYS_QUICK_S
        before = len(there.fs.synced_by)
        messages = (append(BASE_LSN + 100, b"y" * 10), append(BASE_LSN + 110, b"z" * 10))
        data = b"".join(b"".join(encode(message)) for message in messages)
        connection.get_buffer(-1)[: len(data)] = data
        connection.buffer_updated(len(data))
        assert acceptor.flush_lsn == BASE_LSN + 120 and len(there.fs.synced_by) == before + 1
        # Of one and a half, the whole one is not kept back.
        data = b"".join(encode(append(BASE_LSN + 120, b"a" * 10))) + data[:20]
        connection.get_buffer(-1)[: len(data)] = data
        connection.buffer_updated(len(data))
        assert acceptor.flush_lsn == BASE_LSN + 130


@on_the_loop
async def test_beyond_the_limit_the_proxy_that_has_been_silent_for_longest_makes_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with house(tmp_path, connections_max=2) as there:
        first, second, third = await there.client(), await there.client(), await there.client()
        await first.lead()
        await second.greet()
        greeted_at = there.listener.now()
        await until(lambda: there.listener.now() > greeted_at)  # The loop's clock has steps.
        await first.append(BASE_LSN, b"x")
        await third.greet()
        assert await second.receive() is None
        await first.append(BASE_LSN + 1, b"x")
        assert there.listener.admission.proven == 2
        assert levels_of("idle for longest of 2 authenticated ones", caplog) == [logging.INFO]


@on_the_loop
async def test_a_connection_that_made_room_is_forgotten_at_once(tmp_path: Path) -> None:
    async with house(tmp_path) as there:
        client = await there.client()
        await client.lead()
        there.listener.evict(there.connection(), "a reason")
        assert there.listener.connection_count == 0 and there.node.acceptor.leader is None
        assert await client.receive() is None


@on_the_loop
async def test_who_connects_after_the_listener_has_stopped_accepting_is_refused(tmp_path: Path) -> None:
    async with house(tmp_path) as there:
        client = await there.client()
        await client.greet()
        there.listener.stop_accepting()
        with pytest.raises(ConnectionRefusedError):
            await there.client()
        client.send(PreVoteRequest("run1"))
        assert isinstance(await client.receive(), PreVoteResponse)


@on_the_loop
async def test_the_log_shows_who_has_disconnected_for_debugging(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with house(tmp_path) as there:
        leaves, is_closed = await there.client(), await there.client()
        await leaves.greet()
        await is_closed.greet()
        leaves.writer.close()
        await until(lambda: there.listener.connection_count == 1)
        assert levels_of("disconnected", caplog) == [logging.DEBUG]
        there.listener.close(there.connection().number, "a reason", broken=False)
        assert await is_closed.receive() is None
        assert levels_of("disconnected", caplog) == [logging.DEBUG]


@on_the_loop
async def test_connections_that_prove_nothing_displace_each_other_and_no_proxy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with house(tmp_path, connections_max=1) as there:
        there.listener.admission.budget = Budget(proven_max=1, unproven_max=6)
        leader = await there.client()
        await leader.lead()
        strangers = [await there.client() for _ in range(12)]
        assert await strangers[0].receive() is None
        await leader.append(BASE_LSN, b"x")
        await until(lambda: there.listener.admission.unproven == 3)
        late = await there.client()
        await late.greet()
    assert "the oldest of 3 that are not authenticated, for a newer one" in caplog.text


@on_the_loop
async def test_a_proxy_is_known_by_its_secret_while_the_disk_is_busy(tmp_path: Path) -> None:
    async with house(tmp_path) as there:
        leader = await there.client()
        await leader.lead()
        there.fs.hold()
        leader.send(leader.asks(LeaderId(2, "run2")), append(BASE_LSN, b"x"))
        await until(lambda: not there.node.ready)
        late = await there.client()
        late.send(ProposerGreeting(PROTOCOL_VERSION, "run1", 1))
        await until(lambda: there.listener.admission.proven == 2)
        there.fs.release()
        assert isinstance(await late.receive(), AcceptorGreeting)


@pytest.mark.parametrize(
    ("version", "safekeeper_id", "is_known"),
    [
        (PROTOCOL_VERSION, 1, True),
        (PROTOCOL_VERSION, 2, False),
        (PROTOCOL_VERSION - 1, 1, False),
        (PROTOCOL_VERSION + 1, 1, False),
    ],
)
@on_the_loop
async def test_while_the_disk_is_busy_a_proxy_is_known_by_a_greeting_that_fits(
    tmp_path: Path, version: int, safekeeper_id: int, is_known: bool
) -> None:
    async with house(tmp_path) as there:
        leader = await there.client()
        await leader.lead()
        there.fs.hold()
        leader.send(leader.asks(LeaderId(2, "run2")))
        await until(lambda: not there.node.ready)
        late = await there.client()
        late.send(ProposerGreeting(version, "run1", safekeeper_id))
        if is_known:
            await until(lambda: there.listener.admission.proven == 2)
            there.fs.release()
            assert isinstance(await late.receive(), AcceptorGreeting)
        else:
            assert await late.receive() is None
            assert there.listener.admission.proven == 1 and not there.node.ready


@on_the_loop
async def test_while_the_disk_is_busy_nothing_but_a_greeting_makes_a_proxy_known(tmp_path: Path) -> None:
    async with house(tmp_path) as there:
        leader = await there.client()
        await leader.lead()
        there.fs.hold()
        leader.send(leader.asks(LeaderId(2, "run2")))
        await until(lambda: not there.node.ready)
        late = await there.client()
        late.send(PreVoteRequest("run1"))
        assert await late.receive() is None and there.listener.admission.proven == 1


@on_the_loop
async def test_who_sends_a_byte_now_and_then_has_no_more_time_for_its_greeting(tmp_path: Path) -> None:
    async with house(tmp_path, greeting_timeout_s=0.3) as there:
        client = await there.client()
        greeting = b"".join(encode(ProposerGreeting(PROTOCOL_VERSION, "run1", 1)))
        for byte in greeting:
            client.writer.write(bytes([byte]))
            await asyncio.sleep(0.05)
            if client.writer.is_closing() or client.reader.at_eof():
                break
        assert await client.receive() is None


@on_the_loop
async def test_a_stranger_cannot_announce_a_large_frame(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with house(tmp_path) as there:
        client = await there.client()
        client.send(append(BASE_LSN, bytes(100_000)))
        assert await client.receive() is None
    assert "is too long before authentication" in caplog.text


@on_the_loop
async def test_an_address_in_use_is_refused_with_one_line(tmp_path: Path) -> None:
    async with house(tmp_path) as there:
        second = ProposerListener(there.node, budget=Budget(1), greeting_timeout_s=1, idle_timeout_s=1)
        with pytest.raises(ConfigurationError, match="could not listen for proxies"):
            await second.open(there.listener.address)


# Who may come in. What the proxy's side says is tested in test_safekeeper_connection.py.


@on_the_loop
async def test_who_comes_from_another_network_is_hung_up_on_and_takes_nobodys_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with house(tmp_path, connections_max=1, networks=Networks.parse("192.0.2.0/24")) as there:
        for _ in range(20):
            assert await (await there.client()).receive() is None
        assert there.listener.connection_count == 0
        assert len(caplog.records) == 10 and "none of the networks of allow" in caplog.text
        there.listener.networks = Networks.parse("127.0.0.0/8")
        await (await there.client()).greet()


@on_the_loop
async def test_a_handshake_that_is_not_finished_in_time_is_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = ServerTls(*Authority(tmp_path).sign("server"))
    async with house(tmp_path, greeting_timeout_s=0.1, tls=tls) as there:
        client = await there.client()
        client.writer.write(b"\x16\x03\x01\x01\x00")
        assert await client.receive() is None
        assert "no greeting" in caplog.text


@on_the_loop
async def test_an_authentication_that_is_not_finished_in_time_is_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with house(tmp_path, greeting_timeout_s=60, secret=SharedSecret(None, Secret(b"s" * 16))) as there:
        client = await there.client()
        client.writer.write(encode_authentication(Hello(bytes(32))))
        assert await client.reader.readexactly(8 + 41)
        there.listener.admission._arrived_at[there.connection().number] -= 61
        there.listener.watch()
        assert await client.receive() is None
        assert "no greeting within 60 s" in caplog.text


@pytest.mark.parametrize("hello_first", [False, True])
@on_the_loop
async def test_nothing_reaches_the_node_before_the_secret_is_proved(tmp_path: Path, hello_first: bool) -> None:
    async with house(tmp_path, secret=SharedSecret(None, Secret(b"s" * 16))) as there:
        client = await there.client()
        if hello_first:
            client.writer.write(encode_authentication(Hello(bytes(32))))
            await client.reader.readexactly(8 + 41)
        client.send(ProposerGreeting(PROTOCOL_VERSION, "run1", 1), client.asks(LEADER))
        async with asyncio.timeout(DEADLINE_S):
            assert await client.reader.read() == encode_authentication(Refused(Reason.SECRET_NEEDED))
        assert there.node.acceptor.control.promised.term == 0
        await until(lambda: there.listener.connection_count == 0)


# The smaller number fits one read of the socket: nothing that comes later reminds the listener of what it has.
@pytest.mark.parametrize("count", [1_000, 20_000])
@on_the_loop
async def test_what_waits_for_the_node_stays_encrypted_and_comes_in_order_afterwards(
    tmp_path: Path, count: int
) -> None:
    authority = Authority(tmp_path)
    async with house(tmp_path, tls=ServerTls(*authority.sign("server"))) as there:
        client = await there.client(ClientTls(authority.ca).context)
        await client.lead()
        there.fs.hold()
        votes = client.asks(LeaderId(2, "run1")), client.asks(LeaderId(3, "run1"))
        client.send(votes[0], *(PreVoteRequest("run1") for _ in range(count)), votes[1])
        await until(lambda: bool(there.listener.waiting))
        there.fs.release()
        kinds = [type(await client.receive()) for _ in range(count + 2)]
        assert kinds == [VoteResponse, *count * [PreVoteResponse], VoteResponse]


async def stranger_that_waits(there: House) -> tuple[Client, HeldTurns]:
    """Return a connection that has sent its greeting, and the turns, which it waits for."""
    there.listener.turns = turns = HeldTurns()
    stranger = await there.client()
    stranger.send(ProposerGreeting(PROTOCOL_VERSION, "run1", 1))
    await until(lambda: len(turns.held) == 1)
    return stranger, turns


@on_the_loop
async def test_the_messages_of_a_connection_that_is_not_proven_wait_for_its_turn(tmp_path: Path) -> None:
    async with house(tmp_path) as there:
        stranger, turns = await stranger_that_waits(there)
        assert not there.listener.admission.proven and not there.connection()._transport.is_reading()
        turns.release()
        assert isinstance(await stranger.receive(), AcceptorGreeting)
        assert there.listener.admission.proven == 1
        await stranger.lead()
        assert not turns.held


@on_the_loop
async def test_a_closed_connection_does_not_wait_for_its_turn_any_longer(tmp_path: Path) -> None:
    async with house(tmp_path) as there:
        _, turns = await stranger_that_waits(there)
        there.listener.evict(there.connection(), "")
        await until(lambda: not turns.held)


@on_the_loop
async def test_each_step_of_a_tls_handshake_waits_for_its_turn_until_the_connection_is_proven(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with house(tmp_path, tls=ServerTls(*authority.sign("server"))) as there:
        there.listener.turns = turns = HeldTurns()
        joining = asyncio.create_task(there.client(tls=ClientTls(authority.ca).context))
        steps = 0
        while not joining.done():
            await until(lambda: bool(turns.held) or joining.done())
            steps += bool(turns.held)
            turns.release()
        proxy = await joining
        proxy.send(ProposerGreeting(PROTOCOL_VERSION, "run1", 1))
        while not there.listener.admission.proven:
            await until(lambda: bool(turns.held))
            turns.release()
        assert steps >= 1
        assert isinstance(await proxy.receive(), AcceptorGreeting)
        await proxy.lead()
        assert not turns.held
