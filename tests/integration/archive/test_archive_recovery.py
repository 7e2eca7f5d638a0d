"""Everything is lost but a base backup, the archive and perhaps one safekeeper: what comes back.

Each test restores the same remains in another way, and looks for every row whose commit was acknowledged.
"""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from safekeeper.base.lsn import Lsn, format_lsn
from tests.integration.archive.archive_cluster_fixtures import (
    archive_options,
    archive_status,
    archived_lsn,
    assert_is_archived,
    source_options,
    wait_for_archiver,
    wait_until_archived,
    write_wal,
)
from tests.integration.archive.archive_fixtures import Archive, credentials
from tests.integration.archive.disaster_fixtures import (
    assert_only_the_last_are_lost,
    back_up,
    committed_on_disk,
    flushed_on_disk,
    open_to_everybody,
    recovered_lsn,
    restored,
)
from tests.integration.archive.faulty_relay import FaultyRelay, answer
from tests.integration.archive.object_stores import LocalFolder, MotoServer, RcloneServer, Server
from tests.integration.cluster.cluster_fixtures import MIB, Commit, Gated, Load, wait_for
from tests.integration.conftest import NEWEST, NewGated, make_gated
from tests.integration.serving.serve_fixtures import dump, wait_for_feeder, wait_until_promotable
from tests.integration.serving.test_serve_promotion import kill_primary_with_waiters, wait_until_tli_is_2
from tests.scratch import scratch_folder
from walproxy.postgres.local_server import ServerBinaries

pytestmark = NEWEST

PARTIAL_INTERVAL_S = 1.0
# An upload takes its time, and so does a machine that has other things to do.
UPLOAD_S = 2.0
LARGEST_RECORD_BYTES = 2 * MIB


class Remains(NamedTuple):
    """What is left after a disaster, and what was promised before it.

    Attributes:
        survivor: the data folder of the only safekeeper that is left. It had acknowledged every commit.
        earlier: the load that was acknowledged before `time` and `time_lsn`.
        later: the load that began after that, and went on until the end.
    """

    binaries: ServerBinaries
    folder: Path
    archive: Archive
    backup: Path
    survivor: Path
    earlier: Load
    time: str
    time_lsn: Lsn
    later: Load

    def sources(self) -> tuple[str, ...]:
        return *source_options(self.archive.place), "--data-dir", str(self.survivor)


@pytest.fixture(scope="module")
def remains(servers: dict[int, ServerBinaries], major: int, small_template: Path) -> Iterator[Remains]:
    with LocalFolder() as server, scratch_folder() as path:
        archive = Archive(server, "main", server.place("main"))
        further = ("-c", "checkpoint_interval=1")
        options = archive_options(archive.place, *further, partial_interval_s=PARTIAL_INTERVAL_S)
        with make_gated(servers[major], small_template, path, {}, safekeeper_options=options) as cluster:
            yield _lose(cluster.start_gated(), archive)


def _lose(cluster: Gated, archive: Archive) -> Remains:
    """Run a cluster for a while; then lose it."""
    wait_for_archiver(cluster)
    backup = back_up(cluster.postgres, cluster.directory / "backup")
    # Two of three: each has every commit that is acknowledged.
    cluster.safekeepers[3].kill9()
    with_books = cluster.load().start()
    write_wal(cluster, 2)
    with_books.wait_for_commits(50)
    with_books.stop()
    cluster.postgres.execute("SELECT pg_create_restore_point('between')")
    [(between, time_lsn)] = cluster.postgres.execute(
        "SELECT clock_timestamp()::text, (pg_current_wal_insert_lsn() - '0/0')::bigint"
    )
    Commit(cluster.postgres, "SELECT pg_logical_emit_message(true, 'p', 'later')").wait()
    later = cluster.load().start()
    write_wal(cluster, 3)
    later.wait_for_commits(100)
    wait_for(lambda: archived_lsn(cluster) > time_lsn, "some of it is archived")
    survivor = cluster.safekeeper_directory(2)
    wait_for(lambda: committed_on_disk(survivor) > time_lsn, "the survivor's disk has some of it as committed")
    # For longer than the archive may be behind.
    began_at = time.monotonic()
    while time.monotonic() < began_at + PARTIAL_INTERVAL_S + UPLOAD_S + 1:
        later.wait_for_commits(10)
    for process in (cluster.proxy, *cluster.safekeepers.values()):
        process.kill9()
    cluster.postgres.kill9()
    later.stop()
    for lost in (cluster.postgres.data_directory, cluster.safekeeper_directory(1), cluster.safekeeper_directory(3)):
        shutil.rmtree(lost)
    open_to_everybody(archive.server.folder.parent)
    open_to_everybody(survivor)
    return Remains(
        cluster.postgres.binaries, cluster.directory, archive, backup, survivor, with_books, between, time_lsn, later
    )


def test_every_acknowledged_commit_comes_back_with_the_archive_and_the_one_safekeeper_that_is_left(
    remains: Remains,
) -> None:
    with restored(
        *(remains.binaries, remains.backup, remains.folder / "whole", *remains.sources(), "--uncommitted"),
        place=remains.archive.place,
    ) as server:
        assert remains.earlier.lost_in(server) == []
        assert remains.later.lost_in(server) == []
        assert recovered_lsn(server) <= flushed_on_disk(remains.survivor)


def test_without_uncommitted_wal_all_comes_back_that_the_safekeeper_had_as_committed(remains: Remains) -> None:
    commit_lsn, flush_lsn = committed_on_disk(remains.survivor), flushed_on_disk(remains.survivor)
    assert commit_lsn < flush_lsn
    options = ("--data-dir", str(remains.survivor))
    with restored(
        *(remains.binaries, remains.backup, remains.folder / "committed", *options), place=remains.archive.place
    ) as server:
        assert remains.earlier.lost_in(server) == []
        assert_only_the_last_are_lost(remains.later, server)
        # Recovery ends with the last record that is whole.
        assert commit_lsn - LARGEST_RECORD_BYTES < recovered_lsn(server) <= commit_lsn


def test_archive_alone_is_behind_by_no_more_than_the_interval_of_its_partial_files(remains: Remains) -> None:
    with restored(
        *(remains.binaries, remains.backup, remains.folder / "archive", *source_options(remains.archive.place)),
        place=remains.archive.place,
    ) as server:
        assert remains.earlier.lost_in(server) == []
        lost = assert_only_the_last_are_lost(remains.later, server)
        behind_s = remains.later.acknowledged[-1][0] - lost[0][0] if lost else 0.0
        print(f"the archive was {behind_s:.2f} s behind: {len(lost)} of {len(remains.later.acknowledged)} rows")
        assert behind_s < PARTIAL_INTERVAL_S + UPLOAD_S


@pytest.mark.nightly
def test_recovery_ends_at_a_time_an_lsn_or_a_name(remains: Remains) -> None:
    for what, value in (
        ("time", remains.time),
        ("lsn", format_lsn(remains.time_lsn)),
        ("name", "between"),
    ):
        target = (f"--target-{what}", value)
        with restored(
            *(remains.binaries, remains.backup, remains.folder / what, *remains.sources(), *target),
            place=remains.archive.place,
        ) as server:
            assert remains.earlier.lost_in(server) == []
            assert len(remains.later.lost_in(server)) == len(remains.later.acknowledged)


def test_archive_goes_on_behind_a_promoted_standby_and_restores_across_the_fork(
    folder_archive: Archive, new_gated: NewGated
) -> None:
    options = archive_options(folder_archive.place)
    cluster = new_gated(candidates=["heir"], safekeeper_options=options).start_gated()
    backup = back_up(cluster.postgres, cluster.directory / "backup")
    heir = cluster.add_standby("heir")
    with cluster.load() as load:
        write_wal(cluster, 2)
        wait_for_feeder(cluster, heir)
        load.wait_for_commits(20)
        kill_primary_with_waiters(cluster, 2)
        wait_until_promotable(cluster, heir)
        cluster.promote("heir")
        wait_until_tli_is_2(cluster)
        load.wait_for_commits(20)
        write_wal(cluster, 2)
    assert_is_archived(cluster, folder_archive)
    assert folder_archive.read("history/00000002.history") == (heir.pg_wal / "00000002.history").read_bytes()
    whole = dump(heir)
    end_lsn = wait_until_archived(cluster)
    open_to_everybody(folder_archive.server.folder.parent)
    with restored(
        *(heir.binaries, backup, cluster.directory / "again", *source_options(folder_archive.place)),
        place=folder_archive.place,
    ) as server:
        assert load.lost_in(server) == []
        assert dump(server) == whole
        # PostgreSQL writes whole pages out in the background: what is archived may end within a record.
        assert recovered_lsn(server) > end_lsn - LARGEST_RECORD_BYTES
        assert (server.pg_wal / "00000003.history").exists()


@pytest.mark.parametrize(
    "kind", [MotoServer, pytest.param(RcloneServer, marks=pytest.mark.nightly)], ids=lambda kind: kind.name
)
def test_archive_in_an_object_store_outlives_refusals_and_its_archiver_and_is_restored(
    new_gated: NewGated, kind: type[Server]
) -> None:
    with credentials(), kind() as server, FaultyRelay(server.endpoint) as relay:
        archive = Archive(server, "main", server.place("main", relay.endpoint))
        options = archive_options(archive.place, "-c", "archive_compression=zstd")
        cluster = new_gated(safekeeper_options=options).start_gated()
        backup = back_up(cluster.postgres, cluster.directory / "backup")
        with cluster.load() as load:
            write_wal(cluster, 2)
            archiver = wait_for_archiver(cluster)
            wait_until_archived(cluster)
            # Somebody has made it read-only.
            relay.when("PUT", "", answer(403, "AccessDenied"))
            write_wal(cluster, 1)
            load.wait_for_commits(50)
            wait_for(lambda: archive_status(cluster, archiver)["problem"] != "", "it reports what is wrong")
            assert "AccessDenied" in archive_status(cluster, archiver)["problem"]
            relay.clear()
            wait_until_archived(cluster)
            cluster.safekeepers[archiver].kill9()
            write_wal(cluster, 1)
            wait_for_archiver(cluster, other_than=archiver)
            wait_until_archived(cluster)
            cluster.safekeepers[archiver].start()
        assert_is_archived(cluster, archive)
        with restored(
            *(cluster.postgres.binaries, backup, cluster.directory / "again", *source_options(archive.place)),
            place=archive.place,
        ) as again:
            assert load.lost_in(again) == []
