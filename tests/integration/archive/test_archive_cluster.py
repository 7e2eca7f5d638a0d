"""Clusters that archive: what comes to the archive, and what happens when the archiver or the archive is away."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from safekeeper.base.lsn import Lsn, parse_lsn, segment_start
from tests.integration.archive.archive_cluster_fixtures import (
    archive_options,
    archive_status,
    archived_lsn,
    archived_wal,
    archivers_of,
    assert_is_archived,
    kill_during_upload,
    metric,
    wait_for_archiver,
    wait_until_archived,
    write_wal,
)
from tests.integration.archive.archive_fixtures import SYSTEM_ID, Archive
from tests.integration.archive.object_stores import LocalFolder
from tests.integration.cluster.cluster_fixtures import Commit, Gated, field_of, wait_for
from tests.integration.conftest import NEWEST, NewGated, make_gated
from tests.scratch import scratch_folder
from walproxy.lab.cluster.local_cluster import LocalProcess
from walproxy.postgres.local_server import ServerBinaries

pytestmark = NEWEST

IMPATIENT = ("-c", "response_timeout=1")
NEVER_S = 3600.0
KILLS = 3


@pytest.fixture(scope="module")
def shared_archive(
    servers: dict[int, ServerBinaries], major: int, small_template: Path
) -> Iterator[tuple[Gated, Archive]]:
    with LocalFolder() as server, scratch_folder() as path:
        archive = Archive(server, "main", server.place("main"))
        options = archive_options(archive.place)
        with make_gated(servers[major], small_template, path, {}, safekeeper_options=options) as cluster:
            cluster.proxies = [cluster.make_proxy("walproxy", *IMPATIENT)]
            yield cluster.start_gated(), archive


@pytest.fixture
def archived(shared_archive: tuple[Gated, Archive]) -> Iterator[tuple[Gated, Archive]]:
    """A cluster and its archive. Whatever a test does, in the end the archive has everything, and is whole."""
    cluster, archive = shared_archive
    yield cluster, archive
    cluster.heal()
    assert_is_archived(cluster, archive)


def test_what_is_committed_comes_to_the_archive_and_is_the_primary_s_byte_for_byte(
    archived: tuple[Gated, Archive],
) -> None:
    cluster, archive = archived
    with cluster.load() as load:
        write_wal(cluster, 4)
        load.wait_for_commits(50)
    assert assert_is_archived(cluster, archive) >= 4
    # The open segment is there once: what it had before is removed, and so is what a whole segment supersedes.
    open_lsn = segment_start(wait_until_archived(cluster) - 1, cluster.segment_size)
    wait_for(lambda: len(_partials(cluster, archive)) == 1, "there is one partial file")
    assert _partials(cluster, archive)[0] >= open_lsn


def _partials(cluster: Gated, archive: Archive) -> list[int]:
    """Return where the partial files in an archive begin."""
    return [found.begin_lsn for found in archived_wal(archive, cluster.segment_size) if found.is_partial]


def test_open_segment_is_archived_on_demand_and_when_the_archiver_is_stopped(
    folder_archive: Archive, new_gated: NewGated
) -> None:
    options = archive_options(folder_archive.place, partial_interval_s=NEVER_S)
    cluster = new_gated(safekeeper_options=options).start_gated()
    archiver = cluster.safekeepers[wait_for_archiver(cluster)]
    # One that begins to archive brings the open segment at once; from then on it waits.
    wait_for(lambda: archived_lsn(cluster) > 0, "it has begun")
    for _ in range(2):
        end_lsn = _commit_of_the_archiver(cluster, archiver)
        assert archived_lsn(cluster) < end_lsn
        assert archiver.pid is not None
        os.kill(archiver.pid, signal.SIGUSR1)
        wait_until_archived(cluster, end_lsn)
    end_lsn = _commit_of_the_archiver(cluster, archiver)
    assert archived_lsn(cluster) < end_lsn
    assert archiver.stop() == 0
    assert max(found.end_lsn for found in archived_wal(folder_archive, cluster.segment_size)) >= end_lsn
    archiver.start()
    assert_is_archived(cluster, folder_archive)


def _commit_of_the_archiver(cluster: Gated, archiver: LocalProcess) -> Lsn:
    """Commit, and wait until the archiver has the commit; return where that ends."""
    Commit(cluster.postgres).wait()
    end_lsn = cluster.commit_lsn_of_all()
    wait_for(lambda: parse_lsn(field_of(archiver, "commit_lsn") or "0/0") >= end_lsn, "the archiver has the commit")
    return end_lsn


def test_archiver_that_is_killed_during_uploads_leaves_no_hole_whether_it_comes_back_or_another_goes_on(
    archived: tuple[Gated, Archive],
) -> None:
    cluster, archive = archived
    hits = 0
    with cluster.load() as load:
        for kill in range(4 * KILLS):
            victim, hit = kill_during_upload(cluster, archive, lambda: write_wal(cluster, 2))
            hits += bool(hit)
            if kill == 0:
                assert wait_for_archiver(cluster, other_than=victim) != victim
            cluster.safekeepers[victim].start()
            load.wait_for_commits(5)
            wait_until_archived(cluster)
            if hits == KILLS:
                break
    assert hits == KILLS


@pytest.mark.nightly
def test_archiver_that_hangs_is_replaced_and_makes_no_trouble_when_it_goes_on(archived: tuple[Gated, Archive]) -> None:
    cluster, _ = archived
    with cluster.load() as load:
        before = wait_for_archiver(cluster)
        write_wal(cluster, 1)
        cluster.safekeepers[before].pause()
        after = wait_for_archiver(cluster, other_than=before)
        write_wal(cluster, 2)
        wait_until_archived(cluster)
        cluster.safekeepers[before].resume()
        wait_for(lambda: archivers_of(cluster) == [after], "it has received that another one archives")
        load.wait_for_commits(20)


def test_archiver_goes_on_when_the_proxy_is_killed_and_is_the_archiver_of_the_next_one(
    archived: tuple[Gated, Archive],
) -> None:
    cluster, _ = archived
    with cluster.load() as load:
        before = wait_for_archiver(cluster)
        if before == min(cluster.safekeepers):
            # That one would be the choice of a leader without reports, too.
            cluster.safekeepers[before].kill9()
            before = wait_for_archiver(cluster, other_than=before)
            cluster.heal()
        write_wal(cluster, 1)
        cluster.proxy.kill9()
        # What was committed last is archived although no leader reports it.
        committed_lsn = max(cluster.flush_lsn_of(i) for i in cluster.safekeepers)
        assert _archivers_of_all(cluster) == [before]
        wait_for(lambda: archive_status(cluster, before)["lag_bytes"] == 0, "all that it may read is archived")
        cluster.proxy.start()
        load.wait_for_commits(20)
        wait_for(lambda: cluster.status()["archive"]["archiver"] is not None, "the next one has named an archiver")
        assert cluster.status()["archive"]["archiver"] == before
        wait_until_archived(cluster)
        assert _archivers_of_all(cluster) == [before]
        assert archived_lsn(cluster) > committed_lsn - cluster.segment_size


def _archivers_of_all(cluster: Gated) -> list[int]:
    """Return the safekeepers that report that they archive, once each has answered."""
    answers: list[Any] = []

    def all_answer() -> bool:
        answers[:] = [field_of(safekeeper, "archive") for safekeeper in cluster.safekeepers.values()]
        return None not in answers

    wait_for(all_answer, "each safekeeper answers")
    return [i for i, answer in zip(cluster.safekeepers, answers, strict=True) if answer["archiver"]]


def test_archive_that_is_away_costs_no_commit_is_reported_and_is_filled_when_it_is_back(
    archived: tuple[Gated, Archive],
) -> None:
    cluster, archive = archived
    archiver = wait_for_archiver(cluster)
    wait_until_archived(cluster)
    place, aside = Path(archive.place.url), Path(archive.place.url + ".aside")
    log_begin = cluster.safekeepers[archiver].log_path.stat().st_size
    with cluster.load() as load:
        place.rename(aside)
        place.write_text("in the way")
        try:
            write_wal(cluster, 3)
            load.wait_for_commits(50)
            wait_for(lambda: archive_status(cluster, archiver)["problem"] != "", "it reports what is wrong")
            assert metric(cluster.safekeepers[archiver], "archive_problem") == 1
            wait_for(
                lambda: metric(cluster.safekeepers[archiver], "unarchived_bytes") > 2 * cluster.segment_size,
                "it reports how much is not archived",
            )
            load.wait_for_commits(50)
        finally:
            place.unlink()
            aside.rename(place)
        wait_until_archived(cluster)
        wait_for(lambda: metric(cluster.safekeepers[archiver], "archive_problem") == 0, "nothing is wrong now")
    logged = cluster.safekeepers[archiver].log_path.read_text()[log_begin:]
    assert "cannot archive: " in logged and "Traceback" not in logged
    assert logged.index("archiving resumed") > logged.index("cannot archive: ")


def test_archive_of_another_cluster_is_refused_in_one_line_and_commits_go_on(
    folder_archive: Archive, new_gated: NewGated
) -> None:
    folder_archive.uploader().claim()
    before = folder_archive.contents()
    cluster = new_gated(safekeeper_options=archive_options(folder_archive.place)).start_gated()
    own_system_id = str(cluster.scalar("SELECT system_identifier FROM pg_control_system()"))
    with cluster.load() as load:
        write_wal(cluster, 2)
        load.wait_for_commits(20)
        for safekeeper_id, safekeeper in cluster.safekeepers.items():
            wait_for(lambda i=safekeeper_id: str(SYSTEM_ID) in archive_status(cluster, i)["problem"], "it is refused")  # type: ignore[misc]
            # A retry logs it again only after a while.
            (logged,) = _complaints(safekeeper.log_path)
            assert " ERROR " in logged
            assert folder_archive.place.url in logged and own_system_id in logged and str(SYSTEM_ID) in logged
            wait_for(lambda s=safekeeper: metric(s, "archive_errors_total") > 2, "it was tried again")  # type: ignore[misc]
        load.wait_for_commits(20)
    assert all(len(_complaints(safekeeper.log_path)) == 1 for safekeeper in cluster.safekeepers.values())
    assert folder_archive.contents() == before


def _complaints(log_path: Path) -> list[str]:
    return [line for line in log_path.read_text().splitlines() if "cannot archive" in line]
