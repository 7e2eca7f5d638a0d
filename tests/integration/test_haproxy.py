"""HAProxy with the configuration that it has in front of Patroni sends clients to where the agents' REST points."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.integration.conftest import NEWEST, NewCluster
from tests.integration.haproxy_fixtures import Backend, RestOfAgents, haproxy
from tests.unit.agent.states import LEADER, STANDBY, report, state
from tests.waiting import wait_for

# HAProxy needs 3 failed checks, or 2 that succeed, one every 3 s.
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
            except psycopg.OperationalError:
                continue

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
def test_clients_behind_haproxy_follow_the_leader(new_cluster: NewCluster, folder: Path) -> None:
    one, two = new_cluster(), new_cluster()
    for server in (one, two):
        server.execute("CREATE TABLE written (port int DEFAULT current_setting('port')::int)")
    before = {"one": state(LEADER, STANDBY), "two": state(STANDBY, LEADER)}
    led, leads = report(LEADER, is_leader=False), report(STANDBY, state="primary", is_leader=True, tli=3)
    after = {"one": state(led, leads), "two": state(leads, led)}
    with RestOfAgents(before) as rest:
        backends = [Backend(n, s.port, rest.ports[n]) for n, s in (("one", one), ("two", two))]
        with haproxy(folder, backends) as ports, client_of(ports.primary) as client:
            wait_for(lambda: client.last == one.port, "the client writes on the leader", _SWITCH_TIMEOUT_S)
            wait_for(lambda: server_behind(ports.replicas) == two.port, "reads go to the standby", _SWITCH_TIMEOUT_S)
            wait_for(lambda: server_behind(ports.old) == one.port, "OPTIONS / is the leader's", _SWITCH_TIMEOUT_S)
            # HAProxy takes a server as available until its first check.
            wait_for(lambda: {server_behind(ports.primary) for _ in range(4)} == {one.port}, "one is the only one", 20)
            sessions = client.sessions
            rest.states = after
            wait_for(lambda: client.last == two.port, "the client writes on the new leader", _SWITCH_TIMEOUT_S)
            assert client.sessions > sessions, "HAProxy has ended its session: the old leader runs and replies"
            assert server_behind(ports.primary) == two.port
            rows = client.rows[one.port]
            wait_for(lambda: client.rows[two.port] > 20, "it goes on there")
            assert client.rows[one.port] == rows
            wait_for(lambda: server_behind(ports.old) == two.port, "OPTIONS / is the new leader's", _SWITCH_TIMEOUT_S)
            wait_for(lambda: server_behind(ports.replicas) == 0, "no server is a standby", _SWITCH_TIMEOUT_S)
