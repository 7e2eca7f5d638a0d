"""What the server does that runs a restore_command, read from its data folder, and what a failure means to it."""

import os
from pathlib import Path

import pytest

from tests.unit.recovery.test_prefetcher import data_directory
from walproxy.recovery.caller import SILENCE_FILE, Silence
from walproxy.recovery.server_mode import (
    EXIT_MISSING,
    EXIT_STOPS_RECOVERY,
    Mode,
    data_directory_of,
    failure_code,
    mode_of,
)

__all__ = ["data_directory"]
NAME = "000000010000000000000007"


def test_only_archive_recovery_is_stopped_by_a_failure(data_directory: Path) -> None:
    target = str(data_directory / "pg_wal" / "RECOVERYXLOG")
    assert mode_of(data_directory) is Mode.RECOVERY
    assert failure_code([NAME, target]) == EXIT_STOPS_RECOVERY
    (data_directory / "standby.signal").touch()
    assert mode_of(data_directory) is Mode.STANDBY
    assert failure_code(["--no-such-option", NAME, target]) == EXIT_MISSING
    (data_directory / "recovery.signal").unlink()
    assert mode_of(data_directory) is Mode.STANDBY
    (data_directory / "standby.signal").unlink()
    assert mode_of(data_directory) is Mode.PROMOTING
    assert failure_code([NAME, target]) == EXIT_MISSING


def test_a_command_that_no_server_runs_fails_as_in_a_recovery(tmp_path: Path) -> None:
    assert mode_of(tmp_path) is Mode.UNKNOWN
    assert failure_code([NAME, str(tmp_path / "RECOVERYXLOG")]) == EXIT_STOPS_RECOVERY
    assert failure_code([]) == EXIT_STOPS_RECOVERY
    assert failure_code([f"/{'x' * 300}/pg_wal/{NAME}"]) == EXIT_STOPS_RECOVERY


def test_the_data_folder_is_where_the_file_belongs_or_else_where_the_command_runs(
    data_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert data_directory_of(data_directory / "pg_wal" / "RECOVERYXLOG") == data_directory
    monkeypatch.chdir(data_directory)
    assert data_directory_of(Path("pg_wal/RECOVERYXLOG")) == data_directory
    assert data_directory_of(tmp_path / "elsewhere" / NAME) == data_directory


def test_silence_of_the_same_sources_is_remembered_for_seconds(tmp_path: Path) -> None:
    assert not Silence(tmp_path, "these").is_recent()
    Silence(tmp_path, "these").begin()
    assert Silence(tmp_path, "these").is_recent()
    assert not Silence(tmp_path, "others").is_recent()
    note = tmp_path / SILENCE_FILE
    written_s = note.stat().st_mtime
    for moved_s in (written_s - 3600, written_s + 3600):
        os.utime(note, (moved_s, moved_s))
        assert not Silence(tmp_path, "these").is_recent()
    Silence(tmp_path / "nothing", "these").begin()
    assert not Silence(tmp_path / "nothing", "these").is_recent()
