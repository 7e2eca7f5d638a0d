"""The archiver is killed thirty times while it uploads, and others go on; the archive misses and invents nothing."""

import os
from collections import Counter

import pytest

from tests.integration.archive.archive_cluster_fixtures import (
    archive_options,
    archivers_of,
    assert_is_archived,
    kill_during_upload,
    wait_for_archiver,
    wait_until_archived,
    without_receipt,
    write_wal,
)
from tests.integration.archive.archive_fixtures import Archive
from tests.integration.conftest import NEWEST, NewGated

KILLS = int(os.environ.get("WALPROXY_TORTURE_KILLS", "30"))
SEGMENTS_AT_ONCE = 3
SEGMENT_MIB = 16


@NEWEST
@pytest.mark.timeout(3600)
def test_thirty_kills_of_archivers_during_uploads_leave_no_hole_and_no_other_bytes(
    folder_archive: Archive, new_gated: NewGated
) -> None:
    options = archive_options(folder_archive.place)
    cluster = new_gated("-c", "response_timeout=2", segment_mib=SEGMENT_MIB, safekeeper_options=options).start_gated()
    hit: Counter[str] = Counter()
    attempts = failovers = 0
    with cluster.load(rate=None) as load:
        while hit.total() < KILLS:
            attempts += 1
            assert attempts < 3 * KILLS, f"{attempts} kills, and only {hit.total()} hit an upload"
            victim, torn = kill_during_upload(
                cluster, folder_archive, lambda: write_wal(cluster, SEGMENTS_AT_ONCE * SEGMENT_MIB)
            )
            if torn:
                hit["being written" if any("#" in name for name in torn) else "without a receipt"] += 1
            # By turns another one takes its place, and it comes back before anybody has missed it.
            if attempts % 2:
                wait_for_archiver(cluster, other_than=victim)
                failovers += 1
            cluster.safekeepers[victim].start()
            load.wait_for_commits(5)
            wait_until_archived(cluster, timeout_s=120)
    assert failovers >= KILLS // 3
    segments = assert_is_archived(cluster, folder_archive)
    assert segments >= attempts * SEGMENTS_AT_ONCE
    assert {name for name in without_receipt(folder_archive) if "#" not in name} == set()
    assert len(archivers_of(cluster)) == 1
    print(
        f"{attempts} kills, {dict(hit)}, {failovers} failovers; {segments} segments of {SEGMENT_MIB} MiB archived, "
        f"{len(load.acknowledged)} commits acknowledged"
    )
