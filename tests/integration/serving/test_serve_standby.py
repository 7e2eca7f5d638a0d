"""Standbys that stream from safekeepers instead of the primary, through the death of any of them."""

import contextlib
import shutil
from collections.abc import Iterator

import pytest

from safekeeper.base.lsn import Lsn, format_lsn, parse_lsn
from tests.integration.cluster.cluster_fixtures import Gated, field_of, wait_for
from tests.integration.conftest import NEWEST
from tests.integration.serving.serve_fixtures import (
    assert_equal_to_primary,
    feeder,
    log_of,
    readers_of,
    standby_of,
    wait_for_everything,
    wait_for_feeder,
)
from walproxy.lab.cluster.local_standby import make_standby, received_lsn, replay_lsn
from walproxy.postgres.local_server import LocalPostgres

FAILOVER_S = 10.0


@pytest.fixture(scope="module")
def standby(shared_cluster: Gated) -> Iterator[LocalPostgres]:
    """A standby of the shared cluster, which tries its safekeepers alternately. Each test leaves it streaming."""
    with standby_of(shared_cluster) as made:
        yield made


def test_standby_streams_under_load_and_is_equal_to_the_primary(cluster: Gated, standby: LocalPostgres) -> None:
    with cluster.load() as load:
        load.wait_for_commits(100)
        begin_lsn = replay_lsn(standby)
        load.wait_for_commits(100)
        wait_for(lambda: replay_lsn(standby) > begin_lsn, "the standby replays while commits flow")
        # Rows of several kinds: a change of the catalogue, updates, a table that spans segments.
        cluster.postgres.execute(
            "CREATE TABLE wide AS SELECT i, repeat('w', 400) AS filler FROM generate_series(1, 8000) AS i;"
            "UPDATE wide SET i = -i WHERE i % 7 = 0; DELETE FROM wide WHERE i % 11 = 0; CREATE INDEX ON wide (i)"
        )
        load.wait_for_commits(20)
    assert_equal_to_primary(cluster, standby)
    (reader,) = readers_of(cluster, wait_for_feeder(cluster, standby))
    assert reader["state"] == "streaming" and reader["lag_bytes"] == 0
    cluster.postgres.execute("DROP TABLE wide")


def test_standby_goes_on_from_another_safekeeper_when_its_own_is_killed(cluster: Gated, standby: LocalPostgres) -> None:
    with cluster.load() as load:
        killed = wait_for_feeder(cluster, standby)
        cluster.safekeepers[killed].kill9()
        assert wait_for_feeder(cluster, standby, other_than=killed) != killed
        begin_lsn = replay_lsn(standby)
        load.wait_for_commits(50)
        wait_for(lambda: replay_lsn(standby) > begin_lsn, "the standby goes on", FAILOVER_S)
        cluster.safekeepers[killed].start()
    assert_equal_to_primary(cluster, standby)


@contextlib.contextmanager
def reconfigured(standby: LocalPostgres, **settings: str) -> Iterator[None]:
    """Let the standby stream from elsewhere, or with another slot, for a while."""
    before = {name: standby.settings[name] for name in settings}
    standby.configure(settings)
    standby.reload()
    try:
        yield
    finally:
        standby.configure(before)
        standby.reload()


def test_standby_goes_on_with_a_slot_that_the_next_safekeeper_does_not_have(
    cluster: Gated, standby: LocalPostgres
) -> None:
    feed = cluster.standby_conninfo(2, 3)
    with reconfigured(standby, primary_conninfo=feed, primary_slot_name="moving"), cluster.load() as load:
        wait_for(lambda: _slots(cluster, 2).get("moving", 0) > 0, "safekeeper 2 holds WAL for the slot")
        assert _slots(cluster, 3).get("moving", 0) == 0
        cluster.safekeepers[2].kill9()
        wait_for(lambda: _slots(cluster, 3).get("moving", 0) > 0, "safekeeper 3 has made the slot", FAILOVER_S)
        begin_lsn = _slots(cluster, 3).get("moving", 0)
        load.wait_for_commits(20)
        wait_for(lambda: _slots(cluster, 3).get("moving", 0) > begin_lsn, "the slot follows the standby")
        cluster.safekeepers[2].start()
    assert "replication slot moving, which did not exist: created it" in log_of(cluster, 3)
    # It was killed before the position of the slot was written for the first time; it holds WAL for it nevertheless.
    assert _slots(cluster, 2)["moving"] > 0
    assert_equal_to_primary(cluster, standby)


def _slots(cluster: Gated, safekeeper_id: int) -> dict[str, Lsn]:
    """Return the slots of a safekeeper and from where on they hold WAL (0: not yet); none while it does not answer."""
    slots = field_of(cluster.safekeepers[safekeeper_id], "slots") or []
    return {slot["name"]: parse_lsn(slot["restart_lsn"] or "0/0") for slot in slots}


@NEWEST
def test_standby_of_a_single_safekeeper_comes_back_whether_that_crashes_or_is_stopped(
    cluster: Gated, standby: LocalPostgres
) -> None:
    with reconfigured(standby, primary_conninfo=cluster.standby_conninfo(3)), cluster.load() as load:
        safekeeper = cluster.safekeepers[3]
        wait_for(lambda: feeder(cluster, standby) == 3, "it streams from safekeeper 3")
        for end in (safekeeper.kill9, safekeeper.stop):
            end()
            wait_for(lambda: feeder(cluster, standby) is None, "its stream has ended")
            before_lsn = received_lsn(standby)
            load.wait_for_commits(20)
            assert received_lsn(standby) == before_lsn
            safekeeper.start()
            wait_until_received(standby, before_lsn + 1)
    assert_equal_to_primary(cluster, standby)


def wait_until_received(standby: LocalPostgres, end_lsn: Lsn) -> None:
    wait_for(lambda: received_lsn(standby) >= end_lsn, f"it has WAL up to {format_lsn(end_lsn)}", FAILOVER_S)


def test_standby_behind_a_standby_follows(cluster: Gated, standby: LocalPostgres) -> None:
    made = make_standby(standby, cluster.directory / "behind", "behind")
    try:
        with made.start(), cluster.load() as load:
            load.wait_for_commits(50)
            wait_for_everything(cluster, made)
            load.stop()
            assert_equal_to_primary(cluster, standby, made)
    finally:
        shutil.rmtree(made.data_directory)


def test_standby_that_was_down_catches_up_over_several_segments(cluster: Gated, standby: LocalPostgres) -> None:
    received_before_lsn = received_lsn(standby)
    standby.stop("fast")
    with cluster.load() as load:
        message = "pg_logical_emit_message(true, 'p', repeat('z', 1000000))"
        cluster.postgres.execute(f"SELECT count({message}) FROM generate_series(1, 8)")
        # Also while commits flow, so that it is served from the file and from memory alternately.
        standby.start()
        load.wait_for_commits(100)
        wait_for_everything(cluster, standby)
    assert received_lsn(standby) > received_before_lsn + 8 * cluster.segment_size - 500_000
    assert_equal_to_primary(cluster, standby)
