"""The primary dies and a standby takes its place: a proxy with both hosts follows, or reports why not (S9, S10).

Here the standbys stream from the primary itself.
"""

from typing import Any

from safekeeper.base.lsn import parse_lsn
from tests.integration.cluster.cluster_fixtures import Commit, Gated, field_of, wait_for
from tests.integration.conftest import MOSTLY_NEWEST, NewGated
from walproxy.lab.cluster.local_standby import wait_until_replayed
from walproxy.postgres.local_server import LocalPostgres

# Generous on a loaded machine; the proxy looks at each host every two seconds at least.
FOLLOWS_S = 15.0


def start_with_standby(cluster: Gated) -> LocalPostgres:
    """Start a cluster whose proxy has its primary and, after it in the list, a standby; return the standby."""
    old = cluster.postgres.start()
    settings = {"synchronous_standby_names": "walproxy", "hot_standby_feedback": "on"}
    new = old.base_backup(cluster.directory / "new", settings=settings)
    cluster.standbys["new"] = new.start()
    hosts = f"host=127.0.0.1,127.0.0.1 port={old.port},{new.port} target_session_attrs=read-write"
    cluster.proxies = [cluster.make_proxy("walproxy", conninfo=f"{hosts} user=postgres dbname=postgres")]
    cluster.start_gated()
    return new


def host_of(cluster: Gated, index: int) -> dict[str, Any]:
    """Return the proxy's entry of a host of its list."""
    primary = field_of(cluster.proxy, "primary")
    return dict(primary["hosts"][index]) if primary else {"state": "", "problem": ""}


def wait_for_host(cluster: Gated, index: int, state: str) -> str:
    """Wait until a host of the proxy's list is in `state`; return the problem that the proxy reports."""
    seen: list[dict[str, Any]] = []

    def is_there() -> bool:
        seen.append(host_of(cluster, index))
        return seen[-1]["state"] == state

    wait_for(is_there, f"host {index} is {state}", FOLLOWS_S)
    return str(seen[-1]["problem"])


def logs_of(cluster: Gated) -> dict[int, tuple[Any, Any]]:
    """Return where each safekeeper's log ends, and its history."""
    return {i: (field_of(each, "flush_lsn"), field_of(each, "history")) for i, each in cluster.safekeepers.items()}


@MOSTLY_NEWEST
def test_commits_flow_on_a_promoted_standby_and_the_old_primary_stays_refused(new_gated: NewGated) -> None:
    cluster = new_gated()
    new = start_with_standby(cluster)
    old, pid = cluster.postgres, cluster.proxy.pid
    assert host_of(cluster, 0)["state"] == "connected"
    with cluster.load() as load:
        load.stop()
        for safekeeper_id in (2, 3):
            cluster.safekeepers[safekeeper_id].pause()
        unanswered = [Commit(old) for _ in range(3)]
        wait_for(lambda: cluster.waiters() == len(unanswered), "commits wait for the quorum")
        wait_until_replayed(new, cluster.primary_flush_lsn())
        old.kill9()
        for safekeeper_id in (2, 3):
            cluster.safekeepers[safekeeper_id].resume()
        cluster.former_primaries.append(old)
        cluster.promote("new")
        wait_for(lambda: field_of(cluster.proxy, "tli") == 2 and cluster.serving() is not None, "it follows", FOLLOWS_S)
        Commit(new).wait()
        assert cluster.proxy.pid == pid
        assert all(commit.error is not None for commit in unanswered)
    with cluster.load():
        pass
    _old_primary_is_refused_and_costs_no_term(cluster, old, new)
    old.stop("immediate")


def _old_primary_is_refused_and_costs_no_term(cluster: Gated, old: LocalPostgres, new: LocalPostgres) -> None:
    """It is back and the new one is away for a moment: the term that the proxy leads stands."""
    term = cluster.status()["term"]
    new.kill9()
    old.start()
    waiting = Commit(old)
    problem = wait_for_host(cluster, 0, "refused")
    assert "left timeline 1 at" in problem and "old primary" in problem
    assert field_of(cluster.proxy, "state") == "waiting_for_primary"
    new.start()
    with cluster.load():
        pass
    assert cluster.status()["term"] == term
    assert waiting.waits and old.execute("SELECT count(*) FROM pg_stat_replication") == [(0,)]


@MOSTLY_NEWEST
def test_a_standby_that_lacks_an_acknowledged_commit_is_refused_and_the_old_primary_goes_on(
    new_gated: NewGated,
) -> None:
    cluster = new_gated()
    new, old = start_with_standby(cluster), cluster.postgres
    with cluster.load() as load:
        load.stop()
        wait_until_replayed(new, cluster.commit_lsn_of_all())
        new.stop("fast")
        Commit(old).wait()
        end_lsn = cluster.commit_lsn_of_all()
        old.kill9()
        wait_for(lambda: field_of(cluster.proxy, "state") == "waiting_for_primary", "the proxy has seen it", FOLLOWS_S)
        received_lsn = field_of(cluster.proxy, "received_lsn")
        wait_for(lambda: {end for end, _ in logs_of(cluster).values()} == {received_lsn}, "nothing is under way")
        before = logs_of(cluster)
        new.configure({"primary_conninfo": ""})
        new.start().promote()
        problem = wait_for_host(cluster, 1, "refused")
        fork_lsn = parse_lsn(problem.split("forked off at ")[1].split(",")[0])
        assert fork_lsn < end_lsn
        acknowledged_lsn = parse_lsn(problem.split("WAL up to ")[1].split(" may have been acknowledged")[0])
        assert acknowledged_lsn >= end_lsn
        wait_for_host(cluster, 0, "unreachable")
        assert cluster.proxy.pid is not None
        assert logs_of(cluster) == before
        assert new.execute("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'") == [(0,)]
        old.start()
        wait_for(lambda: cluster.serving() is not None, "the old primary is streamed again", FOLLOWS_S)
        assert cluster.status()["tli"] == 1
    with cluster.load():
        pass
