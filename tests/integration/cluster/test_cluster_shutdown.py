"""PostgreSQL's own shutdown: it ends with the shutdown checkpoint on the quorum, or waits for the quorum, quietly."""

import re
import subprocess
import threading
from pathlib import Path

import pytest

from safekeeper.base.lsn import Lsn, format_lsn, parse_lsn, segment_name, segment_start
from tests.integration.cluster.cluster_fixtures import Commit, Gated, cpu_seconds, wait_for
from tests.integration.conftest import EVERY, MOSTLY_NEWEST

SHUTDOWN_S = 5.0
STORM_S = 2.0


def _pg_waldump(cluster: Gated, directory: Path, begin_lsn: Lsn) -> str:
    """Return the records of a segment from `begin_lsn` on."""
    segment_size = cluster.segment_size
    name = segment_name(1, segment_start(begin_lsn, segment_size), segment_size)
    # The file is named, because pg_waldump reads the segment size from any file if it is not: one may be empty.
    command = [str(cluster.postgres.binaries.path("pg_waldump")), "--start", format_lsn(begin_lsn), name]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=directory).stdout


def _shutdown_checkpoint_lsn(cluster: Gated) -> Lsn:
    command = [str(cluster.postgres.binaries.path("pg_controldata")), "-D", str(cluster.postgres.data_directory)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout
    assert re.search(r"cluster state: +shut down$", printed, re.MULTILINE), printed
    found = re.search(r"Latest checkpoint location: +(\S+)", printed)
    assert found is not None
    return parse_lsn(found[1])


def _assert_everything_is_on_the_safekeepers(cluster: Gated) -> None:
    """The primary is shut down: its last record, and so every byte of its WAL, is on all safekeepers."""
    checkpoint_lsn = _shutdown_checkpoint_lsn(cluster)
    ends = {cluster.flush_lsn_of(i) for i in cluster.safekeepers}
    assert len(ends) == 1
    (end_lsn,) = ends
    assert end_lsn > checkpoint_lsn
    cluster.assert_bytes_are_equal(end_lsn)
    for safekeeper_id in cluster.safekeepers:
        records = _pg_waldump(cluster, cluster.wal_directory(safekeeper_id), checkpoint_lsn)
        assert "CHECKPOINT_SHUTDOWN" in records
        assert records == _pg_waldump(cluster, cluster.postgres.pg_wal, checkpoint_lsn)


@EVERY
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_fast_shutdown_ends_at_once_with_its_checkpoint_on_the_quorum(cluster: Gated, busy: bool) -> None:
    with cluster.load(workers=2 if busy else 1) as load:
        if not busy:
            load.stop()
            cluster.commit_lsn_of_all()
        cluster.postgres.stop("fast", SHUTDOWN_S)
        wait_for(lambda: len({cluster.flush_lsn_of(i) for i in cluster.safekeepers}) == 1, "all have the same")
        _assert_everything_is_on_the_safekeepers(cluster)
        cluster.postgres.start()
        Commit(cluster.postgres).wait()


@MOSTLY_NEWEST
def test_fast_shutdown_waits_for_a_lost_quorum_without_keeping_the_proxy_busy(cluster: Gated) -> None:
    with cluster.load(workers=1) as load:
        cluster.safekeepers[1].kill9()
        cluster.safekeepers[2].kill9()
        load.stop(timeout_s=0.2)
        Commit(cluster.postgres, synchronous_commit="local").wait()
        stopping = threading.Thread(target=cluster.postgres.stop, args=("fast", 60.0))
        stopping.start()
        wait_for(lambda: "shutting down" in cluster.postgres.log_tail(5), "it shuts down")
        used_s = cpu_seconds(cluster.proxy)
        stopping.join(STORM_S)
        assert stopping.is_alive()
        used_s = cpu_seconds(cluster.proxy) - used_s
        assert used_s < STORM_S / 4, f"{used_s} s of processor time in {STORM_S} s"
        cluster.safekeepers[1].start()
        stopping.join(SHUTDOWN_S)
        assert not stopping.is_alive()
        cluster.safekeepers[2].start()
        wait_for(lambda: len({cluster.flush_lsn_of(i) for i in cluster.safekeepers}) == 1, "all have the same")
        _assert_everything_is_on_the_safekeepers(cluster)
        cluster.postgres.start()
        Commit(cluster.postgres).wait()


def test_restarts_of_postgresql_under_load_leave_one_term(cluster: Gated) -> None:
    with cluster.load() as load:
        term = cluster.status()["term"]
        for mode in ("fast", "immediate", "fast"):
            cluster.postgres.restart(mode)
            load.wait_for_commits(10)
        assert cluster.status()["term"] == term
