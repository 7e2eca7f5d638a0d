"""What `walproxy restore` refuses, before anything is written: each names what is wrong, and leaves nothing behind."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from safekeeper.base.errors import EXIT_CONFIGURATION
from safekeeper.base.lsn import format_lsn
from tests.integration.conftest import NEWEST
from tests.integration.restore.restore_fixtures import (
    MIB,
    Past,
    corrupt,
    make_past,
    owner,
    recovered,
    remove_segment,
    restore,
    rows,
    take_backup,
    up_to,
    walproxy,
)
from walproxy.postgres.local_server import ServerBinaries

pytestmark = NEWEST


@pytest.fixture
def archive(past: Past) -> Iterator[Path]:
    """A copy of the archive, to be damaged."""
    yield past.copy_of_archive(past.folder / "copy")
    shutil.rmtree(past.folder / "copy")


@pytest.fixture
def backup(past: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A copy of the base backup, to be damaged."""
    of: Past = request.getfixturevalue("past")
    path = of.folder / "damaged"
    shutil.copytree(of.folder / "base", path)
    yield path
    shutil.rmtree(path)


def attempt(backup: Path, target: Path, *arguments: object) -> CompletedProcess[str]:
    return walproxy("restore", "--backup", backup, "--target", target, "-c", "timeout=1", *owner(), *arguments)


def assert_refused(answer: CompletedProcess[str], target: Path, *words: str) -> None:
    assert answer.returncode == EXIT_CONFIGURATION, answer.stderr
    assert not target.exists()
    printed = answer.stderr.splitlines()[-1]
    assert not [word for word in words if word not in printed], printed


def test_a_hole_is_named_with_what_it_makes_unrecoverable(past: Past, target: Path, archive: Path) -> None:
    name = remove_segment(archive, past.steps[2].end_lsn)
    hole_lsn = past.steps[2].end_lsn // MIB * MIB
    answer = attempt(past.folder / "base", target, "--archive", archive)
    assert_refused(answer, target, name, format_lsn(hole_lsn), format_lsn(hole_lsn + MIB))
    answer = attempt(past.folder / "base", target, "--archive", archive, "--target-time", past.steps[3].time)
    assert_refused(answer, target, name)
    assert f"HOLE: {name} is missing" in walproxy("archive", "list", "--archive", archive).stdout


def test_what_is_before_a_hole_can_be_recovered(past: Past, target: Path, archive: Path) -> None:
    remove_segment(archive, past.steps[3].end_lsn)
    lsn = format_lsn(past.steps[1].end_lsn)
    restore(past, past.folder / "base", target, "--archive", archive, "--target-lsn", lsn)
    with recovered(past.server.binaries, target) as server:
        assert rows(server) == up_to(2)


def test_the_lsn_that_the_refusal_of_a_hole_advises_can_be_reached(past: Past, target: Path, archive: Path) -> None:
    remove_segment(archive, past.steps[3].end_lsn)
    printed = attempt(past.folder / "base", target, "--archive", archive).stderr
    advised = printed.partition("--target-lsn ")[2].strip()
    restore(past, past.folder / "base", target, "--archive", archive, "--target-lsn", advised)
    with recovered(past.server.binaries, target) as server:
        assert rows(server) == up_to(3)


def test_a_segment_that_the_backup_itself_needs_is_missing(past: Past, target: Path, archive: Path) -> None:
    for path in archive.glob("wal/*/*"):
        path.unlink()
    backup = take_backup(past.server, past.folder / "bare", "-X", "none")
    try:
        assert_refused(attempt(backup, target, "--archive", archive), target, "cannot be restored")
    finally:
        shutil.rmtree(backup)


@pytest.mark.parametrize(
    ("target_of", "words"),
    [
        (lambda past: ("--target-time", "2999-01-01T00:00:00Z"), "cannot be reached"),
        (lambda past: ("--target-lsn", "FF/0"), "cannot be reached"),
        (lambda past: ("--target-lsn", "0/100000"), "before the end of the backup"),
        (lambda past: ("--target-timeline", "7"), "history of timeline 7"),
    ],
    ids=["time", "lsn", "too early", "timeline"],
)
def test_a_target_that_cannot_be_reached(
    past: Past, target: Path, target_of: Callable[[Past], tuple[str, ...]], words: str
) -> None:
    assert_refused(attempt(past.folder / "base", target, "--archive", past.archive, *target_of(past)), target, words)


def test_another_clusters_archive(past: Past, target: Path, servers: dict[int, ServerBinaries], major: int) -> None:
    place = past.folder / "other"
    place.mkdir(mode=0o755)
    other = make_past(servers[major], place, own_system=True)
    with other.server:
        other.archive_up_to(other.flush_lsn())
    answer = attempt(past.folder / "base", target, "--archive", other.archive)
    assert_refused(answer, target, str(past.system_id), str(other.system_id), "another cluster")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda backup: (backup / "backup_label").unlink(), "backup_label"),
        (lambda backup: (backup / "backup_label").write_text("START?\n"), "backup_label"),
        (lambda backup: (backup / "PG_VERSION").unlink(), "not a base backup"),
        (lambda backup: (backup / "global/pg_control").unlink(), "pg_control"),
        (lambda backup: (backup / "pg_tblspc/16500").symlink_to("/mnt"), "tablespaces"),
        (lambda backup: (backup / "postmaster.pid").write_text("1\n"), "data folder of a server"),
        (lambda backup: (backup / "backup_manifest").write_text("{"), "backup_manifest"),
        (lambda backup: corrupt(backup / "global/1260", 100), "of global/1260 is"),
        (lambda backup: (backup / "global/1260").unlink(), "global/1260, which its backup_manifest lists, is missing"),
        (shutil.rmtree, "does not exist: correct --backup"),
    ],
    ids=[
        *("no label", "bad label", "no version", "no pg_control", "tablespace", "a server", "manifest"),
        *("flipped byte", "no relation", "nothing"),
    ],
)
def test_a_backup_that_is_none(
    past: Past, target: Path, backup: Path, damage: Callable[[Path], None], words: str
) -> None:
    damage(backup)
    assert_refused(attempt(backup, target, "--archive", past.archive), target, words)
    backup.mkdir(exist_ok=True)


def test_a_damaged_backup_is_found_by_a_dry_run_and_restored_only_if_the_manifest_is_to_be_ignored(
    past: Past, target: Path, backup: Path
) -> None:
    corrupt(backup / "global/1260", 100)
    sources = ("--archive", past.archive, "--dry-run")
    assert_refused(attempt(backup, target, *sources), target, "of global/1260 is", "--ignore-manifest")
    answer = attempt(backup, target, *sources, "--ignore-manifest")
    assert answer.returncode == 0
    assert "damage is not detected" in answer.stderr
    (backup / "backup_manifest").unlink()
    answer = attempt(backup, target, *sources)
    assert answer.returncode == 0
    assert "has no backup_manifest" in answer.stderr


def test_a_tar_that_is_cut_short_leaves_nothing_behind(past: Past, target: Path) -> None:
    backup = take_backup(past.server, past.folder / "cut", "-Ft", "-X", "none")
    tar = backup / "base.tar"
    content = tar.read_bytes()
    try:
        tar.write_bytes(content[: len(content) // 2])
        assert_refused(attempt(backup, target, "--archive", past.archive), target, "cannot be read")
    finally:
        shutil.rmtree(backup)


def test_a_target_that_is_not_empty_is_not_touched(past: Past, target: Path) -> None:
    target.mkdir()
    (target / "precious").write_text("x")
    answer = attempt(past.folder / "base", target, "--archive", past.archive)
    assert answer.returncode == EXIT_CONFIGURATION
    assert "not empty" in answer.stderr
    assert [path.name for path in target.iterdir()] == ["precious"]


def test_an_archive_that_is_not_there(past: Past, target: Path) -> None:
    answer = attempt(past.folder / "base", target, "--archive", past.folder / "nothing")
    assert_refused(answer, target, "is not a folder: correct the archive's URL")
    assert not (past.folder / "nothing").exists()
