"""What an agent remembers of its own failover, and the time that it gives it."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from safekeeper.base import settings
from safekeeper.consensus.messages import AcceptorGreeting
from safekeeper.net.safekeeper_connection import Credentials
from tests.unit.event_loop import on_the_loop
from tests.unit.failover.looks import greeting
from walproxy.agent import steps
from walproxy.agent.activity import Activity
from walproxy.agent.agent import Agent
from walproxy.agent.config import AgentConfig, endpoints
from walproxy.agent.decision import FailOver
from walproxy.agent.report import AgentReport, AgentSettings
from walproxy.agent.server_look import ServerLook, ServerState
from walproxy.agent.sight import SeenReport
from walproxy.agent.state import ClusterView, LogPositions
from walproxy.agent.work import WorkState
from walproxy.failover.attempt import AttemptOptions
from walproxy.failover.server import Promotion


def agent(folder: Path, **more: str) -> Agent:
    options = {
        "name": "pg2",
        "pgdata": str(folder),
        "bin_dir": str(folder),
        "conninfo": "host=/nowhere",
        "address": "pg2:5432",
        "safekeepers": "1=sk1:5454",
        "standby_conninfo": "host=sk1",
        **more,
    }
    config = settings.load(AgentConfig, "WALPROXY_AGENT_", command_line=options, environment={}, file=None)
    return Agent(config, Credentials())


def test_a_promotion_that_another_failover_has_sealed_off_is_over(tmp_path: Path) -> None:
    """The others would wait half a minute for it."""
    ours = agent(tmp_path)
    ours.work.fail_over(None, None, 0.0)
    ours.work.promoted(15, Promotion(16, 0x1000))
    ours.cluster.view = ClusterView(sent_at=0.0, has_quorum=True, log=LogPositions(tli=15, floor=15))
    ours._note_resumption(1.0)
    assert ours.report().is_failing_over
    ours.cluster.view = ClusterView(sent_at=1.0, has_quorum=True, log=LogPositions(tli=15, floor=16))
    ours._note_resumption(2.0)
    assert not ours.report().is_failing_over
    # It is not the one that commits go on with, either.
    ours.watch.commits = True
    ours._note_resumption(3.0)
    assert ours._recording is None


@on_the_loop
async def test_a_change_is_recorded_when_the_promoted_server_accepts_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = agent(tmp_path)
    shared = AgentSettings()

    async def change_settings(change: Callable[[AgentSettings], AgentSettings]) -> None:
        nonlocal shared
        shared = change(shared)

    monkeypatch.setattr(ours.cluster, "change_settings", change_settings)
    ours.work.fail_over(None, None, 1.0)
    ours.work.promoted(15, Promotion(16, 0x1000))
    ours.cluster.view = ClusterView(sent_at=0.0, has_quorum=True, log=LogPositions(tli=15, floor=15))
    ours.watch.commits = ours._decider.ended_writes = True
    ours._note_resumption(3.0)
    assert ours._recording is None
    ours._decider.ended_writes = False
    ours._note_resumption(3.5)
    assert ours._recording is not None
    await ours._recording
    assert [(change.tli, change.seconds) for change in shared.changes] == [(16, 2.5)]


def test_the_others_wait_until_the_safekeepers_have_received_a_heartbeat_of_the_new_primary(tmp_path: Path) -> None:
    ours = agent(tmp_path)
    ours.work.fail_over(None, None, 0.0)
    ours.work.promoted(15, Promotion(16, 0x1000))
    silent_s = (5.0, 0.5, None, 1.0, 0.9)
    waits = []
    for seconds in silent_s:
        if seconds is None:
            ours.work.resumed()
        ours._received(ClusterView(has_quorum=True, leader_silent_s=seconds))
        waits.append(ours.report().is_failing_over)
    assert waits == [True, True, True, True, False], "before commits go on, a heartbeat is that of another proxy"


def test_an_outage_whose_reason_changes_each_second_is_a_few_lines_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    activity = Activity()
    with caplog.at_level(logging.INFO):
        for second in range(60):
            # Safekeepers that reply and do not, and a server that does not start.
            activity.wait_for(f"safekeeper {second % 3} at sk:5454 cannot be reached")
            activity.wait_for("")
            activity.log("starting PostgreSQL as a standby")
            activity.failed("PostgreSQL did not start" if second % 2 else "PostgreSQL has not started within 30 s")
    # 6 a minute of each of the three kinds.
    assert 3 <= len(caplog.records) <= 18, [record.getMessage() for record in caplog.records]
    assert caplog.records[0].getMessage() == "waiting: safekeeper 0 at sk:5454 cannot be reached"


class ScriptedFailover:
    """A failover that asks its guard twice, as an attempt does."""

    is_sealed = False

    def __init__(self, *_: Any, attempt: AttemptOptions, **__: Any) -> None:
        self._attempt = attempt

    async def promote(self, *, old_is_dead: bool) -> tuple[AcceptorGreeting, str, Promotion]:
        assert not old_is_dead and self._attempt.guard is not None
        await self._attempt.guard()
        self.is_sealed = True
        await self._attempt.guard()
        return greeting(), "pg2", Promotion(2, 0x1000)

    async def close(self) -> None: ...


async def fail_over(ours: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    async def keep_running(_: float) -> None: ...

    for of, name, value in [
        (steps, "Failover", ScriptedFailover),
        (ours._steps, "_prepare_promotion", lambda: None),
        (ours._proxy, "keep_running", keep_running),
    ]:
        monkeypatch.setattr(of, name, value)
    await ours._steps.take(FailOver(), ServerState.STANDBY)


@on_the_loop
async def test_a_fence_runs_once_until_a_primary_leads_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tmp_path / "runs"
    ours = agent(tmp_path, fence_command=f"echo $WALPROXY_OLD_PRIMARY >> {runs}")
    ours.cluster.last_leader = "pg1"
    await fail_over(ours, monkeypatch)
    assert (ours.work.state, ours.report().problem, ours.report().has_sealed) == (WorkState.RESUMING, "", True)
    assert runs.read_text().split() == ["pg1"]
    ours.work.end()
    await fail_over(ours, monkeypatch)
    assert runs.read_text().split() == ["pg1"], "it is off since the attempt before"
    ours.work.end()
    leader = AgentReport("pg1", state="primary", is_leader=True, tli=1)
    ours._received(ClusterView(sent_at=1.0, has_quorum=True, agents=(SeenReport(leader, 0.0),)))
    await fail_over(ours, monkeypatch)
    assert runs.read_text().split() == ["pg1", "pg1"]


@on_the_loop
async def test_a_fence_that_does_not_end_is_killed_with_its_children_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = tmp_path / "ended"
    ours = agent(tmp_path, fence_command=f"(sleep 2; touch {ended}) & wait", fence_timeout="1")
    await fail_over(ours, monkeypatch)
    assert ours.work.state is WorkState.WATCHING and not ours.report().has_sealed
    assert ours.report().problem == "fence_command has not ended within 1 s"
    await asyncio.sleep(1.5)
    assert not ended.exists()


@on_the_loop
async def test_a_server_that_does_not_serve_is_not_looked_at_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step without a result is followed by a look at once, which runs pg_controldata."""
    ours, taken = agent(tmp_path), list[object]()
    monkeypatch.setattr(ours, "_take", taken.append)
    monkeypatch.setattr(ours, "_keep_proxy", lambda now: asyncio.sleep(0))
    ours.watch.looked_at = 1.0
    loop = asyncio.create_task(ours._step_loop())
    for state, count in ((ServerState.STOPPED, 0), (ServerState.STARTING, 0), (ServerState.STANDBY, 1)):
        ours.watch.look = ServerLook(state, has_standby_signal=False)
        ours._changed.set()
        async with asyncio.timeout(5.0):
            while ours._changed.is_set():
                await asyncio.sleep(0)
        assert len(taken) == count, state
    loop.cancel()


def test_the_others_have_patience_with_the_guards_that_are_configured(tmp_path: Path) -> None:
    assert agent(tmp_path)._decider.own.guards_s == 0.0
    guarded = agent(tmp_path, fence_command="true", lease_etcd="http://etcd:2379", lease_ttl="7")
    assert endpoints(["http://etcd1:2379", "https://etcd2:2379"]) == ("http://etcd1:2379", "https://etcd2:2379")
    with pytest.raises(ValueError, match="is not a list of URLs"):
        endpoints(2379)
    assert guarded._decider.own.guards_s >= 7.0 + 60.0
