"""Safekeepers that were away: fed from the others while commits go on, also with WAL that PostgreSQL has no more."""

import time
from collections.abc import Iterator

import pytest

from safekeeper.base.lsn import Lsn, parse_lsn
from tests.integration.cluster.cluster_fixtures import MIB, Commit, Gated, bulk, field_of, wait_for
from tests.integration.conftest import NEWEST, NewGated
from walproxy.lab.wal_compare import list_segments

MISSED_MIB = 1024
CATCHUP_S = 120.0
IDLE_CATCHUP_S = 5.0


def _oldest_lsn(cluster: Gated) -> Lsn:
    """Return where the WAL begins that PostgreSQL still has."""
    return list_segments(cluster.postgres.pg_wal, cluster.segment_size)[0].begin_lsn


@pytest.mark.nightly
@NEWEST
def test_safekeeper_that_missed_what_postgresql_has_recycled_catches_up_under_load(new_gated: NewGated) -> None:
    limits = {"max_wal_size": "32MB", "min_wal_size": "32MB", "wal_keep_size": "0"}
    cluster = new_gated(segment_mib=16, **limits).start_gated()
    with cluster.load() as load:
        away = cluster.safekeepers[3]
        away.kill9()
        missed_from_lsn = cluster.flush_lsn_of(1)
        Commit(cluster.postgres, bulk(MISSED_MIB)).wait(120)
        # The slot follows commit_lsn, so PostgreSQL may drop what only the absent safekeeper lacks.
        cluster.postgres.execute("CHECKPOINT")
        cluster.postgres.execute("CHECKPOINT")
        oldest_lsn = _oldest_lsn(cluster)
        assert oldest_lsn > missed_from_lsn + MISSED_MIB * MIB // 2
        began_at, commits = time.monotonic(), len(load.acknowledged)
        away.start()
        wait_for(lambda: field_of(away, "state") == "following", "it is fed")
        took_s = wait_for(
            lambda: cluster.member(3)["state"] == "streaming" and (cluster.member(3)["lag_bytes"] or 0) < MIB,
            "it has caught up",
            CATCHUP_S,
        )
        rate = (len(load.acknowledged) - commits) / (time.monotonic() - began_at)
        print(f"{MISSED_MIB} MiB in {took_s:.1f} s, {rate:.0f} commits/s meanwhile")
        assert rate > 20
    # What PostgreSQL has no more was compared with another safekeeper's by that.
    assert list_segments(cluster.wal_directory(3), cluster.segment_size)[0].begin_lsn < missed_from_lsn


@NEWEST
def test_idle_cluster_feeds_a_safekeeper_that_lags_beyond_the_window_at_the_full_rate(new_gated: NewGated) -> None:
    cluster = new_gated("-c", "window_size=4MiB", segment_mib=16).start_gated()
    with cluster.load(workers=1) as load:
        load.stop()
        cluster.safekeepers[3].kill9()
        Commit(cluster.postgres, bulk(48)).wait(120)
        end_lsn = cluster.primary_flush_lsn()
        cluster.safekeepers[3].start()
        wait_for(lambda: field_of(cluster.safekeepers[3], "state") == "following", "it is fed")
        wait_for(lambda: cluster.flush_lsn_of(3) >= end_lsn, "it has caught up", IDLE_CATCHUP_S)


@pytest.fixture
def wiped(cluster: Gated) -> Iterator[int]:
    """Give safekeeper 3 an empty data folder for one test."""
    process, directory = cluster.safekeepers[3], cluster.safekeeper_directory(3)
    aside = directory.with_name("aside")
    process.kill9()
    directory.rename(aside)
    process.start()
    yield 3
    process.kill9()
    directory.rename(directory.with_name(f"wiped-{time.monotonic_ns()}"))
    aside.rename(directory)
    process.start()


@NEWEST
def test_wiped_safekeeper_is_fed_from_the_log_s_base_and_does_not_count(cluster: Gated, wiped: int) -> None:
    with cluster.load() as load:
        cluster.commit_lsn_of_all()
        wait_for(lambda: cluster.member(wiped)["state"] == "learner", "it is a learner")
        assert "does not vote" in cluster.member(wiped)["problem"]
        process = cluster.safekeepers[wiped]
        assert (field_of(process, "state"), field_of(process, "votes")) == ("learner", False)
        cluster.safekeepers[2].kill9()
        # Two of three have everything; one of them is no voter.
        load.assert_stalled()
        # A term that has just begun takes every voter for one that answers.
        wait_for(lambda: field_of(cluster.proxy, "state") == "waiting_for_quorum", "the proxy misses the quorum")
        end_lsn = cluster.primary_flush_lsn()
        wait_for(lambda: cluster.flush_lsn_of(wiped) >= end_lsn, "the learner has the WAL of the commits that wait")
        load.assert_stalled()
        cluster.safekeepers[2].start()
        load.wait_for_commits(10)
        # Nor does it vote: a proxy that starts finds a quorum in the other two.
        cluster.proxy.kill9()
        cluster.proxy.start()
        load.wait_for_commits(10)
        wait_for(lambda: cluster.member(wiped)["state"] == "learner", "it is a learner of the next term, too")


@NEWEST
def test_wiped_safekeeper_and_one_other_elect_no_leader(cluster: Gated, wiped: int) -> None:
    with cluster.load() as load:
        cluster.commit_lsn_of_all()
        cluster.safekeepers[2].kill9()
        cluster.proxy.kill9()
        cluster.proxy.start()
        wait_for(lambda: field_of(cluster.proxy, "state") == "waiting_for_quorum", "it finds no quorum")
        load.assert_stalled()
        cluster.safekeepers[2].start()
        load.wait_for_commits(10)
        # What every member has is counted again in each term, and a lost disk has nothing.
        assert parse_lsn(cluster.status()["truncate_lsn"]) == 0
