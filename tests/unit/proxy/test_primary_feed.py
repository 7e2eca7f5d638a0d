"""The feed against a fake primary: when it waits and when it gives up, what it says once, what it tells PostgreSQL."""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar

import pytest

import walproxy.postgres.slot_holder
import walproxy.proxy.feed_slot
import walproxy.proxy.primary_feed
from safekeeper.base.errors import RemoteProtocolError, WalproxyError
from tests.unit.event_loop import on_the_loop, until
from walproxy.postgres.hosts import PrimaryHost
from walproxy.postgres.page_checksums import PageChecksums
from walproxy.postgres.problems import PrimaryProblem, ProblemKind, problem_of_error
from walproxy.postgres.replication import PrimaryFacts
from walproxy.postgres.replication_protocol import TimelineEnd
from walproxy.postgres.slot_holder import SlotHolder
from walproxy.postgres.sql_walsender import Value
from walproxy.proposer.actions import StartReplication
from walproxy.proposer.primary import PrimaryIdentity
from walproxy.proxy.primary_feed import FeedConfig, PrimaryFeed

SEGMENT_SIZE = 1 << 20
BEGIN_LSN = 3 * SEGMENT_SIZE
FACTS = PrimaryFacts(
    system_id=7,
    tli=1,
    flush_lsn=BEGIN_LSN,
    segment_size=SEGMENT_SIZE,
    server_version=180000,
    in_recovery=False,
    timeline_history=b"",
    lineage=(),
    wal_level="replica",
    fsync=True,
)


def problem(kind: ProblemKind, text: str = "") -> PrimaryProblem:
    return PrimaryProblem(kind, text or kind.label)


class FakePrimary:
    """Makes fake connections. What is in `failures` is raised instead, by the method of that name, one at a time.

    Attributes:
        problems: by connection string, what is wrong with that host for as long as it is here.
        tried: the connection strings that it was asked for.
    """

    def __init__(self) -> None:
        self.connections: list[FakeConnection] = []
        self.failures: dict[str, list[Exception]] = {}
        self.problems: dict[str, Exception] = {}
        self.tried: list[str] = []
        self.has_slot = False
        self.slot_lsn: int | None = BEGIN_LSN
        self.idle_slot_timeout = "0"
        self.facts = FACTS

    @property
    def attempts(self) -> int:
        return len(self.tried)

    async def connect(self, conninfo: str, *, application_name: str, timeout_s: float) -> "FakeConnection":
        self.tried.append(conninfo)
        self.fail("connect")
        if conninfo in self.problems:
            raise self.problems[conninfo]
        self.connections.append(FakeConnection(self))
        return self.connections[-1]

    def fail(self, name: str) -> None:
        if self.failures.get(name):
            raise self.failures[name].pop(0)


class FakeConnection:
    """What a feed uses of a ReplicationConnection."""

    def __init__(self, primary: FakePrimary) -> None:
        self._primary = primary
        self._ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.received_lsn = self.server_end_lsn = 0
        self.last_message_s = asyncio.get_running_loop().time()
        self.reported: list[tuple[int, int, int]] = []
        self.feedback: list[tuple[int, int]] = []
        self.started: list[tuple[str | None, int, int]] = []
        self.reading = True
        self.closed = False
        self.slots: list[str] = []
        self.on_wal: Callable[[int, list[memoryview]], None]
        self.on_keepalive: Callable[[int, bool], None]

    async def has_slot(self, name: str) -> bool:
        return self._primary.has_slot

    async def still_has_slot(self, name: str) -> bool:
        return self._primary.has_slot

    async def slot_restart_lsn(self, name: str) -> int | None:
        return self._primary.slot_lsn

    async def ensure_slot(self, name: str) -> bool:
        self.slots.append(name)
        self._primary.has_slot = True
        return True

    async def drop_slot(self, name: str) -> None:
        self.slots.append(f"dropped {name}")

    async def idle_slot_timeout(self) -> str:
        return self._primary.idle_slot_timeout

    async def identify(self) -> PrimaryFacts:
        if self.closed:
            raise problem(ProblemKind.LOST, "the connection is closed")
        self._primary.fail("identify")
        return self._primary.facts

    async def timeline_history(self, tli: int) -> bytes:
        return b""

    async def start_replication(self, slot: str | None, begin_lsn: int, tli: int) -> None:
        self._primary.fail("start_replication")
        self.started.append((slot, begin_lsn, tli))
        self.received_lsn = self.server_end_lsn = begin_lsn

    async def stream(self, on_wal: Any, on_keepalive: Any) -> Any:
        self.on_wal, self.on_keepalive = on_wal, on_keepalive
        return await self._ended

    def arrive(self, payload: bytes) -> None:
        begin_lsn = self.received_lsn
        self.received_lsn = self.server_end_lsn = begin_lsn + len(payload)
        self.on_wal(begin_lsn, [memoryview(payload)])

    def end(self, error: Exception) -> None:
        self._ended.set_exception(error)

    def end_timeline(self, end: TimelineEnd) -> None:
        """End the timeline that is streamed; the next one can be asked for then."""
        ended, self._ended = self._ended, asyncio.get_running_loop().create_future()
        ended.set_result(end)

    def send_status(self, write_lsn: int, flush_lsn: int, apply_lsn: int, *, reply_requested: bool = False) -> None:
        assert max(write_lsn, flush_lsn, apply_lsn) <= self.received_lsn
        self.reported.append((write_lsn, flush_lsn, apply_lsn))

    def send_hot_standby_feedback(self, xmin: int, catalog_xmin: int) -> None:
        self.feedback.append((xmin, catalog_xmin))

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True
        if not self._ended.done():
            self._ended.set_exception(problem(ProblemKind.LOST))
            self._ended.exception()  # A feed that streams nothing does not ask for it.


class Owner:
    """What a feed told, and what it may tell PostgreSQL."""

    def __init__(self) -> None:
        self.identities: list[PrimaryIdentity] = []
        self.lost: list[str] = []
        self.failures: list[WalproxyError] = []
        self.received: list[tuple[int, bytes]] = []
        self.checked: list[tuple[int, int]] = []
        self.removed: list[str] = []
        self.waits_for_slot = 0
        self.knows_a_cluster = True
        self.quorum_lsn = 0
        self.starts_first = False
        self.when_checked: Callable[[], None] | None = None
        self.when_removed: Callable[[], None] | None = None

    def may_make_slot(self) -> bool:
        return self.knows_a_cluster

    def is_first_start(self) -> bool:
        return self.starts_first

    def quorum_end_lsn(self) -> int:
        return self.quorum_lsn

    def primary_identified(self, identity: PrimaryIdentity) -> None:
        self.identities.append(identity)

    def primary_lost(self, reason: str) -> None:
        self.lost.append(reason)

    def primary_checked(self, begin_lsn: int, end_lsn: int, digest: PageChecksums) -> None:
        self.checked.append((begin_lsn, end_lsn))
        if self.when_checked is not None:
            self.when_checked()

    def slot_in_use(self) -> None:
        self.waits_for_slot += 1

    def segment_removed(self, reason: str) -> None:
        self.removed.append(reason)
        if self.when_removed is not None:
            self.when_removed()

    def primary_refused(self, reason: str) -> None:
        raise AssertionError(reason)

    def wal_received(self, begin_lsn: int, chunks: list[memoryview]) -> None:
        self.received.append((begin_lsn, b"".join(chunks)))

    def timeline_ended(self, next_tli: int, end_lsn: int) -> None:
        raise AssertionError("no timeline ends here")

    def failed(self, error: WalproxyError) -> None:
        self.failures.append(error)


class House:
    """A feed, its owner and its primary, which may be on one of several hosts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *hosts: PrimaryHost) -> None:
        self.primary = FakePrimary()
        self.owner = Owner()
        monkeypatch.setattr(walproxy.proxy.primary_feed, "ReplicationConnection", self.primary)
        monkeypatch.setattr(walproxy.proxy.primary_feed, "PAUSE_MIN_S", 0.001)
        monkeypatch.setattr(walproxy.proxy.primary_feed, "PAUSE_MAX_S", 0.002)
        monkeypatch.setattr(walproxy.proxy.primary_feed, "PAUSE_MAX_OF_SEVERAL_S", 0.002)
        monkeypatch.setattr(walproxy.proxy.primary_feed, "IDLE_CHECK_S", 0.01)
        monkeypatch.setattr(walproxy.proxy.feed_slot, "CHECK_INTERVAL_S", 0.01)
        self.feed = PrimaryFeed(FeedConfig(hosts, "walproxy", "walproxy", silence_timeout_s=50.0), self.owner)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.feed.run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def request(self, check_begin_lsn: int = BEGIN_LSN, tli: int = 1) -> None:
        """Request the WAL of a timeline from BEGIN_LSN on, once there is a primary."""
        await until(lambda: bool(self.owner.identities))
        self.feed.start(StartReplication(check_begin_lsn, 1, BEGIN_LSN, tli))

    async def stream(self, check_begin_lsn: int = BEGIN_LSN) -> FakeConnection:
        """Request WAL, and wait until it is streamed."""
        await self.request(check_begin_lsn)
        await until(lambda: self.feed.streams)
        return self.primary.connections[-1]


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> House:
    caplog.set_level(logging.INFO)
    return House(monkeypatch, PrimaryHost("db", "host=db"))


@on_the_loop
async def test_what_may_pass_is_waited_for_and_reported_once(house: House, caplog: pytest.LogCaptureFixture) -> None:
    house.primary.failures["connect"] = [problem(ProblemKind.UNREACHABLE, "nobody there") for _ in range(5)]
    async with house.running():
        await until(lambda: bool(house.owner.identities))
        await until(lambda: "connected to the primary" in caplog.text)
    assert house.owner.lost == ["nobody there"] * 5
    assert caplog.text.count("no primary: nobody there") == 1
    assert house.feed.problem == "" and house.owner.failures == []


@on_the_loop
async def test_a_configuration_that_cannot_work_ends_it_at_the_first_start_only(house: House) -> None:
    house.owner.starts_first = True
    house.primary.failures["connect"] = [problem(ProblemKind.NO_LOGIN)]
    async with house.running():
        await until(lambda: bool(house.owner.failures))
        assert house.primary.attempts == 1
    house.owner.failures.clear()
    async with house.running():
        connection = await house.stream()
        house.primary.failures["connect"] = [problem(ProblemKind.NO_LOGIN)]
        connection.end(problem(ProblemKind.ENDED))
        await until(lambda: len(house.owner.identities) == 2)
    assert house.owner.lost == ["ended", "no_login"] and house.owner.failures == []


@on_the_loop
async def test_a_login_that_no_longer_succeeds_is_waited_for_at_the_start_beside_a_cluster(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.primary.failures["connect"] = [problem(ProblemKind.NO_LOGIN, "the password has expired") for _ in range(3)]
    async with house.running():
        await until(lambda: bool(house.owner.identities))
    assert house.owner.failures == []
    assert caplog.text.count("no primary: the password has expired") == 1


@on_the_loop
async def test_a_connection_string_that_cannot_be_used_ends_it_beside_a_cluster_too(house: House) -> None:
    house.primary.failures["connect"] = [problem(ProblemKind.WRONG_CONNINFO)]
    async with house.running():
        await until(lambda: bool(house.owner.failures))


@on_the_loop
async def test_a_primary_that_must_not_be_trusted_ends_it_at_any_time(house: House) -> None:
    async with house.running():
        await until(lambda: bool(house.owner.identities))
        house.primary.failures["identify"] = [problem(ProblemKind.FSYNC_OFF)]
        await until(lambda: bool(house.owner.failures))
    (failure,) = house.owner.failures
    assert isinstance(failure, PrimaryProblem) and failure.kind is ProblemKind.FSYNC_OFF


@on_the_loop
async def test_what_a_primary_says_that_is_not_understood_loses_its_connection(house: House) -> None:
    async with house.running():
        connection = await house.stream()
        connection.end(RemoteProtocolError("nonsense"))
        await until(lambda: len(house.owner.identities) == 2)
    assert house.owner.lost == ["nonsense"]


TAKEN = problem(
    ProblemKind.SLOT_IN_USE, 'slot "walproxy" is in use by walsender 4712, which another proxy has begun meanwhile'
)


class FakeHolder(SlotHolder):
    """A walsender whose end a test decides."""

    outcome: ClassVar[int | PrimaryProblem]

    async def end(self) -> int | None:
        self.is_another = self.outcome is TAKEN
        if isinstance(self.outcome, PrimaryProblem):
            raise self.outcome
        return self.outcome


@pytest.fixture
def holder(monkeypatch: pytest.MonkeyPatch) -> type[FakeHolder]:
    monkeypatch.setattr(walproxy.proxy.primary_feed, "SlotHolder", FakeHolder)
    return FakeHolder


REFUSAL = problem_of_error(
    'stream TLI 1 from 0/300000 with slot "walproxy"', "55006", 'replication slot "walproxy" is active for PID 4711'
)


@on_the_loop
async def test_the_walsender_of_a_later_winner_is_not_ended_if_it_has_the_slot_at_the_first_look(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The login took so long that another proxy has won, ended the walsender that was in the way, and streams."""
    statements: list[str] = []

    @contextlib.asynccontextmanager
    async def sql(conninfo: str, doing: str, timeout_s: float) -> AsyncIterator[Value]:
        async def value(statement: str) -> str | None:
            statements.append(statement)
            return "4712"

        yield value

    monkeypatch.setattr(walproxy.postgres.slot_holder, "urgent_sql", sql)
    house.primary.failures["start_replication"] = [REFUSAL]
    async with house.running():
        await house.request()
        await until(lambda: bool(house.owner.lost))
    assert house.owner.lost == [TAKEN.message]
    assert not any("pg_terminate_backend" in statement for statement in statements)


@pytest.mark.parametrize(
    ("obstacle", "expected"),
    [
        (problem(ProblemKind.SLOT_IN_USE, "may not be ended"), "may not be ended"),
        (problem(ProblemKind.NO_LOGIN, "no entry"), 'slot "walproxy" is in use and could not be released: no entry'),
    ],
)
@on_the_loop
async def test_a_slot_that_cannot_be_freed_is_waited_for_on_the_same_connection_and_reported_once(
    obstacle: PrimaryProblem, expected: str, house: House, holder: type[FakeHolder], caplog: pytest.LogCaptureFixture
) -> None:
    holder.outcome = obstacle
    house.primary.failures["start_replication"] = [problem(ProblemKind.SLOT_IN_USE) for _ in range(3)]
    async with house.running():
        await house.request()
        await until(lambda: house.feed.problem == expected)
        await until(lambda: house.feed.streams)
        assert house.feed.problem == ""
    (connection,) = house.primary.connections
    assert connection.started == [("walproxy", BEGIN_LSN, 1)]
    assert house.owner.lost == [] and house.owner.failures == [] and house.owner.waits_for_slot == 3
    assert caplog.text.count(f"no WAL yet: {expected}") == 1


@on_the_loop
async def test_a_holder_that_was_ended_makes_way(
    house: House, holder: type[FakeHolder], caplog: pytest.LogCaptureFixture
) -> None:
    holder.outcome = 4711
    house.primary.failures["start_replication"] = [problem(ProblemKind.SLOT_IN_USE)]
    async with house.running():
        connection = await house.stream()
    assert connection.started == [("walproxy", BEGIN_LSN, 1)]
    assert "ended walsender 4711" in caplog.text and house.owner.lost == []


@on_the_loop
async def test_a_slot_that_was_invalidated_is_replaced_once_on_the_same_connection(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    advice = "drop the slot, and see walproxy rebootstrap --help"
    house.primary.failures["start_replication"] = [
        PrimaryProblem(ProblemKind.SLOT_INVALIDATED, f"can no longer be used; {advice}", plain="can no longer be used")
    ]
    house.primary.idle_slot_timeout = "1min"
    async with house.running():
        connection = await house.stream()
        assert connection.started == [("walproxy", BEGIN_LSN, 1)] and connection.slots[-2:] == [
            "dropped walproxy",
            "walproxy",
        ]
        assert 'slot "walproxy" is replaced' in caplog.text and house.owner.failures == []
        assert "(can no longer be used)" in caplog.text and advice not in caplog.text
        assert 'idle_replication_slot_timeout is 1min: PostgreSQL invalidates slot "walproxy"' in caplog.text


@on_the_loop
async def test_a_slot_that_is_invalidated_again_at_once_is_not_replaced_again(house: House) -> None:
    house.primary.failures["start_replication"] = [problem(ProblemKind.SLOT_INVALIDATED) for _ in range(2)]
    async with house.running():
        await house.request()
        await until(lambda: bool(house.owner.failures))


@on_the_loop
async def test_a_slot_that_a_later_winner_holds_is_not_waited_for(house: House, holder: type[FakeHolder]) -> None:
    holder.outcome = TAKEN
    house.primary.failures["start_replication"] = [problem(ProblemKind.SLOT_IN_USE)]
    async with house.running():
        await house.request()
        await until(lambda: bool(house.owner.lost))
    assert house.owner.lost == [TAKEN.message]


@on_the_loop
async def test_bytes_to_check_are_not_handed_on_also_within_a_chunk(house: House) -> None:
    async with house.running():
        connection = await house.stream(check_begin_lsn=BEGIN_LSN - SEGMENT_SIZE)
        connection.arrive(bytes(SEGMENT_SIZE - 5))
        assert house.owner.checked == [] and house.owner.received == []
        connection.arrive(bytes(5) + b"new")
        assert house.owner.checked == [(BEGIN_LSN - SEGMENT_SIZE, BEGIN_LSN)]
        assert house.owner.received == [(BEGIN_LSN, b"new")]


@on_the_loop
async def test_bytes_to_check_may_lie_before_a_timeline_that_nothing_was_written_on(house: House) -> None:
    """A server that was promoted, restored once more and promoted again: 2 and 3 begin at the same LSN."""
    async with house.running():
        check_lsn, fork_lsn = BEGIN_LSN - 2 * SEGMENT_SIZE, BEGIN_LSN - SEGMENT_SIZE
        await house.request(check_lsn, tli=3)
        connection = house.primary.connections[-1]
        await until(lambda: len(connection.started) == 1 and house.feed.streams)
        connection.arrive(bytes(SEGMENT_SIZE))
        connection.end_timeline(TimelineEnd(2, fork_lsn))
        await until(lambda: len(connection.started) == 2)
        connection.end_timeline(TimelineEnd(3, fork_lsn))
        await until(lambda: len(connection.started) == 3)
        connection.arrive(bytes(SEGMENT_SIZE) + b"new")
        assert [started[1:] for started in connection.started] == [(check_lsn, 1), (fork_lsn, 2), (fork_lsn, 3)]
        assert house.owner.checked == [(check_lsn, BEGIN_LSN)]
        assert house.owner.received == [(BEGIN_LSN, b"new")]


@on_the_loop
async def test_nothing_is_reported_between_two_copies(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The term may begin, and commit its start, before the COPY of its own timeline has started."""
    start, starts = FakeConnection.start_replication, asyncio.Event()

    async def start_late(connection: FakeConnection, slot: str | None, begin_lsn: int, tli: int) -> None:
        await start(connection, slot, begin_lsn, tli)
        if tli == 2:
            await starts.wait()

    monkeypatch.setattr(FakeConnection, "start_replication", start_late)
    async with house.running():
        await house.request(BEGIN_LSN - SEGMENT_SIZE, tli=2)
        connection = house.primary.connections[-1]
        await until(lambda: house.feed.streams)
        connection.arrive(bytes(SEGMENT_SIZE))
        connection.end_timeline(TimelineEnd(2, BEGIN_LSN))
        await until(lambda: len(connection.started) == 2)
        connection.reported.clear()
        house.feed.report(BEGIN_LSN, BEGIN_LSN, BEGIN_LSN)
        assert connection.reported == [] and not house.feed.streams
        starts.set()
        await until(lambda: house.feed.streams)
        house.feed.report(BEGIN_LSN, BEGIN_LSN, BEGIN_LSN)
        assert connection.reported == [(BEGIN_LSN, BEGIN_LSN, BEGIN_LSN)]


@on_the_loop
async def test_postgresql_receives_changed_positions_at_once_and_at_most_what_was_received(house: House) -> None:
    async with house.running():
        connection = await house.stream()
        connection.arrive(b"x" * 100)
        connection.reported.clear()
        for flush_lsn in (BEGIN_LSN + 41, BEGIN_LSN + 41, BEGIN_LSN + 50):
            house.feed.report(BEGIN_LSN + 200, flush_lsn, flush_lsn)
        assert connection.reported == [(BEGIN_LSN + 100, lsn, lsn) for lsn in (BEGIN_LSN + 41, BEGIN_LSN + 50)]


@on_the_loop
async def test_feedback_is_reported_when_it_is_known_once_in_each_copy_and_again_while_it_holds_anything_back(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house.running():
        connection = await house.stream()
        await asyncio.sleep(0.05)
        assert connection.feedback == []
        house.feed.report_standbys((0, 0))
        await until(lambda: connection.feedback == [(0, 0)])
        house.feed.report_standbys(((7 << 32) + 5, 9))
        await until(lambda: connection.feedback[1:] == [((7 << 32) + 5, 9)])
        monkeypatch.setattr(walproxy.proxy.primary_feed, "FEEDBACK_INTERVAL_S", 0.05)
        await until(lambda: connection.feedback[2:3] == [((7 << 32) + 5, 9)])
        house.feed.report_standbys((0, 0))
        await until(lambda: connection.feedback[-1] == (0, 0))
        count = len(connection.feedback)
        await asyncio.sleep(0.2)
        assert len(connection.feedback) == count
        connection.end(problem(ProblemKind.ENDED))
        await until(lambda: len(house.primary.connections) == 2)
        again = await house.stream()
        house.feed.report_standbys((0, 0))
        await until(lambda: again.feedback == [(0, 0)])


@on_the_loop
async def test_what_standbys_needed_of_one_primary_is_not_reported_to_the_next_before_that_is_verified(
    house: House,
) -> None:
    async with house.running():
        connection = await house.stream()
        house.feed.report_standbys((5, 9))
        await until(lambda: connection.feedback == [(5, 9)])
        connection.end(problem(ProblemKind.ENDED))
        await until(lambda: len(house.owner.identities) == 2)
        again = await house.stream()
        again.arrive(b"x")
        house.feed.report(BEGIN_LSN + 1, BEGIN_LSN + 1, 0)
        # A status is repeated by the same round as the feedback, so a round has passed.
        await until(lambda: len(again.reported) > 2)
        assert again.feedback == []


@on_the_loop
async def test_wal_that_is_gone_from_a_stream_that_was_given_up_does_not_keep_its_owner_waiting(house: House) -> None:
    async with house.running():
        connection = await house.stream()
        connection.end(problem(ProblemKind.WAL_REMOVED))
        house.feed.stop("no term is held")  # Before the feed hears of it.
        await until(lambda: len(house.owner.identities) == 2)
        assert house.owner.removed == []


@on_the_loop
async def test_a_stop_because_of_removed_wal_closes_the_connection_also_before_the_next_one_is_open(
    house: House,
) -> None:
    house.owner.when_removed = lambda: house.feed.stop("no term is held")
    async with house.running():
        house.primary.failures["start_replication"] = [problem(ProblemKind.WAL_REMOVED)]
        await house.request(BEGIN_LSN - SEGMENT_SIZE)
        await until(lambda: len(house.owner.identities) == 2)
    assert len(house.owner.removed) == 1 and house.owner.lost == ["no term is held"]


@on_the_loop
async def test_pings_while_nothing_changes_are_answered_at_a_bounded_rate(house: House) -> None:
    async with house.running():
        connection = await house.stream()
        assert house.feed._connection is not None and house.feed._connection.copy is not None
        house.feed._connection.copy.caught_up_at -= (
            10  # It has caught up long ago, so that nothing is repeated quickly.
        )
        connection.on_keepalive(BEGIN_LSN, True)
        connection.reported.clear()
        for _ in range(50):
            connection.on_keepalive(BEGIN_LSN, True)
            await asyncio.sleep(0)
        assert len(connection.reported) <= 1


@on_the_loop
async def test_a_primary_that_falls_silent_is_connected_anew_unless_it_is_we_who_do_not_read(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    async with house.running():
        connection = await house.stream()
        house.feed.pause()
        assert not connection.reading
        connection.last_message_s -= 100
        await asyncio.sleep(0.4)
        assert len(house.primary.connections) == 1
        house.feed.resume()
        assert connection.reading
        await until(lambda: len(house.primary.connections) == 2)
    assert "no data from the primary for" in caplog.text


def lines_of(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [f"{r.levelname} {r.getMessage()}" for r in caplog.records if text in r.getMessage()]


@on_the_loop
async def test_a_slot_that_is_missing_although_there_is_a_cluster_is_made_and_reported(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.owner.quorum_lsn = BEGIN_LSN + 100
    async with house.running():
        await house.stream()
    (line,) = lines_of(caplog, 'slot "walproxy"')
    assert line.startswith(
        'WARNING slot "walproxy" was missing and has been created: it retains WAL from 0/300000 on ('
    )


@on_the_loop
async def test_a_first_start_makes_the_slot_without_a_line(house: House, caplog: pytest.LogCaptureFixture) -> None:
    async with house.running():
        await house.stream()
    assert house.primary.has_slot and lines_of(caplog, 'slot "walproxy"') == []


@on_the_loop
async def test_wal_that_the_quorum_needs_and_a_new_slot_does_not_retain_is_an_error(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.owner.quorum_lsn = BEGIN_LSN
    house.primary.slot_lsn = BEGIN_LSN + SEGMENT_SIZE
    async with house.running():
        await house.stream()
    (line,) = lines_of(caplog, "at risk")
    assert line.startswith(
        'ERROR WAL from 0/300000 on is at risk: the quorum needs it, and slot "walproxy", which was missing, retains '
        "WAL only from 0/400000 on"
    )


@on_the_loop
async def test_a_new_slot_retains_its_whole_segment(house: House, caplog: pytest.LogCaptureFixture) -> None:
    # As after each promotion: the slot begins with a checkpoint above the fork.
    house.owner.quorum_lsn = BEGIN_LSN
    house.primary.slot_lsn = BEGIN_LSN + SEGMENT_SIZE - 8
    async with house.running():
        await house.stream()
    assert lines_of(caplog, 'slot "walproxy"') and lines_of(caplog, "at risk") == []


@on_the_loop
async def test_a_slot_that_is_dropped_while_the_connection_is_idle_is_made_again(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.owner.quorum_lsn = BEGIN_LSN
    house.primary.has_slot = True
    async with house.running():
        await until(lambda: bool(house.owner.identities))
        house.primary.has_slot, house.primary.slot_lsn = False, BEGIN_LSN + SEGMENT_SIZE
        await until(lambda: house.primary.has_slot)
        await until(lambda: bool(lines_of(caplog, "at risk")))
    assert house.primary.connections[0].slots == ["walproxy"] and len(house.primary.connections) == 1


@on_the_loop
async def test_a_slot_that_is_dropped_before_there_is_a_cluster_is_not_made(house: House) -> None:
    house.owner.knows_a_cluster = False
    house.primary.has_slot = True
    async with house.running():
        await until(lambda: bool(house.owner.identities))
        house.primary.has_slot = False
        await asyncio.sleep(0.1)
        assert not house.primary.has_slot
        # What it was at the connect still says that there was a cluster.
        assert house.owner.identities[0].slot == "walproxy"


@on_the_loop
async def test_a_slot_that_came_with_a_copied_data_folder_is_kept_and_reported(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.primary.has_slot, house.primary.slot_lsn = True, BEGIN_LSN - SEGMENT_SIZE
    house.primary.facts = dataclasses.replace(FACTS, tli=2, lineage=((1, BEGIN_LSN),))
    async with house.running():
        await until(lambda: bool(house.owner.identities))
    assert house.primary.connections[0].slots == []
    assert lines_of(caplog, 'slot "walproxy"') == [
        'INFO slot "walproxy" is older than the promotion of this server at 0/300000 (as in a copied data folder): it '
        "retains WAL from 0/200000 on, and advances as soon as WAL streams"
    ]
