"""Proxies that follow one another: spares, deposed ones, and orderly stops."""

import psycopg

from tests.integration.cluster.cluster_fixtures import Commit, Gated, cpu_seconds, field_of, wait_for
from tests.integration.conftest import MOSTLY_NEWEST, NEWEST
from walproxy.lab.cluster.local_cluster import LocalProcess

TAKEOVER_S = 3.0
EXIT_FENCED = 5


def _add_spare(cluster: Gated) -> LocalProcess:
    """Start a second proxy and wait until it waits."""
    spare = cluster.add_proxy()
    wait_for(lambda: field_of(spare, "spare") is True, "the second proxy waits as a spare")
    return spare


@MOSTLY_NEWEST
def test_spare_disturbs_no_process_and_takes_over_from_a_killed_proxy(cluster: Gated) -> None:
    with cluster.load(rate=None) as load:
        term = cluster.status()["term"]
        spare = _add_spare(cluster)
        used_s = cpu_seconds(spare)
        load.wait_for_commits(300)
        assert cluster.status()["term"] == term
        assert field_of(spare, "flush_lsn") == "0/0"
        assert cpu_seconds(spare) - used_s < 1
        cluster.proxy.kill9()
        assert load.wait_for_commits() < TAKEOVER_S
        assert field_of(spare, "term") > term


@MOSTLY_NEWEST
def test_proxy_that_hung_while_a_spare_took_over_ends_as_fenced(cluster: Gated) -> None:
    with cluster.load() as load:
        deposed, spare = cluster.proxy, _add_spare(cluster)
        deposed.pause()
        assert load.wait_for_commits() < TAKEOVER_S
        term = field_of(spare, "term")
        deposed.resume()
        assert deposed.wait() == EXIT_FENCED
        assert "follows another proxy" in deposed.log_tail()
        load.wait_for_commits(20)
        assert field_of(spare, "term") == term


@NEWEST
def test_proxy_that_hung_without_a_quorum_acknowledges_nothing_of_its_successors_term(cluster: Gated) -> None:
    with cluster.load() as load:
        deposed, spare = cluster.proxy, _add_spare(cluster)
        cluster.safekeepers[1].kill9()
        cluster.safekeepers[2].kill9()
        load.assert_stalled()
        waiting = Commit(cluster.postgres)
        wait_for(lambda: cluster.waiters() == 1, "a commit waits")
        deposed.pause()
        cluster.safekeepers[1].start()
        assert load.wait_for_commits() < TAKEOVER_S + 1
        waiting.wait()
        term = field_of(spare, "term")
        deposed.resume()
        wait_for(lambda: deposed.pid is None or field_of(deposed, "spare") is True, "it sees that it is deposed")
        cluster.safekeepers[2].start()
        load.wait_for_commits(20)
        assert field_of(spare, "term") == term


@NEWEST
def test_proxy_with_takeover_deposes_a_serving_one(cluster: Gated) -> None:
    with cluster.load() as load:
        successor = cluster.add_proxy("--takeover", "true")

        def is_decided() -> bool:
            return cluster.proxy.pid is None or field_of(successor, "spare") is True

        wait_for(is_decided, "one of the two no longer leads")
        if cluster.proxy.pid is not None:
            # A successor that is slow between the votes and its Elected lets the old one win again: once more.
            successor.stop()
            successor.start()
        assert cluster.proxy.wait() == EXIT_FENCED
        load.wait_for_commits(20)
        assert field_of(successor, "state") == "streaming"


@NEWEST
def test_stopped_proxy_exits_well_and_the_next_one_goes_on(cluster: Gated) -> None:
    with cluster.load() as load:
        assert cluster.proxy.stop() == 0
        load.assert_stalled()
        cluster.proxy.start()
        assert load.wait_for_commits() < TAKEOVER_S


@NEWEST
def test_stopped_safekeepers_exit_well_and_come_back_with_all_they_had(cluster: Gated) -> None:
    with cluster.load() as load:
        for safekeeper_id, safekeeper in cluster.safekeepers.items():
            flush_lsn = cluster.flush_lsn_of(safekeeper_id)
            assert safekeeper.stop() == 0
            load.wait_for_commits(20)
            safekeeper.start()
            assert cluster.commit_lsn_of_all() > flush_lsn


@NEWEST
def test_proxy_that_starts_beside_a_cluster_waits_until_its_role_may_log_in(cluster: Gated) -> None:
    with cluster.load() as load, psycopg.connect(cluster.postgres.conninfo(), autocommit=True) as session:
        session.execute("SET synchronous_commit = local")
        assert cluster.proxy.stop() == 0
        session.execute("ALTER ROLE postgres NOLOGIN")
        cluster.proxy.start()
        try:
            wait_for(lambda: "no primary: " in cluster.proxy.log_tail(), "the proxy reports why it has no primary")
            wait_for(
                lambda: "log in" in (field_of(cluster.proxy, "primary") or {}).get("problem", ""), "its status has it"
            )
        finally:
            session.execute("ALTER ROLE postgres LOGIN")
        load.wait_for_commits()
        assert cluster.proxy.pid is not None
