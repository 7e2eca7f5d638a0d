"""WAL of every shape: switched segments, long transactions, records that end on borders."""

import time

import psycopg
import pytest

from safekeeper.base.lsn import Lsn, format_lsn, parse_lsn
from tests.integration.cluster.cluster_fixtures import MIB, Commit, Gated, bulk, wait_for
from tests.integration.cluster.test_cluster_recycled_segment import end_the_log_on_a_border
from tests.integration.conftest import NEWEST, NewGated

PAGE_SIZE = 8192


def test_segment_switches_in_a_row_and_while_idle_reach_every_safekeeper(cluster: Gated) -> None:
    with cluster.load(workers=1) as load:
        for _ in range(5):
            cluster.postgres.execute("SELECT pg_switch_wal()")
            load.wait_for_commits(3)
        load.stop()
        term = cluster.status()["term"]
        end_lsn = end_the_log_on_a_border(cluster)
        # Elections and restarts find a log that ends on a segment's border.
        cluster.proxy.start()
        wait_for(lambda: cluster.status()["term"] > term, "a new term has begun")
        assert cluster.status()["term_start_lsn"] == format_lsn(end_lsn)
        for safekeeper in cluster.safekeepers.values():
            safekeeper.kill9()
            safekeeper.start()
        Commit(cluster.postgres).wait()


def test_primary_killed_right_after_a_segment_switch_is_recognised(cluster: Gated) -> None:
    with cluster.load(workers=1) as load:
        load.stop()
        for _ in range(2):
            cluster.postgres.execute("SELECT pg_switch_wal()")
            cluster.commit_lsn_of_all()
            cluster.postgres.kill9()
            cluster.postgres.start()
            Commit(cluster.postgres).wait()


def test_transaction_over_many_segments_waits_for_its_last_byte(cluster: Gated) -> None:
    with cluster.load(workers=1) as load:
        begin_lsn = cluster.primary_flush_lsn()
        Commit(cluster.postgres, "CREATE TABLE wide AS SELECT repeat('x', 900) FROM generate_series(1, 12000)").wait()
        assert parse_lsn(cluster.status()["commit_lsn"]) > begin_lsn + 10 * cluster.segment_size
        load.wait_for_commits(5)
        Commit(cluster.postgres, "DROP TABLE wide").wait()


def test_record_of_several_segments_reaches_every_safekeeper(cluster: Gated) -> None:
    size = 5 * cluster.segment_size + 1234
    with cluster.load(workers=1):
        Commit(cluster.postgres, f"SELECT pg_logical_emit_message(true, 'p', repeat('y', {size}))").wait()


@pytest.mark.parametrize("border", ["page", "segment"])
def test_commit_that_ends_exactly_on_a_border_is_released(cluster: Gated, border: str) -> None:
    modulus = PAGE_SIZE if border == "page" else cluster.segment_size
    with cluster.load(workers=1) as load:
        load.stop()
        # Each try is a synchronous commit, which has returned.
        wait_for(lambda: _commit_ends_at(cluster, modulus), f"a commit ends on a {border}'s border")
        Commit(cluster.postgres).wait()


def _commit_ends_at(cluster: Gated, modulus: int) -> bool:
    """Try to commit so that the record's end is a multiple of `modulus`; a checkpoint in between spoils it."""
    if modulus > PAGE_SIZE:
        _fill_up_to_last_page(cluster, modulus)
    with psycopg.connect(cluster.postgres.conninfo(), autocommit=True) as connection:
        # A message of 1000 bytes on a fresh page shows what a transaction adds to its message.
        begin_lsn, end_lsn = _emit(connection, 1000)
        if begin_lsn // PAGE_SIZE != end_lsn // PAGE_SIZE:
            return False
        room = PAGE_SIZE - end_lsn % PAGE_SIZE
        size = room - (end_lsn - begin_lsn - 1000)
        if size < 512:
            return False
        return _emit(connection, size)[1] % modulus == 0


def _fill_up_to_last_page(cluster: Gated, modulus: int) -> None:
    end_lsn = cluster.primary_flush_lsn()
    gap = modulus - end_lsn % modulus - PAGE_SIZE
    if gap > PAGE_SIZE:
        size = gap - gap // PAGE_SIZE * 24 - 512
        cluster.postgres.execute(f"SELECT pg_logical_emit_message(true, 'p', repeat('z', {size}))")


def _emit(connection: psycopg.Connection, size: int) -> tuple[Lsn, Lsn]:
    """Commit a message of `size` bytes; return where the WAL ended before and ends now."""
    where = "SELECT pg_current_wal_flush_lsn()::text"
    before = connection.execute(where).fetchone()
    connection.execute("SELECT pg_logical_emit_message(true, 'p', repeat('z', %s))", (size,))
    after = connection.execute(where).fetchone()
    assert before is not None and after is not None
    return parse_lsn(before[0]), parse_lsn(after[0])


@NEWEST
def test_transaction_of_64_mib_passes_a_window_of_16(new_gated: NewGated) -> None:
    cluster = new_gated("-c", "window_size=16MiB", segment_mib=16).start_gated()
    with cluster.load(workers=1) as load:
        begin_lsn, began_at = cluster.primary_flush_lsn(), time.monotonic()
        Commit(cluster.postgres, bulk(64)).wait(60)
        print(f"64 MiB in {time.monotonic() - began_at:.1f} s")
        assert parse_lsn(cluster.status()["commit_lsn"]) > begin_lsn + 64 * MIB
        load.wait_for_commits(20)
