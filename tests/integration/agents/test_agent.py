"""Agents as processes: the primary dies, and no operator acts; switchover; a host that comes back."""

import itertools
import json
import re
import threading
import time
from collections.abc import Callable

import psycopg

from tests.forking.daemons import ForkedLocalProcess
from tests.integration.conftest import NEWEST
from tests.integration.refusals.refusal_fixtures import run_walproxy
from tests.integration.refusals.test_hostile_http import REQUESTS, read_answers
from tests.waiting import wait_for
from walproxy.agent.processes import postmaster_of
from walproxy.lab.failover.site import Site
from walproxy.lab.load.clients import Clients
from walproxy.lab.load.transactions import SingleStatement

pytestmark = NEWEST


class Agents(Site):
    process_type = ForkedLocalProcess


NewAgents = Callable[..., Agents]


class Book:
    """Clients that insert numbers, and the replies."""

    def __init__(self, cluster: Agents, count: int = 4) -> None:
        self.cluster = cluster
        numbers, hosts = itertools.count(1), itertools.cycle(cluster.hosts.values())
        self._clients = Clients(
            lambda: next(hosts).place.local_conninfo,
            count,
            lambda _: SingleStatement("INSERT INTO book VALUES ($1)", next(numbers)),
            hangs_up_after_s=30.0,
        )

    def __enter__(self) -> "Book":
        self.cluster.wait_for_leader().execute("CREATE TABLE book (n int)")
        self._clients.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._clients.stop(5.0)

    def wait_for_commit(self) -> float:
        """Wait until a commit that begins now is acknowledged; return for how many seconds none was."""
        now = time.monotonic()
        self._clients.wait_for_commit(now, 40.0)
        ends = sorted(each.ended_at for each in self._clients.history.acknowledged)
        return max(b - a for a, b in itertools.pairwise([*ends, time.monotonic()]))

    def verify(self) -> None:
        """Every acknowledged row is on the leader."""
        self._clients.stop(5.0)
        acknowledged = {each.transaction.arguments[0] for each in self._clients.history.acknowledged}
        there = {n for (n,) in self.cluster.wait_for_leader().execute("SELECT n FROM book")}
        assert acknowledged <= there, f"lost: {sorted(acknowledged - there)[:10]}"


def test_host_of_the_primary_dies_a_standby_goes_on_and_the_old_primary_rejoins(new_agents: NewAgents) -> None:
    cluster = new_agents(dead_after_s=5.0)
    old = cluster.hosts["pg1"]
    with Book(cluster) as book:
        book.wait_for_commit()
        # The proxy ends with the agent: this commit reaches no safekeeper, and its client does not wait for them.
        old.manager.kill9()
        wait_for(lambda: not old.execute("SELECT 1 FROM pg_stat_replication"), "its proxy has ended")
        old.execute("SET synchronous_commit = local; INSERT INTO book VALUES (-1)")
        old.kill()
        book.wait_for_commit()
        new = cluster.wait_for_leader("pg2", "pg3")
        old.start()
        cluster.wait_until_well(30.0)  # The old primary is a standby.
        book.wait_for_commit()
        book.verify()
        promoted = f"agent {new.name}"
        wanted = (
            ("agent pg1", "agent-started"),
            ("walproxy", "term-begun"),
            (promoted, "failover-begun"),
            (promoted, "failover-done"),
            ("agent pg1", "agent-started"),
        )
        happened: list[tuple[str, str]] = []

        def is_listed() -> bool:
            """Return whether the safekeepers have all of that, in this order."""
            listed = run_walproxy("events", "--json", environment=cluster.operator_environment).stdout.splitlines()
            # Of a proxy without its run and machine.
            happened[:] = [
                (re.sub(r"^walproxy .*", "walproxy", each["source"]), each["event"]) for each in map(json.loads, listed)
            ]
            rest = iter(happened)
            if not all(each in rest for each in wanted):
                return False
            begun, done = (happened.index((promoted, event)) for event in ("failover-begun", "failover-done"))
            sealed = {source for source, event in happened[begun:done] if event == "timeline-sealed"}
            # A quorum has sealed it by then. Agent and proxy notice at about the same time that commits go on.
            return len(sealed) >= 2 and ("walproxy", "primary-streams") in [
                (s.split()[0], event) for s, event in happened[begun:]
            ]

        wait_for(is_listed, lambda: f"{wanted}, two seals and primary-streams are listed in this order: {happened}")
        # Clients were without commits for at least this: the loss is known after dead_after, and only then acted on.
        shown = run_walproxy("cluster", "history", "--json", environment=cluster.operator_environment).stdout
        assert json.loads(shown)[-1]["seconds"] >= 5, shown
    assert new.execute("SELECT count(*) FROM book WHERE n = -1") == [(0,)]
    [path] = old.place.discarded_directory.iterdir()
    report = json.loads(path.read_text())
    assert report["commit_count"] >= 1
    assert any(relation["inserted"] == 1 for each in report["transactions"] for relation in each["relations"])


def test_primary_whose_logins_block_stays_the_primary(new_agents: NewAgents) -> None:
    cluster = new_agents(dead_after_s=4.0)
    leader = cluster.hosts["pg1"]
    with Book(cluster) as book:
        book.wait_for_commit()
        before = postmaster_of(leader.place.data_directory)
        with psycopg.connect(leader.place.local_conninfo) as owner:
            owner.execute("LOCK TABLE pg_authid IN ACCESS EXCLUSIVE MODE")
            began_at = time.monotonic()
            # Longer than an agent waits before it kills a server that hangs, with the time of a look.
            wait_for(
                lambda: time.monotonic() - began_at > 12 and book.wait_for_commit() is not None, "12 s have passed"
            )
        assert postmaster_of(leader.place.data_directory) == before
        assert "killing PostgreSQL" not in leader.manager.log_tail(500)
        book.verify()
    assert cluster.wait_for_leader().name == "pg1"


def test_pipelined_requests_at_the_agent_of_the_primary_end_no_writes(new_agents: NewAgents) -> None:
    cluster = new_agents(dead_after_s=5.0)
    leader = cluster.hosts["pg1"]
    with Book(cluster) as book:
        book.wait_for_commit()
        counts = [[0] for _ in range(2)]
        clients = [threading.Thread(target=read_answers, args=(leader.place.http_port, count)) for count in counts]
        for client in clients:
            client.start()
        while any(client.is_alive() for client in clients):
            book.wait_for_commit()
        assert counts == [[REQUESTS]] * 2
        assert "no writes from now on" not in leader.manager.log_path.read_text()
        after = cluster.wait_until_well(30.0)
        assert (after.leader, after.tli) == (leader, 1)
        book.verify()


def test_primary_without_a_quorum_ends_its_writes_and_the_server_is_started_again(new_agents: NewAgents) -> None:
    cluster = new_agents(dead_after_s=5.0)
    leader = cluster.hosts["pg1"]

    def is_read_only() -> bool:
        try:
            return leader.execute("SHOW default_transaction_read_only") == [("on",)]
        except psycopg.OperationalError:
            return False  # The agent closes all sessions, also this one if it begins or has just begun.

    for i in (1, 2):
        cluster.safekeepers[i].pause()
    wait_for(is_read_only, "the primary is read-only")
    for i in (1, 2):
        cluster.safekeepers[i].resume()
    after = cluster.wait_until_well(30.0)
    assert (after.leader, after.tli) == (leader, 1)
    with Book(cluster) as book:
        book.wait_for_commit()
        leader.kill("postgres")
        book.wait_for_commit()
        book.verify()
