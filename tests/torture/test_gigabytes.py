"""Gigabytes of WAL through safekeepers with small disks, while a standby and a safekeeper are down all the time."""

import os
import shutil
import statistics
import tempfile
import threading
import time
from types import TracebackType
from typing import Self

import psycopg
import pytest

from safekeeper.base.lsn import Lsn, parse_lsn
from tests.integration.archive.archive_cluster_fixtures import (
    archive_options,
    assert_archive_is_whole,
    disk_usage,
    log_begin_lsn,
    metric,
    run_reader,
    wait_for_archiver,
    wait_until_archived,
)
from tests.integration.archive.archive_fixtures import Archive
from tests.integration.cluster.cluster_fixtures import MIB, Gated, wait_for
from tests.integration.cluster.cluster_fixtures import field_of as said
from tests.integration.conftest import NEWEST, NewGated
from tests.integration.serving.serve_fixtures import dump, feeder
from walproxy.lab.cluster.local_standby import current_lsn, wait_until_replayed

WAL_MIB = int(os.environ.get("WALPROXY_TORTURE_WAL_MIB", "5120"))
LIMIT_BYTES = 500 * 1000 * 1000
SEGMENT_MIB = 16
WRITERS = 2
CATCHUP_S = 1800.0
SETTINGS = {"wal_keep_size": "0", "max_wal_size": "256MB", "min_wal_size": "64MB"}


class DiskUsage:
    """What safekeepers' folders take, looked at all the time while the `with` block runs.

    Attributes:
        samples: by safekeeper, the bytes of everything in its folder.
        wal_bytes: by safekeeper, the most that the segment files alone have taken.
    """

    def __init__(self, cluster: Gated) -> None:
        self._cluster = cluster
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.samples: dict[int, list[int]] = {i: [] for i in cluster.safekeepers}
        self.wal_bytes = dict.fromkeys(cluster.safekeepers, 0)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._closing.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._closing.wait(0.1):
            for safekeeper_id, samples in self.samples.items():
                samples.append(disk_usage(self._cluster.safekeeper_directory(safekeeper_id)))
                wal_bytes = disk_usage(self._cluster.wal_directory(safekeeper_id))
                self.wal_bytes[safekeeper_id] = max(wal_bytes, self.wal_bytes[safekeeper_id])


def write_gigabytes(cluster: Gated, mib: int) -> float:
    """Commit so much WAL in several connections, 4 MiB a transaction; return how many seconds it took."""
    message = "SELECT pg_logical_emit_message(true, 'p', repeat(md5(random()::text), 32768)) FROM generate_series(1, 4)"
    errors: list[psycopg.Error] = []

    def write() -> None:
        try:
            with psycopg.connect(cluster.postgres.conninfo(), autocommit=True) as connection:
                for number in range(mib // WRITERS // 4):
                    connection.execute(message)
                    connection.execute("INSERT INTO ledger VALUES (0, %s)", (number,))
        except psycopg.Error as error:
            errors.append(error)

    began_at = time.monotonic()
    threads = [threading.Thread(target=write, daemon=True) for _ in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    return time.monotonic() - began_at


@NEWEST
@pytest.mark.timeout(5400)
def test_gigabytes_of_wal_stay_within_the_limit_and_whoever_was_away_all_the_time_catches_up(
    folder_archive: Archive, new_gated: NewGated
) -> None:
    needed = (2 * WAL_MIB + 4096) * MIB
    free = shutil.disk_usage(tempfile.gettempdir()).free
    assert free > needed, f"{free >> 20} MiB are free, and {needed >> 20} MiB are needed"
    options = archive_options(folder_archive.place, "-c", "wal_keep=0", "-c", f"wal_limit={LIMIT_BYTES}")
    cluster = new_gated(segment_mib=SEGMENT_MIB, safekeeper_options=options, **SETTINGS).start_gated()
    wait_for_archiver(cluster)
    standby = cluster.add_standby("late", 1, 2)
    wait_until_replayed(standby, current_lsn(cluster.postgres))
    standby.stop("fast")
    away = cluster.safekeepers[3]
    away.kill9()
    begin_lsn = cluster.primary_flush_lsn()
    with DiskUsage(cluster) as usage:
        took_s = write_gigabytes(cluster, WAL_MIB)
        end_lsn = cluster.primary_flush_lsn()
        assert end_lsn - begin_lsn >= WAL_MIB * MIB
        archived_s = took_s + wait_for(lambda: _archived(cluster, end_lsn), "all of it is archived", CATCHUP_S)
        _print_rate("written", end_lsn - begin_lsn, took_s)
        _print_rate("archived", end_lsn - begin_lsn, archived_s)
        # The standby has missed all of it.
        began_at = time.monotonic()
        standby.start(120)
        wait_until_replayed(standby, current_lsn(cluster.postgres), timeout_s=CATCHUP_S)
        _print_rate("replayed by the standby", end_lsn - begin_lsn, time.monotonic() - began_at)
        assert feeder(cluster, standby) in (1, 2)
        fetched = sum(metric(cluster.safekeepers[i], "read_through_segments_total") for i in (1, 2))
        assert fetched * SEGMENT_MIB > WAL_MIB - 3 * LIMIT_BYTES // MIB
        assert dump(standby) == dump(cluster.postgres)
        # So has the safekeeper.
        began_at = time.monotonic()
        away.start()
        wait_for(lambda: said(away, "state") == "following", "it is fed", CATCHUP_S)
        wait_for(lambda: cluster.flush_lsn_of(3) >= end_lsn, "it has caught up", CATCHUP_S)
        print(f"safekeeper 3 skips WAL and has caught up in {time.monotonic() - began_at:.1f} s")
        assert parse_lsn(said(away, "wal_begin_lsn")) > end_lsn - LIMIT_BYTES
        with cluster.load(rate=None) as load:
            cluster.safekeepers[1].kill9()
            load.wait_for_commits(50)
            assert said(away, "votes") is True
            cluster.safekeepers[1].start()
    for safekeeper_id, samples in usage.samples.items():
        print(
            f"safekeeper {safekeeper_id}: {len(samples)} samples, median {statistics.median(samples) / 1e6:.0f} MB, "
            f"maximum {max(samples) / 1e6:.0f} MB of {LIMIT_BYTES / 1e6:.0f} MB; segment files alone "
            f"{usage.wal_bytes[safekeeper_id] / 1e6:.0f} MB"
        )
    _assert_archive_is_whole(cluster, folder_archive)
    assert all(max(samples) <= LIMIT_BYTES for samples in usage.samples.values())


def _archived(cluster: Gated, end_lsn: Lsn) -> bool:
    return max(parse_lsn(said(cluster.safekeepers[i], "archived_lsn") or "0/0") for i in (1, 2)) >= end_lsn


def _print_rate(what: str, size_bytes: int, seconds: float) -> None:
    print(f"{size_bytes / 1e6:.0f} MB {what} in {seconds:.1f} s: {size_bytes / 1e6 / seconds:.0f} MB/s")


def _assert_archive_is_whole(cluster: Gated, archive: Archive) -> None:
    """The archive has no hole and no byte that its receipts do not know; what the primary still has is equal."""
    end_lsn = wait_until_archived(cluster)
    wals = [cluster.postgres.pg_wal, *(cluster.wal_directory(i) for i in cluster.safekeepers)]
    assert_archive_is_whole(archive, wals, cluster.segment_size, log_begin_lsn(cluster), end_lsn, old_wal_goes=True)
    verified = run_reader(
        *("archive", "verify", "--archive", archive.place.url), place=archive.place, timeout_s=CATCHUP_S
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
