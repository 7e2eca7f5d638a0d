"""kill -9 of every part of a cluster, one after the other and under load."""

from tests.integration.cluster.cluster_fixtures import Commit, Gated, field_of, wait_for
from tests.integration.conftest import MOSTLY_NEWEST, NEWEST

FAILOVER_S = 3.0


@NEWEST
def test_commits_go_on_when_any_one_safekeeper_is_killed(cluster: Gated) -> None:
    with cluster.load() as load:
        for safekeeper in cluster.safekeepers.values():
            safekeeper.kill9()
            load.wait_for_commits(20)
            safekeeper.start()
            cluster.commit_lsn_of_all()


@NEWEST
def test_commits_go_on_when_all_safekeepers_were_killed_at_once(cluster: Gated) -> None:
    with cluster.load() as load:
        for safekeeper in cluster.safekeepers.values():
            safekeeper.kill9()
        load.assert_stalled()
        for safekeeper in cluster.safekeepers.values():
            safekeeper.start()
        load.wait_for_commits(20)


@MOSTLY_NEWEST
def test_commits_go_on_within_seconds_when_the_proxy_is_killed_and_started(cluster: Gated) -> None:
    with cluster.load() as load:
        times_s = []
        for _ in range(3):
            cluster.proxy.kill9()
            cluster.proxy.start()
            times_s.append(load.wait_for_commits())
        # The interpreter's start is in it, which takes its time on a busy machine.
        assert min(times_s) < FAILOVER_S


@MOSTLY_NEWEST
def test_commits_that_waited_for_a_killed_proxy_are_released_by_the_next(cluster: Gated) -> None:
    with cluster.load() as load:
        cluster.safekeepers[1].kill9()
        cluster.safekeepers[3].kill9()
        load.assert_stalled()
        waiting = [Commit(cluster.postgres) for _ in range(3)]
        wait_for(lambda: cluster.waiters() == len(waiting), "the commits wait")
        cluster.proxy.kill9()
        cluster.proxy.start()
        cluster.safekeepers[1].start()
        for commit in waiting:
            commit.wait()
        cluster.safekeepers[3].start()


def test_commits_go_on_when_the_primary_was_killed(cluster: Gated) -> None:
    with cluster.load() as load:
        term = cluster.status()["term"]
        cluster.postgres.kill9()
        wait_for(lambda: field_of(cluster.proxy, "state") == "waiting_for_primary", "the proxy waits")
        cluster.postgres.start()
        load.wait_for_commits(20)
        # No other proxy was elected meanwhile, so no election was needed.
        assert cluster.status()["term"] == term


def test_commits_go_on_when_everything_was_killed_at_once(cluster: Gated) -> None:
    with cluster.load() as load:
        for process in [*cluster.safekeepers.values(), cluster.proxy]:
            process.kill9()
        cluster.postgres.kill9()
        cluster.heal()
        load.wait_for_commits(20)


@NEWEST
def test_commits_go_on_when_the_proxy_was_killed_together_with_a_safekeeper(cluster: Gated) -> None:
    with cluster.load() as load:
        for safekeeper in cluster.safekeepers.values():
            cluster.proxy.kill9()
            safekeeper.kill9()
            cluster.proxy.start()
            load.wait_for_commits(5)
            safekeeper.start()
            cluster.commit_lsn_of_all()
