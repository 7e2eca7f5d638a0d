"""A restore_command that fails before it has asked anything: only a proven "missing" may end an archive recovery."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.recovery.test_prefetcher import archive, data_directory, wal
from walproxy.cli import main
from walproxy.recovery import prefetcher
from walproxy.recovery.restore import MISSING_CODE, restore_command
from walproxy.recovery.server_mode import EXIT_DELIVERED, EXIT_MISSING, EXIT_STOPS_RECOVERY

__all__ = ["archive", "data_directory", "wal"]
NAME = "000000010000000000000007"
DEADLINE_S = 30.0


def wal_fetch(data_directory: Path, *words: str, **further: object) -> "subprocess.CompletedProcess[str]":
    """Run wal-fetch as PostgreSQL does: in its data folder."""
    command = [sys.executable, "-P", "-m", "walproxy", "wal-fetch", *words]
    options = {"stderr": subprocess.PIPE, "text": True, "timeout": DEADLINE_S, "cwd": data_directory, **further}
    return subprocess.run(command, **options)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("module", ["click", "msgspec", "safekeeper.base.command"])
def test_an_installation_that_cannot_be_imported_stops_a_recovery_and_no_promotion(
    data_directory: Path, tmp_path: Path, module: str
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(f"import sys\nsys.modules[{module!r}] = None\n")
    environment = {**os.environ, "PYTHONPATH": str(broken)}
    words = (NAME, "pg_wal/RECOVERYXLOG", "--archive", str(tmp_path))
    answer = wal_fetch(data_directory, *words, env=environment)
    assert answer.returncode == EXIT_STOPS_RECOVERY, answer.stderr
    assert answer.stderr.count("\n") == 1 and module in answer.stderr
    (data_directory / "recovery.signal").unlink()
    assert wal_fetch(data_directory, *words, env=environment).returncode == EXIT_MISSING


def test_a_log_on_a_full_disk_does_not_end_a_recovery(data_directory: Path) -> None:
    with Path("/dev/full").open("w") as full:
        answer = wal_fetch(data_directory, "no-file-of-wal", "pg_wal/RECOVERYXLOG", stderr=full)
        assert answer.returncode == EXIT_STOPS_RECOVERY
        answer = wal_fetch(data_directory, "--no-such-option", stderr=full)
        assert answer.returncode == EXIT_STOPS_RECOVERY


def test_a_script_that_has_the_file_put_elsewhere_gets_none_that_pg_wal_has(
    data_directory: Path, archive: Path, tmp_path: Path
) -> None:
    (data_directory / "pg_wal" / NAME).write_bytes(b"what was streamed")
    (data_directory / "recovery.signal").unlink()
    target = tmp_path / "elsewhere"
    assert wal_fetch(data_directory, NAME, str(target), "--archive", str(archive)).returncode == EXIT_MISSING
    assert not target.exists()


def test_a_script_that_has_the_file_put_elsewhere_gets_no_hole_for_what_pg_wal_has(
    data_directory: Path, archive: Path, tmp_path: Path
) -> None:
    for file in archive.rglob(f"{NAME}*"):
        file.unlink()
    words = (NAME, str(tmp_path / "elsewhere"), "--archive", str(archive))
    assert wal_fetch(data_directory, *words).returncode == EXIT_STOPS_RECOVERY
    (data_directory / "pg_wal" / NAME).write_bytes(b"of the backup")
    assert wal_fetch(data_directory, *words).returncode == EXIT_MISSING


def test_a_prefetcher_that_cannot_be_started_changes_no_exit_code(
    data_directory: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*words: object, **further: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(prefetcher.subprocess, "Popen", no_memory)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # Those of the process that runs the tests stay.
    monkeypatch.chdir(data_directory)
    monkeypatch.setattr(sys, "argv", ["walproxy", "wal-fetch", NAME, "pg_wal/RECOVERYXLOG", "--archive", str(archive)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == EXIT_DELIVERED
    assert (data_directory / "pg_wal" / "RECOVERYXLOG").exists()


@pytest.mark.parametrize(
    ("ending", "in_recovery", "otherwise"),
    [
        ("exit 0", 0, 0),
        (f"exit {MISSING_CODE}", EXIT_MISSING, EXIT_MISSING),
        ("exit 1", EXIT_STOPS_RECOVERY, EXIT_MISSING),  # Python's, when it cannot import the program.
        ("exit 120", EXIT_STOPS_RECOVERY, EXIT_MISSING),
        ("exit 200", EXIT_STOPS_RECOVERY, EXIT_MISSING),
        ("kill -9 $$", EXIT_STOPS_RECOVERY, EXIT_MISSING),
    ],
)
def test_the_command_of_a_restore_ends_recovery_only_if_wal_fetch_has_said_so(
    ending: str, in_recovery: int, otherwise: int, data_directory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "a b" / "walproxy"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{ending}\n")
    program.chmod(0o755)
    assert run_restore_command(program, data_directory, monkeypatch) == in_recovery
    (data_directory / "recovery.signal").unlink()
    assert run_restore_command(program, data_directory, monkeypatch) == otherwise


def test_the_command_of_a_restore_without_its_program_ends_a_recovery_and_no_promotion(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "walproxy"
    program.touch(mode=0o755)
    assert run_restore_command(program, data_directory, monkeypatch, is_removed=True) == EXIT_STOPS_RECOVERY
    (data_directory / "recovery.signal").unlink()
    program.touch(mode=0o755)
    assert run_restore_command(program, data_directory, monkeypatch, is_removed=True) == EXIT_MISSING


def run_restore_command(
    program: Path, data_directory: Path, monkeypatch: pytest.MonkeyPatch, *, is_removed: bool = False
) -> int:
    """Return the exit code of the command that `program restore` writes, run as PostgreSQL runs it."""
    monkeypatch.setattr(sys, "argv", [str(program), "restore"])
    command = restore_command()
    if is_removed:
        program.unlink()
    command = command.replace("%f", NAME).replace("%p", "pg_wal/RECOVERYXLOG").replace("%%", "%")
    return subprocess.run(["sh", "-c", command], cwd=data_directory, timeout=DEADLINE_S).returncode
