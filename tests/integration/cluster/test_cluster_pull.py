"""A safekeeper that lacks much WAL pulls it from the others: beside commits, past the proxy, when a source dies."""

import time
from pathlib import Path

import pytest

from safekeeper.base.lsn import parse_lsn
from tests.integration.cluster.cluster_fixtures import (
    MIB,
    Commit,
    Gated,
    bulk,
    cpu_seconds,
    field_of,
    resident_bytes,
    wait_for,
)
from tests.integration.conftest import NEWEST, NewGated

# What is missed: more than a window, for seconds at a limited rate, or beside commits at 64 MiB/s.
MISSED_MIB = 96
MISSED_BESIDE_COMMITS_MIB = 160
CATCHUP_S = 60.0


def _log(cluster: Gated, safekeeper_id: int | None = None) -> str:
    process = cluster.proxy if safekeeper_id is None else cluster.safekeepers[safekeeper_id]
    return process.log_tail(1000)


def _carried_bytes(cluster: Gated) -> int:
    """Return how much the proxy has read and written, on sockets too."""
    counts = dict(line.split(": ") for line in Path(f"/proc/{cluster.proxy.pid}/io").read_text().splitlines())
    return int(counts["rchar"]) + int(counts["wchar"])


def _has_all(cluster: Gated, safekeeper_id: int) -> bool:
    return cluster.flush_lsn_of(safekeeper_id) >= parse_lsn(cluster.status()["commit_lsn"])


@NEWEST
def test_a_safekeeper_that_was_away_pulls_and_costs_the_proxy_nothing(new_gated: NewGated) -> None:
    cluster = new_gated("-c", "window_size=4MiB", "-c", "catchup_rate=32MiB", segment_mib=16).start_gated()
    cluster.safekeepers[3].kill9()
    Commit(cluster.postgres, bulk(MISSED_MIB)).wait(120)
    before_s, before_bytes = cpu_seconds(cluster.proxy), resident_bytes(cluster.proxy)
    carried_before = _carried_bytes(cluster)
    began_at = time.monotonic()
    cluster.safekeepers[3].start()
    wait_for(lambda: field_of(cluster.safekeepers[3], "pull"), "it pulls")
    wait_for(lambda: _has_all(cluster, 3), "it has caught up", CATCHUP_S)
    took_s = time.monotonic() - began_at
    spent_s, grown_bytes = cpu_seconds(cluster.proxy) - before_s, resident_bytes(cluster.proxy) - before_bytes
    print(f"{MISSED_MIB} MiB in {took_s:.1f} s; the proxy: {spent_s:.2f} s of CPU time, {grown_bytes} bytes more")
    # The rate is kept.
    assert took_s > MISSED_MIB / 32 * 0.8
    # It would read and write all of it.
    assert _carried_bytes(cluster) - carried_before < 16 * MIB
    assert grown_bytes < 8 * MIB
    assert cluster.member(3)["pulled_bytes"] > (MISSED_MIB - 16) * MIB
    wait_for(lambda: "safekeeper 3 has pulled" in _log(cluster), "the proxy has logged the end")
    assert "pulled" in _log(cluster, 3)
    end_lsn = cluster.commit_lsn_of_all()
    cluster.assert_bytes_are_equal(end_lsn)


@NEWEST
def test_commits_go_on_while_a_wiped_safekeeper_pulls(new_gated: NewGated) -> None:
    cluster = new_gated("-c", "window_size=4MiB", segment_mib=16).start_gated()
    Commit(cluster.postgres, bulk(MISSED_BESIDE_COMMITS_MIB)).wait(120)
    with cluster.load() as load:
        load.wait_for_commits(20)
        process, directory = cluster.safekeepers[3], cluster.safekeeper_directory(3)
        process.kill9()
        directory.rename(directory.with_name("lost"))
        process.start()
        wait_for(lambda: field_of(process, "pull"), "it pulls")
        load.wait_for_commits(20)
        wait_for(lambda: _has_all(cluster, 3), "it has caught up", CATCHUP_S)
        load.wait_for_commits(20)
        assert cluster.member(3)["state"] == "learner"
    assert "receives old WAL through this proxy" not in _log(cluster)


@NEWEST
def test_a_source_that_is_killed_in_the_midst_is_replaced_and_commits_wait_for_the_rest_only(
    new_gated: NewGated,
) -> None:
    cluster = new_gated("-c", "window_size=4MiB", "-c", "catchup_rate=16MiB", segment_mib=16).start_gated()
    cluster.safekeepers[3].kill9()
    Commit(cluster.postgres, bulk(MISSED_MIB)).wait(120)
    with cluster.load() as load:
        cluster.safekeepers[3].start()
        wait_for(lambda: (field_of(cluster.safekeepers[3], "pull") or {}).get("bytes"), "it pulls")
        source = field_of(cluster.safekeepers[3], "pull")["source"]
        cluster.safekeepers[source].kill9()
        # Without the source, a quorum needs this one: the rest is not limited.
        load.wait_for_commits(20, timeout_s=CATCHUP_S)
        assert f"from safekeeper {3 - source}" in _log(cluster, 3)
        cluster.safekeepers[source].start()
        load.stop()
    end_lsn = cluster.commit_lsn_of_all()
    cluster.assert_bytes_are_equal(end_lsn)


@pytest.mark.nightly
@NEWEST
def test_a_new_leader_in_the_midst_lets_it_pull_the_rest(new_gated: NewGated) -> None:
    cluster = new_gated("-c", "window_size=4MiB", "-c", "catchup_rate=16MiB", segment_mib=16).start_gated()
    cluster.safekeepers[3].kill9()
    Commit(cluster.postgres, bulk(MISSED_MIB)).wait(120)
    with cluster.load() as load:
        cluster.safekeepers[3].start()
        wait_for(lambda: field_of(cluster.safekeepers[3], "pull"), "it pulls")
        cluster.proxy.kill9()
        wait_for(lambda: not field_of(cluster.safekeepers[3], "pull"), "the pull ends with its leader")
        cluster.proxy.start()
        load.wait_for_commits(20)
        wait_for(lambda: field_of(cluster.safekeepers[3], "pull"), "it pulls for the next one")
        wait_for(lambda: _has_all(cluster, 3), "it has caught up", CATCHUP_S)
        load.stop()
    end_lsn = cluster.commit_lsn_of_all()
    cluster.assert_bytes_are_equal(end_lsn)
