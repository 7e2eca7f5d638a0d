"""pg_receivewal, PostgreSQL's own archiver of WAL, streams from safekeepers: its files are the primary's."""

import subprocess
from pathlib import Path

import pytest

from safekeeper.base.lsn import Lsn, format_lsn, parse_lsn
from tests.integration.cluster.cluster_fixtures import Gated, field_of, wait_for
from tests.integration.conftest import SERVERS
from tests.integration.serving.serve_fixtures import (
    ReceiveWal,
    assert_log_is_calm,
    readers_of,
    received_wal_is_whole,
    receivewal_command,
)
from tests.waiting import NotThereYet
from walproxy.lab.cluster.local_standby import current_lsn
from walproxy.postgres.local_server import ServerBinaries

END_S = 20.0


def wait_for_reader(cluster: Gated, safekeeper_id: int) -> None:
    """Wait until a client streams from a safekeeper."""
    wait_for(lambda: readers_of(cluster, safekeeper_id) != [], "it streams")


def write_segments(cluster: Gated, count: int) -> None:
    """Let the primary commit WAL of so many segments."""
    message = f"pg_logical_emit_message(true, 'p', repeat('z', {cluster.segment_size}))"
    cluster.postgres.execute(f"SELECT count({message}) FROM generate_series(1, {count})")


def restart_lsn_of(cluster: Gated, safekeeper_id: int, slot: str) -> Lsn:
    """Return from where on a safekeeper holds WAL for a slot, 0 if for none of it yet.

    Raises:
        NotThereYet: it does not answer.
    """
    slots = field_of(cluster.safekeepers[safekeeper_id], "slots")
    if slots is None:
        raise NotThereYet(f"safekeeper {safekeeper_id} does not answer")
    (found,) = [each for each in slots if each["name"] == slot]
    return parse_lsn(found["restart_lsn"] or "0/0")


def test_pg_receivewal_streams_over_several_segments_and_its_files_are_the_primary_s(
    cluster: Gated, folder: Path
) -> None:
    options = ("--status-interval", "1")
    with (
        cluster.load() as load,
        ReceiveWal(cluster.postgres.binaries, cluster, 2, folder / "wal", *options) as receiver,
    ):
        wait_for_reader(cluster, 2)
        write_segments(cluster, 4)
        load.wait_for_commits(50)
        load.stop()
        receiver.wait_for(cluster, current_lsn(cluster.postgres))
        assert len([path for path in receiver.folder.iterdir() if not path.suffix]) >= 4
        wait_for(
            lambda: any(reader["write_lsn"] == reader["sent_lsn"] for reader in readers_of(cluster, 2)), "it reports so"
        )
        (reader,) = readers_of(cluster, 2)
        assert reader["application_name"] == "pg_receivewal" and reader["user"] == "postgres"
        # Without a slot and --synchronous it reports nothing of what is durable.
        assert reader["flush_lsn"] == "0/0"
        receiver.stop()
    wait_for(lambda: readers_of(cluster, 2) == [], "it is gone")
    assert_log_is_calm(cluster, 2)


def test_pg_receivewal_with_a_slot_reports_what_is_durable_and_the_slot_follows(cluster: Gated, folder: Path) -> None:
    binaries, slot = cluster.postgres.binaries, "archive"
    made = receivewal_command(binaries, cluster, 1, folder, "--slot", slot, "--create-slot")
    subprocess.run(made, check=True, capture_output=True, cwd="/")
    subprocess.run([*made, "--if-not-exists"], check=True, capture_output=True, cwd="/")
    again = subprocess.run(made, capture_output=True, text=True, cwd="/")
    assert again.returncode == 1 and 'replication slot "archive" already exists' in again.stderr
    with cluster.load() as load:
        options = ("--slot", slot, "--synchronous")
        with ReceiveWal(binaries, cluster, 1, folder / "wal", *options) as receiver:
            wait_for_reader(cluster, 1)
            write_segments(cluster, 2)
            load.wait_for_commits(20)
            end_lsn = current_lsn(cluster.postgres)
            wait_for(lambda: restart_lsn_of(cluster, 1, slot) >= end_lsn, "the slot follows what it has flushed")
            assert received_wal_is_whole(receiver.folder, cluster, end_lsn)
            # As after a crash of the client: it begins where its files end, and the slot has it.
        write_segments(cluster, 2)
        with ReceiveWal(binaries, cluster, 1, folder / "wal", *options) as receiver:
            load.wait_for_commits(20)
            load.stop()
            receiver.wait_for(cluster, current_lsn(cluster.postgres))
    wait_for(lambda: readers_of(cluster, 1) == [], "it is gone")
    dropped = receivewal_command(binaries, cluster, 1, folder, "--slot", slot, "--drop-slot")
    subprocess.run(dropped, check=True, capture_output=True, cwd="/")
    assert slot not in [each["name"] for each in field_of(cluster.safekeepers[1], "slots")]


def test_pg_receivewal_ends_at_the_position_that_it_was_given_and_goes_on_from_another_safekeeper(
    cluster: Gated, folder: Path
) -> None:
    binaries, target = cluster.postgres.binaries, folder / "wal"
    target.mkdir()
    with cluster.load() as load:
        for safekeeper_id in (1, 2, 3):
            end_lsn = current_lsn(cluster.postgres) + cluster.segment_size * 3 // 2
            options = ["--endpos", format_lsn(end_lsn), "--no-loop"]
            if safekeeper_id > 1:
                # With files it does not look for its slot first: it names one that is not there, which is made.
                options += ["--slot", "followed"]
            command = receivewal_command(binaries, cluster, safekeeper_id, target, *options)
            receiving = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd="/")
            wait_for_reader(cluster, safekeeper_id)
            write_segments(cluster, 2)
            _, printed = receiving.communicate(timeout=END_S)
            assert receiving.returncode == 0, printed
            assert "stopped log streaming at" in printed
            assert received_wal_is_whole(target, cluster, end_lsn)
        load.wait_for_commits(5)


@pytest.mark.parametrize("major", [min(SERVERS, default=0)], indirect=True, ids=lambda major: f"pg{major}")
def test_newer_pg_receivewal_streams_the_wal_of_an_older_primary(
    cluster: Gated, folder: Path, servers: dict[int, ServerBinaries]
) -> None:
    newest = servers[max(servers)]
    with cluster.load() as load, ReceiveWal(newest, cluster, 3, folder / "wal") as receiver:
        load.wait_for_commits(100)
        load.stop()
        receiver.wait_for(cluster, current_lsn(cluster.postgres))
