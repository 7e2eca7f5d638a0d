"""What the node does between two events: which flush covers what, what waits, and which errors end it."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from safekeeper.acceptor.effects import Close, Effects
from safekeeper.acceptor.trimming import TrimRequest
from safekeeper.base.errors import InvariantViolation, ResourceShortage, StorageFailed, StorageFull
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.messages import (
    AcceptorGreeting,
    AppendRequest,
    AppendResponse,
    PreVoteRequest,
    PreVoteResponse,
    PullEnded,
    PullSource,
    PullWal,
    Refusal,
    RefusalCode,
    Standby,
    StandbyFeedback,
    VoteResponse,
)
from safekeeper.node import node as node_module
from safekeeper.node import segment_files, wal_writer
from safekeeper.node.node import Node
from safekeeper.storage.data_folder import DataFolder
from safekeeper.storage.disk_space import CONTROL_FILE, WAL
from safekeeper.storage.disk_work import Preparation
from tests.unit.event_loop import DEADLINE_S, on_the_loop, until
from tests.unit.faulty_filesystem import FaultyFileSystem
from tests.unit.node.test_node import (
    ALWAYS_QUICK_S,
    BASE_LSN,
    CONNECTION,
    INCARNATION,
    SEGMENT_SIZE,
    Bench,
    LogReaders,
    asks,
    bench,
    failure,
    four_segments,
)

LEADER = LeaderId(1, "run")
NOBODY_WANTS_WAL = TrimRequest(wanted_lsn=None, keep_bytes=0, limit_bytes=None, has_archive=False)


async def usual(sk: Bench) -> int:
    """Bring a node to where its next append is a usual one; return where that begins."""
    await sk.lead()
    begin_lsn = await sk.append_durably(b"x" * 100)
    sk.node.acceptor._open_fork_lsn = (1 << 64) - 1
    return begin_lsn


def append(sk: Bench, payload: bytes, *, is_last: bool, connection: int = CONNECTION) -> bool:
    begin_lsn = sk.node.acceptor.write_lsn
    message = AppendRequest(LEADER, 1, begin_lsn, 0, 0, 0, True, payload)
    return sk.node.append(connection, message, asyncio.get_running_loop().time(), is_last=is_last)


async def flushing(sk: Bench) -> int:
    """Let the disk's thread flush 10 bytes until the test releases it; return where they begin."""
    begin_lsn = await usual(sk)
    sk.node.wal.average_flush_s = 1.0
    sk.fs.hold()
    assert append(sk, b"a" * 10, is_last=True)
    return begin_lsn


# Flushes.


@pytest.mark.parametrize("is_quick", [False, True])
@on_the_loop
async def test_appends_that_are_available_together_are_flushed_together(tmp_path: Path, is_quick: bool) -> None:
    async with bench(tmp_path / "sk") as sk:
        begin_lsn = await usual(sk)
        sk.node.wal.average_flush_s = ALWAYS_QUICK_S if is_quick else 1.0
        before = len(sk.fs.synced_by)
        for is_last in (False, False, True):
            assert len(sk.fs.synced_by) == before
            assert append(sk, b"y" * 10, is_last=is_last)
        await until(lambda: sk.sent_flush_lsn() == begin_lsn + 30)
        assert len(sk.fs.synced_by) == before + 1
        assert (sk.fs.synced_by[-1] is threading.current_thread()) is is_quick
        sk.node.messages_handled()
        assert len(sk.fs.synced_by) == before + 1, "there is nothing to flush"


@on_the_loop
async def test_while_a_flush_runs_in_the_thread_none_is_made_on_the_loop(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        begin_lsn = await flushing(sk)
        sk.node.wal.average_flush_s = ALWAYS_QUICK_S
        before = len(sk.fs.synced_by)
        assert append(sk, b"b" * 10, is_last=True)
        assert threading.current_thread() not in sk.fs.synced_by[before:]
        assert sk.sent_flush_lsn() == begin_lsn
        sk.fs.release()
        await until(lambda: sk.sent_flush_lsn() == begin_lsn + 20)


@on_the_loop
async def test_a_flush_that_an_effect_has_included_is_not_counted_again(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        begin_lsn = await flushing(sk)
        sk.says(asks(LeaderId(2, "other")))
        counted = sk.node.wal.flush_times.count
        sk.fs.release()
        await until(lambda: sk.node.ready)
        vote = sk.said[-1][1]
        assert isinstance(vote, VoteResponse) and vote.flush_lsn == begin_lsn + 10
        await sk.node.disk.run(lambda: None)
        assert sk.node.wal.flush_times.count == counted and not sk.node.failed.done()


@on_the_loop
async def test_a_quick_flush_is_answered_at_once_and_one_without_a_leader_to_nobody(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        begin_lsn = await usual(sk)
        sk.node.wal.average_flush_s = ALWAYS_QUICK_S
        said = len(sk.said)
        assert append(sk, b"a" * 10, is_last=True)
        assert len(sk.said) == said + 1 and sk.sent_flush_lsn() == begin_lsn + 10
        assert append(sk, b"b" * 10, is_last=False)
        sk.node.acceptor.disconnected(CONNECTION)
        sk.node.messages_handled()
        assert len(sk.said) == said + 1 and sk.node.acceptor.flush_lsn == begin_lsn + 20


@on_the_loop
async def test_a_thread_s_flush_whose_leader_is_gone_counts_and_is_answered_to_nobody(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        begin_lsn = await flushing(sk)
        sk.node.disconnected(CONNECTION)
        said = len(sk.said)
        sk.fs.release()
        await until(lambda: sk.node.acceptor.flush_lsn == begin_lsn + 10)
        assert len(sk.said) == said


@on_the_loop
async def test_the_average_of_flushes_moves_by_an_eighth_and_decides_where_the_next_one_runs(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await usual(sk)
        sk.fs.delay_s = 0.05
        for start_s, is_on_loop in ((wal_writer.QUICK_FLUSH_S * 0.99, True), (wal_writer.QUICK_FLUSH_S, False)):
            sk.node.wal.average_flush_s = start_s
            before = sk.node.wal.flush_times.total
            await sk.append_durably(b"a" * 10)
            assert (sk.fs.synced_by[-1] is threading.current_thread()) is is_on_loop
            took_s = sk.node.wal.flush_times.total - before
            assert took_s >= 0.05
            expected_s = start_s + (took_s - start_s) / wal_writer.FLUSHES_AVERAGED
            assert sk.node.wal.average_flush_s == pytest.approx(expected_s)


@on_the_loop
async def test_a_heartbeat_is_answered_at_once_with_its_number_and_a_bare_commit_is_not(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        end_lsn = await usual(sk)
        said, syncs = len(sk.said), len(sk.fs.synced_by)
        now = asyncio.get_running_loop().time()
        for commit_lsn, sequence, count in ((0, 7, 1), (end_lsn, 7, 1), (end_lsn, 8, 2)):
            message = AppendRequest(LEADER, 1, end_lsn, commit_lsn, 0, sequence, True, b"")
            assert sk.node.append(CONNECTION, message, now, is_last=True)
            assert len(sk.said) == said + count
        assert sk.said[said:] == [
            (CONNECTION, AppendResponse(LEADER, end_lsn, end_lsn, sequence)) for sequence in (7, 8)
        ]
        assert sk.node.acceptor.commit_lsn == end_lsn and len(sk.fs.synced_by) == syncs


# Messages that must wait, or are not accepted any more.


async def with_a_checkpoint_under_way(sk: Bench) -> int:
    """Bring a node to where it waits for the control file, and follows; return the end of its WAL."""
    end_lsn = await usual(sk)
    sk.append(b"", commit_lsn=end_lsn)
    await until(lambda: sk.node.ready)
    sk.fs.hold()
    sk.node.checkpoint()
    assert not sk.node.ready and sk.node.acceptor.leader == LEADER
    return end_lsn


@on_the_loop
async def test_no_append_is_written_while_an_effect_waits_for_the_disk(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        end_lsn = await with_a_checkpoint_under_way(sk)
        assert not append(sk, b"y", is_last=True)
        assert sk.node.folder.opened_storage().write_lsn == sk.node.acceptor.write_lsn == end_lsn
        sk.fs.release()
        await until(lambda: sk.node.ready)
        assert append(sk, b"y", is_last=True)


@on_the_loop
async def test_no_segment_is_prepared_while_an_effect_waits_for_the_disk(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await with_a_checkpoint_under_way(sk)
        with failing(sk.node.folder.opened_storage(), "prepare_ahead", StorageFailed("not at this moment")):
            sk.node.wal.segments.prepare_ahead()
        assert not sk.node.failed.done()


@pytest.mark.parametrize("size", [100, SEGMENT_SIZE // 2, SEGMENT_SIZE // 2 + 1])
@on_the_loop
async def test_after_half_a_segment_it_is_time_for_the_next_one(tmp_path: Path, size: int) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        await sk.append_durably(bytes(size))
        sk.node.wal.segments.prepare_ahead()
        first_half_ends_lsn = BASE_LSN + SEGMENT_SIZE // 2 + (SEGMENT_SIZE if size > SEGMENT_SIZE // 2 else 0)
        assert sk.node.wal.segments._prepare_at_lsn == first_half_ends_lsn + 1


@on_the_loop
async def test_a_node_that_has_failed_prepares_no_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench(tmp_path / "sk") as sk:
        await usual(sk)
        prepared: list[int] = []
        monkeypatch.setattr(sk.node.folder.opened_storage(), "prepare_ahead", lambda: prepared.append(1))
        sk.node.wal.segments.prepare_ahead()
        assert prepared == [1]
        sk.node.wal.segments._prepared(Preparation(lambda: None), None, StorageFailed("gone"))
        sk.node.wal.segments.prepare_ahead()
        assert prepared == [1]


@on_the_loop
async def test_received_wal_is_not_reported_while_an_effect_waits_for_the_disk(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        end_lsn = await usual(sk)
        sk.append(b"", commit_lsn=end_lsn)
        sk.node.wal.average_flush_s = 1.0
        sk.fs.hold()
        assert append(sk, b"a" * 10, is_last=True)
        sk.node.checkpoint()
        assert sk.node.wal._flush is not None and not sk.node.ready
        sk.node.wal._flush_began_at -= 1
        sk.node.wal._report_timer()
        assert not sk.node._queue


@on_the_loop
async def test_a_node_that_drains_takes_no_message_and_does_not_ask_for_any(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        begin_lsn = await usual(sk)
        await asyncio.wait_for(sk.node.drain(), DEADLINE_S)
        resumed = sk.resumed
        assert not sk.node.ready and not append(sk, b"y", is_last=True)
        sk.node.disconnected(CONNECTION)
        await sk.node.disk.run(lambda: None)
        assert sk.resumed == resumed and sk.node.acceptor.write_lsn == begin_lsn
        assert sk.node.is_between_events


@on_the_loop
async def test_a_drain_that_is_cancelled_harms_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        begin_lsn = await flushing(sk)
        draining = asyncio.ensure_future(sk.node.drain())
        await asyncio.sleep(0)
        draining.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await draining
        sk.fs.release()
        await asyncio.wait_for(sk.node.drain(), DEADLINE_S)
        assert sk.sent_flush_lsn() == begin_lsn + 10 and not sk.node.failed.done()


@on_the_loop
async def test_events_that_come_during_an_effect_are_handled_after_it_in_their_order(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await with_a_checkpoint_under_way(sk)
        standbys = (Standby("a", BASE_LSN, BASE_LSN, BASE_LSN),)
        before, resumed = len(sk.said), sk.resumed
        sk.node.readers_changed(True, standbys)
        sk.node.readers_changed(False, ())
        sk.node.disconnected(CONNECTION)
        assert not sk.node.acceptor.has_readers and len(sk.said) == before and sk.resumed == resumed
        sk.fs.release()
        await until(lambda: sk.node.ready)
        feedback = [message for _, message in sk.said[before:] if isinstance(message, StandbyFeedback)]
        assert feedback == [StandbyFeedback(standbys), StandbyFeedback(())]
        assert sk.node.acceptor.leader is None and sk.resumed > resumed


@on_the_loop
async def test_readers_are_updated_before_a_message_and_after_it(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await usual(sk)
        readers = LogReaders(sk.node)
        readers.wakes_at_lsn = (1 << 64) - 1
        seen: list[bool] = []
        readers.update = lambda: seen.append(sk.node.ready)  # type: ignore[method-assign]
        sk.node.attach_readers(readers)
        sk.node.receive(CONNECTION, PreVoteRequest("run"))
        assert seen == [True, True]
        sk.node.messages_handled()
        assert seen == [True, True], "nothing was written that they wait for"


# Errors.


@contextlib.contextmanager
def failing(target: object, name: str, error: BaseException) -> Iterator[None]:
    """Let a method raise an error."""

    def fails(*_: object, **__: object) -> Any:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, name, fails)
        yield


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("wrote", StorageFailed("gone")),
        ("wrote", ValueError("a bug")),
        ("flushed", InvariantViolation("cannot be")),
        ("check", InvariantViolation("cannot be")),
    ],
)
@on_the_loop
async def test_an_error_in_an_event_ends_the_node_and_nothing_more_is_executed(
    tmp_path: Path, method: str, error: Exception
) -> None:
    async with bench(tmp_path / "sk") as sk:
        await usual(sk)
        sk.node.wal.average_flush_s = ALWAYS_QUICK_S
        said, resumed = len(sk.said), sk.resumed
        with failing(sk.node.acceptor, method, error):
            if method == "check":
                sk.node.receive(CONNECTION, PreVoteRequest("run"))
            else:
                append(sk, b"y", is_last=True)
        assert sk.node.failed.exception() is error
        assert not sk.node.ready and not sk.node.is_between_events
        assert not append(sk, b"z", is_last=True)
        sk.node.receive(CONNECTION, PreVoteRequest("run"))
        sk.node.messages_handled()
        sk.node.disconnected(CONNECTION)
        sk.node.checkpoint()
        assert (len(sk.said), sk.resumed) == (said, resumed)


@on_the_loop
async def test_what_was_written_before_a_node_has_failed_is_not_flushed_afterwards(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await usual(sk)
        sk.node.wal.average_flush_s = ALWAYS_QUICK_S
        assert append(sk, b"y", is_last=False)
        before, said = len(sk.fs.synced_by), len(sk.said)
        with failing(sk.node.acceptor, "check", InvariantViolation("cannot be")):
            sk.node.receive(CONNECTION, PreVoteRequest("run"))
        assert sk.node.failed.done()
        sk.node.messages_handled()
        assert (len(sk.fs.synced_by), len(sk.said)) == (before, said)


@on_the_loop
async def test_an_error_of_a_queued_event_ends_the_node(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await usual(sk)
        error = ValueError("a bug")
        with failing(sk.node.acceptor, "disconnected", error):
            sk.node.disconnected(CONNECTION)
        assert await failure(sk.node) is error


def fails_as_an_effect(*_: object) -> Iterator[Any]:
    """Fail when the first effect is asked for."""
    raise ValueError("a bug")
    yield


@on_the_loop
async def test_events_that_wait_when_an_effect_fails_are_not_handled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(tmp_path / "sk") as sk:
        await with_a_checkpoint_under_way(sk)
        monkeypatch.setattr(sk.node.acceptor, "readers_changed", fails_as_an_effect)
        sk.node.readers_changed(True, ())
        sk.node.disconnected(CONNECTION)
        sk.fs.release()
        assert str(await failure(sk.node)) == "a bug"
        await sk.node.disk.run(lambda: None)
        assert sk.node.acceptor.leader == LEADER


@on_the_loop
async def test_readers_are_not_updated_after_an_event_that_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(tmp_path / "sk") as sk:
        await usual(sk)
        seen: list[bool] = []
        readers = LogReaders(sk.node)
        readers.update = lambda: seen.append(sk.node.failed.done())  # type: ignore[method-assign]
        sk.node.attach_readers(readers)
        monkeypatch.setattr(sk.node.acceptor, "readers_changed", fails_as_an_effect)
        sk.node.readers_changed(True, ())
        assert str(await failure(sk.node)) == "a bug" and seen == [False]
        monkeypatch.setattr(sk.node.acceptor, "receive", fails_as_an_effect)
        sk.node.receive(CONNECTION, PreVoteRequest("run"))
        sk.node.messages_handled()
        assert seen == [False]


@on_the_loop
async def test_nothing_follows_an_event_after_which_the_state_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(tmp_path / "sk") as sk:
        await with_a_checkpoint_under_way(sk)
        acceptor = sk.node.acceptor
        monkeypatch.setattr(
            acceptor, "disconnected", lambda _: setattr(acceptor, "truncate_lsn", acceptor.commit_lsn + 1)
        )
        seen: list[bool] = []
        readers = LogReaders(sk.node)
        readers.update = lambda: seen.append(acceptor.truncate_lsn > acceptor.commit_lsn)  # type: ignore[method-assign]
        sk.node.attach_readers(readers)
        said = len(sk.said)
        sk.node.disconnected(9)
        sk.node.readers_changed(True, (Standby("a", BASE_LSN, BASE_LSN, BASE_LSN),))
        sk.fs.release()
        assert isinstance(await failure(sk.node), InvariantViolation)
        assert not acceptor.has_readers and len(sk.said) == said, "the next event is not handled"
        assert seen and not any(seen), "no reader sees it"


@on_the_loop
async def test_the_state_is_checked_as_soon_as_the_effects_of_an_event_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(tmp_path / "sk") as sk:
        await usual(sk)
        acceptor = sk.node.acceptor
        truncate_lsn = acceptor.truncate_lsn

        def effects(connection: int, *_: object) -> Effects:
            acceptor.truncate_lsn = acceptor.commit_lsn + 1
            yield Close(connection, "done")

        monkeypatch.setattr(acceptor, "receive", effects)
        sk.node.receive(CONNECTION, PreVoteRequest("run"))
        acceptor.truncate_lsn = truncate_lsn  # Also where it was not noticed, the node can be drained.
        assert sk.node.failed.done() and isinstance(sk.node.failed.exception(), InvariantViolation)


@on_the_loop
async def test_the_first_error_is_the_one_that_is_reported(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await usual(sk)
        first, second = ValueError("first"), ValueError("second")
        for error in (first, second):
            with failing(sk.node.acceptor, "disconnected", error):
                sk.node.disconnected(CONNECTION)
            sk.node.wal.segments._prepared(Preparation(lambda: None), None, error)  # type: ignore[arg-type, return-value]
        assert await failure(sk.node) is first


@on_the_loop
async def test_an_effect_that_ends_after_the_node_has_failed_leads_to_no_answer(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await usual(sk)
        sk.fs.hold()
        sk.says(asks(LeaderId(2, "other")))
        said = len(sk.said)
        sk.node.wal.segments._prepared(Preparation(lambda: None), None, StorageFailed("gone"))
        assert sk.node.failed.done()
        sk.fs.release()
        await sk.node.disk.run(lambda: None)
        assert len(sk.said) == said


@pytest.mark.parametrize("is_fatal", [False, True])
@on_the_loop
async def test_a_segment_that_cannot_be_prepared_ends_the_node_only_if_the_disk_fails(
    tmp_path: Path, is_fatal: bool
) -> None:
    async with bench(tmp_path / "sk") as sk:
        await usual(sk)
        storage = sk.node.folder.opened_storage()
        error: Exception = StorageFailed("gone") if is_fatal else StorageFull("no space")
        with failing(storage, "_create", error):
            for payload in (bytes(SEGMENT_SIZE // 2 + 1), b"x"):
                sk.append(payload)
            if is_fatal:
                assert await failure(sk.node) is error
                return
            await until(lambda: WAL in sk.node.disk_space.lacking)
        assert not sk.node.failed.done()
        sk.node.checkpoint()
        await until(lambda: not sk.node.disk_space.lacking)


@on_the_loop
async def test_a_checkpoint_that_finds_a_failed_storage_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        end_lsn = await sk.append_durably(b"x" * 100)
        sk.append(b"", commit_lsn=end_lsn)
        await until(lambda: sk.node.ready and sk.node.acceptor.commit_lsn == end_lsn)
        submitted: list[object] = []
        monkeypatch.setattr(sk.node.disk, "submit", lambda *job: submitted.append(job))
        sk.node.folder.opened_storage()._fail(StorageFailed("gone"))
        sk.node.checkpoint()
        assert "gone" in str(await failure(sk.node))
        assert not submitted


@on_the_loop
async def test_a_removal_that_fails_ends_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        for half_segment in four_segments():
            end_lsn = await sk.append_durably(half_segment)
        sk.append(b"", commit_lsn=end_lsn)
        await until(lambda: sk.node.ready)
        sk.says(AppendRequest(LEADER, 1, end_lsn, end_lsn, end_lsn, 1, True, b""))
        unlink = sk.fs.unlink

        def fails_once(path: Path) -> None:
            failed.append(path)
            if len(failed) == 1:
                raise StorageFailed("gone")
            unlink(path)

        failed: list[Path] = []
        monkeypatch.setattr(sk.fs, "unlink", fails_once)
        sk.node.trim(lambda: NOBODY_WANTS_WAL)
        assert str(await failure(sk.node)) == "gone"


@on_the_loop
async def test_removals_are_finished_one_by_one(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        for half_segment in four_segments():
            end_lsn = await sk.append_durably(half_segment)
        sk.append(b"", commit_lsn=end_lsn)
        await until(lambda: sk.node.ready)
        sk.says(AppendRequest(LEADER, 1, end_lsn, end_lsn, end_lsn, 1, True, b""))
        sk.node.trim(lambda: NOBODY_WANTS_WAL)
        await until(lambda: sk.node.ready and not sk.node.folder.opened_storage()._removals)
        assert sk.node.folder.begin_lsn > BASE_LSN
        sk.node.trim(lambda: NOBODY_WANTS_WAL)
        await until(lambda: sk.node.ready)
        assert not sk.node.failed.done()


# Want of disk space, and of descriptors.


@on_the_loop
async def test_a_start_that_cannot_be_counted_for_want_of_space_is_no_failure_and_is_counted_later(
    tmp_path: Path,
) -> None:
    fs = FaultyFileSystem()
    folder = DataFolder.open(fs, tmp_path / "sk", 1, INCARNATION)
    fs.full = True
    node = Node(folder, asyncio.get_running_loop())
    try:
        assert set(node.disk_space.lacking) == {CONTROL_FILE} and node.acceptor.control.starts == 0
        fs.full = False
    finally:
        node.stop()
        folder.close()


@on_the_loop
async def test_an_effect_without_a_free_descriptor_is_refused_after_some_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "SHORTAGE_PAUSES_S", (0.001, 0.002))
    async with bench(tmp_path / "sk") as sk:
        await usual(sk)
        attempts: list[object] = []
        perform = sk.node.folder.perform

        def short(effect: Any) -> Any:
            attempts.append(effect)
            raise ResourceShortage("Too many open files")

        monkeypatch.setattr(sk.node.folder, "perform", short)
        sk.says(asks(LeaderId(2, "other")))
        await until(lambda: sk.refusal() is not None)
        refusal = sk.refusal()
        assert refusal is not None and refusal.code is RefusalCode.STORAGE_FULL
        assert len(attempts) == 3 and len(set(map(id, attempts))) == 1
        await until(lambda: sk.node.disk_space.shortages >= 3)
        assert not sk.node.failed.done() and sk.node.acceptor.control.promised == LEADER
        monkeypatch.setattr(sk.node.folder, "perform", perform)
        await until(lambda: sk.node.ready)
        greeting = await sk.greet()
        assert isinstance(greeting, AcceptorGreeting)


@on_the_loop
async def test_space_for_wal_counts_as_back_only_once_a_flush_ends_in_a_new_segment(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await usual(sk)
        sk.node.wal.average_flush_s = ALWAYS_QUICK_S
        sk.fs.full = True
        sk.append(bytes(SEGMENT_SIZE))
        assert WAL in sk.node.disk_space.lacking
        assert sk.node.disk_space.wal_ends_at_lsn == BASE_LSN + SEGMENT_SIZE
        sk.node.wal.segments._prepare_not_before = float("inf")
        sk.fs.full = False  # The control file has space.
        await sk.lead(term=2)
        sk.fs.full = True
        rest = BASE_LSN + SEGMENT_SIZE - sk.node.acceptor.write_lsn
        assert await sk.append_durably(bytes(rest)) == BASE_LSN + SEGMENT_SIZE
        assert WAL in sk.node.disk_space.lacking, "the old segment had space for that"
        sk.fs.full = False
        await sk.append_durably(b"x")
        assert WAL not in sk.node.disk_space.lacking


@on_the_loop
async def test_without_a_log_any_flush_shows_that_there_is_space_for_wal_again(tmp_path: Path) -> None:
    """Simulator, elections 1032951: a segment is prepared when the log has been set aside."""
    async with bench(tmp_path / "sk") as sk:
        sk.node.folder.control = msgspec.structs.replace(sk.node.folder.control, segment_size=SEGMENT_SIZE)
        sk.node.disk_space.wal_ends_at_lsn = BASE_LSN
        sk.node.wal.segments.no_room(StorageFull("No space left on device"))
        assert WAL in sk.node.disk_space.lacking and sk.node.disk_space.wal_ends_at_lsn == 0


@on_the_loop
async def test_a_segment_is_prepared_again_after_longer_and_longer_pauses_without_a_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(tmp_path / "sk") as sk:
        await usual(sk)
        pauses_s: list[float] = []
        preparation, short = Preparation(lambda: None), ResourceShortage("too many open files")
        with monkeypatch.context() as patch:
            patch.setattr(sk.node._loop, "call_later", lambda pause_s, _: pauses_s.append(pause_s))
            for error in (*[short] * (len(segment_files.SHORTAGE_PAUSES_S) + 2), None, short):
                sk.node.wal.segments._count_prepared(preparation, error)
        longest_s, first_s = segment_files.SHORTAGE_PAUSES_S[-1], segment_files.SHORTAGE_PAUSES_S[0]
        assert pauses_s == [*segment_files.SHORTAGE_PAUSES_S, longest_s, longest_s, first_s]


@on_the_loop
async def test_a_segment_without_space_is_prepared_again_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(tmp_path / "sk") as sk:
        await usual(sk)
        began_at = now = 1000.0
        for module in (wal_writer, segment_files):
            monkeypatch.setattr(module, "monotonic", lambda: now)
        sk.node.wal.segments._count_prepared(Preparation(lambda: None), StorageFull("No space left on device"))
        prepared_at: list[float] = []
        monkeypatch.setattr(sk.node.wal.segments, "prepare_ahead", lambda: prepared_at.append(now))
        for passed in (0.0, 0.99, 1.0):
            now = began_at + passed * segment_files.PREPARE_AGAIN_AFTER_S
            await sk.append_durably(b"y")
        assert prepared_at == [now]


@pytest.mark.parametrize("more", [0, 1])
@on_the_loop
async def test_space_for_wal_is_lacked_behind_the_segment_that_is_written(tmp_path: Path, more: int) -> None:
    async with bench(tmp_path / "sk") as sk:
        await usual(sk)
        border_lsn = BASE_LSN + SEGMENT_SIZE
        await sk.append_durably(bytes(border_lsn + more - sk.node.acceptor.write_lsn))
        sk.node.wal.segments.no_room(StorageFull("No space left on device"))
        assert sk.node.disk_space.wal_ends_at_lsn == border_lsn + more * SEGMENT_SIZE


@on_the_loop
async def test_the_space_of_the_disk_is_measured_in_the_thread_or_a_warning_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(tmp_path / "sk") as sk:
        sk.node.measure_room()
        await until(lambda: sk.node.disk_space.space is not None)
        with failing(sk.node.folder, "space", StorageFailed("gone")):
            sk.node.measure_room()
            await until(lambda: "could not measure the disk's space: gone" in caplog.text)


# WAL of other members.


PULL = PullWal(LEADER, 7, BASE_LSN + 1000, 0, (PullSource(2, "two:2"),))


@pytest.mark.parametrize(
    ("begin", "leader_id", "written"),
    [(100, LEADER, 50), (101, LEADER, 0), (100, LeaderId(2, "other"), 0)],
    ids=["next", "elsewhere", "another leader"],
)
@on_the_loop
async def test_pulled_wal_is_handled_whether_it_is_written_or_not(
    tmp_path: Path, begin: int, leader_id: LeaderId, written: int
) -> None:
    async with bench(tmp_path / "sk") as sk:
        begin_lsn = await usual(sk)
        sk.says(PULL)
        handled = sk.node.pulled(leader_id, BASE_LSN + begin, b"p" * 50)
        await asyncio.wait_for(handled, DEADLINE_S)
        await until(lambda: sk.node.acceptor.flush_lsn == begin_lsn + written)
        assert sk.node.acceptor.write_lsn == begin_lsn + written


@on_the_loop
async def test_pulled_wal_without_space_is_handled_and_ends_the_pull(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        begin_lsn = await usual(sk)
        sk.says(PULL)
        with failing(sk.node.folder.opened_storage(), "append", StorageFull("no space")):
            handled = sk.node.pulled(LEADER, begin_lsn, b"p" * 50)
            await asyncio.wait_for(handled, DEADLINE_S)
        assert sk.said[-1] == (CONNECTION, PullEnded(LEADER, 7, begin_lsn, "no space"))
        assert WAL in sk.node.disk_space.lacking and not sk.node.failed.done()


@on_the_loop
async def test_a_pull_that_has_failed_is_reported_to_the_leader(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        begin_lsn = await usual(sk)
        sk.says(PULL)
        pull = sk.node.acceptor.pull
        assert pull is not None
        sk.node.pull_failed(pull, "all are gone")
        assert sk.said[-1] == (CONNECTION, PullEnded(LEADER, 7, begin_lsn, "all are gone"))


@on_the_loop
async def test_a_message_that_breaks_the_protocol_closes_its_connection_with_the_reason(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await usual(sk)
        sk.node.receive(7, PreVoteRequest("run"))
        assert sk.closed == [(7, "PreVoteRequest before the greeting", True)]
        assert sk.node.ready
        answer = await sk.ask(PreVoteRequest("run"), PreVoteResponse)
        assert answer.granted


@on_the_loop
async def test_a_refusal_that_closes_the_connection_did_not_break_the_protocol(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await usual(sk)
        message = AppendRequest(LEADER, 1, BASE_LSN + 5000, 0, 0, 0, True, b"gap")
        sk.says(message)
        assert isinstance(sk.said[-1][1], Refusal)
        ((connection, reason, broken),) = sk.closed
        assert (connection, broken) == (CONNECTION, False) and "does not start at the write position" in reason
