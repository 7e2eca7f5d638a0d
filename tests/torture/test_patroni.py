"""The real Patroni, set up as docs/guide/ha.md says: losses of the leader's host, and switchovers; no commit is lost.

The first test takes a minute: it removes the leader's key from etcd in place of a wait for the end of its time to live.
The second one is half an hour on an idle machine; `pytest -v -s tests/torture/test_patroni.py` prints the times without
commits. Both need an etcd (Debian: etcd-server, etcd-client).
"""

import time
from pathlib import Path

import pytest

from tests.integration.conftest import NEWEST
from tests.torture.rounds import run_rounds
from walproxy.lab.failover.checks import find_lost
from walproxy.lab.failover.clients import row_clients
from walproxy.lab.failover.network import LoopbackNetwork
from walproxy.lab.failover.patroni import PatroniManager
from walproxy.lab.failover.plan import KILL_HOST, SWITCHOVER
from walproxy.lab.failover.rows import CREATE_TABLE, RowIds, row_ids
from walproxy.lab.failover.site import Site
from walproxy.postgres.binaries import ServerBinaries

KILLS = 25
LOSSES = 15
WITHIN_S = 120.0


@NEWEST
def test_no_commit_is_lost_with_the_leader_and_the_old_one_follows(
    folder: Path, servers: dict[int, ServerBinaries], major: int
) -> None:
    manager = PatroniManager(with_walproxy=True, restores=False)
    with Site(folder, servers[major], LoopbackNetwork(), manager) as site:
        old = site.start().leader
        old.execute(CREATE_TABLE)
        with row_clients([host.place for host in site.hosts.values()], RowIds()) as clients:
            clients.wait_for_commit(time.monotonic())
            old.kill()
            killed_at = time.monotonic()
            manager.expire_leader()
            clients.wait_for_commit(killed_at, WITHIN_S)
            old.start()
            after = site.wait_until_well(WITHIN_S)
            assert after.leader is not old
            assert after.tli == 2
            acknowledged = list(clients.history.acknowledged)
            assert find_lost(acknowledged, row_ids(after.leader)) == []
            assert site.switch_over(old) == ""
            clients.wait_for_commit(time.monotonic(), WITHIN_S)
            assert site.wait_until_well(WITHIN_S).leader is old
            clients.stop()
            assert len(clients.history.acknowledged) > len(acknowledged) > 0
            assert find_lost(clients.history.acknowledged, row_ids(old)) == []


@pytest.mark.timeout(7200)
def test_no_commit_is_lost_in_many_losses_of_the_leader(folder: Path) -> None:
    """A host that is back before its time to live is over leads again: not each loss is a failover."""
    code, result = run_rounds(
        folder,
        *("--manager", "patroni", "--no-namespaces", "--seed", "1"),
        *("--rounds", str(KILLS), "--kinds", KILL_HOST, "--switchover-every", "5"),
    )
    assert result.violations == []
    assert code == 0
    assert len(result.losses()) >= LOSSES
    assert sum(each.kind == SWITCHOVER for each in result.rounds) == 5
