"""The feed with several hosts against fake primaries: whom it tries, whom it passes over, whom it puts aside."""

import logging

import pytest

import walproxy.proxy.primary_feed
from safekeeper.base.errors import EXIT_PRIMARY_REFUSED
from tests.unit.event_loop import on_the_loop, until
from tests.unit.proxy.test_primary_feed import BEGIN_LSN, SEGMENT_SIZE, House, problem
from walproxy.postgres.hosts import HostState, PrimaryHost
from walproxy.postgres.problems import ProblemKind
from walproxy.postgres.slot_holder import SlotHolder
from walproxy.proposer.actions import StartReplication
from walproxy.proposer.primary import PrimaryIdentity

OLD, NEW = PrimaryHost("old:1", "host=old"), PrimaryHost("new:2", "host=new")


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> House:
    caplog.set_level(logging.INFO)
    return House(monkeypatch, OLD, NEW)


def states(house: House) -> list[HostState]:
    return [candidate.state for candidate in house.feed.rota.candidates]


@on_the_loop
async def test_a_standby_and_a_host_that_is_down_are_passed_over(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.primary.failures["identify"] = [problem(ProblemKind.IN_RECOVERY, "a standby") for _ in range(3)]
    house.primary.problems[NEW.conninfo] = problem(ProblemKind.UNREACHABLE, "nobody there")
    async with house.running():
        await until(lambda: bool(house.owner.identities))
        assert states(house) == [HostState.CONNECTED, HostState.UNREACHABLE]
    assert house.primary.tried == [OLD.conninfo, NEW.conninfo] * 3 + [OLD.conninfo]
    # What it cannot be is not touched, and each reason is told once.
    assert [connection.slots for connection in house.primary.connections] == [[], [], [], ["walproxy"]]
    assert caplog.text.count("skipped host old:1: a standby") == 1
    assert caplog.text.count("no primary at new:2: nobody there") == 1


@on_the_loop
async def test_of_several_hosts_one_may_be_promoted_at_any_moment(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walproxy.proxy.primary_feed, "PAUSE_MAX_S", 3600.0)
    monkeypatch.setattr(walproxy.proxy.primary_feed, "PAUSE_MAX_OF_SEVERAL_S", 0.002)
    house.primary.failures["identify"] = [problem(ProblemKind.IN_RECOVERY, "a standby") for _ in range(40)]
    async with house.running():
        await until(lambda: bool(house.owner.identities))
    assert len(house.primary.tried) == 41


@on_the_loop
async def test_a_host_that_is_refused_gives_way_to_the_next_one_at_once(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(walproxy.proxy.primary_feed, "IDLE_CHECK_S", 3600.0)
    async with house.running():
        await until(lambda: bool(house.owner.identities))
        house.feed.refuse("it is old")
        await until(lambda: len(house.owner.identities) == 2)
        assert house.primary.tried == [OLD.conninfo, NEW.conninfo]
        assert states(house) == [HostState.REFUSED, HostState.CONNECTED]
        assert house.primary.connections[0].closed and house.feed.problem == ""
        # The one that serves is tried again first; the refused one is left alone.
        await house.stream()
        assert caplog.text.count("connected to the primary at new:2") == 1
        house.primary.connections[1].end(problem(ProblemKind.ENDED))
        await until(lambda: len(house.owner.identities) == 3)
        assert house.primary.tried == [OLD.conninfo, NEW.conninfo, NEW.conninfo]
    assert caplog.text.count("the primary at old:1 is refused: it is old") == 1
    assert house.owner.failures == []


@on_the_loop
async def test_what_a_refused_primary_sent_behind_the_bytes_that_differ_is_dropped(house: House) -> None:
    async with house.running():
        connection = await house.stream(check_begin_lsn=BEGIN_LSN - SEGMENT_SIZE)
        house.owner.when_checked = lambda: house.feed.refuse("other bytes")
        connection.reported.clear()
        connection.arrive(bytes(SEGMENT_SIZE) + b"foreign")
        assert house.owner.checked and house.owner.received == []
        await until(lambda: len(house.primary.connections) == 2)
        assert house.primary.tried[-1] == NEW.conninfo and house.owner.received == []


@on_the_loop
async def test_an_identity_that_arrives_after_the_refusal_is_not_reported(house: House) -> None:
    async with house.running():
        await until(lambda: bool(house.owner.identities))
        identify, house.feed._identify = house.feed._identify, None  # type: ignore[method-assign, assignment]

        async def refused_meanwhile(connection: object) -> PrimaryIdentity:
            house.feed._identify = identify  # type: ignore[method-assign]
            house.feed.refuse("it is old")
            return house.owner.identities[0]

        house.feed._identify = refused_meanwhile  # type: ignore[method-assign, assignment]
        house.feed.identify()
        await until(lambda: len(house.owner.identities) == 2)
        assert house.primary.tried == [OLD.conninfo, NEW.conninfo]


@on_the_loop
async def test_a_host_that_has_recycled_the_wal_and_is_refused_for_it_is_left(house: House) -> None:
    async with house.running():
        await until(lambda: bool(house.owner.identities))
        house.owner.when_removed = lambda: house.feed.refuse("it has recycled the WAL")
        house.primary.failures["start_replication"] = [problem(ProblemKind.WAL_REMOVED)]
        house.feed.start(StartReplication(BEGIN_LSN - SEGMENT_SIZE, 1, BEGIN_LSN, 1))
        await until(lambda: len(house.owner.identities) == 2)
        assert house.primary.tried == [OLD.conninfo, NEW.conninfo]


@on_the_loop
async def test_a_refused_host_is_tried_again_after_a_while_if_no_other_serves(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.feed.rota.refused_retry_s = 0.05
    house.primary.problems[NEW.conninfo] = problem(ProblemKind.UNREACHABLE, "nobody there")
    async with house.running():
        for count in (1, 2, 3):
            await until(lambda n=count: len(house.owner.identities) == n)  # type: ignore[misc]
            if count < 3:
                # Also when that is found only by comparing its bytes.
                await house.stream()
                house.feed.refuse("it is old")
        assert caplog.text.count("is refused: it is old") == 1
        # It is the right one after all: the next refusal is news.
        connection = await house.stream()
        connection.arrive(b"x" * 10)
        house.feed.report(BEGIN_LSN + 5, BEGIN_LSN + 5, BEGIN_LSN + 5)
        await until(lambda: "the primary at old:1 is no longer refused" in caplog.text)
        house.feed.refuse("it is old")
        await until(lambda: caplog.text.count("is refused: it is old") == 2)
    assert house.owner.failures == []


@on_the_loop
async def test_when_every_host_is_refused_it_ends_and_names_each(house: House) -> None:
    async with house.running():
        await until(lambda: bool(house.owner.identities))
        house.primary.failures["identify"] = [problem(ProblemKind.FSYNC_OFF, "fsync is off")]
        house.feed.refuse("it is old")
        await until(lambda: bool(house.owner.failures))
    (failure,) = house.owner.failures
    assert failure.exit_code == EXIT_PRIMARY_REFUSED
    assert str(failure) == "every host is refused: old:1: it is old; new:2: fsync is off"


@on_the_loop
async def test_the_slot_is_freed_on_the_host_that_is_streamed(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Holder(SlotHolder):
        async def end(self) -> int | None:
            asked.append(self.conninfo)
            return 4711

    monkeypatch.setattr(walproxy.proxy.primary_feed, "SlotHolder", Holder)
    house.primary.problems[OLD.conninfo] = problem(ProblemKind.UNREACHABLE)
    house.primary.failures["start_replication"] = [problem(ProblemKind.SLOT_IN_USE)]
    async with house.running():
        await house.stream()
    assert asked == [NEW.conninfo]


@on_the_loop
async def test_the_slot_is_not_made_before_there_is_a_cluster(house: House) -> None:
    """So that a first start that ends half-way is not mistaken for folders that were lost."""
    house.owner.knows_a_cluster = False
    async with house.running():
        await until(lambda: bool(house.owner.identities))
        connection = house.primary.connections[-1]
        assert house.owner.identities[0].slot == "" and connection.slots == []
        # The votes are there, and the primary is asked anew: its answer is younger than the slot.
        house.feed.identify()
        await until(lambda: len(house.owner.identities) == 2)
        assert connection.slots == ["walproxy"]
        # Who connects from now on finds it.
        house.owner.lost.clear()
        house.feed.stop("another connection")
        await until(lambda: len(house.owner.identities) == 3)
        assert house.owner.identities[2].slot == "walproxy"
        assert house.primary.connections[-1].slots == []


@on_the_loop
async def test_a_slot_that_is_missing_is_made_as_soon_as_a_cluster_is_known(house: House) -> None:
    house.owner.knows_a_cluster = False
    async with house.running():
        await until(lambda: bool(house.owner.identities))
        house.owner.knows_a_cluster = True
        await until(lambda: house.primary.connections[-1].slots == ["walproxy"])
