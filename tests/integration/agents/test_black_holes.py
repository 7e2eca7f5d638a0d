"""Machines that are gone without a word: their packets are dropped, and no connection to them is reset."""

import os
import signal

import pytest

from tests.integration.agents.lost_leaders import NewAgents
from tests.integration.agents.namespaces import runs_isolated
from tests.integration.conftest import NEWEST
from tests.waiting import wait_for
from walproxy.lab.failover.network import NamespaceNetwork

pytestmark = NEWEST

# PostgreSQL alone takes 60 s: wal_receiver_timeout. A new connection is given up after 130 s.
SOON_S = 30.0


@pytest.mark.slow
def test_a_standby_leaves_a_safekeeper_whose_machine_is_gone(
    new_agents: NewAgents, request: pytest.FixtureRequest
) -> None:
    if not runs_isolated(request):
        return
    network = NamespaceNetwork()
    cluster = new_agents(network=network)
    standby = cluster.hosts["pg2"]

    def receiver() -> tuple[int, str]:
        """Return the process and the source of the walreceiver that streams; (0, "") if none does."""
        sql = "SELECT pid, sender_host FROM pg_stat_wal_receiver WHERE status = 'streaming'"
        return next(iter(standby.execute(sql)), (0, ""))

    _, gone = receiver()
    assert gone == cluster.safekeeper_addresses[1], "libpq begins with the first host of its list"
    network.cut(standby.name, [gone])
    wait_for(lambda: receiver()[1] not in ("", gone), "it streams from another safekeeper", SOON_S)
    first, _ = receiver()
    os.kill(first, signal.SIGTERM)
    wait_for(lambda: receiver()[0] not in (0, first), "it connects past the lost one again", SOON_S)
    assert receiver()[1] != gone
