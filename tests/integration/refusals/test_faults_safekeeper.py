"""Disks that fill, WAL that is gone, processes that hang and connections that die silently: the others serve."""

import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest

from safekeeper.base.errors import EXIT_STORAGE
from tests.integration.conftest import NEWEST, NewStand
from tests.integration.refusals.refusal_fixtures import Relay, Stand, end_of, log_of, wait_for
from tests.scratch import scratch_folder
from walproxy.lab.cluster.local_cluster import LocalProcess
from walproxy.lab.testing import WalproxyCluster

MIB = 1 << 20
DISK_BYTES = 12 * MIB


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 12 MiB."""
    with scratch_folder() as folder:
        size = f"size={DISK_BYTES}"
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", folder], capture_output=True, text=True)
        if mounted.returncode:
            pytest.skip(f"mounting a small file system takes root: {mounted.stderr.strip()}")
        try:
            yield folder
        finally:
            # Lazily: a process that still has a file open there is killed when its cluster is closed.
            subprocess.run(["umount", "-l", folder], check=True)


def write_wal(stand: Stand, mib: int) -> None:
    """Commit about so many MiB of WAL."""
    stand.postgres.execute("INSERT INTO ledger SELECT generate_series(1, %s)", mib * 16_000)


def move(stand: Stand, safekeeper_id: int, directory: Path) -> LocalProcess:
    """Let a safekeeper that does not run have its data folder in `directory`."""
    process = stand.safekeepers[safekeeper_id]
    process.arguments[process.arguments.index("--data-dir") + 1] = str(directory / "data")
    stand.safekeeper_directory(safekeeper_id).symlink_to(directory / "data")
    return process


@NEWEST
def test_a_full_disk_costs_the_others_nothing_and_heals_by_itself(new_stand: NewStand, small_disk: Path) -> None:
    stand = new_stand()
    full = move(stand, 3, small_disk)
    stand.serve()
    stand.commit(1)
    filler = small_disk / "filler"
    with filler.open("wb") as file:
        free = shutil.disk_usage(small_disk).free - 2 * MIB
        file.write(bytes(max(0, free)))
    for _ in range(6):
        write_wal(stand, 1)
    assert "not enough disk space for the WAL" in log_of(full) and "free some space" in log_of(full)
    status = full.status()
    assert status is not None and "No space left" in status["disk"]["no_room_for"]["WAL"]
    wait_for(lambda: stand.member(3)["lag_bytes"] > MIB, "the full one lags")
    assert log_of(stand.proxy).count("safekeeper 3 refuses: ") + log_of(stand.proxy).count("lost safekeeper 3") < 20
    # It is no quorum with one other; what it has, it still gives: it may even be the only one left that has it.
    before_lsn = stand.flush_lsn_of(3)
    assert before_lsn > 0
    filler.unlink()
    wait_for(lambda: stand.flush_lsn_of(3) >= stand.primary_flush_lsn(), "the full one catches up by itself")
    stand.verify()
    assert "disk space for the WAL is available again" in log_of(full)


@pytest.mark.nightly
def test_a_majority_of_full_disks_is_one_loss_of_the_quorum_that_lasts() -> None:
    with WalproxyCluster(engine="processes") as cluster:

        def write() -> None:
            with suppress(psycopg.OperationalError), psycopg.connect(cluster.conninfo, autocommit=True) as connection:
                connection.execute("CREATE TABLE filler AS SELECT generate_series(1, 600000) AS i")

        def status() -> dict[str, Any]:
            return cluster.status_of("walproxy") or {}

        answers: list[float] = []

        def answered_again() -> bool:
            """Whether a full one has answered twice after a silence, or the proxy took that for a quorum."""
            now = status()
            answers.append(now["safekeepers"][1]["last_response_s"] or 0.0)
            return now["state"] != "waiting_for_quorum" or sum(b < a for a, b in pairwise(answers)) >= 2

        cluster.fill(2)
        cluster.fill(3)
        # If the test fails, the commit waits until its server ends.
        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        wait_for(lambda: (status().get("quorum_lost") or {}).get("waiting_sessions") == 1, "the loss is known", 60)
        # The full ones are tried again and again, adopt the term and answer.
        wait_for(answered_again, "a full safekeeper was tried again", 60)
        # Why it closed the connection may be lost with it (a reset overtakes the refusal), but not each time.
        refusals = [f"safekeeper {number} refuses WAL: " for number in (2, 3)]
        wait_for(lambda: all(line in cluster.logs("walproxy", 200) for line in refusals), "both log why", 60)
        assert status()["state"] == "waiting_for_quorum"
        log = cluster.logs("walproxy", 200)
        # Once; a machine that is busy may have had one before. It was once a second.
        assert log.count("streaming -> waiting_for_quorum after ") <= 2
        *_, error = [line for line in log.splitlines() if " ERROR " in line]
        assert "1 of 3 members take part, 2 are needed" in error and "safekeeper 3: " in error
        assert writer.is_alive()
        cluster.heal()
        writer.join(60)
        assert not writer.is_alive()
        cluster.wait_until_streaming()
        wait_for(lambda: "a quorum takes part again after " in cluster.logs("walproxy", 200), "the quorum is back")
        assert "accepts WAL again" in cluster.logs("walproxy", 200)


@NEWEST
def test_a_disk_that_is_full_at_the_start_is_reported_in_one_line(new_stand: NewStand, small_disk: Path) -> None:
    stand = new_stand(safekeeper_count=1)
    process = move(stand, 1, small_disk)
    (small_disk / "filler").write_bytes(bytes(DISK_BYTES))
    code, line = end_of(process.start())
    assert code == EXIT_STORAGE
    assert "not enough disk space to start" in line and "free some space" in line


@NEWEST
def test_wal_that_is_missing_in_the_middle_or_damaged_ends_its_safekeeper_only(
    new_stand: NewStand,
) -> None:
    stand = new_stand().serve()
    for _ in range(4):
        write_wal(stand, 1)
    stand.verify()
    for safekeeper_id, what in ((2, "gone"), (3, "damaged")):
        process = stand.safekeepers[safekeeper_id]
        assert process.stop() == 0
        segments = sorted((stand.safekeeper_directory(safekeeper_id) / "wal").glob("0*"))
        victim = segments[2]
        if what == "gone":
            victim.unlink()
        else:
            content = bytearray(victim.read_bytes())
            content[-8192:] = bytes(8192)  # both slots of the footer
            victim.write_bytes(content)
        process.log_path.unlink()
        code, line = end_of(process.start())
        assert code == EXIT_STORAGE
        assert "start with an empty" in line
        if what == "gone":
            stand.commit(1)
            stand.wipe(2)
            process.start()
            stand.wait_for_member(2, "learner")
    # One member is left: commits wait, and the status names the members.
    stand.wait_for_state("waiting_for_quorum")
    assert "does not vote" in stand.member(2)["problem"]
    assert "could not connect" in stand.member(3)["problem"]


def commit_times(stand: Stand, count: int) -> list[float]:
    """Return how long each of some commits took, in seconds."""
    taken = []
    with psycopg.connect(stand.postgres.conninfo(), autocommit=True) as connection:
        for number in range(count):
            began_at = time.monotonic()
            connection.execute("INSERT INTO ledger VALUES (%s)", (number,))
            taken.append(time.monotonic() - began_at)
    return taken


@NEWEST
def test_a_safekeeper_that_hangs_is_not_felt_and_comes_back(new_stand: NewStand) -> None:
    stand = new_stand()
    stand.proxies[0] = stand.make_proxy("walproxy", "-c", "response_timeout=1")
    stand.serve()
    usual = commit_times(stand, 100)
    stand.safekeepers[2].pause()
    hanging = commit_times(stand, 200)
    # Generous bounds, for a machine that has other things to do: a commit that waited for the hanging one would take
    # its response timeout.
    assert statistics.median(hanging) < 4 * statistics.median(usual) + 0.02
    assert max(hanging) < 0.9
    wait_for(lambda: "no reply" in log_of(stand.proxy), "the proxy gives up on it")
    assert max(commit_times(stand, 50)) < 0.9
    stand.safekeepers[2].resume()
    stand.wait_for_member(2, "streaming")
    stand.verify()


@NEWEST
def test_a_connection_that_is_dead_without_notice_is_made_again(new_stand: NewStand) -> None:
    stand = new_stand()
    with Relay(stand._listen_ports[2]) as relay:
        stand.proxies[0] = stand.make_proxy("walproxy", "-c", "response_timeout=1")
        arguments = stand.proxy.arguments
        place = arguments.index("--safekeepers") + 1
        arguments[place] = arguments[place].replace(f":{stand._listen_ports[2]},", f":{relay.port},")
        stand.serve()
        stand.wait_for_member(2, "streaming")
        connections = relay.connections
        relay.silent.set()
        assert max(commit_times(stand, 50)) < 0.9
        wait_for(lambda: relay.connections > connections + 1, "it was connected again, without success")
        assert "no reply" in log_of(stand.proxy)
        relay.silent.clear()
        stand.wait_for_member(2, "streaming")
        stand.verify()
