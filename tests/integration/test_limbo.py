"""The limbo with real PostgreSQL: what waits, with its sessions, and what happens to a commit that waits too long."""

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

from tests.integration.cluster_fixtures import Commit, Gated, wait_for
from tests.integration.conftest import EVERY
from walproxy.lab.cluster.local_cluster import LocalProcess

CLIENTS = 32
WAIT_S = 60.0


def limbo_of(proxy: LocalProcess) -> dict[str, Any]:
    """Return GET /limbo."""
    with urllib.request.urlopen(f"http://127.0.0.1:{proxy.http_port}/limbo", timeout=30) as response:
        content: dict[str, Any] = json.load(response)
        return content


def by_command(proxy: LocalProcess) -> dict[str, Any]:
    """Return what `walproxy limbo --json` prints."""
    url = f"http://127.0.0.1:{proxy.http_port}"
    command = [sys.executable, "-m", "walproxy", "limbo", "--json", "--url", url]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S).stdout
    content: dict[str, Any] = json.loads(printed)
    return content


def waiting(content: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in content["transactions"] if each["state"] == "waiting"]


@contextlib.contextmanager
def lost_quorum(cluster: Gated) -> Iterator[None]:
    """Two of three safekeepers are dead."""
    for safekeeper_id in (1, 2):
        cluster.safekeepers[safekeeper_id].kill9()
    try:
        yield
    finally:
        for safekeeper_id in (1, 2):
            if cluster.safekeepers[safekeeper_id].pid is None:
                cluster.safekeepers[safekeeper_id].start()


def sessions_that_wait(cluster: Gated) -> set[tuple[int, int, str]]:
    """Return pid, transaction and query of each session that waits, as PostgreSQL shows them."""
    rows = cluster.postgres.execute(
        "SELECT pid, backend_xid::text, query FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    )
    return {(pid, int(xid), query) for pid, xid, query in rows}


@EVERY
def test_every_waiting_transaction_is_listed_with_its_session_and_confirmed_when_the_quorum_is_back(
    cluster: Gated,
) -> None:
    with lost_quorum(cluster):
        commits = [Commit(cluster.postgres, f"INSERT INTO ledger VALUES (0, {n})") for n in range(CLIENTS)]
        wait_for(lambda: cluster.waiters() == CLIENTS, "all wait", WAIT_S)
        wait_for(lambda: len(waiting(limbo_of(cluster.proxy))) == CLIENTS, "the proxy lists all", WAIT_S)
        content = by_command(cluster.proxy)
        listed = {(e["session"]["pid"], e["xid"], e["session"]["query"]) for e in content["transactions"]}
        assert listed == sessions_that_wait(cluster)
        assert content["entries"] == content["listed"] == CLIENTS
        assert content["problem"] is None
        ends = [each["end_lsn"] for each in content["transactions"]]
        assert len(set(ends)) == CLIENTS
        assert all(each["missing"] == [1, 2] and each["kind"] == "commit" for each in content["transactions"])
    for commit in commits:
        commit.wait(WAIT_S)
    wait_for(lambda: limbo_of(cluster.proxy)["entries"] == 0, "nothing waits", WAIT_S)
    cluster.verify()
