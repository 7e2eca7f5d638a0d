"""A standby that streams from the primary itself may replay WAL that no quorum has, and that no new primary has."""

from collections.abc import Sequence

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.integration.agents.lost_leaders import NewAgents, wait_for_line
from tests.integration.agents.probes import Probes
from tests.integration.conftest import NEWEST
from tests.waiting import wait_for
from walproxy.lab.failover.host import Place
from walproxy.lab.failover.manager import AgentManager, Surroundings

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
