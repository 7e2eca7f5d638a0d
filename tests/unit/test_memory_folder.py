"""Where `pytest --in-memory` puts its files (tests/memory_folder.py)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.memory_folder import memory_folder, suffices

_A_TEST = """
import os, tempfile
from pathlib import Path

def test_where_files_are(tmp_path):
    folder = Path(os.environ["TMPDIR"])
    assert folder.parent == Path("{parent}") and Path(tempfile.gettempdir()) == folder in tmp_path.parents
    assert folder.stat().st_mode & 0o777 == 0o755
    Path("found").write_text(str(folder))
    assert "{outcome}" == "good"
"""


def test_there_is_a_folder_where_there_is_room(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("what memory is free is read from /proc")
    folder = memory_folder(tmp_path, 1)
    assert folder is not None and folder.parent == tmp_path
    assert memory_folder(tmp_path, 1) != folder and folder.exists()  # We live.


def test_there_is_none_where_there_is_no_such_folder(tmp_path: Path) -> None:
    assert memory_folder(tmp_path / "missing", 1) is None


def test_it_must_hold_the_files_leave_as_much_for_processes_and_run_programs() -> None:
    def space(blocks: int, flags: int = os.ST_NOSUID) -> os.statvfs_result:
        return os.statvfs_result((4096, 4096, 1000, 1000, blocks, 0, 0, 0, flags, 255, 0))

    assert suffices(space(10), 81_920, 40_960)
    assert not suffices(space(9), 81_920, 40_960)
    assert not suffices(space(10), 81_919, 40_960)
    for flag in (os.ST_NOEXEC, os.ST_RDONLY):
        assert not suffices(space(10, os.ST_NOSUID | flag), 81_920, 40_960)


@pytest.mark.parametrize("outcome", ["good", "bad"])
def test_the_files_of_a_run_that_passed_are_gone_and_those_of_one_that_failed_stay_until_the_next(
    tmp_path: Path, outcome: str
) -> None:
    parent = tmp_path / "memory"
    parent.mkdir()
    tests = Path(__file__).parents[1]
    # The rules of tests/conftest.py, for a test of its own, and with a disk for memory.
    (tmp_path / "conftest.py").write_text(
        "from pathlib import Path\nfrom tests import memory_folder\n"
        f"memory_folder.memory_folder.__defaults__ = (Path({str(parent)!r}), 1)\n"
        "from tests.conftest import *\n"
    )
    (tmp_path / "test_it.py").write_text(_A_TEST.format(parent=parent, outcome=outcome))
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--in-memory", "test_it.py"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tests.parent)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == (0 if outcome == "good" else 1), done.stdout + done.stderr
        found = Path((tmp_path / "found").read_text())
        assert list(parent.iterdir()) == ([] if outcome == "good" else [found]), done.stdout
