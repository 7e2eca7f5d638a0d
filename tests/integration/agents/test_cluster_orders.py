"""`walproxy cluster` with real agents, and their REST: show, switchover, pause, reinit, history."""

import http.client
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_templates import init_by_copying
from tests.integration.agents.test_agent import Agents
from tests.integration.conftest import NEWEST
from tests.integration.refusals.refusal_fixtures import only_line, run_walproxy
from tests.waiting import wait_for
from walproxy.lab.failover.manager import AgentManager
from walproxy.lab.failover.network import LoopbackNetwork
from walproxy.postgres.binaries import ServerBinaries

pytestmark = NEWEST
TIMEOUT_S = 40.0


@pytest.fixture
def agents(servers: dict[int, ServerBinaries], major: int, template: Path, folder: Path) -> Iterator[Agents]:
    network, names = LoopbackNetwork(), ("pg1", "pg2")
    with Agents(folder, servers[major], network, AgentManager(), names=names, volatile_disks=False) as made:
        made.start(lambda postgres: init_by_copying(postgres, template))
        yield made


def run(agents: Agents, *arguments: str) -> subprocess.CompletedProcess[str]:
    group = () if arguments[0] == "switchover" else ("cluster",)
    return run_walproxy(*group, *arguments, environment=agents.operator_environment)


def result(agents: Agents, *arguments: str) -> Any:
    """Return what a command prints as JSON."""
    ended = run(agents, *arguments, "--json")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def answer(agents: Agents, name: str, path: str) -> tuple[int, Any]:
    """Return status code and content of a page of an agent."""
    place = agents.hosts[name].place
    connection = http.client.HTTPConnection(place.address, place.http_port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def statuses(agents: Agents, name: str) -> dict[str, int]:
    return {path: answer(agents, name, path)[0] for path in ("/primary", "/replica?lag=1MB", "/health", "/readiness")}


LEADER = {"/primary": 200, "/replica?lag=1MB": 503, "/health": 200, "/readiness": 200}
STANDBY = {"/primary": 503, "/replica?lag=1MB": 200, "/health": 200, "/readiness": 200}


def test_operator_moves_the_primary_pauses_and_rebuilds(agents: Agents) -> None:
    wait_for(lambda: [statuses(agents, n) for n in ("pg1", "pg2")] == [LEADER, STANDBY], "REST has both", TIMEOUT_S)
    members = answer(agents, "pg2", "/cluster")[1]["members"]
    assert [(each["name"], each["role"], each["state"]) for each in members] == [
        ("pg1", "leader", "running"),
        ("pg2", "replica", "streaming"),
    ]
    head, _, one, two = run(agents, "show").stdout.splitlines()
    assert head.endswith("; a quorum of safekeepers replies")
    assert one.split()[:5] == ["pg1", f"127.0.0.1:{agents.hosts['pg1'].place.pg_port}", "leader", "running", "1"]
    assert two.split()[2:5] == ["replica", "streaming", "1"]

    ended = result(agents, "switchover", "--to", "pg2", "--yes")
    assert (ended["primary"], ended["tli"]) == ("pg2", 2)
    wait_for(lambda: [statuses(agents, n) for n in ("pg1", "pg2")] == [STANDBY, LEADER], "they changed", TIMEOUT_S)

    assert result(agents, "pause", "--wait") == {"paused": True, "changed": True, "missing": []}
    assert answer(agents, "pg1", "/patroni")[1]["pause"] is True
    refused = run(agents, "switchover", "--yes")
    assert refused.returncode == 1
    assert "the agents are paused, and execute no order: walproxy cluster resume" in only_line(refused.stderr)
    assert result(agents, "resume", "--wait")["missing"] == []

    folder = agents.hosts["pg1"].place.data_directory
    inode = folder.stat().st_ino
    rebuilt = run(agents, "reinit", "pg1", "--yes")
    assert rebuilt.returncode == 0, rebuilt.stderr
    assert rebuilt.stdout.startswith("pg1 has been rebuilt (") and folder.stat().st_ino != inode
    wait_for(lambda: statuses(agents, "pg1") == STANDBY, "it is a standby again", TIMEOUT_S)

    (change,) = result(agents, "history")
    assert (change["kind"], change["agent"], change["tli"]) == ("switchover", "pg2", 2)
    (line,) = answer(agents, "pg1", "/history")[1]
    assert (line[0], line[2], line[4]) == (1, "switchover", "pg2")
