"""Recovery across a promotion, from what an archive has of both timelines."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from safekeeper.base.lsn import format_lsn
from tests.integration.conftest import NEWEST
from tests.integration.restore.restore_fixtures import Past, recovered, restore, rows, story, up_to
from walproxy.lab.cluster.local_standby import current_lsn, make_standby, wait_until_replayed
from walproxy.postgres.local_server import ServerBinaries

pytestmark = NEWEST


@pytest.fixture(scope="module")
def past(servers: dict[int, ServerBinaries], major: int) -> Iterator[Past]:
    """Five rows on timeline 1; then a standby is promoted and has two more."""
    with story(servers[major]) as made:
        first = made.server
        standby = make_standby(first, made.folder / "standby", "standby", settings={"wal_keep_size": "1GB"}).start()
        try:
            made.archive_up_to(current_lsn(first))
            wait_until_replayed(standby, current_lsn(first))
            first.stop()
            standby.promote()
            made.server = standby
            made.add_steps(1)
            made.add_steps(1, switch=False)
            made.archive_up_to(made.flush_lsn())
            yield made
        finally:
            standby.close()
            made.server = first


@pytest.fixture
def target(past: Past) -> Iterator[Path]:
    path = past.folder / "restored"
    yield path
    shutil.rmtree(path, ignore_errors=True)


def test_the_latest_timeline_is_followed(past: Past, target: Path) -> None:
    restore(past, past.folder / "base", target, "--archive", past.archive)
    with recovered(past.server.binaries, target) as server:
        assert rows(server) == up_to(7)
        assert server.execute("SELECT timeline_id FROM pg_control_checkpoint()") >= [(3,)]


@pytest.mark.nightly
def test_a_point_before_the_promotion_is_reached_on_either_timeline(past: Past, target: Path) -> None:
    lsn = format_lsn(past.steps[2].end_lsn)
    for timeline in ("latest", "current"):
        words = ("--target-lsn", lsn, "--target-timeline", timeline)
        restore(past, past.folder / "base", target, "--archive", past.archive, *words)
        with recovered(past.server.binaries, target) as server:
            assert rows(server) == up_to(3)
        shutil.rmtree(target)
