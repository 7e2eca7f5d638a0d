"""The node: order of effects, durability of what is said, what a failing disk does to it."""

import asyncio
import contextlib
import logging
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import google_crc32c
import pytest

from safekeeper.acceptor.trimming import TrimRequest
from safekeeper.base.errors import ConfigurationError, DiskLost, InvariantViolation, StorageFailed, WalproxyError
from safekeeper.base.lsn import LSN_MAX, segment_name
from safekeeper.consensus.control_state import ControlState, LeaderId
from safekeeper.consensus.membership import Member, Membership
from safekeeper.consensus.messages import (
    PROTOCOL_VERSION,
    AcceptorGreeting,
    AcceptorMessage,
    AppendRequest,
    AppendResponse,
    ArchiveAssignment,
    ArchiveReport,
    Bootstrap,
    Bootstrapped,
    DigestRequest,
    DigestResponse,
    Elected,
    FolderStates,
    PreVoteRequest,
    ProposerGreeting,
    ProposerMessage,
    ReadRequest,
    ReadResponse,
    Refusal,
    RefusalCode,
    TailRequest,
    TailResponse,
    VoteRequest,
    VoteResponse,
)
from safekeeper.consensus.term_history import HistoryEntry
from safekeeper.node.node import Node
from safekeeper.storage.control_file import ControlFile
from safekeeper.storage.data_folder import WAL_FOLDER, DataFolder
from safekeeper.storage.disk_space import CONTROL_FILE, WAL
from safekeeper.storage.filesystem import RealFileSystem
from tests.unit.event_loop import DEADLINE_S, on_the_loop, until
from tests.unit.faulty_filesystem import FaultyFileSystem
from tests.unit.wal_builder import WalBuilder, wal_with_commits

SEGMENT_SIZE = 1 << 20
BASE_LSN = 3 << 20
INCARNATION = "a" * 32
MEMBERSHIP = Membership(1, (Member(1, INCARNATION),))
CLUSTER = "c" * 32
CONNECTION = 1
# An average that no flush of a busy machine raises above what is quick.
ALWAYS_QUICK_S = -1e6

_Message = TypeVar("_Message")


def asks(leader_id: LeaderId, membership: Membership = MEMBERSHIP) -> VoteRequest:
    return VoteRequest(leader_id, membership.generation, CLUSTER, membership)


class Bench:
    """A node, and what it said. Plays the proposer on one connection."""

    def __init__(self, directory: Path, fs: FaultyFileSystem, incarnation: str = INCARNATION) -> None:
        self.fs = fs
        self.said: list[tuple[int, AcceptorMessage]] = []
        self.closed: list[tuple[int, str, bool]] = []
        self.resumed = 0
        self.term = 0
        self.node = Node(DataFolder.open(fs, directory, 1, incarnation), asyncio.get_running_loop())
        self.node.attach(self)

    # Outbox

    def send(self, connection: int, message: AcceptorMessage) -> None:
        if not isinstance(message, FolderStates):
            self.said.append((connection, message))

    def close(self, connection: int, reason: str, *, broken: bool) -> None:
        self.closed.append((connection, reason, broken))

    def resume(self) -> None:
        self.resumed += 1

    # Proposer

    def says(self, message: ProposerMessage, connection: int = CONNECTION) -> None:
        """Say `message` as a connection does."""
        now = asyncio.get_running_loop().time()
        if type(message) is not AppendRequest or not self.node.append(connection, message, now, is_last=True):
            self.node.receive(connection, message)
            self.node.messages_handled()

    async def ask(self, message: ProposerMessage, kind: type[_Message], connection: int = CONNECTION) -> _Message:
        """Say `message` when the node is ready, and return the next answer, which must be of `kind`."""
        await until(lambda: self.node.ready)
        before = len(self.said)
        self.says(message, connection)
        await until(lambda: len(self.said) > before)
        answer = self.said[before][1]
        assert isinstance(answer, kind), answer
        return answer

    async def greet(self, connection: int = CONNECTION) -> AcceptorGreeting:
        return await self.ask(ProposerGreeting(PROTOCOL_VERSION, "run", 1), AcceptorGreeting, connection)

    async def vote(self, term: int, connection: int = CONNECTION) -> VoteResponse:
        self.term = term
        return await self.ask(asks(LeaderId(term, "run")), VoteResponse, connection)

    def elected(self, history: tuple[HistoryEntry, ...], commit_lsn: int = 0) -> Elected:
        leader_id = LeaderId(self.term, "run")
        return Elected(
            leader_id, CLUSTER, 5, SEGMENT_SIZE, 150018, MEMBERSHIP, history, (), BASE_LSN, commit_lsn=commit_lsn
        )

    async def lead(self, term: int = 1) -> AppendResponse:
        greeting = await self.greet()
        if greeting.membership is None:
            await self.ask(Bootstrap(CLUSTER, 5, SEGMENT_SIZE, 150018, MEMBERSHIP), Bootstrapped)
        vote = await self.vote(term)
        history = (*vote.history, HistoryEntry(term, vote.flush_lsn or BASE_LSN, 1))
        return await self.ask(self.elected(history), AppendResponse)

    def append(self, payload: bytes, commit_lsn: int = 0) -> int:
        """Append at the write position; return where it ends."""
        begin_lsn = self.node.acceptor.write_lsn
        self.says(AppendRequest(LeaderId(self.term, "run"), 1, begin_lsn, commit_lsn, 0, 0, True, payload))
        return begin_lsn + len(payload)

    async def append_durably(self, payload: bytes) -> int:
        await until(lambda: self.node.ready)
        end_lsn = self.append(payload)
        await until(lambda: self.sent_flush_lsn() >= end_lsn)
        return end_lsn

    def answers(self) -> list[AppendResponse]:
        return [message for _, message in self.said if isinstance(message, AppendResponse)]

    def sent_flush_lsn(self) -> int:
        return self.answers()[-1].flush_lsn

    def refusal(self) -> Refusal | None:
        return next((message for _, message in self.said if isinstance(message, Refusal)), None)


class LogReaders:
    """Whoever reads from a node: sees how far it could."""

    wakes_at_lsn = 0

    def __init__(self, node: Node) -> None:
        self.node = node
        self.seen_lsn = 0

    def update(self) -> None:
        assert self.node.is_between_events
        self.seen_lsn = self.node.acceptor.readable_lsn


@contextlib.asynccontextmanager
async def bench(directory: Path, fs: FaultyFileSystem | None = None) -> AsyncIterator[Bench]:
    bench = Bench(directory, fs or FaultyFileSystem())
    try:
        yield bench
    finally:
        bench.fs.release()
        if not bench.node.failed.done():
            await bench.node.drain()
        bench.node.stop()
        bench.node.folder.close()


async def failure(node: Node) -> BaseException | None:
    await until(node.failed.done)
    return node.failed.exception()


@on_the_loop
async def test_an_append_is_called_flushed_only_when_the_disk_has_it(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        sk.fs.hold()
        end_lsn = sk.append(b"x" * 100)
        # The flush takes its time, so the leader is told what was received, and no more.
        await until(lambda: sk.answers()[-1].write_lsn == end_lsn)
        assert sk.sent_flush_lsn() == BASE_LSN
        sk.fs.release()
        await until(lambda: sk.sent_flush_lsn() == end_lsn)


@on_the_loop
async def test_what_is_written_during_a_flush_is_covered_by_one_more(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        sk.fs.hold()
        before = len(sk.fs.synced_by)
        for _ in range(10):
            end_lsn = sk.append(b"x" * 100)
        sk.fs.release()
        await until(lambda: sk.sent_flush_lsn() == end_lsn)
        assert len(sk.fs.synced_by) - before == 2


@on_the_loop
async def test_a_vote_waits_for_the_flush_under_way_and_reports_all_of_it(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead(term=1)
        sk.fs.hold()
        sk.append(b"x" * 100)
        end_lsn = sk.append(b"y" * 100)
        sk.says(asks(LeaderId(2, "other")))
        assert not sk.node.ready
        said = len(sk.said)
        await asyncio.sleep(0)
        assert len(sk.said) == said
        sk.fs.release()
        await until(lambda: sk.node.ready)
        vote = sk.said[-1][1]
        assert isinstance(vote, VoteResponse)
        assert (vote.granted, vote.flush_lsn) == (True, end_lsn)
        assert ControlFile(RealFileSystem(), tmp_path / "sk").load(ControlState).promised == LeaderId(2, "other")


@on_the_loop
async def test_what_becomes_readable_is_shown_before_the_next_event_waits_for_the_disk(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        learners = LogReaders(sk.node)
        sk.node.attach_readers(learners)
        end_lsn = await sk.append_durably(b"x" * 100)
        sk.fs.hold()
        sk.append(b"", commit_lsn=end_lsn)
        assert not sk.node.is_between_events  # Whether a record is complete is looked for on the disk.
        sk.node.checkpoint()
        await until(lambda: learners.seen_lsn == end_lsn)
        assert not sk.node.is_between_events


@on_the_loop
async def test_readers_that_wait_for_a_position_get_nothing_before_it_but_every_other_event(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        end_lsn = await sk.append_durably(wal_with_commits(BASE_LSN, SEGMENT_SIZE, 60_000))
        sk.append(b"", commit_lsn=end_lsn)
        await until(lambda: sk.node.ready and sk.node.acceptor.readable_lsn == end_lsn)
        readers = LogReaders(sk.node)
        readers.wakes_at_lsn = end_lsn + 20
        sk.node.attach_readers(readers)
        sk.node.wal.average_flush_s = ALWAYS_QUICK_S  # A disk that is flushed on the loop.
        for _ in range(2):
            later_lsn = await sk.append_durably(b"x" * 10)
            sk.append(b"", commit_lsn=later_lsn)
            assert readers.seen_lsn == (0 if later_lsn < readers.wakes_at_lsn else later_lsn)
        readers.wakes_at_lsn = end_lsn + 100
        last_lsn = await sk.append_durably(b"x" * 10)
        sk.append(b"", commit_lsn=last_lsn)
        assert readers.seen_lsn == end_lsn + 20
        sk.says(PreVoteRequest("other"))
        assert readers.seen_lsn == last_lsn


@on_the_loop
async def test_a_connection_lost_during_an_effect_is_handled_after_it(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        sk.fs.hold()
        sk.append(b"x")
        sk.says(asks(LeaderId(1, "run")))
        sk.node.disconnected(CONNECTION)
        assert sk.node.acceptor.leader is not None
        sk.fs.release()
        await until(lambda: sk.node.acceptor.leader is None)
        assert isinstance(sk.said[-1][1], VoteResponse)


@on_the_loop
async def test_reads_digests_and_tails_see_what_is_on_disk(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        wal = WalBuilder(begin_lsn=BASE_LSN, segment_size=SEGMENT_SIZE)
        for size in (100, 20_000, 30):
            wal.add(b"r" * size)
        data = bytes(wal.data)
        await sk.append_durably(data)
        leader = LeaderId(1, "run")
        read = await sk.ask(ReadRequest(leader, 4, BASE_LSN + 10, BASE_LSN + 5000), ReadResponse)
        assert (read.request_id, read.begin_lsn, read.payload) == (4, BASE_LSN + 10, data[10:5000])
        digest = await sk.ask(DigestRequest(leader, 5, BASE_LSN, BASE_LSN + 10_000), DigestResponse)
        assert digest.page_crcs == (google_crc32c.value(data[:8192]), google_crc32c.value(data[8192:10_000]))
        middle = wal.records[1]
        tail = await sk.ask(TailRequest(leader, 6, middle.start_lsn), TailResponse)
        assert (tail.record_end_lsn, tail.last_record_lsn) == (middle.end_lsn, wal.records[0].start_lsn)


@on_the_loop
async def test_an_append_across_a_timeline_switch_goes_on_in_a_segment_of_the_new_timelines_name(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        await sk.append_durably(b"a" * 100)
        vote = await sk.vote(2)
        await sk.ask(sk.elected((*vote.history, HistoryEntry(2, BASE_LSN + 300, 2))), AppendResponse)
        sk.append(b"b" * 500)
        await until(lambda: sk.sent_flush_lsn() >= BASE_LSN + 600)
        read = await sk.ask(ReadRequest(LeaderId(2, "run"), 1, BASE_LSN, BASE_LSN + 600), ReadResponse)
        assert read.payload == b"a" * 100 + b"b" * 500
        names = [file.name for file in (tmp_path / "sk" / WAL_FOLDER).iterdir()]
        assert names == ["000000020000000000000003"]


@on_the_loop
async def test_flush_lsn_after_a_restart_is_what_was_said(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        end_lsn = await sk.append_durably(b"x" * 12345)
    async with bench(tmp_path / "sk") as sk:
        greeting = await sk.greet()
        assert (greeting.flush_lsn, greeting.last_term, greeting.incarnation) == (end_lsn, 1, INCARNATION)
        await sk.lead(term=2)
        assert await sk.append_durably(b"more") == end_lsn + 4


@on_the_loop
async def test_the_next_segment_is_prepared_before_it_is_needed(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        await sk.append_durably(bytes(SEGMENT_SIZE // 2 + 1))
        await sk.append_durably(b"x")
        await until(lambda: len(list((tmp_path / "sk" / WAL_FOLDER).iterdir())) == 2)


@on_the_loop
async def test_a_failed_fdatasync_ends_the_node_and_nothing_is_said_any_more(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        durable_lsn = sk.sent_flush_lsn()
        sk.fs.failing = True
        sk.append(b"x" * 100)
        assert isinstance(await failure(sk.node), StorageFailed)
        assert not sk.node.ready
        # That it was received may have been said before the sync failed; that it is on disk never is.
        assert sk.sent_flush_lsn() == durable_lsn
        said = len(sk.said)
        sk.node.disconnected(CONNECTION)
        assert len(sk.said) == said


@on_the_loop
async def test_a_failed_fdatasync_on_the_loop_ends_the_node_too(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        sk.node.wal.average_flush_s = ALWAYS_QUICK_S
        await sk.append_durably(b"x" * 10)
        assert sk.fs.synced_by[-1] is threading.current_thread()
        durable_lsn = sk.sent_flush_lsn()
        sk.fs.failing = True
        sk.append(b"x" * 100)
        assert isinstance(await failure(sk.node), StorageFailed)
        assert sk.sent_flush_lsn() == durable_lsn


@on_the_loop
async def test_a_failed_sync_of_the_control_file_ends_the_node_before_the_vote_is_said(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        said = len(sk.said)
        sk.fs.failing = True
        sk.says(asks(LeaderId(2, "other")))
        assert isinstance(await failure(sk.node), StorageFailed)
        assert len(sk.said) == said


@on_the_loop
async def test_a_violated_invariant_ends_the_node(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        sk.fs.hold()
        sk.append(b"x" * 100)
        sk.node.acceptor.write_lsn = BASE_LSN
        sk.fs.release()
        assert isinstance(await failure(sk.node), InvariantViolation)


@on_the_loop
async def test_readers_are_shown_nothing_of_a_state_that_cannot_be(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        learners = LogReaders(sk.node)
        sk.node.attach_readers(learners)
        end_lsn = await sk.append_durably(b"x" * 100)
        seen_lsn = learners.seen_lsn
        sk.node.acceptor.commit_lsn = sk.node.acceptor._open_fork_lsn = end_lsn
        sk.node.acceptor.truncate_lsn = end_lsn + 1
        sk.says(PreVoteRequest("other"))
        assert isinstance(await failure(sk.node), InvariantViolation)
        assert learners.seen_lsn == seen_lsn < end_lsn


@on_the_loop
async def test_readers_are_shown_no_commit_of_an_empty_append_that_makes_the_state_impossible(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        end_lsn = await sk.append_durably(wal_with_commits(BASE_LSN, SEGMENT_SIZE, 60_000))
        sk.append(b"", commit_lsn=end_lsn - 1)
        await until(lambda: sk.node.ready and sk.node.acceptor.readable_lsn == end_lsn - 1)
        readers = LogReaders(sk.node)
        sk.node.attach_readers(readers)
        sk.node.acceptor.truncate_lsn = end_lsn + 1
        sk.append(b"", commit_lsn=end_lsn)
        assert isinstance(await failure(sk.node), InvariantViolation)
        assert readers.seen_lsn == 0


@on_the_loop
async def test_a_state_that_cannot_be_ends_the_node_before_the_flush_that_follows_it(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        sk.fs.hold()
        sk.node.acceptor._open_fork_lsn = LSN_MAX  # The append is a usual one.
        sk.node.acceptor.truncate_lsn = BASE_LSN + 1
        sk.append(b"x" * 100)
        assert isinstance(sk.node.failed.exception(), InvariantViolation)


@pytest.mark.parametrize("is_quick", [False, True], ids=["slow", "quick"])
@on_the_loop
async def test_a_full_disk_refuses_appends_and_recovers_by_itself(tmp_path: Path, is_quick: bool) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        sk.node.wal.average_flush_s = ALWAYS_QUICK_S if is_quick else 1.0
        end_lsn = await sk.append_durably(bytes(SEGMENT_SIZE // 4))
        sk.fs.full = True
        sk.append(bytes(SEGMENT_SIZE))
        refusal = sk.refusal()
        assert refusal is not None and refusal.code is RefusalCode.STORAGE_FULL
        assert [number for number, _, _ in sk.closed] == [CONNECTION]
        assert WAL in sk.node.disk_space.lacking
        read = await sk.ask(ReadRequest(LeaderId(1, "run"), 1, BASE_LSN, BASE_LSN + 10), ReadResponse)
        assert read.payload == bytes(10)
        sk.fs.full = False
        await sk.lead(term=2)
        assert await sk.append_durably(bytes(SEGMENT_SIZE)) == end_lsn + SEGMENT_SIZE
        assert not sk.node.disk_space.lacking


@on_the_loop
async def test_space_that_returns_is_noticed_without_a_single_append(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        sk.fs.full = True
        await sk.append_durably(bytes(SEGMENT_SIZE))
        sk.append(b"x")
        sk.says(asks(LeaderId(2, "other")))
        await until(lambda: set(sk.node.disk_space.lacking) == {WAL, CONTROL_FILE})
        sk.fs.full = False
        sk.node.checkpoint()
        await until(lambda: not sk.node.disk_space.lacking)


@on_the_loop
async def test_a_full_disk_at_a_checkpoint_is_one_warning_and_no_harm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        end_lsn = await sk.append_durably(b"x" * 100)
        sk.append(b"", commit_lsn=end_lsn)
        sk.fs.full = True
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                sk.node.checkpoint()
                await until(lambda: sk.node.ready)
        assert len(caplog.records) == 1
        assert sk.node.acceptor.control.commit_lsn == 0
        sk.fs.full = False
        sk.node.checkpoint()
        await until(lambda: sk.node.acceptor.control.commit_lsn == end_lsn)
        assert not sk.node.disk_space.lacking


@on_the_loop
async def test_draining_brings_everything_to_disk_and_takes_no_message_any_more(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        sk.fs.hold()
        sk.append(b"x" * 100)
        end_lsn = sk.append(b"y" * 100, commit_lsn=BASE_LSN + 200)
        draining = asyncio.ensure_future(sk.node.drain())
        for _ in range(3):
            await asyncio.sleep(0)
        assert not sk.node.ready and not draining.done()
        sk.fs.release()
        await asyncio.wait_for(draining, DEADLINE_S)
        assert sk.sent_flush_lsn() == end_lsn
        stored = ControlFile(RealFileSystem(), tmp_path / "sk").load(ControlState)
        assert stored is not None and stored.commit_lsn == end_lsn


@on_the_loop
async def test_a_rebootstrap_keeps_the_old_wal_under_another_name(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        await sk.append_durably(b"x" * 100)
        membership = Membership(2, MEMBERSHIP.members)
        again = Bootstrap("d" * 32, 5, SEGMENT_SIZE, 150018, membership, replace=True)
        await sk.ask(again, Bootstrapped)
        kept = tmp_path / "sk" / f"{WAL_FOLDER}.{'d' * 32}"
        assert [file.name for file in kept.iterdir()] == ["000000010000000000000003"]
        assert list((tmp_path / "sk" / WAL_FOLDER).iterdir()) == []
    async with bench(tmp_path / "sk") as sk:
        assert (await sk.greet()).flush_lsn == 0


@on_the_loop
async def test_an_undo_moves_the_old_wal_back_and_keeps_what_was_written_since(tmp_path: Path) -> None:
    folder = tmp_path / "sk"
    new = Bootstrap("d" * 32, 5, SEGMENT_SIZE, 150018, Membership(2, MEMBERSHIP.members), replace=True)
    old = Bootstrap(CLUSTER, 5, SEGMENT_SIZE, 150018, Membership(3, MEMBERSHIP.members), undo=True, discard=True)
    async with bench(folder) as sk:
        await sk.lead()
        end_lsn = await sk.append_durably(b"x" * 100)
        before = (await sk.greet()).last_term
        await sk.ask(new, Bootstrapped)
    async with bench(folder) as sk:
        # Files of the new log, whatever wrote them.
        (folder / WAL_FOLDER / "000000010000000000000009").write_bytes(b"new")
        await sk.greet()
        await sk.ask(old, Bootstrapped)
        greeting = await sk.greet()
        assert (greeting.cluster_id, greeting.flush_lsn, greeting.last_term) == (CLUSTER, end_lsn, before)
        assert [file.name for file in (folder / WAL_FOLDER).iterdir()] == ["000000010000000000000003"]
        undone = folder / f"{WAL_FOLDER}.undone-{'d' * 32}"
        assert [file.name for file in undone.iterdir()] == ["000000010000000000000009"]
    async with bench(folder) as sk:
        await sk.greet()
        vote = await sk.ask(asks(LeaderId(2, "run"), Membership(3, MEMBERSHIP.members)), VoteResponse)
        assert vote.granted and vote.flush_lsn == end_lsn


@on_the_loop
async def test_an_undo_is_refused_when_a_segment_was_deleted_from_what_was_set_aside(tmp_path: Path) -> None:
    folder = tmp_path / "sk"
    new = Bootstrap("d" * 32, 5, SEGMENT_SIZE, 150018, Membership(2, MEMBERSHIP.members), replace=True)
    old = Bootstrap(CLUSTER, 5, SEGMENT_SIZE, 150018, Membership(3, MEMBERSHIP.members), undo=True)
    async with bench(folder) as sk:
        await sk.lead()
        sk.append(b"", commit_lsn=await sk.append_durably(b"x" * 100))
        await sk.ask(new, Bootstrapped)
        shutil.rmtree(folder / f"{WAL_FOLDER}.{'d' * 32}")
        refusal = await sk.ask(old, Refusal)
        assert "set aside is incomplete" in refusal.reason and f"{WAL_FOLDER}.{'d' * 32} is missing" in refusal.reason
        assert (await sk.greet()).cluster_id == "d" * 32


async def open_folder(directory: Path, safekeeper_id: int = 1) -> None:
    DataFolder.open(RealFileSystem(), directory, safekeeper_id, "b" * 32).close()


async def led(directory: Path) -> None:
    """Leave a folder with 100 bytes of WAL behind."""
    async with bench(directory) as sk:
        await sk.lead()
        await sk.append_durably(b"x" * 100)


@on_the_loop
async def test_a_folder_whose_wal_ends_below_what_is_committed_is_a_lost_disk(tmp_path: Path) -> None:
    await led(tmp_path / "sk")
    shutil.copytree(tmp_path / "sk" / WAL_FOLDER, tmp_path / "older")
    async with bench(tmp_path / "sk") as sk:
        await sk.lead(term=2)
        sk.append(b"", commit_lsn=await sk.append_durably(b"y" * 100))
        await sk.node.drain()
    shutil.rmtree(tmp_path / "sk" / WAL_FOLDER)
    shutil.copytree(tmp_path / "older", tmp_path / "sk" / WAL_FOLDER)
    with pytest.raises(DiskLost, match="ends at 0/300064, but it reached 0/3000C8"):
        await open_folder(tmp_path / "sk")


def four_segments() -> list[bytes]:
    """Return four segments of WAL with commits, half a segment in each piece."""
    wal, size = wal_with_commits(BASE_LSN, SEGMENT_SIZE, 4 * SEGMENT_SIZE), SEGMENT_SIZE // 2
    return [wal[begin : begin + size] for begin in range(0, 8 * size, size)]


@on_the_loop
async def test_a_disk_that_takes_its_time_to_remove_wal_holds_up_nobody(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        for half_segment in four_segments():
            end_lsn = await sk.append_durably(half_segment)
        sk.append(b"", commit_lsn=end_lsn)
        await until(lambda: sk.node.ready)
        sk.says(AppendRequest(LeaderId(1, "run"), 1, end_lsn, end_lsn, end_lsn, 1, True, b""))
        sk.fs.hold_removals()
        sk.node.trim(lambda: TrimRequest(wanted_lsn=None, keep_bytes=0, limit_bytes=None, has_archive=False))
        await until(lambda: sk.node.folder.begin_lsn > BASE_LSN)
        end_lsn = await sk.append_durably(b"y")
        files = set((tmp_path / "sk" / "wal").iterdir())
        sk.fs.release_removals()
        await until(lambda: len(set((tmp_path / "sk" / "wal").iterdir()) & files) < len(files))
        assert sk.node.acceptor.flush_lsn == end_lsn


async def leave_trimmed(directory: Path) -> int:
    """Leave a folder behind whose oldest WAL was removed; return where it begins."""
    everything = TrimRequest(wanted_lsn=None, keep_bytes=0, limit_bytes=None, has_archive=True)
    async with bench(directory) as sk:
        await sk.lead()
        for half_segment in four_segments():
            end_lsn = await sk.append_durably(half_segment)
        sk.append(b"", commit_lsn=end_lsn)
        sk.node.trim(lambda: everything)
        await until(lambda: sk.node.ready)
        assert sk.node.folder.begin_lsn == BASE_LSN  # Nobody has said yet that it is in the archive.
        sk.says(AppendRequest(LeaderId(1, "run"), 1, end_lsn, end_lsn, end_lsn, 1, True, b""))
        sk.says(ArchiveAssignment(LeaderId(1, "run"), 2, end_lsn))
        sk.node.trim(lambda: everything)
        await until(lambda: sk.node.ready)
        begin_lsn = sk.node.folder.begin_lsn
        report = sk.said[-1][1]
        assert isinstance(report, ArchiveReport) and report.wal_begin_lsn == begin_lsn
    return begin_lsn


@on_the_loop
async def test_old_wal_is_removed_and_stays_so_after_a_restart(tmp_path: Path) -> None:
    begin_lsn = await leave_trimmed(tmp_path / "sk")
    assert begin_lsn == BASE_LSN + 2 * SEGMENT_SIZE
    wal = tmp_path / "sk" / WAL_FOLDER
    oldest = segment_name(1, begin_lsn, SEGMENT_SIZE)
    assert min(file.name for file in wal.iterdir()) == oldest
    (wal / segment_name(1, BASE_LSN, SEGMENT_SIZE)).write_bytes(b"brought back by a crash")
    async with bench(tmp_path / "sk") as sk:
        assert (sk.node.folder.begin_lsn, sk.node.acceptor.control.wal_begin_lsn) == (begin_lsn, begin_lsn)
        assert min(file.name for file in wal.iterdir()) == oldest


@on_the_loop
async def test_a_folder_whose_wal_begins_above_where_it_began_is_a_lost_disk(tmp_path: Path) -> None:
    begin_lsn = await leave_trimmed(tmp_path / "sk")
    (tmp_path / "sk" / WAL_FOLDER / segment_name(1, begin_lsn, SEGMENT_SIZE)).unlink()
    with pytest.raises(DiskLost, match="begins at 0/600000, but it began at 0/500000"):
        await open_folder(tmp_path / "sk")


@on_the_loop
async def test_another_safekeepers_folder_is_refused(tmp_path: Path) -> None:
    await led(tmp_path / "sk")
    with pytest.raises(ConfigurationError, match="belongs to safekeeper 1, not 2"):
        await open_folder(tmp_path / "sk", safekeeper_id=2)


@pytest.mark.parametrize("safekeeper_id", [1, 2])
@on_the_loop
async def test_a_folder_that_was_refused_is_free_again(tmp_path: Path, safekeeper_id: int) -> None:
    await led(tmp_path / "sk")
    if safekeeper_id == 1:
        (tmp_path / "sk" / "control").write_bytes(b"damaged")
    with pytest.raises(WalproxyError):
        await open_folder(tmp_path / "sk", safekeeper_id)
    (tmp_path / "sk" / "control").unlink()
    shutil.rmtree(tmp_path / "sk" / WAL_FOLDER)
    await open_folder(tmp_path / "sk")


@on_the_loop
async def test_a_folder_in_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        await open_folder(tmp_path / "missing" / "sk")


@on_the_loop
async def test_flushes_are_timed_on_the_loop_and_in_the_disks_thread_and_appends_by_their_size(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        node, here = sk.node, threading.current_thread()
        assert node.wal.append_sizes.count == 0
        sk.fs.delay_s = 0.02
        node.wal.average_flush_s, before = 1.0, node.wal.flush_times.count
        await sk.append_durably(b"x" * 100)
        assert sk.fs.synced_by[-1] is not here
        node.wal.average_flush_s = ALWAYS_QUICK_S
        await sk.append_durably(b"x" * 100)
        assert sk.fs.synced_by[-1] is here
        assert node.wal.flush_times.count - before == 2
        assert node.wal.flush_times.total >= 0.04
        assert (node.wal.append_sizes.count, node.wal.append_sizes.total) == (2, 200)


@on_the_loop
async def test_votes_and_refusals_are_counted_by_their_kind(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead(term=2)
        answers = sk.node.answers
        assert (answers.granted, answers.refused, sum(answers.refusals.values())) == (1, 0, 0)
        await sk.ask(asks(LeaderId(1, "older")), VoteResponse)
        sk.term = 1
        sk.append(b"x")
        await until(lambda: any(isinstance(message, Refusal) for _, message in sk.said))
        assert (answers.granted, answers.refused) == (1, 1)
        assert answers.refusals[RefusalCode.STALE_TERM] == sum(answers.refusals.values()) == 1
