"""Both ends of a pull in one process: a node that pulls from a source of the test's, and one that serves."""

import asyncio
import contextlib
import logging
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.folder_state import FolderState
from safekeeper.consensus.messages import (
    PROTOCOL_VERSION,
    AcceptorGreeting,
    AcceptorMessage,
    AppendResponse,
    FolderStates,
    PeerRead,
    PreVoteResponse,
    ProposerGreeting,
    ProposerMessage,
    PullEnded,
    PullSource,
    PullWal,
    ReadResponse,
    Refusal,
    RefusalCode,
    VoteResponse,
)
from safekeeper.net.safekeeper_connection import Credentials
from safekeeper.node.peer_reads import QUEUED_MAX
from safekeeper.node.wal_pull import BLOCK_BYTES, WalPuller
from safekeeper.peers.codec import PROPOSER_DIALECT, FrameDecoder, encode
from tests.unit.event_loop import on_the_loop, until
from tests.unit.greetings import empty
from tests.unit.node.test_proposer_listener import BASE_LSN, LEADER, MIB, SEGMENT_SIZE, Client, House, house

GREETING = empty(2, cluster_id="c" * 32, last_term=1, wal_begin_lsn=BASE_LSN, flush_lsn=BASE_LSN)
END_LSN = BASE_LSN + 3 * MIB
Answer = Callable[[PeerRead], list[AcceptorMessage] | None]
# A safekeeper sends it before its greeting.
FOLDERS = FolderStates("c" * 32, (FolderState(2, "b" * 32),))


def whole(request: PeerRead) -> list[AcceptorMessage]:
    return [ReadResponse(request.request_id, request.begin_lsn, bytes(request.end_lsn - request.begin_lsn))]


class Source:
    """A safekeeper that answers reads as `answers` does, or when the test lets it.

    Attributes:
        as_source: its id and address, as a leader names them.
        answers: returns its answers to a read, None to close the connection; without it the test calls `answer`.
        greetings, requests: what it has received, on all connections.
        open_count: how many connections to it are open.
    """

    def __init__(self, safekeeper_id: int, answers: Answer | None) -> None:
        self.as_source = PullSource(safekeeper_id, "")
        self.answers = answers
        self.greetings: list[ProposerGreeting] = []
        self.requests: list[PeerRead] = []
        self.open_count = 0
        self.tasks: list[asyncio.Task[None]] = []
        self._writer: asyncio.StreamWriter

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.append(asyncio.ensure_future(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder: FrameDecoder[ProposerMessage] = FrameDecoder(PROPOSER_DIALECT)
        self._writer = writer
        self.open_count += 1
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                for message in decoder.feed(data):
                    if isinstance(message, ProposerGreeting):
                        self.greetings.append(message)
                        self.send(FOLDERS)
                        self.send(GREETING)
                    elif isinstance(message, PeerRead):
                        self.requests.append(message)
                        if self.answers is not None:
                            self.send_all(self.answers(message))
        self.open_count -= 1

    def send(self, message: AcceptorMessage) -> None:
        self._writer.writelines(encode(message))

    def answer(self, request: PeerRead) -> None:
        """Send the requested bytes."""
        self.send_all(whole(request))

    def send_all(self, answers: list[AcceptorMessage] | None) -> None:
        if answers is None:
            self.close()
        for each in answers or ():
            self.send(each)

    def close(self) -> None:
        self._writer.close()

    def ranges(self) -> list[tuple[int, int]]:
        """Return what was requested, in blocks above BASE_LSN."""
        return [((r.begin_lsn - BASE_LSN) // BLOCK_BYTES, (r.end_lsn - BASE_LSN) // BLOCK_BYTES) for r in self.requests]


@contextlib.asynccontextmanager
async def source(safekeeper_id: int = 2, answers: Answer | None = None) -> AsyncIterator[Source]:
    there = Source(safekeeper_id, answers)
    server = await asyncio.start_server(there.connected, "127.0.0.1", 0)
    there.as_source = PullSource(safekeeper_id, f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        yield there
    finally:
        server.close()
        for task in there.tasks:
            task.cancel()


async def pull(there: House, sources: tuple[PullSource, ...], obstacle: str = "") -> tuple[Client, PullEnded]:
    """Let a node that follows and has no WAL pull; return the leader's client, and the end."""
    there.node.attach_readers(WalPuller(there.node, Credentials(), obstacle))
    leader = await there.client()
    await leader.lead()
    leader.send(PullWal(LEADER, 1, END_LSN, 0, sources))
    return leader, await pull_ended(leader)


async def pull_ended(leader: Client) -> PullEnded:
    """Wait for the end of a pull."""
    while True:
        message = await leader.receive()
        if isinstance(message, PullEnded):
            return message
        assert isinstance(message, AppendResponse)


@on_the_loop
async def test_blocks_are_small_and_end_with_their_segment(tmp_path: Path) -> None:
    requests: list[PeerRead] = []

    def answer(request: PeerRead) -> list[AcceptorMessage]:
        requests.append(request)
        return whole(request)

    async with house(tmp_path) as there, source(answers=answer) as other:
        _, ended = await pull(there, (other.as_source,))
        assert (ended.write_lsn, ended.problem) == (END_LSN, "")
        ranges = [(request.begin_lsn, request.end_lsn) for request in requests]
        assert [begin for begin, _ in ranges] == [BASE_LSN, *(end for _, end in ranges[:-1])]
        assert ranges[-1][1] == END_LSN
        assert all(end - begin <= BLOCK_BYTES for begin, end in ranges)
        assert all(begin // SEGMENT_SIZE == (end - 1) // SEGMENT_SIZE for begin, end in ranges)
        assert {request.leader_id for request in requests} == {LEADER}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda r: [ReadResponse(r.request_id, r.begin_lsn + 1, b"x")], "was answered with 1 bytes at 0/300001"),
        (lambda r: [ReadResponse(r.request_id, r.begin_lsn, b"x")], "was answered with 1 bytes at 0/300000"),
        (lambda r: [ReadResponse(r.request_id + 1, r.begin_lsn, bytes(r.end_lsn - r.begin_lsn))], "524288 bytes"),
        (lambda r: whole(r) * 4, "more messages than were requested"),
        (lambda _: [PreVoteResponse(True)], "it answers with PreVoteResponse in place of ReadResponse"),
        (lambda _: [Refusal(RefusalCode.RANGE, "removed", LEADER)], "it refuses (range): removed"),
        (lambda _: None, "closed the connection"),
    ],
    ids=["elsewhere", "too short", "of another request", "too many", "another message", "a refusal", "the end"],
)
@on_the_loop
async def test_a_source_that_answers_wrongly_is_given_up(tmp_path: Path, answer: Answer, reason: str) -> None:
    async with house(tmp_path) as there, source(answers=answer) as other:
        _, ended = await pull(there, (other.as_source,))
        assert ended.problem.startswith(f"safekeeper 2 at {other.as_source.address}: ") and reason in ended.problem
        assert there.node.acceptor.write_lsn <= BASE_LSN + 4 * BLOCK_BYTES
        async with source(answers=whole) as good:
            there.clients[0].send(PullWal(LEADER, 2, END_LSN, 0, (other.as_source, good.as_source)))
            await until(lambda: there.node.acceptor.flush_lsn == END_LSN)


@on_the_loop
async def test_a_safekeeper_that_cannot_connect_to_others_says_why(tmp_path: Path) -> None:
    async with house(tmp_path) as there, source(answers=whole) as other:
        _, ended = await pull(there, (other.as_source,), "no certificate can be verified")
        assert (ended.write_lsn, ended.problem) == (BASE_LSN, "no certificate can be verified")


@on_the_loop
async def test_what_cannot_be_an_address_is_a_problem_of_its_source(tmp_path: Path) -> None:
    async with house(tmp_path) as there, source(answers=whole) as other:
        _, ended = await pull(there, (PullSource(3, "nowhere"), other.as_source))
        assert (ended.write_lsn, ended.problem) == (END_LSN, "")


@on_the_loop
async def test_a_problem_of_a_source_is_logged_again_only_after_a_block_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    serves: list[int] = []  # An element for each block that it still has.

    def answer(request: PeerRead) -> list[AcceptorMessage]:
        if not serves:
            return [Refusal(RefusalCode.RANGE, "removed", LEADER)]
        serves.pop()
        return whole(request)

    async with house(tmp_path) as there, source(answers=answer) as other:
        line = f"could not pull WAL from safekeeper 2 at {other.as_source.address}: it refuses (range): removed"
        leader, _ = await pull(there, (other.as_source,))
        counts = [caplog.messages.count(line)]
        for number, blocks in enumerate((0, 1, 0), 2):
            serves.extend([0] * blocks)
            leader.send(PullWal(LEADER, number, END_LSN, 0, (other.as_source,)))
            await pull_ended(leader)
            counts.append(caplog.messages.count(line))
        assert counts == [1, 1, 2, 2]


@on_the_loop
async def test_the_end_of_a_pull_is_a_line_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with house(tmp_path) as there, source(answers=whole) as other:
        await pull(there, (other.as_source,))
        (line,) = [message for message in caplog.messages if message.startswith("pulled ")]
        assert re.fullmatch(
            r"pulled 3145728 bytes of WAL in \d{1,2}\.\d s \(3145728 from safekeeper 2\); WAL ends at 0/600000", line
        )
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


# The side that serves.


async def with_a_member(there: House) -> tuple[Client, Client]:
    """Return the leader of a node that has 100 bytes, and a member that is connected to it."""
    leader = await there.leader_with_wal()
    member = await there.client()
    member.send(ProposerGreeting(PROTOCOL_VERSION, "safekeeper-3", 1, 5, SEGMENT_SIZE))
    assert isinstance(await member.receive(), AcceptorGreeting)
    return leader, member


@on_the_loop
async def test_a_member_reads_in_order_and_only_a_few_at_once(tmp_path: Path) -> None:
    async with house(tmp_path) as there:
        _, member = await with_a_member(there)
        member.send(*(PeerRead(LEADER, number, BASE_LSN + number, BASE_LSN + 50) for number in range(QUEUED_MAX + 2)))
        answers = [await member.receive() for _ in range(QUEUED_MAX + 2)]
        served = [answer for answer in answers if isinstance(answer, ReadResponse)]
        assert [answer.request_id for answer in served] == list(range(QUEUED_MAX))
        assert [bytes(answer.payload) for answer in served] == [b"x" * (50 - number) for number in range(QUEUED_MAX)]
        refused = [answer for answer in answers if isinstance(answer, Refusal)]
        assert [answer.code for answer in refused] == [RefusalCode.RANGE] * 2
        assert there.node.services.peer_reads.served_bytes == sum(len(answer.payload) for answer in served)


async def after_held_read(there: House, meanwhile: Callable[[], Awaitable[None]], member: Client) -> None:
    """Let something happen while the thread that reads for members is busy."""
    reads = there.node.services.peer_reads
    member.send(PeerRead(LEADER, 0, BASE_LSN, BASE_LSN + 1))
    assert isinstance(await member.receive(), ReadResponse)
    assert reads._worker is not None  # A read was served.
    is_busy, held = threading.Event(), threading.Event()

    def hold() -> None:
        is_busy.set()
        held.wait()

    reads._worker.submit(hold, lambda *_: None)
    await until(is_busy.is_set)
    member.send(PeerRead(LEADER, 1, BASE_LSN, BASE_LSN + 50))
    await until(lambda: any(reads._queues.values()))
    try:
        await meanwhile()
    finally:
        held.set()


@on_the_loop
async def test_a_read_during_which_another_leader_was_promised_is_refused(tmp_path: Path) -> None:
    async with house(tmp_path) as there:
        leader, member = await with_a_member(there)

        async def vote() -> None:
            leader.send(leader.asks(LeaderId(2, "run2")))
            assert isinstance(await leader.receive(), VoteResponse)

        await after_held_read(there, vote, member)
        answer = await member.receive()
        assert isinstance(answer, Refusal)
        assert (answer.code, answer.reason) == (RefusalCode.RANGE, "the log has changed during the read")


@on_the_loop
async def test_a_member_that_leaves_during_a_read_leaves_nothing_behind(tmp_path: Path) -> None:
    async with house(tmp_path) as there:
        _, member = await with_a_member(there)

        async def leave() -> None:
            member.writer.close()
            await until(lambda: there.listener.connection_count == 1)

        await after_held_read(there, leave, member)
        reads = there.node.services.peer_reads
        await until(lambda: reads._worker is not None and not reads._worker.busy_s)
        assert not reads._queues and not reads._readers
