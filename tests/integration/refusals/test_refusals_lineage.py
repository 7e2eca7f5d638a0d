"""Primaries that are not the right one (S10), and timelines that fit or do not (S9): exit code 4, nothing touched.

One cluster serves all tests that end in a refusal, since a refusal changes nothing; what changes something comes with
a cluster of its own.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from safekeeper.base.errors import EXIT_CONFIGURATION, EXIT_PRIMARY_REFUSED
from safekeeper.base.lsn import format_lsn, parse_lsn
from tests.integration.conftest import MOSTLY_NEWEST, NEWEST, NewStand
from tests.integration.refusals.refusal_fixtures import (
    Stand,
    end_of,
    log_of,
    make_server,
    make_stand,
    only_line,
    run_walproxy,
    wait_for,
)
from tests.scratch import scratch_folder
from walproxy.postgres.local_server import LocalPostgres, ServerBinaries


class Past(NamedTuple):
    """A quorum with a log, and the folders of servers that have parted from it.

    `behind` is an older copy of the primary, `same` a copy of its end; the primary has stopped.
    """

    stand: Stand
    behind: Path
    same: Path


@pytest.fixture(scope="module")
def past(servers: dict[int, ServerBinaries], major: int, small_template: Path) -> Iterator[Past]:
    with scratch_folder() as directory:
        primary = make_server(servers[major], small_template, directory / "data")
        with make_stand(directory, primary) as stand:
            stand.serve()
            stand.commit(1)
            primary.stop()
            subprocess.run(["cp", "-a", primary.data_directory, directory / "behind"], check=True)
            primary.start()
            stand.wait_for_state("streaming")
            for number in range(100):
                stand.commit(number)
            # A clean stop: the quorum then has all that it wrote.
            primary.stop()
            assert stand.proxy.stop() == 0
            subprocess.run(["cp", "-a", primary.data_directory, directory / "same"], check=True)
            yield Past(stand, directory / "behind", directory / "same")


def server_on(past: Past, template: Path, name: str) -> LocalPostgres:
    """Return a server on a copy of `template`, not started, that waits for no standby."""
    directory = past.stand.directory / name
    server = make_server(past.stand.postgres.binaries, template, directory, synchronous_standby_names="")
    past.stand.former_primaries.append(server)
    return server


def refused(past: Past, server: LocalPostgres) -> str:
    """Have a primary refused, and return why; but for promises the safekeepers are as before."""
    names = ("history", "flush_lsn", "commit_lsn", "cluster_id", "generation", "incarnation")
    before = past.stand.untouched()
    proxy = past.stand.proxy_for(server.data_directory.name, conninfo=server.conninfo())
    code, line = end_of(proxy)
    server.close()
    assert code == EXIT_PRIMARY_REFUSED
    after = past.stand.untouched()
    assert len(after) == 3
    for safekeeper_id, status in after.items():
        assert {n: status[n] for n in names} == {n: before[safekeeper_id][n] for n in names}
    return line


@NEWEST
def test_another_system_is_refused_before_a_promise_is_requested(past: Past) -> None:
    directory = past.stand.directory / "other-system"
    server = LocalPostgres(past.stand.postgres.binaries, directory).init(wal_segment_mib=1)
    past.stand.former_primaries.append(server.start())
    before = past.stand.untouched()
    line = refused(past, server)
    assert "of 3 safekeepers refuse it" in line and "system identifier" in line
    assert past.stand.untouched() == before


@NEWEST
def test_a_primary_behind_the_quorum_is_refused_with_both_positions(past: Past) -> None:
    server = server_on(past, past.behind, "restored").start()
    ended_at = server.execute("SELECT pg_current_wal_flush_lsn()::text")[0][0]
    line = refused(past, server)
    reported = re.search(r"primary's WAL ends at (\S+), the quorum has WAL up to (\S+) on timeline 1", line)
    assert reported is not None, line
    assert parse_lsn(ended_at) <= parse_lsn(reported[1]) < parse_lsn(reported[2]) == past.stand.flush_lsn_of(1)
    assert "restored from a backup" in line


@NEWEST
def test_other_bytes_on_the_same_timeline_are_refused_with_where_they_differ(past: Past) -> None:
    server = server_on(past, past.behind, "apart").start()
    while server.execute(f"SELECT pg_current_wal_flush_lsn() <= '{format_lsn(past.stand.flush_lsn_of(1))}'")[0][0]:
        server.execute("INSERT INTO ledger SELECT generate_series(1, 1000)")
    line = refused(past, server)
    assert "differs from safekeeper" in line and "in the page at 0/" in line


@NEWEST
def test_a_timeline_that_forked_below_what_was_acknowledged_is_refused_with_both_positions(past: Past) -> None:
    server = server_on(past, past.behind, "forked-early")
    (server.data_directory / "standby.signal").touch()
    server.start().promote()
    line = refused(past, server)
    assert "may have been acknowledged" in line and "--allow-data-loss" in line
    assert "forked off at 0/" in line and format_lsn(past.stand.flush_lsn_of(1)) in line


@NEWEST
def test_a_rebootstrap_onto_another_primary_lists_what_is_lost_and_a_no_changes_nothing(past: Past) -> None:
    server = server_on(past, past.behind, "restored-again").start()
    before = past.stand.untouched()
    options, environment = ["--primary", server.conninfo()], past.stand.operator_environment
    answer = run_walproxy("rebootstrap", *options, "--yes", environment=environment)
    assert answer.returncode == EXIT_CONFIGURATION
    advised = re.search(r"--discard-wal-above (\S+)$", only_line(answer.stderr))
    assert advised is not None and parse_lsn(advised[1]) < past.stand.flush_lsn_of(1)
    assert past.stand.untouched() == before
    options += ["--discard-wal-above", advised[1]]
    answer = run_walproxy("rebootstrap", *options, answer="n\n", environment=environment)
    assert answer.returncode == 0 and "nothing was changed" in answer.stdout
    assert re.search(
        rf"LOSS: safekeeper 1 holds \d+ bytes of WAL, \[\S+, {format_lsn(past.stand.flush_lsn_of(1))}\), of timeline 1",
        answer.stdout,
    )
    assert "safekeeper 1:" in answer.stdout and "set aside in its data folder, in wal." in answer.stdout
    answer = run_walproxy("rebootstrap", *options, environment=environment)  # Without a terminal to answer.
    assert answer.returncode == 1 and "interrupted" in only_line(answer.stderr)
    assert past.stand.untouched() == before
    server.close()


def promoted(stand: Stand, template: Path, name: str) -> LocalPostgres:
    """Return a server that was promoted on a copy of `template`."""
    server = make_server(stand.postgres.binaries, template, stand.directory / name)
    server.configure({"synchronous_standby_names": ""})
    (server.data_directory / "standby.signal").touch()
    server.start().promote()
    return server


@MOSTLY_NEWEST
def test_a_fork_that_fits_is_accepted_and_a_second_line_of_descent_is_not(new_stand: NewStand) -> None:
    stand = new_stand().serve()
    stand.commit(1)
    stand.postgres.stop()
    stand.wait_for_state("waiting_for_primary")
    old = stand.postgres
    new = promoted(stand, old.data_directory, "new")
    rival = promoted(stand, old.data_directory, "rival")
    stand.former_primaries.append(rival)
    assert stand.proxy.stop() == 0
    stand.switch_to(new)
    stand.proxies[0] = stand.proxy_for("onto-new")
    stand.wait_for_state("streaming")
    stand.gate_commits()
    stand.commit(2)
    assert all(status["tli"] == 2 for status in (s.status() or {} for s in stand.safekeepers.values()))
    stand.verify()
    assert new.execute("SELECT number FROM ledger ORDER BY 1") == [(1,), (2,)]
    # The other promotion took the same number for its timeline, and the old primary has stayed on its own.
    stand.proxy.kill9()
    rival.execute("INSERT INTO ledger SELECT generate_series(1, 5000)")
    before = {i: status["history"] for i, status in stand.untouched().items()}
    code, line = end_of(stand.proxy_for("onto-rival", conninfo=rival.conninfo()))
    assert code == EXIT_PRIMARY_REFUSED
    assert "timeline 2" in line or "differs" in line, line
    old.configure({"synchronous_standby_names": ""})
    old.start()
    code, line = end_of(stand.proxy_for("onto-old", conninfo=old.conninfo()))
    assert code == EXIT_PRIMARY_REFUSED
    assert "left timeline 1 at" in line and "old primary" in line
    assert {i: status["history"] for i, status in stand.untouched().items()} == before


@NEWEST
def test_a_fork_below_committed_wal_is_accepted_only_with_leave_to_lose_data(new_stand: NewStand) -> None:
    stand = new_stand().serve()
    stand.commit(1)
    stand.postgres.stop()
    behind = stand.directory / "behind"
    subprocess.run(["cp", "-a", stand.postgres.data_directory, behind], check=True)
    stand.postgres.start()
    stand.wait_for_state("streaming")
    for number in range(2, 50):
        stand.commit(number)
    stand.postgres.kill9()
    stand.proxy.kill9()
    new = promoted(stand, behind, "new")
    code, line = end_of(stand.proxy_for("careful", conninfo=new.conninfo()))
    assert code == EXIT_PRIMARY_REFUSED
    assert "may have been acknowledged" in line
    shutil.rmtree(behind)
    stand.switch_to(new)
    stand.proxies[0] = stand.proxy_for("careless", "--allow-data-loss", "true")
    stand.wait_for_state("streaming")
    stand.gate_commits()
    stand.commit(100)
    stand.verify()
    assert new.execute("SELECT number FROM ledger ORDER BY 1") == [(1,), (100,)]
    wait_for(lambda: all(stand.member(i)["state"] == "streaming" for i in (1, 2, 3)), "all members follow")
    assert "counts as missing" not in log_of(stand.proxy)
