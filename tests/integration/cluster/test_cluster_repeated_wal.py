"""A primary restored from a backup that repeats the shape of the lost WAL: only a record with a time shows it (S10).

Its last segment has the very bytes of the log's: a logical message bears no time. What differs lies before that: a row
of the same length, and the times of the commits.
"""

import shutil
import subprocess
from pathlib import Path

import psycopg
import pytest

from safekeeper.base.errors import EXIT_PRIMARY_REFUSED
from safekeeper.base.lsn import Lsn, segment_name, segment_start
from tests.integration.cluster.cluster_fixtures import Commit, Gated, wait_for
from tests.integration.cluster.test_cluster_recycled_segment import SETTINGS, recycle_below
from tests.integration.conftest import NEWEST, NewGated

QUIET = {**SETTINGS, "autovacuum": "off", "full_page_writes": "on"}
ATTEMPTS = 5


def insert_and_switch(cluster: Gated, text: str) -> Lsn:
    """Insert a row, switch segments, emit a message; return where the segment with the message begins."""
    with psycopg.connect(cluster.postgres.conninfo(), autocommit=True) as connection:
        connection.execute("SET synchronous_commit = local")
        connection.execute("INSERT INTO texts VALUES (%s)", [text])
        connection.execute("SELECT pg_switch_wal()")
        connection.execute("SELECT pg_logical_emit_message(false, 'some', 'message')")
        inserted = "pg_current_wal_insert_lsn() <= pg_current_wal_flush_lsn()"
        wait_for(lambda: cluster.scalar(f"SELECT {inserted}"), "the message is on the primary's disk")
    return segment_start(cluster.primary_flush_lsn() - 1, cluster.segment_size)


def segment_of(cluster: Gated, lsn: Lsn) -> bytes:
    return (cluster.postgres.pg_wal / segment_name(1, lsn, cluster.segment_size)).read_bytes()


def exchange(cluster: Gated, copy: Path) -> Lsn:
    """Write A, which is acknowledged, put the copy in the primary's place, and write B in the same shape.

    Return the start of the last segment, whose bytes are the same. PostgreSQL's background writer may come in between,
    hence the attempts.
    """
    cluster.commit_lsn_of_all()
    begin_lsn = insert_and_switch(cluster, "A")
    end_lsn = cluster.commit_lsn_of_all()
    assert end_lsn > begin_lsn
    ours = segment_of(cluster, begin_lsn)[: end_lsn - begin_lsn]
    cluster.proxy.pause()
    for _ in range(ATTEMPTS):
        if cluster.postgres.is_running:
            cluster.postgres.stop("immediate")
        shutil.rmtree(cluster.postgres.data_directory)
        subprocess.run(["cp", "-a", copy, cluster.postgres.data_directory], check=True)
        cluster.postgres.start()
        assert insert_and_switch(cluster, "B") == begin_lsn
        if segment_of(cluster, begin_lsn)[: end_lsn - begin_lsn] == ours:
            return begin_lsn
    raise AssertionError(f"the last segment was never the same in {ATTEMPTS} attempts")


@pytest.fixture
def exchanged(new_gated: NewGated, tmp_path: Path) -> Gated:
    """A cluster whose primary was exchanged for its copy; the proxy is paused."""
    cluster = new_gated(**QUIET).start_gated()
    cluster.postgres.execute("CREATE TABLE texts (text text)")
    Commit(cluster.postgres).wait()
    cluster.postgres.execute("CHECKPOINT")
    cluster.proxy.kill9()
    cluster.postgres.stop()
    copy = cluster.directory / "copy"
    subprocess.run(["cp", "-a", cluster.postgres.data_directory, copy], check=True)
    cluster.postgres.start()
    cluster.proxy.start()
    wait_for(lambda: cluster.serving() is not None, "the proxy streams")
    exchange(cluster, copy)
    return cluster


def assert_refused(cluster: Gated, line: str) -> None:
    assert cluster.proxy.wait(30) == EXIT_PRIMARY_REFUSED
    assert line in cluster.proxy.log_path.read_text().splitlines()[-1]
    assert cluster.scalar("SELECT text FROM texts") == "B"


@NEWEST
def test_a_restored_primary_that_repeats_the_last_segment_is_refused(exchanged: Gated) -> None:
    exchanged.proxy.kill9()
    exchanged.proxy.start()
    assert_refused(exchanged, "the primary's WAL differs from safekeeper")


@NEWEST
def test_a_restored_primary_that_repeats_the_last_segment_is_refused_within_a_term(exchanged: Gated) -> None:
    exchanged.proxy.resume()
    assert_refused(exchanged, "the primary's WAL differs from the WAL that it sent before")


@NEWEST
def test_a_restored_primary_that_has_recycled_all_but_the_last_segment_is_refused(exchanged: Gated) -> None:
    exchanged.proxy.kill9()
    begin_lsn = segment_start(exchanged.primary_flush_lsn() - 1, exchanged.segment_size)
    exchanged.postgres.execute("SELECT pg_drop_replication_slot('walproxy')")
    recycle_below(exchanged, begin_lsn)
    exchanged.proxy.start()
    assert_refused(exchanged, "the primary has recycled WAL of [")
