"""The client of the exchange, with safekeepers that reply, hang, refuse, or are gone."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from safekeeper.base.errors import LocalProtocolError, WalproxyError
from safekeeper.base.settings import Address
from safekeeper.consensus.control_state import NOBODY
from safekeeper.consensus.membership import Member, Membership
from safekeeper.consensus.messages import (
    AcceptorMessage,
    AgentExchange,
    AgentSettingsVersion,
    AgentView,
    KeptReport,
    ProposerGreeting,
    ProposerMessage,
    Refusal,
    RefusalCode,
)
from safekeeper.net.safekeeper_connection import Credentials
from safekeeper.peers.codec import PROPOSER_DIALECT, FrameDecoder, encode
from tests.unit.event_loop import DEADLINE_S, on_the_loop, until
from tests.unit.greetings import empty
from walproxy.agent import safekeeper_views
from walproxy.agent.report import AgentReport, AgentSettings
from walproxy.agent.report import encode as as_json
from walproxy.agent.safekeeper_views import SafekeeperViews
from walproxy.agent.sight import AgentSight

CLUSTER, OTHER_CLUSTER = "c" * 32, "d" * 32
REPORT = as_json(AgentReport("db1"))
# For an exchange that is to end by itself; and for one that is to end by its timeout.
LONG_S, SHORT_S = DEADLINE_S, 0.4


class FakeSafekeeper:
    """Listens as a safekeeper does, and replies as the test says.

    Attributes:
        hangs: it reads, and replies to nothing.
        refuses: is given each message, and returns a refusal for it, or None.
        settings, reports: what it keeps.
        received: the exchanges so far.
        connections: how many it has accepted.
    """

    def __init__(self, safekeeper_id: int) -> None:
        self.id = safekeeper_id
        self.incarnation = f"{safekeeper_id}" * 32
        self.cluster_id = CLUSTER
        self.membership: Membership | None = None
        self.hangs = False
        self.refuses: Callable[[ProposerMessage], RefusalCode | None] = lambda message: None
        self.settings: AgentSettingsVersion | None = None
        self.before_settings: Callable[[], None] = lambda: None
        self.reports: dict[str, bytes] = {}
        self.received: list[AgentExchange] = []
        self.connections = 0
        self.port = 0
        self._held: list[tuple[asyncio.StreamWriter, ProposerMessage]] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._writers:
            writer.transport.abort()

    def resume(self) -> None:
        self.hangs = False
        held, self._held = self._held, []
        for writer, message in held:
            self._reply(writer, message)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        decoder = FrameDecoder(PROPOSER_DIALECT)
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                for message in decoder.feed(data):
                    if self.hangs:
                        self._held.append((writer, message))
                    else:
                        self._reply(writer, message)
        writer.close()
        self._writers.discard(writer)

    def _reply(self, writer: asyncio.StreamWriter, message: ProposerMessage) -> None:
        if not writer.is_closing():
            writer.writelines(encode(self._answer(message)))

    def _answer(self, message: ProposerMessage) -> AcceptorMessage:
        code = self.refuses(message)
        if code is not None:
            return Refusal(code, "because", NOBODY)
        if isinstance(message, ProposerGreeting):
            assert message.safekeeper_id == self.id
            return empty(self.id, incarnation=self.incarnation, cluster_id=self.cluster_id, membership=self.membership)
        assert isinstance(message, AgentExchange), message
        assert message.cluster_id == self.cluster_id
        self.received.append(message)
        if message.name:
            self.reports[message.name] = message.report
        if message.settings is not None:
            self.before_settings()
            if self.settings is None or message.settings.key > self.settings.key:
                self.settings = message.settings
        reports = tuple(KeptReport(name, 5, report) for name, report in sorted(self.reports.items()))
        return AgentView(self.cluster_id, self.incarnation, NOBODY, 9, 1, 1, 0, 5, 5, self.settings, reports)


class World:
    """Safekeepers 1 to 3, the members of a cluster, and further ones that are none."""

    def __init__(self, count: int) -> None:
        self.safekeepers = {i: FakeSafekeeper(i) for i in range(1, count + 1)}
        self._views: list[SafekeeperViews] = []

    def __getitem__(self, safekeeper_id: int) -> FakeSafekeeper:
        return self.safekeepers[safekeeper_id]

    def member(self, safekeeper_id: int) -> Member:
        fake = self[safekeeper_id]
        return Member(safekeeper_id, fake.incarnation, f"127.0.0.1:{fake.port}")

    def agree(self, *ids: int, generation: int = 1, cluster_id: str = CLUSTER) -> None:
        """Make these the members, and let all safekeepers know it."""
        for fake in self.safekeepers.values():
            fake.membership = Membership(generation, tuple(map(self.member, ids)))
            fake.cluster_id = cluster_id

    def views(self, *ids: int, name: str = "db1", clock: Callable[[], float] = time.monotonic) -> SafekeeperViews:
        listed = [(i, Address("127.0.0.1", self[i].port)) for i in ids or (1, 2, 3)]
        self._views.append(SafekeeperViews(listed, Credentials(), name, clock))
        return self._views[-1]

    async def close(self) -> None:
        for views in self._views:
            await views.close()
        for fake in self.safekeepers.values():
            await fake.stop()


@contextlib.asynccontextmanager
async def world(count: int = 3) -> AsyncIterator[World]:
    made = World(count)
    try:
        for fake in made.safekeepers.values():
            await fake.start()
        made.agree(1, 2, 3)
        yield made
    finally:
        await made.close()


def version(counter: int, author: str = "a", **fields: Any) -> AgentSettingsVersion:
    return AgentSettingsVersion(counter, author * 32, as_json(AgentSettings(**fields)))


async def offer(views: SafekeeperViews, report: bytes, settings: AgentSettingsVersion) -> AgentSight:
    """Exchange once, with a newer version of the settings."""
    return await views._exchange(report, settings, LONG_S, lambda sight: False)


def pause(settings: AgentSettings) -> AgentSettings:
    return msgspec.structs.replace(settings, is_paused=True)


# Exchanges.


@on_the_loop
async def test_an_exchange_reports_to_all_and_returns_what_all_keep() -> None:
    async with world() as safekeepers:
        views, other = safekeepers.views(), safekeepers.views(name="db2")
        first = await views.exchange(REPORT, timeout_s=LONG_S)
        assert sorted(first.views) == [1, 2, 3] and first.problems == {} and first.has_quorum()
        assert first.cluster is not None and first.cluster.id == CLUSTER
        assert all(first.began_at <= timed.sent_at for timed in first.views.values())
        second = await other.exchange(as_json(AgentReport("db2")), timeout_s=LONG_S)
        assert list(second.reports()) == ["db1", "db2"]
        assert second.reports()["db1"].report == AgentReport("db1")
        await views.exchange(REPORT, timeout_s=LONG_S)
        assert [fake.connections for fake in safekeepers.safekeepers.values()] == [2, 2, 2]


@on_the_loop
async def test_a_command_reports_nothing() -> None:
    async with world() as safekeepers:
        sight = await safekeepers.views(name="").exchange(b"", timeout_s=LONG_S)
        assert sight.has_quorum() and sight.reports() == {}
        assert safekeepers[1].received == [AgentExchange(CLUSTER, "")]


@on_the_loop
async def test_the_members_that_the_list_lacks_are_found_and_forgotten_when_they_are_none() -> None:
    async with world(4) as safekeepers:
        views = safekeepers.views(1)
        assert sorted((await views.exchange(REPORT, timeout_s=LONG_S)).views) == [1, 2, 3]
        safekeepers.agree(1, 3, 4, generation=2)
        await views.exchange(REPORT, timeout_s=LONG_S)
        assert sorted((await views.exchange(REPORT, timeout_s=LONG_S)).views) == [1, 3, 4]


@on_the_loop
async def test_a_member_that_was_moved_is_found_where_the_membership_has_it() -> None:
    async with world(4) as safekeepers:
        old, new = safekeepers[3], safekeepers[4]
        old.incarnation, new.id = "0" * 32, 3
        safekeepers.agree(1, 2, 4)
        for fake in safekeepers.safekeepers.values():
            assert fake.membership is not None
            moved = msgspec.structs.replace(fake.membership.members[2], id=3)
            fake.membership = msgspec.structs.replace(fake.membership, members=(*fake.membership.members[:2], moved))
        views = safekeepers.views()
        sight = await views.exchange(REPORT, timeout_s=LONG_S)
        assert sight.views[3].view.incarnation == old.incarnation
        sight = await views.exchange(REPORT, timeout_s=LONG_S)
        assert sight.views[3].view.incarnation == new.incarnation


@on_the_loop
async def test_a_member_without_a_usable_address_is_reported() -> None:
    async with world() as safekeepers:
        for fake in safekeepers.safekeepers.values():
            assert fake.membership is not None
            lost = (Member(4, "4" * 32, ""), Member(5, "5" * 32, "nonsense"))
            fake.membership = msgspec.structs.replace(fake.membership, members=(*fake.membership.members, *lost))
        sight = await safekeepers.views().exchange(REPORT, timeout_s=LONG_S)
        assert sight.has_quorum()
        assert sight.problems == {i: f"the address of safekeeper {i} is unknown" for i in (4, 5)}


# Safekeepers that are slow or gone.


@on_the_loop
async def test_a_safekeeper_that_hangs_delays_one_exchange_by_its_timeout_and_later_ones_not_at_all() -> None:
    async with world() as safekeepers:
        views = safekeepers.views()
        await views.exchange(REPORT, timeout_s=LONG_S)
        safekeepers[3].hangs = True
        sight = await views.exchange(REPORT, timeout_s=SHORT_S)
        assert sorted(sight.views) == [1, 2] and sight.has_quorum()
        assert sight.problems[3].startswith(f"safekeeper 3 at 127.0.0.1:{safekeepers[3].port} has not replied for 0.")
        async with asyncio.timeout(LONG_S / 2):
            for _ in range(3):
                assert sorted((await views.exchange(REPORT, timeout_s=LONG_S)).views) == [1, 2]
        assert len(safekeepers[3].received) == 1, "only one request at a time"
        safekeepers[3].resume()

        async def replies() -> bool:
            return 3 in (await views.exchange(REPORT, timeout_s=SHORT_S)).views

        async with asyncio.timeout(DEADLINE_S):
            while not await replies():
                await asyncio.sleep(0.01)
        assert safekeepers[3].connections == 1


@on_the_loop
async def test_without_a_quorum_an_exchange_waits_for_the_slow_ones_too() -> None:
    async with world() as safekeepers:
        views = safekeepers.views()
        await views.exchange(REPORT, timeout_s=LONG_S)
        safekeepers[2].hangs = safekeepers[3].hangs = True
        assert not (await views.exchange(REPORT, timeout_s=SHORT_S)).has_quorum()
        asyncio.get_running_loop().call_later(SHORT_S, safekeepers[2].resume)
        assert (await views.exchange(REPORT, timeout_s=LONG_S)).has_quorum()


@on_the_loop
async def test_a_report_that_a_slow_safekeeper_has_not_received_in_time_is_not_sent_later() -> None:
    async with world() as safekeepers:
        views = safekeepers.views()
        await views.exchange(REPORT, timeout_s=LONG_S)
        safekeepers[3].hangs = True
        await views.exchange(b"late", timeout_s=SHORT_S)
        safekeepers[3].resume()
        await until(lambda: views._peers[3].conversation is None)
        assert [each.report for each in safekeepers[3].received] == [REPORT]


@on_the_loop
async def test_a_safekeeper_that_never_replies_is_disconnected_and_dialled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(safekeeper_views, "_REPLY_TIMEOUT_S", 1.0)
    async with world() as safekeepers:
        safekeepers[3].hangs = True
        views = safekeepers.views()
        sight = await views.exchange(REPORT, timeout_s=LONG_S)
        assert sight.problems == {3: f"safekeeper 3 at 127.0.0.1:{safekeepers[3].port} did not reply within 1 s"}
        safekeepers[3].hangs = False
        async with asyncio.timeout(DEADLINE_S):
            while 3 not in (await views.exchange(REPORT, timeout_s=LONG_S)).views:
                await asyncio.sleep(0.01)
        assert safekeepers[3].connections >= 2


@on_the_loop
async def test_a_safekeeper_that_is_gone_is_reported_dialled_after_pauses_and_found_again() -> None:
    async with world() as safekeepers:
        now = 100.0
        views = safekeepers.views(clock=lambda: now)
        await views.exchange(REPORT, timeout_s=LONG_S)
        await safekeepers[3].stop()
        await until(lambda: not (views._peers[3].requests and views._peers[3].requests.is_open))
        dialled = []
        for pause_s in (0.0, 0.01, 0.06, 0.09, 0.02, 5.0, 0.9, 0.1):
            now += pause_s
            sight = await views.exchange(REPORT, timeout_s=LONG_S)
            assert sight.has_quorum()
            assert sight.problems[3].startswith(f"safekeeper 3 at 127.0.0.1:{safekeepers[3].port} cannot be reached (")
            # It is not waited for, because it has failed before.
            await until(lambda: views._peers[3].conversation is None)
            dialled.append(views._peers[3].attempts)
        assert dialled == [1, 1, 2, 2, 3, 4, 5, 5]
        now += 1.0
        await safekeepers[3].start()
        await views.exchange(REPORT, timeout_s=LONG_S)
        await until(lambda: views._peers[3].conversation is None)
        assert 3 in (await views.exchange(REPORT, timeout_s=LONG_S)).views


@on_the_loop
async def test_a_restarted_safekeeper_replies_in_the_next_exchange() -> None:
    async with world() as safekeepers:
        views = safekeepers.views()
        await views.exchange(REPORT, timeout_s=LONG_S)
        await safekeepers[3].stop()
        await until(lambda: not (views._peers[3].requests and views._peers[3].requests.is_open))
        await safekeepers[3].start()
        assert sorted((await views.exchange(REPORT, timeout_s=LONG_S)).views) == [1, 2, 3]


@on_the_loop
async def test_a_safekeeper_that_is_back_and_slower_than_the_others_is_waited_for_again() -> None:
    async with world() as safekeepers:
        views = safekeepers.views()
        await safekeepers[3].stop()
        await views.exchange(REPORT, timeout_s=LONG_S)
        safekeepers[3].hangs = True
        await safekeepers[3].start()
        async with asyncio.timeout(DEADLINE_S):
            while views._peers[3].conversation is None:
                await views.exchange(REPORT, timeout_s=LONG_S)
                await asyncio.sleep(0.01)
        # This exchange was over before the greeting.
        await until(lambda: bool(safekeepers[3]._held))
        safekeepers[3].resume()
        await until(lambda: views._peers[3].conversation is None)
        safekeepers[3].hangs = True
        asyncio.get_running_loop().call_later(SHORT_S, safekeepers[3].resume)
        assert 3 in (await views.exchange(REPORT, timeout_s=LONG_S)).views


# Refusals.


@on_the_loop
async def test_a_safekeeper_of_another_version_is_one_clear_line() -> None:
    async with world() as safekeepers:
        safekeepers[2].refuses = lambda message: RefusalCode.VERSION
        sight = await safekeepers.views().exchange(REPORT, timeout_s=LONG_S)
        name = f"safekeeper 2 at 127.0.0.1:{safekeepers[2].port}"
        assert sight.problems == {2: f"{name} has another version than this program, upgrade the older one: because"}


@on_the_loop
async def test_a_safekeeper_of_another_cluster_gets_no_report_and_one_without_is_named() -> None:
    async with world() as safekeepers:
        safekeepers[2].cluster_id = OTHER_CLUSTER
        safekeepers[3].cluster_id, safekeepers[3].membership = "", None
        views = safekeepers.views()
        sight = await views.exchange(REPORT, timeout_s=LONG_S)
        # One of each: neither cluster has a quorum, the first one is as good as the other.
        assert sight.cluster is not None and not sight.has_quorum()
        safekeepers.agree(1, 2, 3)
        safekeepers[2].cluster_id = OTHER_CLUSTER
        sight = await safekeepers.views().exchange(REPORT, timeout_s=LONG_S)
        name = f"safekeeper 2 at 127.0.0.1:{safekeepers[2].port}"
        assert sight.problems == {2: f"{name} belongs to cluster dddddddd, not to cccccccc"}
        safekeepers[2].cluster_id = ""
        sight = await safekeepers.views().exchange(REPORT, timeout_s=LONG_S)
        assert sight.problems == {2: f"{name} does not belong to a cluster yet"}


@on_the_loop
async def test_without_any_cluster_the_sight_has_none() -> None:
    async with world() as safekeepers:
        for fake in safekeepers.safekeepers.values():
            fake.cluster_id, fake.membership = "", None
        views = safekeepers.views()
        sight = await views.exchange(REPORT, timeout_s=LONG_S)
        assert (sight.cluster, sight.views) == (None, {})
        assert sight.missing() == "no safekeeper has a cluster: start walproxy run first"
        safekeepers.agree(1, 2, 3)
        assert (await views.exchange(REPORT, timeout_s=LONG_S)).has_quorum()


@on_the_loop
async def test_the_exchange_follows_a_rebootstrap_and_leaves_the_settings_behind() -> None:
    async with world() as safekeepers:
        views = safekeepers.views()
        for fake in safekeepers.safekeepers.values():
            fake.settings = version(5)
        assert (await views.exchange(REPORT, timeout_s=LONG_S)).settings() == version(5)
        safekeepers.agree(1, 2, 3, generation=2, cluster_id=OTHER_CLUSTER)
        for fake in safekeepers.safekeepers.values():
            fake.settings = None
        await views.exchange(REPORT, timeout_s=LONG_S)
        sight = await views.exchange(REPORT, timeout_s=LONG_S)
        assert sight.cluster is not None and sight.cluster.id == OTHER_CLUSTER
        assert sight.has_quorum() and sight.settings() is None


@on_the_loop
async def test_one_safekeeper_of_a_foreign_cluster_does_not_lead_the_agents_away() -> None:
    async with world(4) as safekeepers:
        views = safekeepers.views(1, 2, 3, 4)
        foreign = safekeepers[4]
        foreign.cluster_id = OTHER_CLUSTER
        await views.exchange(REPORT, timeout_s=LONG_S)
        foreign.membership = Membership(9, (safekeepers.member(4),))
        for _ in range(2):
            sight = await views.exchange(REPORT, timeout_s=LONG_S)
            assert sight.cluster is not None and sight.cluster.id == CLUSTER and sight.has_quorum()
        assert foreign.reports == {}


@on_the_loop
async def test_what_is_too_long_is_not_sent() -> None:
    async with world() as safekeepers:
        views = safekeepers.views()
        with pytest.raises(
            LocalProtocolError, match="4097 bytes are too many for the report of an agent: at most 4096"
        ):
            await views.exchange(bytes(4097), timeout_s=LONG_S)
        with pytest.raises(LocalProtocolError, match="16385 bytes are too many for the settings of an agent"):
            await offer(views, b"", AgentSettingsVersion(1, "a" * 32, bytes(16385)))


# Settings.


@on_the_loop
async def test_a_change_of_the_settings_is_on_a_quorum_when_it_returns() -> None:
    async with world() as safekeepers:
        views = safekeepers.views()
        assert await views.change_settings(pause, timeout_s=LONG_S) == AgentSettings(is_paused=True)
        kept = [fake.settings for fake in safekeepers.safekeepers.values() if fake.settings is not None]
        assert len(kept) >= 2 and len(set(kept)) == 1
        assert (kept[0].counter, kept[0].content) == (1, as_json(AgentSettings(is_paused=True)))
        await views.change_settings(lambda settings: AgentSettings(), timeout_s=LONG_S)
        sight = await safekeepers.views().exchange(b"", timeout_s=LONG_S)
        newest = sight.settings()
        assert newest is not None and newest.counter == 2 and sight.shared() == AgentSettings()
        assert safekeepers[1].reports == {}


@on_the_loop
async def test_settings_that_stay_are_not_written_again_but_made_sure_of() -> None:
    async with world() as safekeepers:
        views = safekeepers.views()
        assert await views.change_settings(lambda settings: settings, timeout_s=LONG_S) == AgentSettings()
        assert [fake.settings for fake in safekeepers.safekeepers.values()] == [None] * 3
        safekeepers[1].settings = version(4, is_paused=True)
        await safekeepers[3].stop()
        await safekeepers.views().change_settings(pause, timeout_s=LONG_S)
        assert safekeepers[2].settings == version(4, is_paused=True)


@on_the_loop
async def test_a_member_with_older_settings_receives_the_newest_in_the_next_exchange() -> None:
    async with world() as safekeepers:
        safekeepers[1].settings = safekeepers[2].settings = version(2)
        safekeepers[3].settings = version(1)
        views = safekeepers.views()
        await views.exchange(REPORT, timeout_s=LONG_S)
        assert safekeepers[3].settings == version(1)
        sight = await views.exchange(REPORT, timeout_s=LONG_S)
        assert sight.views[3].view.settings == version(2)
        await views.exchange(REPORT, timeout_s=LONG_S)
        assert [each.settings for each in safekeepers[3].received] == [None, version(2), None]
        assert [each.settings for each in safekeepers[1].received] == [None] * 3


@on_the_loop
async def test_a_change_without_a_quorum_says_what_is_missing() -> None:
    async with world() as safekeepers:
        await safekeepers[2].stop()
        await safekeepers[3].stop()
        views = safekeepers.views()
        with pytest.raises(WalproxyError) as caught:
            await views.change_settings(pause, timeout_s=0.2)
        message = str(caught.value)
        assert message.startswith(
            "the settings of the agents are not changed, no quorum of the safekeepers has replied within 0.2 s: "
        )
        assert "safekeeper 2 at " in message and "safekeeper 3 at " in message
        assert safekeepers[1].settings is None


@on_the_loop
async def test_a_change_that_a_quorum_does_not_confirm_may_come_later_and_says_so() -> None:
    async with world() as safekeepers:
        for i in (2, 3):
            safekeepers[i].refuses = lambda message: (
                RefusalCode.STORAGE_FULL if isinstance(message, AgentExchange) and message.settings else None
            )
        with pytest.raises(WalproxyError, match="has confirmed the settings of the agents within 1 s; they may"):
            await safekeepers.views().change_settings(pause, timeout_s=1)
        sight = await offer(safekeepers.views(), REPORT, version(9))
        # A full disk makes no member miss: what it has of the log is needed.
        assert sorted(sight.views) == [1, 2, 3]
        assert sorted(sight.problems) == [2, 3] and sight.problems[2].endswith(" refuses: because")


@on_the_loop
async def test_a_change_that_another_one_has_overtaken_is_made_from_there() -> None:
    async with world() as safekeepers:
        overtaken: list[int] = []

        def overtake() -> None:
            if not overtaken:
                overtaken.append(1)
                for fake in safekeepers.safekeepers.values():
                    fake.settings = version(7, "f", changes=())

        safekeepers[1].before_settings = overtake
        calls: list[AgentSettings] = []

        def change(settings: AgentSettings) -> AgentSettings:
            calls.append(settings)
            return pause(settings)

        # Only these two: the other one must be part of the quorum.
        await safekeepers[3].stop()
        assert (await safekeepers.views().change_settings(change, timeout_s=LONG_S)).is_paused
        assert len(calls) == 2
        assert safekeepers[1].settings is not None and safekeepers[1].settings.counter == 8


@on_the_loop
async def test_settings_that_cannot_be_read_are_not_overwritten() -> None:
    async with world() as safekeepers:
        for fake in safekeepers.safekeepers.values():
            fake.settings = AgentSettingsVersion(3, "a" * 32, b"[]")
        with pytest.raises(WalproxyError, match="an agent has sent no AgentSettings"):
            await safekeepers.views().change_settings(pause, timeout_s=LONG_S)
        assert safekeepers[1].settings is not None and safekeepers[1].settings.counter == 3


@on_the_loop
async def test_exchanges_take_place_while_a_change_waits_for_a_quorum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safekeeper_views, "_CHANGE_PART_S", 0.05)
    monkeypatch.setattr(safekeeper_views, "_REPLY_TIMEOUT_S", LONG_S)
    async with world() as safekeepers:
        views = safekeepers.views()
        await views.exchange(REPORT, timeout_s=LONG_S)
        safekeepers[2].hangs = safekeepers[3].hangs = True
        change = asyncio.ensure_future(views.change_settings(pause, timeout_s=LONG_S))
        await until(lambda: views._exchanging.locked())
        async with asyncio.timeout(LONG_S / 2):
            sight = await views.exchange(REPORT, timeout_s=SHORT_S)
        assert not sight.has_quorum() and not change.done()
        safekeepers[2].resume()
        assert (await change).is_paused


@on_the_loop
async def test_an_error_in_a_conversation_is_raised() -> None:
    async with world() as safekeepers:
        views = safekeepers.views()
        views._greeted = lambda *_: 1 / 0  # type: ignore[method-assign,assignment,return-value]
        with pytest.raises(ZeroDivisionError):
            await views.exchange(REPORT, timeout_s=LONG_S)


@on_the_loop
async def test_closed_during_a_conversation_it_leaves_nothing_open() -> None:
    async with world() as safekeepers:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            safekeepers[3].hangs = True
            views = safekeepers.views()
            views._peers[4] = safekeeper_views._Peer([Address("127.0.0.1", silent.getsockname()[1])], is_listed=True)
            await views.exchange(REPORT, timeout_s=SHORT_S)
            await views.close()
            assert all(peer.requests is None and peer.conversation is None for peer in views._peers.values())
            await until(lambda: not any(fake._writers for fake in safekeepers.safekeepers.values()))
