"""Agents exchange reports and settings through real safekeepers, of which some are killed or paused."""

import asyncio
import time
from collections.abc import Callable

from msgspec.structs import replace

from safekeeper.base.settings import address
from safekeeper.net.safekeeper_connection import Credentials
from safekeeper.peers.local_secret import LocalSecret
from tests.integration.cluster.cluster_fixtures import Gated
from tests.integration.conftest import NEWEST
from walproxy.agent.report import AgentReport, AgentSettings, encode
from walproxy.agent.safekeeper_views import SafekeeperViews
from walproxy.agent.sight import AgentSight

pytestmark = NEWEST
DEADLINE_S = 20.0
TIMEOUT_S = 2.0


class Agent:
    """One that only exchanges."""

    def __init__(self, cluster: Gated, name: str) -> None:
        places = [place.split("=") for place in cluster.safekeepers_option.split(",")]
        safekeepers = [(int(safekeeper_id), address(place)) for safekeeper_id, place in places]
        self.report = encode(AgentReport(name)) if name else b""
        self.views = SafekeeperViews(safekeepers, Credentials(local_secret=LocalSecret()), name)

    async def look(self) -> AgentSight:
        return await self.views.exchange(self.report, timeout_s=TIMEOUT_S)

    async def until(self, condition: Callable[[AgentSight], bool]) -> AgentSight:
        """Exchange until what is seen is as wanted."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition(sight := await self.look()):
                await asyncio.sleep(0.05)
            return sight


def has_lost_the_leader_for(age_s: float) -> Callable[[AgentSight], bool]:
    return lambda sight: (sight.leader_silent_s() or 0.0) >= age_s


def has_a_leader(sight: AgentSight) -> bool:
    age_s = sight.leader_silent_s()
    return age_s is not None and age_s < 1.0


def paused(settings: AgentSettings) -> AgentSettings:
    return replace(settings, is_paused=True)


def test_agents_see_each_other_the_leader_and_their_settings_through_safekeepers(cluster: Gated) -> None:
    safekeepers = cluster.safekeepers

    async def story() -> None:
        one, two, command = Agent(cluster, "db1"), Agent(cluster, "db2"), Agent(cluster, "")
        try:
            # Both see both, with the time since each report, and the leader.
            await two.look()
            sight = await one.until(lambda sight: sight.reports()["db2"].age_s > 0.3 and has_a_leader(sight))
            assert {name: seen.report for name, seen in sight.reports().items()} == {
                name: AgentReport(name) for name in ("db1", "db2")
            }
            assert sight.reports()["db1"].age_s < sight.reports()["db2"].age_s
            assert sorted(sight.views) == [1, 2, 3] and sight.problems == {}
            log = sight.log()
            assert log is not None and log.promised.term == cluster.status()["term"] and log.log_tli == 1

            # The leader is gone.
            cluster.proxy.kill9()
            sight = await one.until(has_lost_the_leader_for(1.5))
            log = sight.log()
            assert log is not None and log.flush_lsn == max(map(cluster.flush_lsn_of, safekeepers))

            # One that hangs delays an exchange by its timeout at most, and only one.
            safekeepers[3].pause()
            began_at = time.monotonic()
            sight = await one.look()
            first_s = time.monotonic() - began_at
            assert sorted(sight.views) == [1, 2] and sight.has_quorum()
            assert "has not replied" in sight.problems[3]
            began_at = time.monotonic()
            assert (await one.look()).has_quorum()
            assert time.monotonic() - began_at < TIMEOUT_S <= first_s < 2 * TIMEOUT_S

            # Settings that are written meanwhile are on a quorum, also after the death of all.
            assert await command.views.change_settings(paused, timeout_s=DEADLINE_S) == AgentSettings(is_paused=True)
            for safekeeper in safekeepers.values():
                safekeeper.kill9()
            assert not (await command.look()).has_quorum()
            for safekeeper in safekeepers.values():
                safekeeper.start()
            sight = await command.until(lambda sight: sight.has_quorum())
            newest = sight.settings()
            assert newest is not None and sight.shared().is_paused

            # Safekeeper 3, which was paused until its end, receives them now.
            sight = await one.until(lambda sight: len(sight.views) == 3 and sight.keeps(newest))
            await one.until(lambda sight: 3 in sight.views and sight.views[3].view.settings == newest)

            cluster.proxy.start()
            await one.until(has_a_leader)
        finally:
            for agent in (one, two, command):
                await agent.views.close()

    asyncio.run(story())
