"""The proxy's shell: how actions of events become frames."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from safekeeper.base.errors import InvariantViolation
from safekeeper.base.settings import load
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.membership import Member, Membership
from safekeeper.consensus.messages import AppendRequest, AppendResponse, Elected, Refusal, RefusalCode
from safekeeper.consensus.term_history import HistoryEntry
from safekeeper.peers.codec import PROPOSER_DIALECT, Buffers, FrameDecoder
from tests.unit.event_loop import on_the_loop
from walproxy.limbo.limbo import KEPT_BYTES
from walproxy.proposer.actions import Action, ReportStatus, SendAppend
from walproxy.proposer.leadership import Leadership
from walproxy.proposer.liveness import Timing
from walproxy.proposer.phase import Phase
from walproxy.proxy.config import ENVIRONMENT_PREFIX, ProxyConfig
from walproxy.proxy.proxy import Proxy
from walproxy.proxy.safekeeper_link import SafekeeperLink
from walproxy.proxy.window import Window

MEMBERS = Membership(1, tuple(Member(i, f"{i}" * 32) for i in (1, 2, 3)))
START = 100


class Link:
    """Takes frames; `during_send` happens while one is sent."""

    def __init__(self) -> None:
        self.commits: list[int] = []
        self.frames: list[Buffers] = []
        self.during_send: Callable[[], None] = lambda: None

    def send(self, frame: Buffers) -> None:
        (message,) = FrameDecoder(PROPOSER_DIALECT).feed(b"".join(bytes(buffer) for buffer in frame))
        assert isinstance(message, AppendRequest)
        self.commits.append(message.commit_lsn)
        self.frames.append(frame)
        event, self.during_send = self.during_send, lambda: None
        event()


def leading() -> tuple[Proxy, Leadership, Link, Link]:
    """Return a proxy that leads a term, and its links to two members."""
    config = {"primary": "host=h", "safekeepers": "1=h:1,2=h:2,3=h:3"}
    proxy = Proxy(load(ProxyConfig, ENVIRONMENT_PREFIX, command_line=config, environment={}, file=None))
    history = (HistoryEntry(4, START, 1),)
    elected = Elected(LeaderId(4, "a" * 32), "c" * 32, 7, 1 << 20, 180000, MEMBERS, history, (), START, 0)
    leadership = Leadership(elected, 1, proxy.proposer.standbys, Timing(), 1.0, [])
    proxy.proposer.leadership = leadership
    links = Link(), Link()
    for safekeeper_id, link in enumerate(links, 1):
        proxy.links[safekeeper_id] = cast(SafekeeperLink, link)
    proxy._execution.begin(asyncio.get_running_loop())
    return proxy, leadership, *links


@on_the_loop
async def test_a_frame_is_encoded_once_for_members_with_the_same_header_and_anew_for_another_event() -> None:
    proxy, leadership, first, second = leading()

    def heartbeats(commit_lsn: int) -> list[Action]:
        header = AppendRequest(leadership.leader_id, 1, START, commit_lsn, 0, 0, True, b"")
        return [SendAppend([1, 2], header, START)]

    def commit() -> None:
        proxy._execute(heartbeats(START))

    first.during_send = commit
    proxy._execute(heartbeats(0))
    assert (first.commits, second.commits) == ([0, START], [0, START])
    assert first.frames[0] is second.frames[0] and first.frames[1] is second.frames[1]


@on_the_loop
async def test_nothing_is_carried_out_after_a_violation_although_the_event_loop_goes_on_for_a_turn() -> None:
    proxy, leadership, first, _ = leading()
    header = AppendRequest(leadership.leader_id, 1, START, 0, 0, 0, True, b"")
    proxy._execute([SendAppend([1], header, START)])
    bug = {"message": "a callback failed", "exception": InvariantViolation("it cannot be")}
    proxy._execution.callback_failed(asyncio.get_running_loop(), bug)
    proxy._execute([SendAppend([1], header, START)])
    assert len(first.frames) == 1
    assert isinstance(proxy._execution.ended.exception(), InvariantViolation)


@on_the_loop
async def test_reading_goes_on_as_soon_as_half_of_a_small_window_is_committed() -> None:
    proxy, leadership, *_ = leading()
    proposer, capacity_bytes = proxy.proposer, 1 << 20
    proxy.window = Window(capacity_bytes)
    proxy.window.reset(START)
    proposer._stream.is_open = True
    for phase in (Phase.PRE_VOTING, Phase.VOTING, Phase.VERIFYING, Phase.LEADING):
        proposer._stage.enter(phase)
    leadership.commit_lsn = leadership.truncate_lsn = leadership.write_lsn = START
    for _ in range(16):
        assert not proxy.feed.is_paused
        proxy.wal_received(proxy.window.end_lsn, [memoryview(bytes(64 << 10))])
    assert proxy.feed.is_paused
    uncommitted_bytes = capacity_bytes
    while proxy.feed.is_paused and uncommitted_bytes:
        leadership.commit_lsn += 64 << 10
        leadership.truncate_lsn = leadership.write_lsn = leadership.commit_lsn
        uncommitted_bytes = proxy.window.end_lsn - leadership.commit_lsn
        proxy._execute([ReportStatus(leadership.commit_lsn, leadership.commit_lsn, 0)])
    assert not proxy.feed.is_paused and uncommitted_bytes == capacity_bytes // 2 - (64 << 10)


@on_the_loop
async def test_wal_replies_and_other_events_are_measured() -> None:
    proxy, leadership, *_ = leading()
    proposer, measured = proxy.proposer, proxy.measured
    proxy.window.reset(START)
    proposer._stream.is_open = True
    for phase in (Phase.PRE_VOTING, Phase.VOTING, Phase.VERIFYING, Phase.LEADING):
        proposer._stage.enter(phase)
    measured.commits.permit_samples(0.0, (1,), is_apply_timed=False)
    proxy.wal_received(START, [memoryview(bytes(100))])
    header = AppendRequest(leadership.leader_id, 1, START, 0, 0, 0, True, b"")
    proxy._execute([SendAppend([1, 2], header, START + 100)])
    proxy.link_message(1, AppendResponse(leadership.leader_id, START + 100, START + 100, 0))
    proxy._execute([ReportStatus(START + 100, START + 100, START + 100)])
    assert measured.commits.commit.count == measured.commits.write.count == 1
    assert {i: times.count for i, times in measured.commits.members.items()} == {1: 1}
    proxy.link_message(2, Refusal(RefusalCode.RANGE, "it is gone", leadership.leader_id))
    assert measured.answers.refusals[RefusalCode.RANGE] == 1
    measured.commits.permit_samples(1.0, (1,), is_apply_timed=False)
    proxy.link_down(1)
    assert not measured.commits.armed
    # Without safekeeper 1 the term has lost its start.
    assert (measured.elections.won, measured.elections.terms.count) == (1, 1)


@pytest.mark.parametrize("lags", [False, True], ids=["all_members_have_it", "one_lags_beyond_the_window"])
@on_the_loop
async def test_some_committed_wal_stays_so_that_the_records_that_wait_can_be_read(lags: bool) -> None:
    proxy, leadership, *_ = leading()
    proxy.window = Window(8 << 10)
    for phase in (Phase.PRE_VOTING, Phase.VOTING, Phase.VERIFYING, Phase.LEADING):
        proxy.proposer._stage.enter(phase)
    proxy.window.reset(START)
    chunk = 8 << 10
    for _ in range(64):
        proxy.window.append(proxy.window.end_lsn, [memoryview(bytes(chunk))])
    leadership.commit_lsn = proxy.window.end_lsn
    leadership.truncate_lsn = START if lags else proxy.window.end_lsn
    leadership.update_truncate = lambda: None  # type: ignore[method-assign]
    proxy._trim_window()
    kept_bytes = proxy.window.end_lsn - proxy.window.begin_lsn
    assert KEPT_BYTES <= kept_bytes <= KEPT_BYTES + chunk


@on_the_loop
async def test_an_error_in_a_tick_ends_the_proxy() -> None:
    proxy, *_ = leading()

    def fail(now: float, jitter: float) -> list[Action]:
        raise OSError("it cannot be")

    proxy.proposer.tick = fail  # type: ignore[method-assign]
    proxy._tick()
    assert isinstance(proxy._execution.ended.exception(), OSError)
    assert proxy._execution.next_tick is None
