"""The limbo of a proxy that does not exist: its window, its positions, and sessions that the test invents."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from safekeeper.net.http_server import SlowRoute
from tests.unit.transactions_wal import TransactionsWal, new_log
from tests.unit.wal_builder import MIB
from walproxy.limbo import limbo as shell
from walproxy.limbo.commit_policy import CommitPolicy
from walproxy.limbo.facts import Facts, Positions, WaitingSession
from walproxy.limbo.limbo import REQUEST_DECODE_S, SAMPLE_AGE_S_MAX, Limbo
from walproxy.limbo.page import LISTED_MAX, QUERY_CHARACTERS_MAX, limbo_as_last_read, limbo_page
from walproxy.postgres.problems import PrimaryProblem, ProblemKind
from walproxy.proxy.status_pages import proxy_routes
from walproxy.proxy.window import Window


class FakeProxy:
    """Positions and a window, which the test moves."""

    def __init__(self) -> None:
        self.window = Window(64 << 20)
        self.positions = Positions(True, 0, 0, 0)
        self.flush_lsns = {1: 0, 2: 0, 3: 0}
        self.tli = 1
        self.conninfo: str | None = "host=h"

    def limbo_positions(self) -> Positions:
        return self.positions

    def limbo_facts(self) -> Facts:
        term = 7 if self.positions.leads else 0
        state, end_lsn = "waiting_for_quorum", self.window.end_lsn
        return Facts("p" * 32, term, state, 2, end_lsn, self.positions, self.flush_lsns, MIB, 180000, self.tli)

    def sql_conninfo(self) -> str | None:
        return self.conninfo

    def commit(self, lsn: int) -> None:
        """The quorum has WAL up to `lsn`, and PostgreSQL was told."""
        self.positions = self.positions._replace(commit_lsn=lsn, reported_lsn=lsn, applied_lsn=lsn)


class Story:
    """A limbo, its proxy, its clock, and PostgreSQL's sessions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, timeout_s: float = 0, action: str = "warn") -> None:
        self.proxy, self.now = FakeProxy(), 100.0
        self.sessions: list[WaitingSession] = []
        self.problem = ""
        self.fenced = False
        self.samples = 0
        self.ended: list[tuple[int, bool]] = []
        self.during_sample: Callable[[], None] = lambda: None
        self.while_connecting: Callable[[], None] = lambda: None
        self.limbo = Limbo(self.proxy, CommitPolicy(timeout_s, action), 1.0, lambda: self.now)
        for name in ("read_waiting_sessions", "end_waits", "set_fence", "is_fenced"):
            monkeypatch.setattr(shell, name, getattr(self, f"_{name}"))

    async def _read_waiting_sessions(self, conninfo: str, pool: object, *, timeout_s: float) -> list[WaitingSession]:
        self.samples += 1
        if self.problem:
            raise PrimaryProblem(ProblemKind.OTHER, self.problem)
        self.during_sample()
        return list(self.sessions)

    async def _end_waits(
        self,
        conninfo: str,
        sessions: Iterable[WaitingSession],
        still_waits: Callable[[WaitingSession], bool],
        *,
        terminate: bool,
        timeout_s: float,
    ) -> tuple[list[WaitingSession], str]:
        self.while_connecting()
        ended = [each for each in sessions if each in self.sessions and still_waits(each)]
        self.ended += [(each.pid, terminate) for each in ended]
        self.sessions = [each for each in self.sessions if each not in ended]
        return ended, ""

    async def _set_fence(self, conninfo: str, on: bool, *, timeout_s: float) -> None:
        self.fenced = on

    async def _is_fenced(self, conninfo: str, *, timeout_s: float) -> bool:
        return self.fenced

    def receive(self, log: TransactionsWal, end_lsn: int | None = None) -> None:
        """The proxy receives the log up to `end_lsn` at the present time."""
        window, end_lsn = self.proxy.window, log.position if end_lsn is None else end_lsn
        if not window.begin_lsn:
            window.reset(log.begin_lsn)
        window.append(window.end_lsn, [memoryview(log.read(window.end_lsn, end_lsn))])
        self.limbo.arrivals.note((end_lsn, self.now))

    def wait(self, *xids: int, query: str = "COMMIT") -> None:
        self.sessions += [WaitingSession(1000 + xid, xid, "u", "app", "10.0.0.1", query) for xid in xids]

    def look(self, at: float) -> None:
        self.now = at
        asyncio.run(self.limbo.look())

    def page(self) -> dict[str, Any]:
        asyncio.run(self.limbo.refresh())
        return limbo_page(self.limbo, self.proxy.limbo_facts())

    def states(self) -> dict[int, str]:
        return {each["xid"]: each["state"] for each in self.page()["transactions"]}


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> Iterator[Story]:
    yield Story(monkeypatch)


def commits(count: int, first: int = 10) -> tuple[TransactionsWal, list[int]]:
    log = new_log()
    return log, [log.commit(xid).end_lsn for xid in range(first, first + count)]


def test_nothing_is_read_and_no_session_sampled_while_commits_are_quick(story: Story) -> None:
    log, ends = commits(3)
    story.receive(log)
    story.look(100.5)
    story.proxy.commit(ends[-1])
    for at in (101.5, 110.0, 200.0):
        story.look(at)
    assert (story.samples, story.limbo.queue.position, len(story.limbo.queue)) == (0, 0, 0)


def test_a_request_while_commits_are_quick_leads_to_no_further_samples(story: Story) -> None:
    log, ends = commits(3)
    story.receive(log)
    story.wait(10, 11)
    assert len(story.page()["transactions"]) == 3
    story.proxy.commit(ends[-1])
    for at in (100.25, 101.25, 110.0):
        story.look(at)
    assert story.samples == 1


def test_sessions_that_wait_for_long_are_sampled_until_they_are_gone(story: Story) -> None:
    story.wait(10)
    story.page()
    story.now = 102.0
    story.page()
    for at in (103.0, 104.0):
        story.look(at)
    assert story.samples == 4
    story.sessions = []
    for at in (105.0, 106.0, 107.0):
        story.look(at)
    assert story.samples == 5


def test_a_slow_commit_is_read_and_its_session_found(story: Story) -> None:
    log, ends = commits(3)
    story.receive(log)
    story.wait(11)
    story.look(101.0)
    assert story.samples == 1
    assert [each.xid for each in story.limbo.queue] == [10, 11, 12]
    content = story.page()
    assert content["owner"] == {"proposer": "p" * 32, "term": 7}
    assert (content["entries"], content["oldest_s"], content["bytes"]) == (3, 1.0, 0)
    assert story.states() == {10: "received", 11: "waiting", 12: "received"}
    assert [each["level"] for each in content["transactions"]] == ["none", None, "none"]
    story.proxy.commit(ends[1])
    story.sessions = []
    assert story.states() == {12: "received"}


def test_each_byte_is_read_once_while_commits_wait(story: Story) -> None:
    log, _ = commits(2000)
    half = log.records[1000].end_lsn
    story.receive(log, half)
    story.page()
    assert story.limbo.queue.read_bytes == half - MIB
    story.receive(log)
    assert story.page()["entries"] == 2000
    assert story.limbo.queue.read_bytes == log.position - MIB


def test_an_entry_may_be_confirmed_when_it_is_first_read(story: Story) -> None:
    """An acknowledgement precedes the decoder; PostgreSQL is told a moment later."""
    log, ends = commits(3)
    story.receive(log)
    story.proxy.positions = story.proxy.positions._replace(commit_lsn=ends[1])
    assert story.states() == {10: "confirmed", 11: "confirmed", 12: "received"}


def test_a_commit_that_is_split_over_messages_waits_since_its_last_byte(story: Story) -> None:
    log, ends = commits(1)
    story.receive(log, ends[0] - 9)
    assert story.page()["transactions"] == []
    story.now = 105.0
    story.receive(log)
    story.now = 107.0
    assert [each["waits_s"] for each in story.page()["transactions"]] == [2.0]


def test_the_members_that_lack_each_transaction_are_listed(story: Story) -> None:
    log, ends = commits(3)
    story.receive(log)
    story.proxy.flush_lsns = {1: ends[0], 2: ends[1], 3: ends[2]}
    assert [each["missing"] for each in story.page()["transactions"]] == [[], [1], [1, 2]]


@pytest.mark.parametrize("offset", [0, 8, 20], ids=["at_a_record", "within_one", "unaligned"])
def test_the_wal_in_memory_begins_anywhere(story: Story, offset: int) -> None:
    log, ends = commits(400)
    begin_lsn = ends[4] + offset
    story.proxy.window.reset(begin_lsn)
    story.limbo.stream_begins(begin_lsn, 1)
    story.proxy.window.append(begin_lsn, [memoryview(log.read(begin_lsn, log.position))])
    story.page()
    # What precedes the first page cannot be read unless a record begins there.
    first_lsn = begin_lsn if offset == 0 else MIB + 8192
    expected = [xid for xid, record in zip(range(10, 410), log.records, strict=True) if record.start_lsn >= first_lsn]
    assert [each.xid for each in story.limbo.queue] == expected


def test_malformed_wal_is_a_problem_of_the_page(story: Story) -> None:
    log, _ = commits(300)
    log.data[9000] ^= 255
    story.receive(log)
    content = story.page()
    assert "cannot decode the WAL: WAL at " in content["problem"]
    assert 0 < content["entries"] < 300


def test_sessions_without_a_record_are_listed_also_without_a_term(story: Story) -> None:
    story.proxy.positions = Positions(False, 0, 0, 0)
    story.wait(10, 11)
    story.sessions.append(WaitingSession(5, 0, "u", "a", "", "COMMIT PREPARED 'x'"))
    first = story.page()
    story.now += 3
    content = story.page()
    assert (content["owner"], content["entries"]) == (None, 3)
    assert [each["waits_s"] for each in content["transactions"]] == [3.0] * 3
    assert {each["xid"] for each in content["transactions"]} == {10, 11, None}
    assert all(each["end_lsn"] is None and each["state"] == "waiting" for each in first["transactions"])
    assert "does not lead a term" in content["problem"]


def test_a_session_whose_wal_is_durable_waits_for_standbys(story: Story) -> None:
    log, ends = commits(1)
    story.receive(log)
    story.proxy.commit(ends[0])
    story.proxy.positions = story.proxy.positions._replace(applied_lsn=MIB)
    # It ends in the middle of the padding of the record.
    story.proxy.window.append(log.position, [memoryview(bytes(ends[0] - log.position))])
    story.wait(10)
    (only,) = story.page()["transactions"]
    assert (only["level"], only["state"]) == ("remote_apply", "waiting")
    story.look(100.0)
    story.sessions = []
    story.look(101.5)
    assert story.samples >= 2, "remote_apply is watched, too"


def test_a_wait_that_ends_without_a_quorum_is_detached(story: Story) -> None:
    log, _ = commits(2)
    story.receive(log)
    story.wait(10, 11)
    story.now += 1
    assert story.states() == {10: "waiting", 11: "waiting"}
    del story.sessions[0]
    assert story.states() == {10: "detached", 11: "waiting"}
    story.problem = "no answer"
    assert story.states() == {10: "received", 11: "received"}, "unknown is not detached"


def test_a_record_that_arrives_after_the_sample_is_not_one_without_a_session(story: Story) -> None:
    log, _ = commits(1)

    def receive() -> None:
        story.now += 1
        story.receive(log)

    story.during_sample = receive
    (only,) = story.page()["transactions"]
    assert (only["state"], only["level"]) == ("received", None)


def test_a_hundred_thousand_entries_are_a_bounded_answer_that_shows_it(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.limbo.queue._entries_max = 500
    log, ends = commits(1500)
    story.receive(log)
    content = story.page()
    assert content["listed"] == len(content["transactions"]) == LISTED_MAX
    assert 500 <= content["entries"] < 1500
    assert "more than " in content["problem"]
    story.proxy.commit(ends[1400])
    content = story.page()
    assert (content["entries"], content["problem"]) == (99, None)


def test_a_request_decodes_for_a_short_time_and_the_next_one_continues(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = commits(3000)
    story.receive(log)
    feed = story.limbo.queue.feed

    def feed_slowly(data: bytes) -> None:
        story.now += 0.02
        feed(data)

    monkeypatch.setattr(story.limbo.queue, "feed", feed_slowly)
    proxy: Any = SimpleNamespace(limbo=story.limbo, limbo_facts=story.proxy.limbo_facts, events=None)
    route = proxy_routes(proxy, {})["/limbo"]
    assert isinstance(route, SlowRoute)
    _, content = asyncio.run(route.answer())
    assert "bytes of WAL are not decoded yet" in content["problem"]
    assert REQUEST_DECODE_S <= story.now - 100.0 < REQUEST_DECODE_S + 0.02
    for _ in range(100):
        _, content = asyncio.run(route.answer())
    assert (content["entries"], content["problem"]) == (3000, None)


def test_the_watch_decodes_for_longer(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = commits(3000)
    story.receive(log)
    story.look(101.5)
    assert (len(story.limbo.queue), story.limbo.problem()) == (3000, "")


def test_the_query_is_cut_and_nothing_else_is_changed_in_it(story: Story) -> None:
    log, _ = commits(1)
    story.receive(log)
    story.limbo.shows_literals = True
    query = "<script>alert(1)</script>\x1b[31m" + "x" * 5000
    story.wait(10, query=query)
    (only,) = story.page()["transactions"]
    assert only["session"]["query"] == query[:QUERY_CHARACTERS_MAX]


def test_a_statement_is_shown_without_its_literals_also_where_it_is_cut(story: Story) -> None:
    log, _ = commits(2)
    story.receive(log)
    story.wait(10, query="ALTER ROLE app PASSWORD 'hunter2'")
    story.wait(11, query="x" * (QUERY_CHARACTERS_MAX - 10) + " 'hunter2 and so on'")
    for content in (story.page(), limbo_as_last_read(story.limbo, story.proxy.limbo_facts())):
        first, second = (each["session"]["query"] for each in content["transactions"])
        assert first == "ALTER ROLE app PASSWORD '?'"
        assert second.endswith("x '?'") and len(second) <= QUERY_CHARACTERS_MAX


def test_the_watch_does_not_forget_the_sample_of_a_request_that_still_decodes(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = commits(3000)
    story.receive(log)
    story.proxy.positions = story.proxy.positions._replace(leads=False)
    story.wait(10)
    feed = story.limbo.queue.feed
    looks: list[asyncio.Task[None]] = []

    def feed_and_look(data: bytes) -> None:
        if not looks:
            story.now += SAMPLE_AGE_S_MAX + 1
            looks.append(asyncio.ensure_future(story.limbo.look()))
        feed(data)

    async def run() -> None:
        await story.limbo.refresh(10.0)
        await looks[0]
        assert list(story.limbo.sessions) == [10]
        await story.limbo.look()
        assert not story.limbo.sessions

    monkeypatch.setattr(story.limbo.queue, "feed", feed_and_look)
    asyncio.run(run())


def test_a_session_of_an_old_sample_is_not_shown_as_waiting(story: Story) -> None:
    """A client has asked for /limbo, then the commit has returned, and no commit is slow."""
    story.wait(10)
    (waiting,) = story.page()["transactions"]
    assert waiting["state"] == "waiting"
    story.sessions.clear()
    story.look(story.now + SAMPLE_AGE_S_MAX / 2)
    assert len(limbo_as_last_read(story.limbo, story.proxy.limbo_facts())["transactions"]) == 1
    story.look(story.now + SAMPLE_AGE_S_MAX)
    content = limbo_as_last_read(story.limbo, story.proxy.limbo_facts())
    assert (content["transactions"], content["entries"], content["oldest_s"]) == ([], 0, None)


def test_a_clock_that_steps_in_the_record_does_not_change_a_wait(story: Story) -> None:
    log = new_log()
    log.commit(10)
    log.commit((1 << 32) - 1)
    story.receive(log)
    story.now += 2
    assert [each["waits_s"] for each in story.page()["transactions"]] == [2.0, 2.0]


def test_the_rate_of_confirms_is_that_of_the_positions_and_the_wal(story: Story) -> None:
    log, ends = commits(3000)
    story.receive(log)
    story.proxy.commit(ends[0])
    story.look(100.0)
    story.page()
    for step in range(1, 5):
        story.proxy.commit(ends[500 * step])
        story.look(100.0 + step)
    rate = story.page()["confirms_per_s"]
    assert rate == pytest.approx(500, rel=0.1)
    for step in range(10):
        story.look(105.0 + step)
    assert story.page()["confirms_per_s"] == 0.0


# The policy.


def overdue(monkeypatch: pytest.MonkeyPatch, action: str) -> tuple[Story, list[int]]:
    """Three commits wait, two of them with sessions."""
    story = Story(monkeypatch, 5.0, action)
    log, ends = commits(3)
    story.receive(log)
    story.wait(10, 11)
    return story, ends


@pytest.mark.parametrize("action", ["terminate", "detach"])
def test_an_overdue_wait_is_ended_counted_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, action: str
) -> None:
    story, _ = overdue(monkeypatch, action)
    story.look(104.0)
    assert story.ended == []
    with caplog.at_level(logging.WARNING):
        story.look(105.0)
    assert story.ended == [(1010, action == "terminate"), (1011, action == "terminate")]
    assert story.limbo.policy.counts[action] == 2
    word = "terminated session" if action == "terminate" else "data-loss risk: detached transaction"
    assert sum(word in record.message for record in caplog.records) == 2
    story.look(106.5)
    assert len(story.ended) == 2
    assert story.states() == {10: "detached", 11: "detached", 12: "received"}


@pytest.mark.parametrize("action", ["terminate", "detach"])
@pytest.mark.parametrize("moment", ["during_sample", "while_connecting"])
def test_a_confirm_that_races_a_timeout_saves_the_wait(
    monkeypatch: pytest.MonkeyPatch, action: str, moment: str
) -> None:
    """Tarantool: a timeout during a confirm does not discard; 5185."""
    story, ends = overdue(monkeypatch, action)
    setattr(story, moment, lambda: story.proxy.commit(ends[0]))
    story.look(106.0)
    assert [pid for pid, _ in story.ended] == [1011]


def test_a_proxy_that_does_not_lead_acts_on_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    story, _ = overdue(monkeypatch, "terminate")
    story.proxy.positions = Positions(False, 0, 0, 0)
    for at in (106.0, 120.0):
        story.look(at)
    assert (story.samples, story.ended) == (0, [])
    assert len(story.page()["transactions"]) == 3, "it lists them"
    asyncio.run(story.limbo._apply_policy(130.0))
    assert story.ended == []


def test_the_fence_is_up_while_commits_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    story, ends = overdue(monkeypatch, "fence")
    story.look(106.0)
    assert story.fenced and story.limbo.policy.counts["fence"] == 2
    story.look(110.0)
    assert story.fenced
    story.sessions = []
    story.proxy.commit(ends[-1])
    story.look(112.0)
    assert not story.fenced
    assert story.ended == []


def test_the_fence_of_an_earlier_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(monkeypatch, 5.0, "fence")
    story.fenced = True
    story.look(101.0)
    assert not story.fenced
    other = Story(monkeypatch, 5.0, "warn")
    other.fenced = True
    other.look(101.0)
    assert other.fenced, "it is not of this policy"


def test_an_action_that_fails_is_logged_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    story, _ = overdue(monkeypatch, "detach")

    async def fails(*_: object, **__: object) -> tuple[list[WaitingSession], str]:
        raise PrimaryProblem(ProblemKind.OTHER, "no answer within 2 s")

    end_waits = shell.end_waits
    monkeypatch.setattr(shell, "end_waits", fails)
    story.look(106.0)
    assert "cannot execute on_commit_timeout: no answer within 2 s" in caplog.text
    assert story.limbo.policy.counts["detach"] == 0
    monkeypatch.setattr(shell, "end_waits", end_waits)
    story.look(108.0)
    assert story.limbo.policy.counts["detach"] == 2


# Timelines.


def test_a_promotion_discards_what_it_lacks_and_a_reconnect_nothing(
    story: Story, caplog: pytest.LogCaptureFixture
) -> None:
    log, ends = commits(4)
    story.receive(log)
    story.page()
    story.now += 1
    story.proxy.window.reset(ends[1])
    story.limbo.stream_begins(ends[1], 1)
    story.receive(log)
    story.now += 1
    content = story.page()
    assert content["discarded"] == 0
    assert [(e["xid"], e["waits_s"]) for e in content["transactions"]] == [(10, 2.0), (11, 2.0), (12, 2.0), (13, 2.0)]
    story.proxy.window.reset(ends[1])
    story.proxy.tli = 2
    story.limbo.stream_begins(ends[1], 2)
    child = log.child(2, ends[1])
    for xid in range(20, 24):  # Longer than what it replaces.
        child.commit(xid)
    story.receive(child)
    assert story.states() == {
        **dict.fromkeys((10, 11, 20, 21, 22, 23), "received"),
        **dict.fromkeys((12, 13), "discarded"),
    }
    assert "transaction 12 (commit at " in caplog.text


def test_the_end_of_a_timeline_discards_what_follows_it(story: Story) -> None:
    log, ends = commits(4)
    story.receive(log)
    story.page()
    story.limbo.timeline_ended(ends[2], 2)
    assert [each.xid for each in story.limbo.queue.discarded] == [13]
