"""WAL that a primary is compared with: its slot keeps it; and what happens where it is gone nevertheless (S10)."""

import time

from safekeeper.base.errors import EXIT_PRIMARY_REFUSED
from safekeeper.base.lsn import Lsn, format_lsn, segment_name
from tests.integration.cluster.cluster_fixtures import Commit, Gated, wait_for
from tests.integration.conftest import NEWEST, NewGated

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
    """Make checkpoints until the segment that ends at `end_lsn` is gone; there is no slot to hold it back."""
    path = cluster.postgres.pg_wal / segment_name(1, end_lsn - 1, cluster.segment_size)
    deadline = time.monotonic() + 20
    while path.exists():
        assert time.monotonic() < deadline, f"{path.name} is not recycled; the log ends at {format_lsn(end_lsn)}"
        cluster.postgres.execute("CHECKPOINT")


@NEWEST
def test_the_slot_keeps_what_a_primary_is_compared_with_and_no_restart_is_refused(new_gated: NewGated) -> None:
    cluster = new_gated(**SETTINGS).start_gated()
    end_lsn = end_the_log_on_a_border(cluster)
    for _ in range(3):
        cluster.postgres.execute("CHECKPOINT")
    assert (cluster.postgres.pg_wal / segment_name(1, end_lsn - 1, cluster.segment_size)).exists()
    cluster.proxy.start()
    Commit(cluster.postgres).wait()
    assert cluster.status()["term_start_lsn"] == format_lsn(end_lsn)
    cluster.verify()


def test_a_primary_without_the_segment_before_goes_on_if_an_operator_vouches_for_it(new_gated: NewGated) -> None:
    cluster = new_gated(**SETTINGS).start_gated()
    end_lsn = end_the_log_on_a_border(cluster)
    wait_for(lambda: cluster.scalar("SELECT count(*) FROM pg_replication_slots WHERE active") == 0, "no one holds it")
    cluster.postgres.execute("SELECT pg_drop_replication_slot('walproxy')")
    recycle_below(cluster, end_lsn)
    cluster.proxy.start()
    assert cluster.proxy.wait(30) == EXIT_PRIMARY_REFUSED
    assert "--allow-unverified-primary" in cluster.proxy.log_path.read_text().splitlines()[-1]
    cluster.add_proxy("--allow-unverified-primary", "true")
    Commit(cluster.postgres).wait()
    assert "the primary's WAL continues the quorum's log" in cluster.proxies[-1].log_path.read_text()
    assert cluster.status()["term_start_lsn"] == format_lsn(end_lsn)
    cluster.proxies[-1].stop()
    del cluster.proxies[-1]
    cluster.proxy.start()
    Commit(cluster.postgres).wait()
    cluster.verify()
