"""Safekeepers as an input, with a real cluster: all of its committed WAL, whoever of them lives.

One story in one cluster, whose safekeepers keep little themselves and read through to an archive.
"""

import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import Lsn, parse_lsn
from tests.cluster_templates import cluster_template, init_by_copying
from tests.integration.archive.archive_cluster_fixtures import log_begin_lsn, write_wal
from tests.integration.cluster.cluster_fixtures import CLUSTER_SETTINGS, MIB, Gated, wait_for
from tests.integration.cluster.cluster_fixtures import field_of as said
from tests.integration.serving.serve_fixtures import wait_for_everything, wait_until_promotable
from tests.scratch import scratch_folder
from walproxy.pipeline.input.opening import open_input
from walproxy.pipeline.input.pieces import PlannedPiece, decode_piece, plan_pieces, safe_end
from walproxy.pipeline.input.wal_input import WalInput
from walproxy.postgres.local_server import LocalPostgres, find_servers
from walproxy.wal_sources.safekeeper import SafekeeperSource
from walproxy.wal_sources.source import Extent, LogPath, Origin, SourceUnavailable, WalMissing

LIMIT_BYTES = 6 * MIB
SMALL = ("-c", "wal_keep=0", "-c", f"wal_limit={LIMIT_BYTES >> 20}MiB", "-c", "archive_partial_interval=0.5")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Gated]:
    """A cluster of which most WAL is in the archive only."""
    binaries = max(find_servers().items())[1]
    with scratch_folder() as folder:
        server = LocalPostgres(binaries, folder / "primary", settings={**CLUSTER_SETTINGS, "wal_keep_size": "1GB"})
        init_by_copying(server, cluster_template(server.binaries, 1))
        options = ("--archive", str(folder / "archive"), *SMALL)
        with Gated(folder, server, candidates=["heir"], safekeeper_options=options) as made:
            made.start_gated()
            write_wal(made, 24)
            wait_for(lambda: all(begin_of(made, i) > 5 * MIB for i in made.safekeepers), "old WAL is removed")
            yield made


def begin_of(cluster: Gated, safekeeper_id: int) -> Lsn:
    """Return where the WAL begins that a safekeeper has itself."""
    return parse_lsn(said(cluster.safekeepers[safekeeper_id], "wal_begin_lsn"))


def primarys_wal(cluster: Gated, path: LogPath, begin_lsn: Lsn, end_lsn: Lsn) -> bytes:
    """Return the same bytes out of the primary's own pg_wal."""
    return open_input(str(cluster.postgres.pg_wal)).read(path, begin_lsn, end_lsn).tobytes()


def starts(wal_input: WalInput, path: LogPath, pieces: list[PlannedPiece]) -> list[int]:
    """Return where the records of pieces begin."""
    return [int(lsn) for piece in pieces for lsn in decode_piece(wal_input, path, piece).lsn]


def wait_for_extent(wal_input: WalInput, path: LogPath, end_lsn: Lsn) -> Extent:
    """Wait until the safekeepers know that the log is committed up to `end_lsn`; return what there is, in one piece."""
    wal_input.extents(path)  # The first time it looks for the beginning of the log, which is no part of the wait.
    wait_for(lambda: wal_input.extents(path)[-1].end_lsn >= end_lsn, "the commits are seen", 2.0)
    (extent,) = wal_input.extents(path)
    return extent


def test_committed_wal_is_read_from_its_first_byte_though_the_safekeepers_have_removed_it(cluster: Gated) -> None:
    wal_input = pickle.loads(pickle.dumps(open_input(cluster.wal_url())))
    assert wal_input.origin() == Origin(int(cluster.scalar("SELECT system_identifier FROM pg_control_system()")), MIB)
    path = wal_input.log_path()
    assert path == LogPath(1, (), MIB)
    extent = wait_for_extent(wal_input, path, cluster.commit_lsn_of_all())
    assert extent.begin_lsn == log_begin_lsn(cluster)
    assert wal_input.extents(path)[0].end_lsn <= cluster.primary_flush_lsn()
    assert wal_input.read(path, *extent).tobytes() == primarys_wal(cluster, path, *extent)
    inside = Extent(extent.begin_lsn + MIB + 5, extent.begin_lsn + MIB + 77)
    assert wal_input.read(path, *inside).tobytes() == primarys_wal(cluster, path, *inside)
    end_lsn = safe_end(wal_input, path, extent.begin_lsn, extent.end_lsn)
    pieces = plan_pieces(path, [extent], None, end_lsn, whole_until_lsn=end_lsn)
    of_primary = open_input(str(cluster.postgres.pg_wal))
    assert of_primary.extents(path)[-1].end_lsn >= extent.end_lsn, "the server's open segment was cut short"
    assert starts(wal_input, path, pieces) == starts(of_primary, path, pieces) != []


def test_commits_are_seen_at_once(cluster: Gated) -> None:
    wal_input = open_input(cluster.wal_url())
    path = wal_input.log_path()
    wal_input.extents(path)  # It knows where the log begins from here on.
    for number in range(3):
        cluster.postgres.execute("INSERT INTO ledger VALUES (9, %s)", number)
        lsn = cluster.commit_lsn_of_all()
        wait_for_extent(wal_input, path, lsn)


def test_another_safekeeper_goes_on_from_the_byte_at_which_one_died(
    cluster: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamed = SafekeeperSource.stream
    begins_lsn: list[Lsn] = []

    def die_after_the_first_bytes(source: SafekeeperSource, *arguments: Any) -> Iterator[memoryview]:
        begins_lsn.append(arguments[1])
        for count, piece in enumerate(streamed(source, *arguments)):
            yield piece
            if count == 0 and len(begins_lsn) == 1:
                cluster.safekeepers[2].kill9()

    monkeypatch.setattr(SafekeeperSource, "stream", die_after_the_first_bytes)
    wal_input = open_input(cluster.wal_url(2, 3))
    path = wal_input.log_path()
    (extent,) = wal_input.extents(path)
    # What a socket's buffers still hold is read, too: the log is much longer.
    assert wal_input.read(path, *extent).tobytes() == primarys_wal(cluster, path, *extent)
    (first_lsn, second_lsn) = begins_lsn
    assert first_lsn == extent.begin_lsn < second_lsn < extent.end_lsn
    # And the next question is answered by the one that is left.
    assert wal_input.extents(path)[-1].end_lsn >= extent.end_lsn
    cluster.heal()


def test_when_nobody_answers_or_has_it_that_is_said(cluster: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    wal_input = open_input(cluster.wal_url(1))
    path = wal_input.log_path()
    extent = wal_input.extents(path)[-1]
    monkeypatch.setattr("walproxy.wal_sources.safekeeper_group._PATIENCE_S", 0.5)
    far_lsn = extent.end_lsn + 100 * MIB
    with pytest.raises(
        SourceUnavailable, match=r"the safekeeper 127\..* has committed WAL of timeline 1 only up to 0/"
    ):
        wal_input.read(path, extent.begin_lsn, far_lsn)
    with pytest.raises(WalMissing, match=r"the safekeeper .* has no timeline 7: it has 1"):
        wal_input.log_path(7)
    with pytest.raises(WalMissing, match=r"has no 000000010000000000000000 with the WAL from 0/0 to 0/64: the safe"):
        wal_input.read(path, 0, 100)
    cluster.safekeepers[1].kill9()
    with pytest.raises(SourceUnavailable, match=r"the safekeeper .*refused"):
        wal_input.extents(path)
    cluster.heal()
    # A safekeeper that was killed serves WAL once a proxy has told it what is committed.
    killed = cluster.safekeepers[1]
    wait_for(lambda: parse_lsn(said(killed, "commit_lsn") or "0/0") >= extent.end_lsn, "it knows of the commits")
    assert wal_input.extents(path)[-1].end_lsn >= extent.end_lsn


def test_the_log_is_followed_over_a_promotion(cluster: Gated) -> None:
    wal_input = open_input(cluster.wal_url())
    before = wal_input.log_path()
    heir = cluster.add_standby("heir")
    write_wal(cluster, 3)
    wait_for_everything(cluster, heir)
    cluster.postgres.stop()
    wait_until_promotable(cluster, heir)
    cluster.promote("heir")
    wait_for(lambda: said(cluster.proxy, "tli") == 2 and cluster.serving() is not None, "the log goes on")
    cluster.postgres.execute("INSERT INTO ledger VALUES (10, 1)")
    lsn = cluster.commit_lsn_of_all()
    path = wal_input.log_path()
    assert path.tli == 2
    ((_, fork_lsn),) = path.lineage
    assert path.common_end(before) == fork_lsn
    extent = wait_for_extent(wal_input, path, lsn)
    assert extent.begin_lsn == log_begin_lsn(cluster)
    assert lsn > fork_lsn
    begin_lsn = fork_lsn - 2 * MIB
    assert wal_input.read(path, begin_lsn, extent.end_lsn).tobytes() == primarys_wal(
        cluster, path, begin_lsn, extent.end_lsn
    )
    assert wal_input.extents(before) == [Extent(extent.begin_lsn, fork_lsn)]


def test_hosts_of_two_clusters_are_refused(cluster: Gated) -> None:
    binaries = max(find_servers().items())[1]
    with scratch_folder() as folder, LocalPostgres(binaries, folder / "other", settings=CLUSTER_SETTINGS) as other:
        other.init(wal_segment_mib=1)
        other.start()
        url = cluster.wal_url(1).replace("?", f",127.0.0.1:{other.port}?")
        with pytest.raises(
            ConfigurationError, match=r"has the WAL of the system .* name the safekeepers of one cluster$"
        ):
            open_input(url).extents(LogPath(2, (), MIB))
