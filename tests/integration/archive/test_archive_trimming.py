"""Small disks: old WAL goes once it is archived, and each member that needs it gets it nevertheless."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from safekeeper.base.lsn import Lsn, parse_lsn, segment_name
from tests.integration.archive.archive_cluster_fixtures import (
    archive_options,
    assert_is_archived,
    disk_usage,
    log_begin_lsn,
    metric,
    wait_for_archiver,
    write_wal,
)
from tests.integration.archive.archive_fixtures import Archive
from tests.integration.archive.object_stores import LocalFolder
from tests.integration.cluster.cluster_fixtures import MIB, Commit, Gated, field_of, wait_for
from tests.integration.conftest import NEWEST, NewGated, make_gated
from tests.integration.serving.serve_fixtures import (
    ReceiveWal,
    WireClient,
    assert_equal_to_primary,
    feeder,
    standby_of,
    wait_for_everything,
)
from tests.scratch import scratch_folder
from tests.waiting import NotThereYet
from walproxy.lab.cluster.local_standby import current_lsn
from walproxy.postgres.local_server import ServerBinaries

pytestmark = NEWEST

LIMIT_BYTES = 6 * MIB
SMALL = ("-c", "wal_keep=0", "-c", f"wal_limit={LIMIT_BYTES >> 20}MiB")
CATCHUP_S = 60.0


class Trimmed(NamedTuple):
    """A cluster whose safekeepers keep little, and its archive."""

    cluster: Gated
    archive: Archive


@pytest.fixture(scope="module")
def shared_trimmed(servers: dict[int, ServerBinaries], major: int, small_template: Path) -> Iterator[Trimmed]:
    with LocalFolder() as server, scratch_folder() as path:
        archive = Archive(server, "main", server.place("main"))
        options = archive_options(archive.place, *SMALL)
        with make_gated(servers[major], small_template, path, {}, safekeeper_options=options) as cluster:
            yield Trimmed(cluster.start_gated(), archive)


@pytest.fixture
def trimmed(shared_trimmed: Trimmed) -> Iterator[Trimmed]:
    """A cluster of which much WAL is in the archive only. A test leaves it well, and its archive whole."""
    cluster, archive = shared_trimmed
    if oldest_lsn(cluster, 1) == log_begin_lsn(cluster):
        write_wal(cluster, 3 * LIMIT_BYTES // MIB)
    yield shared_trimmed
    cluster.heal()
    assert_is_archived(cluster, archive)


def oldest_lsn(cluster: Gated, safekeeper_id: int) -> Lsn:
    """Return where the WAL of a safekeeper begins."""
    wal_begin_lsn = field_of(cluster.safekeepers[safekeeper_id], "wal_begin_lsn")
    if wal_begin_lsn is None:
        raise NotThereYet(f"safekeeper {safekeeper_id} does not answer")
    return parse_lsn(wal_begin_lsn)


def wait_until_trimmed(cluster: Gated, *safekeeper_ids: int) -> None:
    """Wait until the WAL of these safekeepers, by default of all, takes no more room than it may."""
    for i in safekeeper_ids or tuple(cluster.safekeepers):
        wait_for(
            lambda i=i: disk_usage(cluster.wal_directory(i)) <= LIMIT_BYTES,  # type: ignore[misc]
            f"the WAL of safekeeper {i} is within its limit",
        )


def test_wal_that_is_archived_goes_and_the_disks_stay_within_the_limit_also_with_a_member_down(
    trimmed: Trimmed,
) -> None:
    cluster = trimmed.cluster
    with cluster.load() as load:
        wait_until_trimmed(cluster)
        away = cluster.safekeepers[3]
        away.kill9()
        ends_lsn = cluster.flush_lsn_of(1)
        write_wal(cluster, 2 * LIMIT_BYTES // MIB)
        load.wait_for_commits(10)
        wait_until_trimmed(cluster, 1, 2)
        # What the absent one lacks is gone, too.
        assert min(oldest_lsn(cluster, i) for i in (1, 2)) > ends_lsn
        away.start()
        # It skips to where the WAL of the others begins, and counts from then on.
        wait_for(lambda: cluster.member(3)["state"] == "streaming", "it is fed", CATCHUP_S)
        wait_for(lambda: cluster.flush_lsn_of(3) >= cluster.flush_lsn_of(1) - MIB, "it has caught up", CATCHUP_S)
        assert oldest_lsn(cluster, 3) > ends_lsn
        cluster.safekeepers[2].kill9()
        load.wait_for_commits(20)
        wait_for(lambda: field_of(away, "votes") is True, "it reports that it votes")
        cluster.safekeepers[2].start()


def test_standby_that_was_down_gets_from_the_archive_what_no_safekeeper_has(trimmed: Trimmed) -> None:
    cluster = trimmed.cluster
    with standby_of(cluster, 1, 2) as standby, cluster.load() as load:
        wait_for_everything(cluster, standby)
        left_lsn = current_lsn(cluster.postgres)
        standby.stop("fast")
        cluster.postgres.execute(
            "CREATE TABLE missed AS SELECT i, repeat('m', 400) AS filler FROM generate_series(1, 20000) AS i"
        )
        write_wal(cluster, 2 * LIMIT_BYTES // MIB)
        wait_until_trimmed(cluster)
        wait_for(lambda: min(oldest_lsn(cluster, i) for i in (1, 2)) > left_lsn + MIB, "what it needs is gone")
        before = [metric(cluster.safekeepers[i], "read_through_segments_total") for i in (1, 2)]
        standby.start()
        load.wait_for_commits(20)
        load.stop()
        assert_equal_to_primary(cluster, standby)
        assert feeder(cluster, standby) in (1, 2)
        after = [metric(cluster.safekeepers[i], "read_through_segments_total") for i in (1, 2)]
        assert sum(after) - sum(before) > LIMIT_BYTES // MIB
        assert "has already been removed" not in standby.log_path.read_text()
        cluster.postgres.execute("DROP TABLE missed")


def test_readers_get_the_whole_log_from_its_first_byte_on(trimmed: Trimmed) -> None:
    cluster, archive = trimmed
    wait_until_trimmed(cluster)
    begin_lsn = log_begin_lsn(cluster)
    assert oldest_lsn(cluster, 2) > begin_lsn + cluster.segment_size
    with WireClient(cluster, 2, begin_lsn) as client:
        client.wait_for(cluster.primary_flush_lsn())
        client.assert_equal_to_primary(cluster)
    # pg_receivewal goes on behind the segments that it has: the first one of the archive.
    receiver = ReceiveWal(cluster.postgres.binaries, cluster, 1, cluster.directory / "received")
    first = segment_name(1, begin_lsn, cluster.segment_size)
    (receiver.folder / first).write_bytes(archive.read(f"wal/{first[:16]}/{first}"))
    with receiver, cluster.load() as load:
        load.wait_for_commits(20)
        load.stop()
        receiver.wait_for(cluster, cluster.commit_lsn_of_all())
        received = sorted(path.name for path in receiver.folder.iterdir())
        assert received[0] == first and len(received) > 2 * LIMIT_BYTES // MIB
        receiver.stop()


def test_wiped_safekeeper_is_fed_from_the_oldest_wal_and_does_not_count(
    folder_archive: Archive, new_gated: NewGated
) -> None:
    cluster = new_gated(safekeeper_options=archive_options(folder_archive.place, *SMALL)).start_gated()
    with cluster.load() as load:
        write_wal(cluster, 2 * LIMIT_BYTES // MIB)
        wait_until_trimmed(cluster)
        begin_lsn = log_begin_lsn(cluster)
        cluster.safekeepers[3].kill9()
        shutil.rmtree(cluster.safekeeper_directory(3))
        cluster.safekeepers[3].start()
        wait_for(lambda: cluster.member(3)["state"] == "learner", "it is fed", CATCHUP_S)
        cluster.commit_lsn_of_all()
        assert oldest_lsn(cluster, 3) > begin_lsn
        cluster.safekeepers[2].kill9()
        load.assert_stalled()
        cluster.safekeepers[2].start()
        load.wait_for_commits(10)
        wait_until_trimmed(cluster)
    assert_is_archived(cluster, folder_archive)


def test_without_its_archive_nothing_goes_and_it_is_reported_long_before_the_disk_is_full(
    folder_archive: Archive, new_gated: NewGated
) -> None:
    cluster = new_gated(safekeeper_options=archive_options(folder_archive.place, *SMALL)).start_gated()
    archiver_id = wait_for_archiver(cluster)
    archiver = cluster.safekeepers[archiver_id]
    place = Path(folder_archive.place.url)
    with cluster.load() as load:
        place.rename(place.with_name("aside"))
        place.write_text("in the way")
        begin_lsn = oldest_lsn(cluster, 1)
        write_wal(cluster, 2 * LIMIT_BYTES // MIB)
        wait_for(lambda: metric(archiver, "wal_over_limit") == 1, "there is more than there should be")
        wait_for(lambda: "more than the 6 MiB of wal_limit" in archiver.log_path.read_text(), "that is logged")
        assert metric(archiver, "wal_bytes") > LIMIT_BYTES == metric(archiver, "wal_limit_bytes")
        # Where its WAL begins never goes back, so the wait is for the answer only.
        wait_for(
            lambda: oldest_lsn(cluster, archiver_id) - begin_lsn < 2 * MIB,
            "nothing was removed that is not in the archive",
        )
        load.wait_for_commits(20)
        place.unlink()
        place.with_name("aside").rename(place)
        wait_until_trimmed(cluster)
        wait_for(lambda: metric(archiver, "wal_over_limit") == 0, "that is over")
        Commit(cluster.postgres).wait()
    assert_is_archived(cluster, folder_archive)
