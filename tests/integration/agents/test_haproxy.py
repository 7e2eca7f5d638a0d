"""HAProxy with the configuration that it has in front of Patroni sends clients to the leader of the agents."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.cluster_templates import init_by_copying
from tests.integration.agents.haproxy_fixtures import Backend, haproxy
from tests.integration.agents.test_agent import Agents
from tests.integration.conftest import NEWEST
from tests.waiting import wait_for
from walproxy.lab.failover.manager import AgentManager
from walproxy.lab.failover.network import LoopbackNetwork
from walproxy.postgres.binaries import ServerBinaries

# HAProxy needs two failed checks, or one that succeeds, one every 500 ms.
_SWITCH_TIMEOUT_S = 60.0


class Client(threading.Thread):
    """A client as applications are: one session, and a new one when it has ended.

    Attributes:
        rows: the number of rows that it has written, by the port of the server that has acknowledged them.
        last: the port of the server that has acknowledged the last row, 0 for none.
        sessions: the number of its sessions.
    """

    def __init__(self, port: int) -> None:
        super().__init__()
        self._conninfo = conninfo(port)
        self._ends = threading.Event()
        self.rows: Counter[int] = Counter()
        self.last = 0
        self.sessions = 0

    def run(self) -> None:
        while not self._ends.wait(0.05):
            try:
                with psycopg.connect(self._conninfo, autocommit=True, connect_timeout=5) as session:
                    self.sessions += 1
                    while not self._ends.wait(0.01):
                        row = session.execute("INSERT INTO written DEFAULT VALUES RETURNING port").fetchone()
                        assert row is not None
                        self.rows[row[0]] += 1
                        self.last = row[0]
            except psycopg.Error:
                continue  # Also if it reached a standby: HAProxy takes a server as available until its first check.

    def end(self) -> None:
        self._ends.set()
        self.join()


@contextmanager
def client_of(port: int) -> Iterator[Client]:
    client = Client(port)
    client.start()
    try:
        yield client
    finally:
        client.end()


def conninfo(port: int) -> str:
    return f"host=127.0.0.1 port={port} user=postgres dbname=postgres"


def server_behind(port: int) -> int:
    """Return the port of the server that a new session reaches, 0 if it reaches none."""
    try:
        with psycopg.connect(conninfo(port), connect_timeout=5) as session:
            row = session.execute("SELECT current_setting('port')::int").fetchone()
            return int(row[0]) if row is not None else 0
    except psycopg.OperationalError:
        return 0


@NEWEST
def test_clients_behind_haproxy_reach_the_new_leader_by_themselves(
    servers: dict[int, ServerBinaries], major: int, template: Path, folder: Path
) -> None:
    network, names = LoopbackNetwork(), ("pg1", "pg2")
    with Agents(folder, servers[major], network, AgentManager(2.0), names=names, volatile_disks=False) as agents:
        agents.start(lambda postgres: init_by_copying(postgres, template))
        one, two = agents.hosts["pg1"].place.pg_port, agents.hosts["pg2"].place.pg_port
        agents.hosts["pg1"].execute("CREATE TABLE written (port int DEFAULT current_setting('port')::int)")
        backends = [Backend(name, host.place.pg_port, host.place.http_port) for name, host in agents.hosts.items()]
        with haproxy(folder, backends) as ports, client_of(ports.primary) as client:
            wait_for(lambda: client.last == one, "the client writes on the leader", _SWITCH_TIMEOUT_S)
            wait_for(lambda: server_behind(ports.replicas) == two, "reads go to the standby", _SWITCH_TIMEOUT_S)
            wait_for(lambda: server_behind(ports.old) == one, "OPTIONS / is the leader's", _SWITCH_TIMEOUT_S)
            agents.hosts["pg1"].kill()
            wait_for(lambda: client.last == two, "the client writes on the new leader", _SWITCH_TIMEOUT_S)
            wait_for(lambda: server_behind(ports.old) == two, "OPTIONS / is the new leader's", _SWITCH_TIMEOUT_S)
            agents.hosts["pg1"].start()
            wait_for(lambda: server_behind(ports.replicas) == one, "reads go to the old one", _SWITCH_TIMEOUT_S)
            wait_for(lambda: {server_behind(ports.primary) for _ in range(4)} == {two}, "one is the only one", 20)
            client.end()
        rows = dict(agents.hosts["pg2"].execute("SELECT port, count(*) FROM written GROUP BY port"))
        assert client.rows.keys() == rows.keys() == {one, two}
        # One that was in doubt may be there, too.
        assert all(client.rows[port] <= count <= client.rows[port] + 1 for port, count in rows.items())
