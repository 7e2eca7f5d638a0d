"""The real Patroni, set up as docs/guide/ha.md says: losses of the leader's host, and switchovers; no commit is lost.

The first test takes a minute: it removes the leader's key from etcd in place of a wait for the end of its time to live.
The second one is a quarter of an hour on an idle machine; `pytest -v -s tests/torture/test_patroni.py` prints the times
without commits. Both need an etcd (Debian: etcd-server, etcd-client).
"""

import statistics
import time
from pathlib import Path

import pytest

from tests.integration.conftest import NEWEST
from tests.patroni_cluster import TTL_S, Ledger, PatroniCluster
from walproxy.postgres.binaries import ServerBinaries

pytestmark = NEWEST
KILLS = 20
SWITCHOVERS = 5


def test_no_commit_is_lost_with_the_leader_and_the_old_one_follows(
    folder: Path, servers: dict[int, ServerBinaries], major: int
) -> None:
    with PatroniCluster(folder, servers[major], host_count=2, restores=False) as cluster:
        cluster.start()
        ledger = Ledger(cluster)
        ledger.clients.start()
        ledger.wait_for_commits(100)
        old = cluster.leader
        assert old is not None
        old.kill9()
        killed_at = time.monotonic()
        cluster.expire_leader()
        ledger.wait_for_commits(50, killed_at)
        assert ledger.lost() == []
        heir = cluster.leader
        assert heir is not None and heir is not old
        assert heir.execute("SELECT pg_walfile_name(pg_current_wal_lsn())")[0][0].startswith("00000002")
        cluster.start_host(old)
        cluster.wait_until_well()
        cluster.patronictl("switchover", "--force", "--primary", heir.name)
        ledger.wait_for_commits(50)
        cluster.wait_until_well()
        assert cluster.leader is old
        ledger.clients.stop()
        assert ledger.lost() == []


@pytest.mark.timeout(7200)
def test_no_commit_is_lost_in_twenty_losses_of_the_leader(
    folder: Path, servers: dict[int, ServerBinaries], major: int
) -> None:
    gaps, rejoins, pauses = [], [], []
    with PatroniCluster(folder, servers[major]) as cluster:
        cluster.start()
        ledger = Ledger(cluster)
        ledger.clients.start()
        ledger.wait_for_commits(100)
        for number in range(1, KILLS + 1):
            leader = cluster.leader
            assert leader is not None
            leader.kill9()
            killed_at = time.monotonic()
            last_at = ledger.history.acknowledged[-1].ended_at
            first_at = ledger.wait_for_commits(50, killed_at, timeout_s=300)
            gaps.append(first_at - last_at)
            assert ledger.lost() == []
            cluster.start_host(leader)
            began_at = time.monotonic()
            cluster.wait_until_well(300)
            rejoins.append(time.monotonic() - began_at)
            print(f"kill {number}, {leader.name}: {gaps[-1]:.1f} s without commits, back after {rejoins[-1]:.1f} s")
        for _ in range(SWITCHOVERS):
            leader = cluster.leader
            assert leader is not None
            began_at = time.monotonic()
            cluster.patronictl("switchover", "--force", "--primary", leader.name)
            ledger.wait_for_commits(50)
            pauses.append(ledger.history.longest_pause_s(began_at, time.monotonic()))
            cluster.wait_until_well(300)
        ledger.clients.stop()
        assert ledger.lost() == []
        print(f"{len(ledger.history.acknowledged)} commits acknowledged, 0 lost")
    for what, seconds in (("kill", gaps), ("switchover", pauses)):
        summary = f"median {statistics.median(seconds):.1f}, {min(seconds):.1f} to {max(seconds):.1f}"
        print(f"seconds without commits at a {what} (ttl {TTL_S}): {summary}")
    print(f"seconds until an old leader follows: median {statistics.median(rejoins):.1f}, at most {max(rejoins):.1f}")
