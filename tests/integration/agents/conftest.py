"""Clusters of agents, for the tests of what agents do by themselves."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster_templates import init_by_copying
from tests.integration.agents.lost_leaders import DEAD_AFTER_S, NewAgents
from tests.integration.agents.test_agent import Agents
from walproxy.lab.failover.manager import AgentManager
from walproxy.lab.failover.network import LoopbackNetwork, Network
from walproxy.postgres.binaries import ServerBinaries
from walproxy.postgres.local_server import LocalPostgres

LOG_LINES = 40
Init = Callable[[LocalPostgres], object]


@pytest.fixture
def new_agents(servers: dict[int, ServerBinaries], major: int, template: Path, folder: Path) -> Iterator[NewAgents]:
    """Return a function that makes and starts a cluster; its arguments are the agents' options."""
    made: list[Agents] = []

    def copy_template(postgres: LocalPostgres) -> object:
        return init_by_copying(postgres, template)

    def make(
        *options: str,
        dead_after_s: float = DEAD_AFTER_S,
        manager: type[AgentManager] = AgentManager,
        network: Network | None = None,
        init: Init = copy_template,
    ) -> Agents:
        agents = manager(dead_after_s, options=options)
        made.append(Agents(folder, servers[major], network or LoopbackNetwork(), agents, volatile_disks=False))
        made[-1].start(init)
        return made[-1]

    yield make
    for cluster in made:
        for host in cluster.hosts.values():
            print(f"{host.name}: {host.manager.log_tail(LOG_LINES)}")  # pytest shows it after a failure.
        cluster.close()
