"""What is not committed reaches no reader, although the safekeeper that it reads from has it on disk (S7)."""

import contextlib
from collections.abc import Iterator

import pytest

from safekeeper.base.lsn import Lsn, format_lsn, parse_lsn, segment_start
from tests.integration.cluster.cluster_fixtures import Commit, Gated, field_of, wait_for
from tests.integration.conftest import MOSTLY_NEWEST, NEWEST
from tests.integration.serving.serve_fixtures import (
    WireClient,
    assert_equal_to_primary,
    connect_raw,
    standby_of,
    wait_for_everything,
    wait_for_feeder,
)
from walproxy.lab.cluster.local_standby import received_lsn
from walproxy.postgres.local_server import LocalPostgres

MIB = 1 << 20


def begin_lsn_of(cluster: Gated) -> Lsn:
    """Return the start of the segment that is being written."""
    return segment_start(cluster.primary_flush_lsn(), cluster.segment_size)


@contextlib.contextmanager
def quorum_lost(cluster: Gated) -> Iterator[Lsn]:
    """Only safekeeper 1 is left and holds more than 1 MiB that is not committed; where that begins."""
    cluster.safekeepers[2].kill9()
    cluster.safekeepers[3].kill9()
    # Nothing is under way to the other two once the proxy sees that they are gone.
    wait_for(lambda: field_of(cluster.proxy, "state") == "waiting_for_quorum", "the proxy waits for the quorum")
    commit_lsn = cluster.commit_lsn()
    hold_uncommitted(cluster)
    assert cluster.commit_lsn() == commit_lsn < cluster.flush_lsn_of(1) - MIB
    yield commit_lsn
    assert cluster.commit_lsn() == commit_lsn
    cluster.safekeepers[2].start()
    cluster.safekeepers[3].start()


def hold_uncommitted(cluster: Gated) -> None:
    """Write more than 1 MiB of WAL, of which safekeeper 1 has every byte on disk, and wait for it."""
    message = "SELECT pg_logical_emit_message(true, 'p', repeat('u', 600000))"
    for _ in range(2):
        Commit(cluster.postgres, message, synchronous_commit="local").wait()
    end_lsn = cluster.primary_flush_lsn()
    wait_for(lambda: cluster.flush_lsn_of(1) >= end_lsn, "safekeeper 1 has on disk what is not committed")


def xlogpos_of(cluster: Gated, safekeeper_id: int) -> Lsn:
    """Return the end of WAL in IDENTIFY_SYSTEM of a safekeeper."""
    connection = connect_raw(cluster, safekeeper_id)
    value = connection.exec_(b"IDENTIFY_SYSTEM").get_value(0, 2)
    connection.finish()
    assert value is not None
    return parse_lsn(value.decode())


@pytest.fixture
def standby_of_1(cluster: Gated) -> Iterator[LocalPostgres]:
    with standby_of(cluster, 1) as standby:
        wait_for_feeder(cluster, standby)
        yield standby


@MOSTLY_NEWEST
def test_readers_of_a_safekeeper_without_its_quorum_get_what_is_committed_and_the_rest_once_the_quorum_is_back(
    cluster: Gated, standby_of_1: LocalPostgres
) -> None:
    with cluster.load(workers=1) as load, WireClient(cluster, 1, begin_lsn_of(cluster)) as client:
        load.wait_for_commits(20)
        load.stop()
        with quorum_lost(cluster) as commit_lsn:
            client.wait_for(commit_lsn)
            with WireClient(cluster, 1, segment_start(commit_lsn, cluster.segment_size)) as late:
                late.wait_for(commit_lsn)
                for _ in range(3):
                    hold_uncommitted(cluster)
                    for each in (client, late):
                        each.ping()
                        assert each.end_lsn == each.server_end_lsn == commit_lsn
            assert xlogpos_of(cluster, 1) == commit_lsn
            assert received_lsn(standby_of_1) <= commit_lsn, format_lsn(commit_lsn)
        end_lsn = wait_for_everything(cluster, standby_of_1)
        client.wait_for(end_lsn)
        client.assert_equal_to_primary(cluster)
    assert_equal_to_primary(cluster, standby_of_1)


@NEWEST
def test_safekeeper_that_was_restarted_without_its_quorum_shows_nothing_that_is_not_committed(
    cluster: Gated, standby_of_1: LocalPostgres
) -> None:
    with cluster.load(workers=1) as load:
        load.wait_for_commits(20)
        load.stop(timeout_s=0.5)
        with quorum_lost(cluster) as commit_lsn:
            begin_lsn = segment_start(commit_lsn, cluster.segment_size)
            for end in (cluster.safekeepers[1].kill9, cluster.safekeepers[1].stop):
                end()
                cluster.safekeepers[1].start()
                wait_for(lambda: cluster.flush_lsn_of(1) > commit_lsn + MIB, "it has all that it had")
                wait_for(lambda: field_of(cluster.safekeepers[1], "state") == "following", "it follows the proxy again")
                with WireClient(cluster, 1, begin_lsn) as client:
                    hold_uncommitted(cluster)
                    client.ping()
                    assert client.end_lsn <= commit_lsn and client.server_end_lsn <= commit_lsn
                    assert xlogpos_of(cluster, 1) <= commit_lsn
                assert wait_for_feeder(cluster, standby_of_1) == 1
                assert received_lsn(standby_of_1) <= commit_lsn
        end_lsn = wait_for_everything(cluster, standby_of_1)
        with WireClient(cluster, 1, begin_lsn) as client:
            client.wait_for(end_lsn)
            client.assert_equal_to_primary(cluster)
    assert_equal_to_primary(cluster, standby_of_1)
