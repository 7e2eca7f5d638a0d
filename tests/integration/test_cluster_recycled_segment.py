"""A primary that has recycled the segment which ends where the log ends: its next record must link to ours (S10)."""

import time

from safekeeper.lsn import Lsn, format_lsn, segment_name
from tests.integration.cluster_fixtures import Commit, Gated, wait_for
from tests.integration.conftest import NewGated

SETTINGS = {"wal_keep_size": "0", "min_wal_size": "2MB", "max_wal_size": "4MB", "checkpoint_timeout": "1h"}
ATTEMPTS = 20


def end_the_log_on_a_border(cluster: Gated) -> Lsn:
    """Switch segments and kill the proxy before PostgreSQL writes anything else; return where the log ends.

    PostgreSQL's own background writer may come in between, hence the attempts.
    """
    for _ in range(ATTEMPTS):
        Commit(cluster.postgres).wait()
        cluster.postgres.execute("SELECT pg_switch_wal()")
        end_lsn = cluster.commit_lsn_of_all()
        cluster.proxy.kill9()
        if end_lsn % cluster.segment_size == 0 and cluster.primary_flush_lsn() == end_lsn:
            return end_lsn
        cluster.proxy.start()
        wait_for(lambda: cluster.serving() is not None, "the proxy streams")
    raise AssertionError(f"the log never ended on a segment's border in {ATTEMPTS} attempts")


def recycle_below(cluster: Gated, end_lsn: Lsn) -> None:
    """Make checkpoints until the segment that ends at `end_lsn` is gone; the slot holds back only what follows it."""
    path = cluster.postgres.pg_wal / segment_name(1, end_lsn - 1, cluster.segment_size)
    deadline = time.monotonic() + 20
    while path.exists():
        assert time.monotonic() < deadline, f"{path.name} is not recycled; the log ends at {format_lsn(end_lsn)}"
        cluster.postgres.execute("CHECKPOINT")


def test_a_primary_without_the_segment_before_goes_on_if_its_next_record_links_to_ours(new_gated: NewGated) -> None:
    cluster = new_gated(**SETTINGS).start_gated()
    end_lsn = end_the_log_on_a_border(cluster)
    recycle_below(cluster, end_lsn)
    cluster.proxy.start()
    Commit(cluster.postgres).wait()
    assert "the primary's WAL continues ours" in cluster.proxy.log_path.read_text()
    assert cluster.status()["term_start_lsn"] == format_lsn(end_lsn)
    cluster.verify()
