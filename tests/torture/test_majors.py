"""What must hold on each major version from 13 to 18: quorum, standbys, promotion, and what the decoder finds.

`make majors` fetches the servers that no other package has (tests/torture/majors.py); a version that is missing is left
out, with a line that says so. What depends on the version more than these corners do is tested in tests/integration on
the versions that are installed.
"""

import tempfile
from pathlib import Path

import pytest

from tests.integration.cluster.cluster_fixtures import Commit
from tests.integration.conftest import NewGated
from tests.integration.failover.discarded_story import make_server, verify_report, write_tail
from tests.integration.failover.test_ready_to_promote import two_standbys_of_hung_primaries
from tests.integration.restore.promotion_matrix import (
    ALIVE,
    ARCHIVES,
    FOLDERS,
    FREE,
    HANGING,
    IN_USE,
    LOCAL,
    REFUSING,
    dynasty,
)
from tests.integration.serving.serve_fixtures import assert_equal_to_primary, wait_for_feeder, wait_until_promotable
from tests.integration.serving.test_serve_promotion import wait_until_tli_is_2
from tests.pipeline.decoder_comparison import Compared, contradictions
from tests.pipeline.pg_waldump import stats
from tests.pipeline.wal_maker import make_wal
from tests.scratch import scratch_folder
from tests.torture.majors import NEWEST, OLDEST, all_servers
from walproxy.failover.discarded_report import discarded_report
from walproxy.postgres.binaries import ServerBinaries

MAJORS = range(OLDEST, NEWEST + 1)
SERVERS = all_servers()
DECODER_ROWS = 1500


@pytest.fixture(scope="session")
def servers() -> dict[int, ServerBinaries]:
    return SERVERS


@pytest.fixture(scope="session", params=MAJORS, ids=lambda major: f"pg{major}")
def major(request: pytest.FixtureRequest) -> int:
    if request.param not in SERVERS:
        pytest.skip(f"no PostgreSQL {request.param} on this machine: make majors")
    return int(request.param)


def test_commits_survive_the_loss_of_a_safekeeper_and_of_the_primary(new_gated: NewGated) -> None:
    cluster = new_gated(candidates=["heir"]).start_gated()
    heir = cluster.add_standby("heir")
    second = cluster.add_standby("second")
    with cluster.load(rate=None) as load:
        load.wait_for_commits(50)
        cluster.safekeepers[2].kill9()
        load.wait_for_commits(50)
        cluster.safekeepers[3].kill9()
        load.assert_stalled()
        waiting = Commit(cluster.postgres)
        cluster.safekeepers[2].start()
        waiting.wait()
        cluster.safekeepers[3].start()
        wait_for_feeder(cluster, heir)
        load.wait_for_commits(50)
        cluster.postgres.kill9()
        wait_until_promotable(cluster, heir)
        cluster.promote("heir")
        wait_until_tli_is_2(cluster)
        load.wait_for_commits(50)
    assert_equal_to_primary(cluster, second)


@pytest.mark.parametrize("wal_level", ["replica", "logical"])
def test_the_discarded_report_is_what_the_clients_did(
    servers: dict[int, ServerBinaries], major: int, wal_level: str
) -> None:
    with scratch_folder() as folder, make_server(servers[major], folder, wal_level) as server:
        book = write_tail(server)
        verify_report(discarded_report(server.pg_wal, book.from_lsn), book)


def test_a_standby_whose_primary_hangs_is_made_ready_for_its_promotion(new_gated: NewGated) -> None:
    two_standbys_of_hung_primaries(new_gated)


@pytest.mark.timeout(1800)
def test_a_promotion_comes_to_its_end_whatever_its_sources_answer(
    servers: dict[int, ServerBinaries], major: int
) -> None:
    """The corners, over three timelines."""
    with dynasty(servers[major]) as servers_in_turn:
        for archive, folder in ((LOCAL, FREE), (REFUSING, IN_USE), (HANGING, FREE), (ALIVE, IN_USE)):
            servers_in_turn.promote(archive, folder)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("archive", ARCHIVES)
@pytest.mark.parametrize("major", [NEWEST], indirect=True)
def test_every_state_of_the_sources_lets_promotions_from_three_timelines_end(
    servers: dict[int, ServerBinaries], major: int, archive: str, folder: str
) -> None:
    with dynasty(servers[major]) as servers_in_turn:
        for _ in range(3):
            servers_in_turn.promote(archive, folder)


@pytest.mark.timeout(1800)
def test_the_decoder_finds_what_pg_waldump_finds(servers: dict[int, ServerBinaries], major: int) -> None:
    """Where there is none, it finds records of every kind that do not contradict each other, on every timeline."""
    with tempfile.TemporaryDirectory(prefix="walproxy-torture-") as folder:
        made = make_wal(servers[major], Path(folder) / "wal", segment_mib=1, rows=DECODER_ROWS)
        compared = Compared(made)
        kinds = compared.rows(1).sums_by_operation()
        assert len(kinds) > 80
        assert [kind for kind in kinds if "UNKNOWN" in kind[1]] == []
        assert compared.rows(1).majors == compared.rows(2).majors == {major}
        if (servers[major].bin_directory / "pg_waldump").exists():
            assert compared.differences(1) == []
            assert compared.differences(2) == []
            assert kinds == stats(made.binaries, made.folder, 1, made.begin_lsn)
        else:
            assert contradictions(compared.rows(1)) == []
            assert contradictions(compared.rows(2)) == []
