"""What a safekeeper keeps for agents: reports in memory, settings on disk before they are acknowledged."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from safekeeper.base.errors import StorageFailed, StorageFull
from safekeeper.base.worker import Worker
from safekeeper.consensus.control_state import NOBODY, LeaderId
from safekeeper.consensus.membership import Membership
from safekeeper.consensus.messages import (
    AgentExchange,
    AgentSettingsVersion,
    AgentView,
    Bootstrap,
    Bootstrapped,
    Refusal,
    RefusalCode,
)
from safekeeper.node.agent_registry import REPORT_FORGOTTEN_AFTER_S
from safekeeper.peers.message_checks import AGENTS_MAX
from safekeeper.storage.inspection import as_json, inspect_folder, settings_rows
from tests.unit.event_loop import on_the_loop, until
from tests.unit.faulty_filesystem import FaultyFileSystem
from tests.unit.node.test_node import BASE_LSN, CLUSTER, INCARNATION, MEMBERSHIP, SEGMENT_SIZE, Bench, bench

OTHER_CLUSTER = "d" * 32


def version(counter: int, author: str = "a", content: bytes = b"{}") -> AgentSettingsVersion:
    return AgentSettingsVersion(counter, author * 32, content)


class AgentsBench:
    """Agents on connections 11, 12, ... of a node, whose clock stands still unless `now` is set."""

    def __init__(self, node: Bench) -> None:
        self.node = node
        self.now = 1000.0
        node.node.services.agents._clock = lambda: self.now
        node.node.services.agents._started_at = self.now

    async def connect(self, *connections: int) -> None:
        for connection in connections:
            await self.node.greet(connection)

    async def exchange(
        self,
        name: str = "",
        report: bytes = b"",
        settings: AgentSettingsVersion | None = None,
        connection: int = 11,
        cluster_id: str = CLUSTER,
    ) -> AgentView:
        return await self.node.ask(AgentExchange(cluster_id, name, report, settings), AgentView, connection)

    def sends(self, settings: AgentSettingsVersion, connection: int = 11) -> None:
        self.node.says(AgentExchange(CLUSTER, "", settings=settings), connection)

    def answers(self, connection: int) -> list[object]:
        return [message for to, message in self.node.said if to == connection][1:]


class HeldJobs:
    """A disk's thread that does nothing yet."""

    def __init__(self) -> None:
        self._jobs: list[Any] = []

    def submit(self, *job: Any) -> None:
        self._jobs.append(job)

    def hand_to(self, worker: Worker) -> None:
        for job in self._jobs:
            worker.submit(*job)


async def leading(node: Bench) -> AgentsBench:
    await node.lead()
    agents = AgentsBench(node)
    await agents.connect(11, 12, 13)
    return agents


@on_the_loop
async def test_agents_see_each_others_reports_with_their_ages(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as node:
        agents = await leading(node)
        assert (await agents.exchange()).reports == ()
        await agents.exchange("two", b"{2}", connection=12)
        agents.now += 1.5
        view = await agents.exchange("one", b"{1}")
        assert [(kept.name, kept.age_ms, kept.report) for kept in view.reports] == [
            ("one", 0, b"{1}"),
            ("two", 1500, b"{2}"),
        ]
        view = await agents.exchange("two", b"{2, again}", connection=12)
        assert [(kept.name, kept.age_ms, kept.report) for kept in view.reports] == [
            ("one", 0, b"{1}"),
            ("two", 0, b"{2, again}"),
        ]


@on_the_loop
async def test_the_view_shows_the_log_and_the_time_since_a_leader_was_healthy(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as node:
        agents = await leading(node)
        agents.now += 2
        view = await agents.exchange()
        assert view == AgentView(CLUSTER, INCARNATION, LeaderId(1, "run"), 2000, 1, 0, 0, BASE_LSN, 0)
        end_lsn = await node.append_durably(b"w" * 100)
        node.append(b"", commit_lsn=end_lsn)
        agents.now = asyncio.get_running_loop().time() + 3
        view = await agents.exchange()
        assert 3000 <= view.leader_age_ms < 20_000
        assert (view.last_term, view.log_tli, view.flush_lsn, view.commit_lsn) == (1, 1, end_lsn, end_lsn)


@on_the_loop
async def test_a_report_is_forgotten_after_an_hour_and_the_oldest_when_there_are_too_many(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as node:
        agents = await leading(node)
        for number in range(AGENTS_MAX):
            await agents.exchange(f"agent{number:02}", b"{}")
        await agents.exchange("agent00", b"{again}")
        view = await agents.exchange("agent64", b"{}")
        names = [kept.name for kept in view.reports]
        assert len(names) == AGENTS_MAX and "agent01" not in names and {"agent00", "agent64"} <= set(names)
        agents.now += REPORT_FORGOTTEN_AFTER_S
        assert len((await agents.exchange("late", b"{}")).reports) == AGENTS_MAX
        agents.now += 1
        assert [kept.name for kept in (await agents.exchange()).reports] == ["late"]


@on_the_loop
async def test_settings_are_acknowledged_once_they_are_on_disk_and_others_do_not_wait(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    async with bench(tmp_path / "sk", fs) as node:
        agents = await leading(node)
        fs.hold()
        agents.sends(version(1))
        assert (await agents.exchange("two", b"{}", connection=12)).settings is None
        end_lsn = node.append(b"w")  # The consensus goes on; its flush waits for the same disk.
        assert node.node.acceptor.write_lsn == end_lsn
        assert agents.answers(11) == []
        fs.release()
        await until(lambda: len(agents.answers(11)) == 1)
        (view,) = agents.answers(11)
        assert isinstance(view, AgentView) and view.settings == version(1)
    async with bench(tmp_path / "sk") as node:
        agents = AgentsBench(node)
        await agents.connect(11)
        assert (await agents.exchange()).settings == version(1)


@on_the_loop
async def test_the_newest_version_is_kept_by_counter_and_then_by_author(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as node:
        agents = await leading(node)
        for offered, kept in (
            (version(2, "b"), version(2, "b")),
            (version(1, "c"), version(2, "b")),
            (version(2, "a"), version(2, "b")),
            (version(2, "c"), version(2, "c")),
            (version(3, "a"), version(3, "a")),
        ):
            assert (await agents.exchange(settings=offered)).settings == kept


@on_the_loop
async def test_versions_that_arrive_during_a_write_are_written_next_and_each_is_answered(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    async with bench(tmp_path / "sk", fs) as node:
        agents = await leading(node)
        fs.hold()
        agents.sends(version(1), 11)
        agents.sends(version(3), 12)
        agents.sends(version(2), 13)
        node.node.disconnected(11)
        fs.release()
        await until(lambda: bool(agents.answers(12)) and bool(agents.answers(13)))
        assert agents.answers(11) == []
        for connection in (12, 13):
            (view,) = agents.answers(connection)
            assert isinstance(view, AgentView) and view.settings == version(3)


@on_the_loop
async def test_settings_before_the_reply_to_the_last_ones_close_the_connection(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    async with bench(tmp_path / "sk", fs) as node:
        agents = await leading(node)
        fs.hold()
        agents.sends(version(1))
        agents.sends(version(2))
        assert node.closed == [(11, "an agent sends settings before the reply to its last ones", True)]
        assert node.node.ready


@pytest.mark.parametrize("fault", ["full", "failing"])
def test_settings_that_cannot_be_written_are_refused_and_the_node_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    @on_the_loop
    async def story() -> None:
        fs = FaultyFileSystem()
        async with bench(tmp_path / "sk", fs) as node:
            agents = await leading(node)
            setattr(fs, fault, True)
            refusal = await node.ask(AgentExchange(CLUSTER, "", settings=version(1)), Refusal, 11)
            assert refusal.code is RefusalCode.STORAGE_FULL
            setattr(fs, fault, False)
            assert (await agents.exchange()).settings is None
            if fault == "full":
                assert (await agents.exchange(settings=version(1))).settings == version(1)
            await node.append_durably(b"w")
            assert not node.node.failed.done()

    with caplog.at_level(logging.WARNING):
        story()
    assert (
        len([line for line in caplog.messages if "could not save the settings of the agents: could not" in line]) == 1
    )


@on_the_loop
async def test_a_damaged_file_is_one_line_and_counts_as_absent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(tmp_path / "sk") as node:
        await (await leading(node)).exchange(settings=version(7))
    file = tmp_path / "sk" / "agents"
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    inspection = inspect_folder(FaultyFileSystem(), tmp_path / "sk")
    assert len(inspection.notes) == 1 and inspection.settings is None and not inspection.lost
    async with bench(tmp_path / "sk") as node:
        assert caplog.messages.count(inspection.notes[0]) == 1
        assert "agents is damaged, its checksum is wrong: it is ignored, the agents restore" in inspection.notes[0]
        agents = AgentsBench(node)
        await agents.connect(11)
        assert (await agents.exchange()).settings is None
        assert (await agents.exchange(settings=version(3))).settings == version(3)


@on_the_loop
async def test_what_was_read_at_the_start_is_written_again_because_a_sync_may_have_failed_before(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path / "sk") as node:
        await (await leading(node)).exchange(settings=version(1))
    file = tmp_path / "sk" / "agents"
    before = file.stat().st_ino
    fs = FaultyFileSystem()
    async with bench(tmp_path / "sk", fs) as node:
        assert file.stat().st_ino != before
        assert node.node.services.agents._kept == version(1)


@pytest.mark.parametrize(("error", "kept"), [(StorageFull, version(1)), (StorageFailed, None)])
def test_a_start_without_room_keeps_what_it_has_read_and_one_on_a_broken_disk_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception], kept: AgentSettingsVersion | None
) -> None:
    @on_the_loop
    async def story() -> None:
        async with bench(tmp_path / "sk") as node:
            await (await leading(node)).exchange(settings=version(1))

        class Broken(FaultyFileSystem):
            def create(self, path: Path):  # type: ignore[no-untyped-def]
                if path.name == "agents.new":
                    raise error("could not write")
                return super().create(path)

        async with bench(tmp_path / "sk", Broken()) as node:
            assert node.node.services.agents._kept == kept

    story()


@on_the_loop
async def test_a_rebootstrap_drops_reports_and_settings(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as node:
        agents = await leading(node)
        await agents.exchange("one", b"{}", version(5))
        other = Bootstrap(OTHER_CLUSTER, 5, SEGMENT_SIZE, 150018, msgspec.structs.replace(MEMBERSHIP, generation=2))
        await node.ask(msgspec.structs.replace(other, replace=True), Bootstrapped)
        refusal = await node.ask(AgentExchange(CLUSTER, ""), Refusal, 11)
        assert refusal.code is RefusalCode.OTHER_CLUSTER
        view = await agents.exchange("two", b"{}", cluster_id=OTHER_CLUSTER)
        assert (view.settings, [kept.name for kept in view.reports], view.flush_lsn) == (None, ["two"], 0)
    async with bench(tmp_path / "sk") as node:
        agents = AgentsBench(node)
        await agents.connect(11)
        assert (await agents.exchange(cluster_id=OTHER_CLUSTER)).settings is None


@pytest.mark.parametrize("has_new", [False, True])
def test_settings_on_their_way_to_the_disk_are_refused_when_a_rebootstrap_replaces_their_cluster(
    tmp_path: Path, has_new: bool
) -> None:
    @on_the_loop
    async def story() -> None:
        async with bench(tmp_path / "sk") as node:
            agents = await leading(node)
            registry = node.node.services.agents
            disk, held = registry._disk, HeldJobs()
            registry._disk = held  # type: ignore[assignment]
            agents.sends(version(5), 12)
            membership = Membership(2, MEMBERSHIP.members)
            await node.ask(Bootstrap(OTHER_CLUSTER, 5, SEGMENT_SIZE, 150018, membership, True), Bootstrapped)
            settings = version(1) if has_new else None
            node.says(AgentExchange(OTHER_CLUSTER, "two", b"{}", settings), 13)
            (refusal,) = agents.answers(12)
            assert isinstance(refusal, Refusal) and refusal.code is RefusalCode.OTHER_CLUSTER
            registry._disk = disk
            held.hand_to(disk)
            await until(lambda: not registry._is_writing)
            (view,) = agents.answers(13)
            assert isinstance(view, AgentView) and view.settings == settings
            assert (await agents.exchange(cluster_id=OTHER_CLUSTER)).settings == settings

    story()


@on_the_loop
async def test_inspect_shows_the_settings_of_its_cluster(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as node:
        await (await leading(node)).exchange(settings=version(2, "b", b'{"is_paused":true}\n'))
    inspection = inspect_folder(FaultyFileSystem(), tmp_path / "sk")
    assert as_json(inspection)["agents"] == {"counter": 2, "author": "b" * 32, "content": '{"is_paused":true}\n'}
    assert settings_rows(inspection.settings) == [
        ("settings of agents", 'version 2 of bbbbbbbb: {"is_paused":true}\\n')
    ]
    assert inspection.notes == []


@on_the_loop
async def test_an_exchange_before_the_greeting_closes_the_connection(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as node:
        node.says(AgentExchange(CLUSTER, ""), 44)
        assert node.closed == [(44, "AgentExchange before the greeting", True)]
        assert node.node.acceptor.control.promised == NOBODY
