"""`walproxy restore` whose temporary files cannot be written: one line, and nothing is written."""

import errno
import os
from pathlib import Path, PurePosixPath
from typing import NoReturn

import pytest

from safekeeper.base.errors import ConfigurationError
from walproxy.cli import restore as restore_module
from walproxy.recovery.base_backup import BackupEntry, BackupFacts
from walproxy.recovery.plan import Plan
from walproxy.wal_sources.source import LogPath

MIB = 1 << 20


class OwnWal:
    """Stands for a backup with one segment of its own."""

    facts = BackupFacts(1, 18, MIB, 1, MIB, 0, "", "", {})
    manifest = None

    def __init__(self, path: Path, *, ignore_manifest: bool) -> None:
        self.path = path

    def wal_entries(self) -> list[BackupEntry]:
        return [BackupEntry(PurePosixPath("pg_wal/000000010000000000000001"), False, MIB, lambda: iter([bytes(MIB)]))]


def full_disk(*arguments: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_folder(*arguments: object, **options: object) -> NoReturn:
    raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp', '/var/tmp']")


@pytest.mark.parametrize(
    ("function", "failure", "reason"),
    [
        ("make_plan", full_disk, "No space left on device"),
        ("write_entry", full_disk, "No space left on device"),
        ("tempfile.TemporaryDirectory", no_folder, r"No usable temporary directory found in \['/tmp', '/var/tmp'\]"),
    ],
)
def test_a_temporary_folder_that_cannot_be_written_is_one_line_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, function: str, failure: object, reason: str
) -> None:
    plan = Plan(LogPath(1, (), MIB), 2 * MIB, None, 0, None, True)
    monkeypatch.setattr(restore_module, "BaseBackup", OwnWal)
    monkeypatch.setattr(restore_module, "make_plan", lambda *arguments: plan)
    monkeypatch.setattr(f"{restore_module.__name__}.{function}", failure)
    target = tmp_path / "target"
    words = ["--backup", str(tmp_path), "--target", str(target), "--archive", str(tmp_path), "--dry-run"]
    with pytest.raises(
        ConfigurationError,
        match=f"^could not write WAL to the folder of temporary files: {reason}; set TMPDIR to a folder with more "
        "space; nothing was written$",
    ):
        restore_module.restore.main(words, standalone_mode=False)
    assert not target.exists()
