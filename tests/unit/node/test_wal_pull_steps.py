"""The steps of a pull: what is requested when, and what ends it. The sources answer when the test lets them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from safekeeper.acceptor import pull_sources
from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.lsn import LSN_MAX, format_lsn
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.messages import (
    AppendResponse,
    PreVoteResponse,
    PullEnded,
    PullWal,
)
from safekeeper.net.safekeeper_connection import Credentials
from safekeeper.node import wal_pull
from safekeeper.node.wal_pull import BLOCK_BYTES, BLOCKS_IN_FLIGHT, Answers, WalPuller
from safekeeper.peers.message_checks import PROBLEM_BYTES_MAX
from tests.unit.event_loop import on_the_loop, until
from tests.unit.node.test_proposer_listener import BASE_LSN, LEADER, MIB, SEGMENT_SIZE, Client, House, append, house
from tests.unit.node.test_wal_pull import END_LSN, FOLDERS, Source, pull_ended, source, whole


class Bench:
    """A node that follows a leader and has no WAL yet, and its pulls."""

    def __init__(self, there: House, leader: Client, obstacle: str = "") -> None:
        self.node = there.node
        self.fs = there.fs
        self.leader = leader
        self.puller = WalPuller(there.node, Credentials(), obstacle)
        self.number = 0
        there.node.attach_readers(self.puller)

    def pulls(self, *sources: Source, bytes_per_s: int = 0, end_lsn: int = END_LSN) -> None:
        """Send the leader's next request."""
        self.number += 1
        named = tuple(each.as_source for each in sources)
        self.leader.send(PullWal(LEADER, self.number, end_lsn, bytes_per_s, named))

    async def ended(self) -> PullEnded:
        """Return the next end of a pull that the leader is sent."""
        return await pull_ended(self.leader)

    async def settles(self) -> None:
        """Let the loop do what is due: two heartbeats are answered."""
        for sequence in (self.number * 100 + 1, self.number * 100 + 2):
            heartbeat = msgspec.structs.replace(append(self.node.acceptor.write_lsn, b""), sequence=sequence)
            self.leader.send(heartbeat)
            while True:
                answer = await self.leader.receive()
                assert isinstance(answer, AppendResponse | PullEnded)
                if isinstance(answer, AppendResponse) and answer.sequence == sequence:
                    break


@contextlib.asynccontextmanager
async def bench(directory: Path, obstacle: str = "") -> AsyncIterator[Bench]:
    async with house(directory) as there:
        leader = await there.client()
        await leader.lead()
        pulling = Bench(there, leader, obstacle)
        try:
            yield pulling
        finally:
            pulling.puller.close()


# What is requested.


@on_the_loop
async def test_two_blocks_are_requested_at_once_and_the_next_one_with_each_answer(tmp_path: Path) -> None:
    async with bench(tmp_path) as here, source() as other:
        here.pulls(other)
        for count in range(2, 7):
            await until(lambda count=count: len(other.requests) >= count)
            await here.settles()
            assert len(other.requests) == count
            other.answer(other.requests[count - 2])
            await until(lambda count=count: here.node.acceptor.write_lsn >= BASE_LSN + (count - 1) * BLOCK_BYTES)
        await here.settles()
        assert other.ranges() == [(block, block + 1) for block in range(6)]
        assert [request.request_id for request in other.requests] == [1, 2, 3, 4, 5, 6]
        other.answer(other.requests[5])
        assert await here.ended() == PullEnded(LEADER, 1, END_LSN)
        await until(lambda: other.open_count == 0)


@on_the_loop
async def test_a_source_is_greeted_as_by_a_member_of_the_same_postgresql(tmp_path: Path) -> None:
    async with bench(tmp_path) as here, source() as other:
        here.pulls(other)
        await until(lambda: bool(other.requests))
        (greeting,) = other.greetings
        assert (greeting.proposer_id, greeting.safekeeper_id) == ("safekeeper-1", 2)
        assert (greeting.system_id, greeting.segment_size) == (5, SEGMENT_SIZE)
        assert {request.leader_id for request in other.requests} == {LEADER}


@on_the_loop
async def test_a_pull_keeps_to_its_rate(tmp_path: Path) -> None:
    async with bench(tmp_path) as here, source() as other:
        other.answers = whole
        began_at = asyncio.get_running_loop().time()
        here.pulls(other, bytes_per_s=6 * MIB)
        await here.ended()
        # After each of the six blocks but the last one it waits for a twelfth of a second.
        assert asyncio.get_running_loop().time() - began_at >= 5 / 12 - 0.01


@on_the_loop
async def test_no_more_is_requested_while_much_is_not_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_pull, "UNFLUSHED_BYTES_MAX", BLOCK_BYTES)
    async with bench(tmp_path) as here, source() as other:
        other.answers = whole
        here.fs.hold()
        here.pulls(other)
        await until(lambda: here.node.acceptor.write_lsn == BASE_LSN + 2 * BLOCK_BYTES)
        await here.settles()
        assert len(other.requests) == 3 and here.node.acceptor.write_lsn == BASE_LSN + 2 * BLOCK_BYTES
        here.fs.release()
        await until(lambda: here.node.acceptor.flush_lsn == END_LSN)


# Another source.


@on_the_loop
async def test_another_source_continues_where_one_that_has_failed_ended(tmp_path: Path) -> None:
    async with bench(tmp_path) as here, source(2) as first, source(3) as second:
        second.answers = whole
        here.pulls(first, second)
        await until(lambda: len(first.requests) == 2)
        first.answer(first.requests[0])
        await until(lambda: here.node.acceptor.write_lsn == BASE_LSN + BLOCK_BYTES)
        first.close()
        assert await here.ended() == PullEnded(LEADER, 1, END_LSN)
        assert second.ranges()[0] == (1, 2)
        assert here.puller.pulled_bytes == {2: BLOCK_BYTES, 3: 5 * BLOCK_BYTES}
        await until(lambda: first.open_count == second.open_count == 0)


@on_the_loop
async def test_a_slow_source_is_left_and_returned_to_if_the_others_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_sources, "SLOW_AFTER_S", 0.05)
    monkeypatch.setattr(pull_sources, "SLOW_BYTES_PER_S", 1 << 40)
    async with bench(tmp_path) as here, source(2) as slow, source(3) as broken:
        broken.answers = lambda _: None
        here.pulls(slow, broken)
        await until(lambda: len(slow.requests) == 2)
        answer_at = asyncio.get_running_loop().time() + 0.1
        await until(lambda: asyncio.get_running_loop().time() >= answer_at)
        slow.answers = whole
        slow.answer(slow.requests[0])
        assert (await here.ended()).write_lsn == END_LSN
        assert broken.ranges()[:1] == [(1, 2)] and slow.ranges()[2:4] in ([(1, 2), (2, 3)], [(2, 3), (1, 2)])
        assert len(slow.greetings) == 2 and here.puller.pulled_bytes == {2: 6 * BLOCK_BYTES}


@on_the_loop
async def test_a_source_that_does_not_answer_in_time_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_pull, "ANSWER_TIMEOUT_S", 0.05)
    async with bench(tmp_path) as here, source() as other:
        here.pulls(other)
        ended = await here.ended()
        assert ended.problem == f"safekeeper 2 at {other.as_source.address}: timeout"
        assert (ended.request_id, ended.write_lsn) == (1, BASE_LSN)


@on_the_loop
async def test_wal_that_does_not_continue_the_log_is_not_written_and_its_source_given_up(tmp_path: Path) -> None:
    """The leader sends WAL although it has requested a pull: the log goes on with that."""
    async with bench(tmp_path) as here, source() as other:
        here.pulls(other)
        await until(lambda: len(other.requests) == 2)
        await here.leader.append(BASE_LSN, b"of the leader")
        other.answers = whole
        for request in other.requests[:2]:
            other.answer(request)
        ended = await here.ended()
        end_lsn = BASE_LSN + len(b"of the leader")
        assert (ended.write_lsn, here.node.acceptor.write_lsn) == (end_lsn, end_lsn)
        assert ended.problem.endswith(f"its WAL does not continue this log at {format_lsn(end_lsn)}")


@on_the_loop
async def test_an_error_of_the_program_ends_the_pull_and_no_other_source_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(tmp_path) as here, source(2) as first, source(3) as second:
        second.answers = whole

        def broken(*_: object, **__: object) -> None:
            raise ValueError("a bug")

        monkeypatch.setattr(wal_pull, "SafekeeperConnection", broken)
        here.pulls(first, second)
        ended = await here.ended()
        assert "a bug" in ended.problem and ended.problem.count("a bug") == 1
        assert ended.write_lsn == BASE_LSN and here.puller.describe() is None


@on_the_loop
async def test_a_long_problem_is_shortened_to_what_a_message_may_have(tmp_path: Path) -> None:
    async with bench(tmp_path, "x" + "é" * PROBLEM_BYTES_MAX) as here, source() as other:
        here.pulls(other)
        ended = await here.ended()
        assert ended.problem == "x" + "é" * ((PROBLEM_BYTES_MAX - 1) // 2)
        assert not other.greetings


# The end of a pull.


@on_the_loop
async def test_a_newer_request_replaces_the_pull_and_continues_where_it_was(tmp_path: Path) -> None:
    async with bench(tmp_path) as here, source(2) as first, source(3) as second:
        here.pulls(first)
        await until(lambda: len(first.requests) == 2)
        first.answer(first.requests[0])
        await until(lambda: here.node.acceptor.write_lsn == BASE_LSN + BLOCK_BYTES)
        here.pulls(second)
        await until(lambda: len(second.requests) == 2 and first.open_count == 0)
        assert second.ranges() == [(1, 2), (2, 3)]
        description = here.puller.describe()
        assert description is not None
        assert (description.source, description.bytes, description.end_lsn) == (3, 0, format_lsn(END_LSN))
        second.answers = whole
        for request in second.requests[:2]:
            second.answer(request)
        assert await here.ended() == PullEnded(LEADER, 2, END_LSN)


@on_the_loop
async def test_a_pull_that_the_leader_ends_is_over_at_once(tmp_path: Path) -> None:
    async with bench(tmp_path) as here, source() as other:
        assert here.puller.wakes_at_lsn == LSN_MAX and here.puller.describe() is None
        here.pulls(other)
        await until(lambda: len(other.requests) == 2)
        assert here.puller.wakes_at_lsn == 0 and here.puller.source == other.as_source
        here.pulls()
        assert await here.ended() == PullEnded(LEADER, 2, BASE_LSN)
        await until(lambda: other.open_count == 0)
        assert here.puller.wakes_at_lsn == LSN_MAX and here.puller.source is None and here.puller.describe() is None


@on_the_loop
async def test_a_vote_for_another_candidate_ends_the_pull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_pull, "ANSWER_TIMEOUT_S", 1000.0)  # It is the vote that ends it.
    async with bench(tmp_path) as here, source() as other:
        here.pulls(other)
        await until(lambda: len(other.requests) == 2)
        other.answer(other.requests[0])
        await until(lambda: here.node.acceptor.write_lsn == BASE_LSN + BLOCK_BYTES)
        here.leader.send(here.leader.asks(LeaderId(2, "run2")))
        await until(lambda: here.node.acceptor.control.promised.term == 2 and other.open_count == 0)
        assert here.puller.describe() is None and here.node.acceptor.write_lsn == BASE_LSN + BLOCK_BYTES


@on_the_loop
async def test_a_puller_that_is_closed_ends_its_pull_and_begins_no_other(tmp_path: Path) -> None:
    async with bench(tmp_path) as here, source() as other:
        here.pulls(other)
        await until(lambda: len(other.requests) == 2)
        here.puller.close()
        await until(lambda: other.open_count == 0)
        here.pulls(other)
        await here.settles()
        assert here.node.acceptor.pull is not None and here.puller.describe() is None
        assert len(other.greetings) == 1 and here.puller.wakes_at_lsn == LSN_MAX


@on_the_loop
async def test_what_was_pulled_is_counted_for_each_pull_and_for_each_source(tmp_path: Path) -> None:
    async with bench(tmp_path) as here, source() as other:
        other.answers = whole
        here.pulls(other, end_lsn=BASE_LSN + 2 * BLOCK_BYTES)
        await here.ended()
        other.answers = None
        here.pulls(other, end_lsn=END_LSN)
        await until(lambda: len(other.requests) == 4)
        other.answer(other.requests[2])
        await until(lambda: here.node.acceptor.write_lsn == BASE_LSN + 3 * BLOCK_BYTES)
        description = here.puller.describe()
        assert description is not None and description.bytes == BLOCK_BYTES
        assert here.puller.pulled_bytes == {2: 3 * BLOCK_BYTES}


# The messages of a source.


def test_a_source_may_have_sent_as_many_messages_as_were_requested_and_no_more() -> None:
    async def run() -> None:
        answers = Answers()
        answers.received(FOLDERS)
        for _ in range(BLOCKS_IN_FLIGHT):
            answers.received(PreVoteResponse(True))
        with pytest.raises(RemoteProtocolError, match="more messages than were requested"):
            answers.received(PreVoteResponse(True))
        answers.received(FOLDERS)

    asyncio.run(run())
