"""What a commit waits for: a quorum, at the level that its session asked for."""

import contextlib

from safekeeper.base.lsn import parse_lsn
from tests.integration.cluster.cluster_fixtures import Commit, Gated, field_of, wait_for
from tests.integration.conftest import MOSTLY_NEWEST, NEWEST


def _assert_only_local_commits_return(cluster: Gated) -> list[Commit]:
    """Commit at three levels; return those that wait."""
    waiting = [Commit(cluster.postgres, synchronous_commit=level) for level in ("on", "remote_write", "remote_apply")]
    wait_for(lambda: cluster.waiters() == len(waiting), "the commits wait for the quorum")
    Commit(cluster.postgres, synchronous_commit="local").wait()
    Commit(cluster.postgres, synchronous_commit="off").wait()
    assert all(commit.waits for commit in waiting)
    return waiting


@MOSTLY_NEWEST
def test_commits_wait_while_two_of_three_safekeepers_are_dead(cluster: Gated) -> None:
    with cluster.load(workers=1) as load:
        cluster.safekeepers[2].kill9()
        cluster.safekeepers[3].kill9()
        load.stop(timeout_s=0.5)
        waiting = _assert_only_local_commits_return(cluster)
        wait_for(lambda: field_of(cluster.proxy, "state") == "waiting_for_quorum", "the proxy reports why")
        cluster.safekeepers[2].start()
        for commit in waiting:
            commit.wait()
        # The third one need not come back.
        Commit(cluster.postgres).wait()
        cluster.safekeepers[3].start()


@NEWEST
def test_commits_wait_while_two_of_three_safekeepers_hang(cluster: Gated) -> None:
    with cluster.load(workers=1) as load:
        cluster.safekeepers[1].pause()
        cluster.safekeepers[3].pause()
        load.stop(timeout_s=0.5)
        waiting = _assert_only_local_commits_return(cluster)
        cluster.safekeepers[1].resume()
        for commit in waiting:
            commit.wait()
        cluster.safekeepers[3].resume()


def test_remote_write_returns_when_a_quorum_has_received_and_on_when_it_has_flushed(cluster: Gated) -> None:
    with contextlib.ExitStack() as disks:
        slow = [disks.enter_context(cluster.on_slow_disk(i)) for i in (2, 3)]
        wait_for(lambda: all(cluster.member(i)["state"] == "streaming" for i in (2, 3)), "all follow")
        with cluster.load(workers=1) as load, contextlib.ExitStack() as syncs:
            for disk in slow:
                syncs.enter_context(disk.slow())
            load.wait_for_commits(20)
            for disk in slow:
                syncs.enter_context(disk.held())
            load.stop(timeout_s=0.5)
            flushed = Commit(cluster.postgres, synchronous_commit="on")
            wait_for(lambda: cluster.waiters() >= 1, "a commit waits for the flush")
            Commit(cluster.postgres, synchronous_commit="remote_write").wait()
            status = cluster.status()
            assert parse_lsn(status["write_lsn"]) > parse_lsn(status["flush_lsn"])
            assert flushed.waits
            syncs.close()
            flushed.wait()


@NEWEST
def test_one_slow_disk_does_not_hold_commits_back(cluster: Gated) -> None:
    with cluster.on_slow_disk(2) as disk, cluster.load() as load:
        wait_for(lambda: cluster.member(2)["state"] == "streaming", "safekeeper 2 follows")
        with disk.held():
            load.wait_for_commits(50)
