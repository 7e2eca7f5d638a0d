"""`walproxy archive`: what is there, from when to when can be restored, and whatever is wrong with it."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from safekeeper.base.errors import EXIT_CONFIGURATION, EXIT_FINE, EXIT_UNEXPECTED
from safekeeper.base.lsn import format_lsn, segment_name
from tests.integration.conftest import NEWEST
from tests.integration.restore.restore_fixtures import MIB, Past, corrupt, remove_segment, segment_key, story, walproxy
from walproxy.postgres.local_server import ServerBinaries

pytestmark = NEWEST


@pytest.fixture(scope="module")
def past(servers: dict[int, ServerBinaries], major: int) -> Iterator[Past]:
    with story(servers[major]) as made:
        yield made


@pytest.fixture
def archive(past: Past) -> Iterator[Path]:
    """A copy of the archive, to be damaged."""
    yield past.copy_of_archive(past.folder / "copy")
    shutil.rmtree(past.folder / "copy")


def test_the_list_has_from_when_to_when_can_be_restored(past: Past) -> None:
    answer = walproxy("archive", "list", "--archive", past.archive, "--json")
    assert answer.returncode == EXIT_FINE, answer.stderr
    listed = json.loads(answer.stdout)
    assert (listed["system_id"], listed["holes"]) == (str(past.system_id), [])
    [whole] = listed["ranges"]
    assert (whole["tli"], whole["end_lsn"], whole["ends_with_partial"]) == (1, format_lsn(past.archived_lsn), True)
    assert whole["first_commit"] < past.steps[0].time[:26]
    # The last commit is that of the last step, which happened just before its time was taken.
    assert past.steps[3].time[:26] < whole["last_commit"] < past.steps[4].time[:26]


def test_a_hole_splits_the_list_and_is_named(past: Past, archive: Path) -> None:
    name = remove_segment(archive, past.steps[2].end_lsn)
    listed = json.loads(walproxy("archive", "list", "--archive", archive, "--json").stdout)
    hole_lsn = past.steps[2].end_lsn // MIB * MIB
    assert listed["ranges"][0]["end_lsn"] == format_lsn(hole_lsn)
    assert [(hole["missing"], hole["begin_lsn"]) for hole in listed["holes"]] == [(name, format_lsn(hole_lsn))]
    assert listed["ranges"][1]["first_commit"] > past.steps[2].time[:26]


def test_an_archive_that_is_as_it_should_be(past: Past) -> None:
    answer = walproxy("archive", "verify", "--archive", past.archive, "--json")
    listed = json.loads(answer.stdout)
    assert (answer.returncode, listed["problems"], listed["notes"]) == (EXIT_FINE, [], [])
    since = walproxy("archive", "verify", "--archive", past.archive, "--json", "--since", format_lsn(past.archived_lsn))
    assert json.loads(since.stdout)["checked"] == 0 < listed["checked"]


def swap(archive: Path, past: Past) -> None:
    """Put the bytes of one segment, with a receipt of their own, under the name of another."""
    one, other = (segment_key(archive, past.steps[step].end_lsn) for step in (1, 2))
    receipts = [next(path.parent.glob(f"{path.name}.*.receipt")) for path in (one, other)]
    other.write_bytes(one.read_bytes())
    receipts[1].rename(other.parent / receipts[0].name.replace(one.name, other.name))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda archive, past: corrupt(segment_key(archive, past.steps[1].end_lsn)), "CRC-32C"),
        (
            lambda archive, past: segment_key(archive, past.steps[1].end_lsn).unlink(),
            ".receipt is the receipt of an object that does not exist",
        ),
        (lambda archive, past: remove_segment(archive, past.steps[1].end_lsn), "is missing"),
        (swap, "belongs to"),
        (lambda archive, past: next(archive.rglob("*.receipt")).write_text("{"), "is not a receipt"),
        (lambda archive, past: next(archive.rglob("*.receipt")).write_text('{"system_id": 5}'), "system 5"),
    ],
    ids=["corrupt", "gone", "hole", "misplaced", "receipt", "system"],
)
def test_what_is_wrong_is_found(past: Past, archive: Path, damage: Callable[[Path, Past], None], words: str) -> None:
    damage(archive, past)
    answer = walproxy("archive", "verify", "--archive", archive)
    assert answer.returncode == EXIT_UNEXPECTED
    assert any(line.startswith("PROBLEM") and words in line for line in answer.stdout.splitlines()), answer.stdout


def test_an_unfinished_upload_is_noted_only(past: Past, archive: Path) -> None:
    name = segment_name(1, past.archived_lsn + MIB, MIB)
    (archive / "wal" / name[:16] / name).write_bytes(b"half")
    answer = walproxy("archive", "verify", "--archive", archive)
    assert answer.returncode == EXIT_FINE
    assert f"note: wal/{name[:16]}/{name} has no receipt" in answer.stdout


def test_the_cluster_that_a_rebootstrap_began_may_write_once_it_is_adopted(archive: Path) -> None:
    answer = walproxy("archive", "adopt", "--archive", archive, "--cluster-id", "0123456789abcdef" * 2)
    assert answer.returncode == EXIT_FINE, answer.stderr
    listed = json.loads(walproxy("archive", "list", "--archive", archive, "--json").stdout)
    assert listed["cluster_ids"][-1] == "0123456789abcdef" * 2


@pytest.mark.parametrize("command", ["list", "verify"])
def test_a_place_without_an_archive_is_refused(past: Past, tmp_path: Path, command: str) -> None:
    answer = walproxy("archive", command, "--archive", tmp_path)
    assert answer.returncode == EXIT_CONFIGURATION
    assert "no WAL was archived there" in answer.stderr
