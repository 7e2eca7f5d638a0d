"""The real Patroni with the recipe of docs/guide/ha.md: the leader's host dies, and comes back; then a switchover.

The time to live of the leader's key is not waited for: it is removed from etcd. tests/torture/test_patroni.py waits.
"""

import time
from pathlib import Path

import pytest

from tests.forking.daemons import ForkedLocalProcess
from tests.integration.conftest import NEWEST
from tests.patroni_cluster import Ledger, PatroniCluster
from walproxy.postgres.binaries import ServerBinaries

pytestmark = NEWEST


@pytest.mark.slow
def test_no_commit_is_lost_with_the_leader_and_the_old_one_follows(
    folder: Path, servers: dict[int, ServerBinaries], major: int
) -> None:
    with PatroniCluster(folder, servers[major], process_type=ForkedLocalProcess, host_count=2) as cluster:
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
