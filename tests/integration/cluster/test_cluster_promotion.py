"""A standby that is promoted, and the primary that it replaced: timelines, forks, refusals (S9, S10)."""

import hashlib
from pathlib import Path

import pytest

from safekeeper.base.lsn import Lsn, parse_lsn
from tests.integration.cluster.cluster_fixtures import Commit, Gated, wait_for
from tests.integration.conftest import MOSTLY_NEWEST, NewGated
from walproxy.lab.cluster.local_cluster import LocalProcess
from walproxy.postgres.local_server import LocalPostgres

EXIT_PRIMARY_REFUSED = 4


def _start_with_standby(cluster: Gated) -> LocalPostgres:
    """Start a cluster whose primary has an asynchronous standby from before the log's base on."""
    cluster.postgres.start()
    standby = cluster.postgres.base_backup(cluster.directory / "standby", settings={"hot_standby_feedback": "on"})
    standby.start()
    cluster.start_gated()
    return standby


def _wait_for_replay(standby: LocalPostgres, end_lsn: Lsn) -> None:
    where = "SELECT pg_last_wal_replay_lsn()::text"
    wait_for(lambda: parse_lsn(standby.execute(where)[0][0]) >= end_lsn, "the standby has replayed everything")


def _follow(cluster: Gated, primary: LocalPostgres) -> LocalProcess:
    """Put a new proxy in place of the present one, for another primary."""
    cluster.proxies = []
    cluster.postgres = primary
    return cluster.add_proxy()


def _wal_digest(cluster: Gated) -> dict[Path, str]:
    """Return what the safekeepers hold, file by file."""
    files = [path for i in cluster.safekeepers for path in sorted(cluster.wal_directory(i).iterdir())]
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@MOSTLY_NEWEST
@pytest.mark.parametrize("ahead", [False, True], ids=["at_the_log_s_end", "beyond_the_log_s_end"])
def test_log_goes_on_with_a_promoted_standby_and_refuses_the_old_primary(new_gated: NewGated, ahead: bool) -> None:
    cluster = new_gated()
    old = cluster.postgres
    with _start_with_standby(cluster) as standby, old:
        with cluster.load() as load:
            load.stop()
            end_lsn = cluster.commit_lsn_of_all()
            term = cluster.status()["term"]
            cluster.proxy.stop()
            # What was written in the meantime may have been acknowledged, too.
            end_lsn = max(end_lsn, _wal_end(cluster))
            if ahead:
                # An asynchronous standby may have what the quorum has not; no client has a reply that it is durable.
                Commit(old, synchronous_commit="local").wait()
                end_lsn = cluster.primary_flush_lsn()
            _wait_for_replay(standby, end_lsn)
            old.kill9()
            standby.promote()
            _follow(cluster, standby)
            wait_for(lambda: cluster.serving() is not None, "the log goes on")
            cluster.gate_commits()
            Commit(standby).wait()
            assert cluster.status()["tli"] == 2
            assert cluster.status()["term"] > term
        with cluster.load():
            pass
        _assert_old_primary_is_refused(cluster, old)
        _follow(cluster, standby)
        with cluster.load():
            pass


def _assert_old_primary_is_refused(cluster: Gated, old: LocalPostgres) -> None:
    """The old primary comes back with a history of its own: nothing of it reaches the safekeepers."""
    new = cluster.postgres
    cluster.proxy.stop()
    before = _wal_digest(cluster)
    old.start()
    # It must be beyond the log's end, else its position alone gives it away.
    while (
        parse_lsn(old.execute("SELECT pg_current_wal_flush_lsn()::text")[0][0])
        < _wal_end(cluster) + cluster.segment_size
    ):
        Commit(old, "SELECT pg_logical_emit_message(true, 'p', repeat('o', 500000))", synchronous_commit="local").wait()
    proxy = _follow(cluster, old)
    assert proxy.wait() == EXIT_PRIMARY_REFUSED
    assert "timeline" in proxy.log_tail(3)
    old.stop("immediate")
    assert _wal_digest(cluster) == before
    cluster.postgres = new


def _wal_end(cluster: Gated) -> Lsn:
    return max(cluster.flush_lsn_of(i) for i in cluster.safekeepers)


@MOSTLY_NEWEST
def test_standby_that_lacks_an_acknowledged_commit_is_refused_after_its_promotion(new_gated: NewGated) -> None:
    cluster = new_gated()
    old = cluster.postgres
    with _start_with_standby(cluster) as standby, old:
        with cluster.load() as load:
            load.stop()
            _wait_for_replay(standby, cluster.commit_lsn_of_all())
            standby.execute("SELECT pg_wal_replay_pause()")
            standby.stop("fast")
            Commit(old).wait()
        cluster.proxy.stop()
        before = _wal_digest(cluster)
        old.kill9()
        standby.configure({"primary_conninfo": ""})
        standby.start()
        standby.promote()
        proxy = _follow(cluster, standby)
        assert proxy.wait() == EXIT_PRIMARY_REFUSED
        assert "may have been acknowledged" in proxy.log_tail(3)
        assert _wal_digest(cluster) == before
        # The old primary has everything: the log goes on with it.
        old.start()
        _follow(cluster, old)
        with cluster.load():
            pass
