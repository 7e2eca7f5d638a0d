"""Where clusters of tests are, and where `pytest --in-memory` puts them (tests/scratch.py)."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.scratch import on_disk, scratch_folder, suffices, use_memory

_A_TEST = """
from pathlib import Path
from tests.scratch import on_disk, scratch_folder

def test_where_files_are(tmp_path):
    with scratch_folder() as folder:
        assert folder.parent.parent == Path("{memory}")
        assert on_disk(folder).parent.parent == Path("{disk}") in tmp_path.parents
        Path("found").write_text(str(folder.parent) + "\\n" + str(on_disk(folder).parent))
    assert "{outcome}" == "good"
"""


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return what is taken for memory, and what for the disk. Without --in-memory, whatever this run has."""
    if sys.platform != "linux":
        pytest.skip("what memory is free is read from /proc")
    for name in ("WALPROXY_TESTS_IN_MEMORY", "WALPROXY_TESTS_ON_DISK"):
        monkeypatch.setenv(name, "")  # So that it is put back.
        monkeypatch.delenv(name)
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    memory.mkdir()
    disk.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    return memory, disk


def test_without_memory_a_folder_is_on_the_disk_and_goes_with_its_block(places: tuple[Path, Path]) -> None:
    with scratch_folder() as folder:
        assert folder.parent == places[1] and folder.stat().st_mode & 0o777 == 0o755
        assert on_disk(folder / "part") == folder / "part"
    assert not folder.exists()


def test_in_memory_a_folder_has_another_on_the_disk_and_both_go_with_their_block(places: tuple[Path, Path]) -> None:
    memory, disk = use_memory(places[0], 1)
    assert (memory.parent, disk.parent) == places
    assert memory.stat().st_mode & 0o777 == disk.stat().st_mode & 0o777 == 0o755
    with pytest.raises(ValueError, match="it fails"), scratch_folder() as folder:
        assert folder.parent == memory and folder.stat().st_mode & 0o777 == 0o755
        beside = on_disk(folder / "part")
        assert beside == disk / folder.name / "part" and beside.is_dir()
        with scratch_folder(may_be_in_memory=False) as other:
            assert other.parent == disk and on_disk(other) == other
        raise ValueError("it fails")
    assert list(memory.glob("walproxy-test-*")) == list(disk.glob("walproxy-test-*")) == []


def test_nothing_is_in_memory_where_there_is_no_such_folder(places: tuple[Path, Path]) -> None:
    assert use_memory(places[0] / "missing", 1) == ()
    assert use_memory(places[0], 1 << 50) == ()
    assert "WALPROXY_TESTS_IN_MEMORY" not in os.environ


def test_memory_must_hold_the_files_leave_as_much_for_processes_and_run_programs() -> None:
    def space(blocks: int, flags: int = os.ST_NOSUID) -> os.statvfs_result:
        return os.statvfs_result((4096, 4096, 1000, 1000, blocks, 0, 0, 0, flags, 255, 0))

    assert suffices(space(10), 81_920, 40_960)
    assert not suffices(space(9), 81_920, 40_960)
    assert not suffices(space(10), 81_919, 40_960)
    for flag in (os.ST_NOEXEC, os.ST_RDONLY):
        assert not suffices(space(10, os.ST_NOSUID | flag), 81_920, 40_960)


@pytest.mark.parametrize("outcome", ["good", "bad"])
def test_the_files_of_a_run_that_passed_are_gone_and_those_of_one_that_failed_stay_until_the_next(
    places: tuple[Path, Path], tmp_path: Path, outcome: str
) -> None:
    memory, disk = places
    # The rules of tests/conftest.py, for a test of its own.
    (tmp_path / "conftest.py").write_text(
        "from pathlib import Path\nfrom tests import scratch\n"
        f"scratch.use_memory.__defaults__ = (Path({str(memory)!r}), 1)\n"
        "from tests.conftest import *\n"
    )
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # It is no worker.
    (tmp_path / "test_it.py").write_text(_A_TEST.format(memory=memory, disk=disk, outcome=outcome))
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--in-memory", "test_it.py"],
            cwd=tmp_path,
            env={**ours, "PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(disk)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == (0 if outcome == "good" else 1), done.stdout + done.stderr
        found = [Path(line) for line in (tmp_path / "found").read_text().splitlines()]
        left = [*memory.glob("walproxy-tests-*"), *disk.glob("walproxy-tests-*")]
        assert left == ([] if outcome == "good" else found), done.stdout
