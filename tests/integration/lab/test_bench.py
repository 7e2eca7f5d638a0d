"""The benchmark as its user runs it, as small as it can be, and its parts against a real server."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from safekeeper.base.errors import WalproxyError
from tests.integration.conftest import MOSTLY_NEWEST, NEWEST, NewCluster
from tests.waiting import wait_for
from walproxy.lab.bench import commit_load, crashes, members, memory, pgbench
from walproxy.lab.bench.experiments import Work, measure_crashes
from walproxy.lab.bench.levels import ALONE, LEVELS, STOCK, WALPROXY
from walproxy.lab.cluster.local_standby import current_lsn, make_standby, received_lsn, replay_lsn, wait_until_replayed
from walproxy.postgres.local_server import LocalPostgres, ServerBinaries

pytestmark = pytest.mark.on_disk
BENCH = [sys.executable, "-m", "walproxy", "bench"]


def bench(folder: Path, *options: str) -> dict[str, Any]:
    """Return what a benchmark of one short round finds."""
    command = [*BENCH, "--rounds", "1", "--seconds", "1", "--clients", "1", "--scale", "1", "--json", *options]
    environment = {**os.environ, "TMPDIR": str(folder)}
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110, env=environment)
    assert answer.returncode == 0, answer.stderr
    assert list(folder.iterdir()) == []
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


@pytest.mark.nightly
def test_more_safekeepers_and_a_far_network_are_measured(folder: Path) -> None:
    found = bench(folder, "--arm", "walproxy", "--arm", "walproxy-5", "--delay", "20ms")
    three, five = found["medians"]
    assert (three["arm"], five["arm"]) == ("walproxy", "walproxy-5")
    # A commit's WAL is under way for 20 ms, and so is the answer.
    assert min(three["latency_ms"], five["latency_ms"]) > 40
    assert set(three["resident_bytes"]) == {"walproxy", *(f"safekeeper {number}" for number in (1, 2, 3))}
    assert min(five["resident_bytes"].values()) > 10**7
    assert five["to_three"] == pytest.approx(five["tps"] / three["tps"])


@pytest.mark.nightly
def test_the_levels_are_measured_with_a_stock_standby_and_through_walproxy(folder: Path) -> None:
    found = bench(folder, "levels")
    measured = {(turn["arm"], turn["level"]) for turn in found["turns"]}
    assert measured == {(ALONE, "on"), *((arm, level) for arm in (STOCK, WALPROXY) for level in LEVELS)}
    assert all(turn["tps"] > 0 and turn["median_ms"] > 0 for turn in found["turns"])
    assert {each["arm"] for each in found["medians"] if "remote_apply_ms" in each} == {STOCK, WALPROXY}


@pytest.mark.nightly
def test_a_slow_and_a_dead_member_are_measured_and_a_quorum_does_not_wait_for_them(folder: Path) -> None:
    found = bench(folder, "members")
    turns = {turn["case"]: turn for turn in found["turns"]}
    assert set(turns) == set(members.CASES)
    assert all(members.SYNC_DELAY_MS < turn["p50_ms"] < members.SLOW_MS for turn in turns.values())
    assert {each["case"]: each["to_well"] for each in found["medians"]}[members.WELL] == 1.0


class Steps:
    """The description of an experiment."""

    def __init__(self) -> None:
        self.expected = 0
        self.begun: list[str] = []

    def expect(self, steps: int) -> None:
        self.expected += steps

    def begin(self, what: str) -> None:
        self.begun.append(what)


@pytest.mark.nightly
@NEWEST
def test_crashes_are_measured_and_memory_while_a_member_is_dead(
    folder: Path, servers: dict[int, ServerBinaries], major: int
) -> None:
    # No seconds: a turn ends with the first commit that is acknowledged again.
    steps = Steps()
    work = Work(servers[major], folder, [], rounds=1, seconds=0, scale=1, arms=(), delay_ms=0, progress=steps)
    found = json.loads(msgspec.json.encode(measure_crashes(work).turns))
    assert len(steps.begun) == steps.expected
    turns = {turn["case"]: turn for turn in found if "case" in turn}
    assert set(turns) == set(crashes.CASES)
    began = {case for case, turn in turns.items() if turn["streaming_s"] is not None}
    assert began == {crashes.START, crashes.RESTART, crashes.SPARE, crashes.HUNG}
    # Python and its libraries alone take more than that to start.
    assert min(turns[case]["cpu_s"] for case in (crashes.START, crashes.RESTART)) > 0.1
    # While the proxy is gone, or believed to live, a commit waits; no commit waits for one safekeeper of three.
    assert min(turns[case]["longest_s"] for case in began) > turns[crashes.SAFEKEEPER]["commit_s"] > 0
    assert turns[crashes.HUNG]["commit_s"] > 0.5
    weighed = {turn["process"]: turn for turn in found if "process" in turn}
    assert list(weighed) == [memory.PROXY, "safekeeper 1", "safekeeper 2"]
    for turn in weighed.values():
        assert turn["wal_bytes"] > 50 * 10**6
        assert 10**7 < turn["before_bytes"] <= turn["peak_bytes"] <= turn["fed_peak_bytes"]


@pytest.fixture
def server(new_cluster: NewCluster) -> LocalPostgres:
    return new_cluster(fsync="off")


@NEWEST
def test_a_load_of_commits_is_timed(server: LocalPostgres) -> None:
    commit_load.prepare(server)
    times = commit_load.measure(server, clients=2, seconds=0.3)
    assert server.execute("SELECT count(*) FROM commit_load") == [(round(times.tps * 0.3),)]
    assert 0 < times.p50_ms <= times.p99_ms


@NEWEST
def test_pgbench_commits_at_the_requested_level(server: LocalPostgres) -> None:
    pgbench.prepare(server, 1)
    server.configure({"synchronous_standby_names": "nobody"})
    server.restart()
    measured = pgbench.run(server, 2, 1, "local")
    assert measured.tps > 0 and measured.median_ms > 0
    # At `on` the first commit waits indefinitely, and pgbench with it.
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(
            [server.binaries.path("pgbench"), "-N", "-t", "1", "-n", server.conninfo()], timeout=1, capture_output=True
        )


@MOSTLY_NEWEST
def test_a_standby_replays_and_reports_its_position(new_cluster: NewCluster, folder: Path) -> None:
    primary = new_cluster(synchronous_standby_names="nobody", synchronous_commit="local")
    with make_standby(primary, folder / "standby", "one") as standby:
        standby.start()
        primary.execute("CREATE TABLE t (a int)")
        end_lsn = current_lsn(primary)
        wait_until_replayed(standby, end_lsn)
        # The walsenders of pg_basebackup end a moment after it.
        wait_for(
            lambda: primary.execute("SELECT application_name FROM pg_stat_replication") == [("one",)],
            "the standby alone streams",
        )
        assert replay_lsn(standby) >= end_lsn and received_lsn(standby) >= end_lsn
        assert standby.execute("SELECT count(*) FROM t") == [(0,)]
        with pytest.raises(WalproxyError, match=r"has replayed up to 0/\w+ after 0.1 s, not to 0/FF000000"):
            wait_until_replayed(standby, 0xFF000000, timeout_s=0.1)
