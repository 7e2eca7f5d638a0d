"""A standby that streams from the primary itself may replay WAL that no quorum has, and that no new primary has."""

import time
from collections.abc import Sequence

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.integration.agents.lost_leaders import NewAgents, wait_for_line, wait_until
from tests.integration.agents.probes import Probes
from tests.integration.conftest import NEWEST
from tests.waiting import wait_for
from walproxy.agent.watches import LOOK_INTERVAL_S
from walproxy.lab.failover.host import Host, Place
from walproxy.lab.failover.manager import AgentManager, Surroundings
from walproxy.postgres.bounded_sql import quoted

pytestmark = NEWEST


class DirectManager(AgentManager):
    """pg3 streams from pg1, and from the safekeepers while that does not reply; pg2 is preferred in a failover."""

    def command(self, place: Place, around: Surroundings) -> Sequence[str]:
        words = super().command(place, around)
        if place.name != "pg3":
            return words
        readers, pg1 = conninfo_to_dict(around.standby_conninfo), around.places["pg1"]
        hosts, ports = f"{pg1.address},{readers['host']}", f"{pg1.pg_port},{readers['port']}"
        direct = make_conninfo(around.standby_conninfo, host=hosts, port=ports)
        safekeepers = f"standby_conninfo={around.standby_conninfo}"
        assert safekeepers in words
        own = [f"standby_conninfo={direct}" if word == safekeepers else word for word in words]
        return [*own, "-c", "priority=50"]


def test_a_standby_that_is_ahead_of_the_fork_rejoins(new_agents: NewAgents) -> None:
    cluster = new_agents(manager=DirectManager, dead_after_s=5.0)
    old, new, ahead = cluster.hosts.values()
    old.execute("CREATE TABLE only_here (n int)")
    with Probes(cluster) as probes:
        probes.wait_for_commit()
        # From now on no safekeeper receives anything, and pg3 everything.
        old.stop("proxy")
        old.execute("SET synchronous_commit = local; INSERT INTO only_here VALUES (1)")
        wait_for(lambda: ahead.execute("SELECT * FROM only_here") == [(1,)], "the standby has replayed it")
        old.kill()
        assert cluster.wait_for_leader("pg2", "pg3") is new
        wait_for_line([ahead], "stopping PostgreSQL: it has replayed timeline 1 up to ")
        wait_for_line([ahead], "rejoined pg2 (rewind)")
        old.start()
        cluster.wait_until_well(60.0)
        assert ahead.execute("SELECT * FROM only_here") == []
        probes.verify()


def test_a_standby_that_has_followed_two_promotions_goes_on_without_its_walreceiver(new_agents: NewAgents) -> None:
    """Its control file has the first timeline until its next restartpoint."""
    cluster = new_agents()
    first, second, follower = cluster.hosts.values()
    for to in (second, first):
        assert cluster.switch_over(to) == ""
        assert cluster.wait_until_well(60.0).leader is to
    [(upstream,)] = follower.execute("SHOW primary_conninfo")
    _set_upstream(follower, "")
    wait_for(lambda: not follower.execute("SELECT pid FROM pg_stat_wal_receiver"), "it receives nothing")
    wait_until(time.monotonic() + 5 * LOOK_INTERVAL_S, "its agent has looked at it")
    _set_upstream(follower, upstream)
    cluster.wait_until_well(60.0)
    assert "stopping PostgreSQL" not in follower.manager.log_path.read_text()


def _set_upstream(host: Host, conninfo: str) -> None:
    host.execute(f"ALTER SYSTEM SET primary_conninfo = {quoted(conninfo)}")
    host.execute("SELECT pg_reload_conf()")
