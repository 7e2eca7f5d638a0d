"""What the torture's clients write down of a real PostgreSQL, and that its tables agree with it."""

import asyncio
import time
from collections import Counter

from tests.integration.conftest import NEWEST, NewCluster
from tests.waiting import wait_for
from walproxy.lab.torture.aftermath import check_tables, wait_for_sessions
from walproxy.lab.torture.clients import TortureClients
from walproxy.lab.torture.workloads import WORKLOADS, Workload
from walproxy.lab.torture.workloads.unique import Unique
from walproxy.postgres.local_server import LocalPostgres

pytestmark = NEWEST
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


def clients_of(server: LocalPostgres, count: int = 4, workloads: tuple[Workload, ...] = WORKLOADS) -> TortureClients:
    for workload in WORKLOADS:
        server.execute(workload.tables)
    return TortureClients(server.conninfo(), count, 400.0, workloads, 7, 0.0)


def test_commits_are_acknowledged_and_the_tables_agree(new_cluster: NewCluster) -> None:
    server = new_cluster()
    clients = clients_of(server)
    clients.start()
    wait_for(lambda: len(clients.history.operations) > 200, "200 operations have ended")
    clients.stop()
    ended = clients.ended_since(0)
    # PostgreSQL refuses some serializable transactions, which are certainly not committed.
    assert {operation.outcome for operation in ended if operation.workload != "lists"} == {"ok"}
    assert {operation.outcome for operation in ended} <= {"ok", "fail"}
    assert {operation.workload for operation in ended} == {"bank", "unique", "lists"}
    assert clients.acknowledged_lsn > 0
    assert asyncio.run(check_tables(server.conninfo(), clients.tries())) == []
    server.execute("DELETE FROM inserted WHERE number = (SELECT max(number) FROM inserted)")
    server.execute("UPDATE append_lists SET items = items || items")
    rules = {violation.rule for violation in asyncio.run(check_tables(server.conninfo(), clients.tries()))}
    assert {"Lost", "Duplicate"} <= rules


def test_a_commit_that_no_standby_confirms_is_unknown_and_never_ok(new_cluster: NewCluster) -> None:
    server = new_cluster()
    clients = clients_of(server, workloads=(Unique(),))  # None of them waits for a lock of another one.
    server.configure({"synchronous_standby_names": "nobody"})
    # After a reload commits wait only once the checkpointer has read it too, which nothing shows.
    server.restart()
    clients.start()
    wait_for(lambda: server.execute(WAITING) == [(4,)], "each client waits")
    assert clients.stop(timeout_s=0.5) == 4
    assert Counter(operation.outcome for operation in clients.ended_since(0)) == {"unknown": 4}
    assert server.execute(WAITING) == [(4,)], "a client that hangs up does not cancel"
    server.configure({"synchronous_standby_names": ""})
    server.reload()
    wait_for_sessions(server.conninfo())
    assert server.execute(WAITING) == [(0,)]
    assert asyncio.run(check_tables(server.conninfo(), clients.tries())) == []


def test_clients_go_on_when_the_server_has_crashed(new_cluster: NewCluster) -> None:
    server = new_cluster()
    clients = clients_of(server)
    clients.start()
    wait_for(lambda: clients.last_ok_begun_s > 0, "a commit is acknowledged")
    server.kill9()
    crashed_s = time.monotonic()
    server.start()
    wait_for(lambda: clients.last_ok_begun_s > crashed_s, "a commit is acknowledged after the crash")
    clients.stop()
    assert any(operation.outcome != "ok" for operation in clients.ended_since(0))
    assert asyncio.run(check_tables(server.conninfo(), clients.tries())) == []
