"""What an agent remembers of its own failover, and the time that it gives it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from safekeeper.base import settings
from safekeeper.consensus.messages import AcceptorGreeting
from safekeeper.net.safekeeper_connection import Credentials
from tests.unit.event_loop import on_the_loop
from tests.unit.failover.looks import greeting
from walproxy.agent import guards, steps
from walproxy.agent.activity import Activity
from walproxy.agent.agent import Agent
from walproxy.agent.config import AgentConfig, endpoints
from walproxy.agent.decision import FailOver
from walproxy.agent.server_look import ServerState
from walproxy.agent.state import ClusterView, LogPositions
from walproxy.agent.work import WorkState
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
    ours.work.fail_over(None, 0.0)
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


def test_the_others_wait_until_the_safekeepers_have_received_a_heartbeat_of_the_new_primary(tmp_path: Path) -> None:
    ours = agent(tmp_path)
    ours.work.fail_over(None, 0.0)
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
    """A failover that lasts as long as a test specifies, before and after its guard."""

    before_s = after_s = 0.0

    def __init__(self, *_: Any, guard: Callable[[], Awaitable[None]], **__: Any) -> None:
        self._guard = guard

    async def promote(self, *, old_is_dead: bool) -> tuple[AcceptorGreeting, str, Promotion]:
        assert not old_is_dead
        await asyncio.sleep(self.before_s)
        await self._guard()
        await asyncio.sleep(self.after_s)
        return greeting(), "pg2", Promotion(2, 0x1000)

    async def close(self) -> None: ...


async def fail_over(folder: Path, monkeypatch: pytest.MonkeyPatch, before_s: float, after_s: float) -> Agent:
    """Fail over with a fence_command that lasts longer than a catch-up may."""
    ours = agent(folder, fence_command="sleep 1")

    async def keep_running(_: float) -> None: ...

    for of, name, value in [
        (steps, "Failover", ScriptedFailover),
        (steps, "_CATCH_UP_TIMEOUT_S", 0.6),
        (ScriptedFailover, "before_s", before_s),
        (ScriptedFailover, "after_s", after_s),
        (ours._steps, "_prepare_promotion", lambda: None),
        (ours._proxy, "keep_running", keep_running),
    ]:
        monkeypatch.setattr(of, name, value)
    await ours._steps.take(FailOver(), ServerState.STANDBY)
    return ours


@on_the_loop
async def test_the_time_of_the_guards_is_not_that_of_the_catch_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = await fail_over(tmp_path, monkeypatch, 0.0, 0.0)
    assert (ours.work.state, ours.report().problem) == (WorkState.RESUMING, "")


@pytest.mark.parametrize("before_s, after_s", [(9.0, 0.0), (0.3, 0.5)])
@on_the_loop
async def test_a_failover_is_given_up_if_it_lasts_too_long_without_its_guards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before_s: float, after_s: float
) -> None:
    ours = await fail_over(tmp_path, monkeypatch, before_s, after_s)
    assert ours.work.state is WorkState.WATCHING
    assert ours.report().problem.startswith("the failover was given up after 0.6 s")


def test_the_others_have_patience_with_the_guards_that_are_configured(tmp_path: Path) -> None:
    assert agent(tmp_path)._decider.own.guards_s == 0.0
    guarded = agent(tmp_path, fence_command="true", lease_etcd="http://etcd:2379", lease_ttl="7")
    assert endpoints(["http://etcd1:2379", "https://etcd2:2379"]) == ("http://etcd1:2379", "https://etcd2:2379")
    with pytest.raises(ValueError, match="is not a list of URLs"):
        endpoints(2379)
    assert guarded._decider.own.guards_s >= 7.0 + guards._FENCE_TIMEOUT_S
