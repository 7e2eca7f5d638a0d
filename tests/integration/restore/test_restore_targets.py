"""`walproxy restore` on real servers: what is recovered is what was there at the target, not more and not less."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import format_lsn
from tests.integration.cluster.cluster_fixtures import wait_for
from tests.integration.conftest import MOSTLY_NEWEST, NEWEST
from tests.integration.restore.restore_fixtures import (
    DEADLINE_S,
    MIB,
    Past,
    recovered,
    remove_segment,
    restore,
    rows,
    take_backup,
    up_to,
    walproxy,
    walproxy_command,
)
from walproxy.postgres.local_server import LocalPostgres


def recovered_rows(past: Past, target: Path, *arguments: object, backup: str = "base") -> list[int]:
    restore(past, past.folder / backup, target, "--archive", past.archive, *arguments)
    with recovered(past.server.binaries, target) as server:
        return rows(server)


@MOSTLY_NEWEST
def test_without_a_target_everything_is_recovered_and_the_settings_for_that_are_gone(past: Past, target: Path) -> None:
    """Also what is in the open segment."""
    before = (past.folder / "base" / "postgresql.auto.conf").read_text()
    assert recovered_rows(past, target) == up_to(5)
    assert not (target / "walproxy-recovery.toml").exists()
    assert (target / "postgresql.auto.conf").read_text().rstrip("\n") == before.rstrip("\n")


@MOSTLY_NEWEST
def test_recovery_to_a_time_ends_with_the_last_commit_before_it(past: Past, target: Path) -> None:
    assert recovered_rows(past, target, "--target-time", past.steps[2].time) == up_to(3)


@NEWEST
def test_recovery_to_an_lsn_ends_there_also_if_its_settings_cannot_be_removed(past: Past, target: Path) -> None:
    arguments = ("--archive", past.archive, "--target-lsn", format_lsn(past.steps[1].end_lsn))
    restore(past, past.folder / "base", target, *arguments)
    configuration = target / "postgresql.auto.conf"
    command = walproxy_command(past.folder)
    assert f"'{command} recovery-end" in configuration.read_text()
    # A command that cannot be found ends the server, if PostgreSQL learns of it.
    configuration.write_text(configuration.read_text().replace(f"'{command} recovery-end", "'/nowhere recovery-end"))
    with recovered(past.server.binaries, target) as server:
        assert rows(server) == up_to(2)
        assert "recovery-end failed: the settings of walproxy restore stay" in server.log_path.read_text()


@NEWEST
def test_a_program_that_cannot_start_stops_the_recovery_and_does_not_end_it_early(past: Past, target: Path) -> None:
    restore(past, past.folder / "base", target, "--archive", past.archive)
    configuration, broken = target / "postgresql.auto.conf", past.folder / "broken"
    broken.write_text("#!/bin/sh\nexit 1\n")  # As Python ends when it finds no module walproxy.
    broken.chmod(0o755)
    whole = configuration.read_text()
    command = walproxy_command(past.folder)
    assert f"{command} wal-fetch" in whole
    configuration.write_text(whole.replace(f"{command} wal-fetch", f"{broken} wal-fetch"))
    with LocalPostgres(past.server.binaries, target) as server:
        with pytest.raises(WalproxyError):
            server.start()
        assert "FATAL:  could not restore file" in server.log_path.read_text()
    configuration.write_text(whole)
    with recovered(past.server.binaries, target) as server:
        assert rows(server) == up_to(5)


@NEWEST
def test_recovery_to_a_restore_point_ends_there(past: Past, target: Path) -> None:
    assert recovered_rows(past, target, "--target-name", past.steps[3].name) == up_to(4)


@NEWEST
def test_a_server_that_pauses_at_its_target_can_be_looked_at_and_goes_on_then(past: Past, target: Path) -> None:
    arguments = ("--target-name", past.steps[0].name, "--target-action", "pause")
    restore(past, past.folder / "base", target, "--archive", past.archive, *arguments)
    with LocalPostgres(past.server.binaries, target) as server:
        server.start()
        # It takes connections before it has come there. Only its recovery asks for a pause, with the target replayed.
        paused = "SELECT pg_is_wal_replay_paused()"
        wait_for(lambda: server.execute(paused) == [(True,)], "it pauses at its target", DEADLINE_S)
        assert rows(server) == up_to(1)
        assert server.execute("SELECT pg_is_in_recovery()") == [(True,)]


@NEWEST
@pytest.mark.parametrize("options", [("-Ft", "-X", "stream"), ("-Ft", "-z", "-X", "fetch")], ids=["tar", "tar.gz"])
def test_a_backup_may_be_a_tar(past: Past, target: Path, options: tuple[str, ...]) -> None:
    backup = take_backup(past.server, past.folder / "tars", *options)
    past.add_steps(1, switch=False)
    past.archive_up_to(past.flush_lsn())
    try:
        assert recovered_rows(past, target, backup="tars") == up_to(len(past.steps))
    finally:
        shutil.rmtree(backup)


@NEWEST
def test_a_backup_with_wal_that_no_source_has_uses_its_own(past: Past, target: Path) -> None:
    """The archive may have begun while the backup was taken: what is before came with the backup."""
    with ThreadPoolExecutor(1) as pool:
        options = ("-X", "stream", "--max-rate", "16M")
        taking = pool.submit(take_backup, past.server, past.folder / "slow", *options)
        phase = "SELECT 1 FROM pg_stat_progress_basebackup WHERE phase = 'streaming database files'"
        wait_for(lambda: bool(past.server.execute(phase)), "the backup is under way")
        began_lsn = past.flush_lsn()
        past.add_steps(2)
        backup = taking.result()
    past.add_steps(1, switch=False)
    past.archive_up_to(past.flush_lsn())
    archive = past.copy_of_archive(past.folder / "late")
    for lsn in range(began_lsn - MIB, began_lsn + MIB, MIB):
        remove_segment(archive, lsn)
    try:
        restore(past, backup, target, "--archive", archive)
        with recovered(past.server.binaries, target) as server:
            assert rows(server) == up_to(len(past.steps))
    finally:
        shutil.rmtree(archive)
        shutil.rmtree(backup)


@NEWEST
def test_a_dry_run_reports_what_would_happen_and_changes_nothing(past: Past, target: Path) -> None:
    words = ("restore", "--backup", past.folder / "base", "--target", target, "--archive", past.archive)
    answer = walproxy(*words, "--dry-run", "--json")
    printed = json.loads(answer.stdout)
    assert (answer.returncode, printed["written"], printed["tli"]) == (0, False, 1)
    assert printed["last_commit"] >= past.steps[-1].time[:19]
    assert not target.exists()
