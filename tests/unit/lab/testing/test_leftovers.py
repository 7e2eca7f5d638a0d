"""What a killed test has left behind is told from what is in use."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from walproxy.lab.testing.leftovers import has_ended, owner, temporary_folder

_HOLDS_ONE = """
import sys
from walproxy.lab.testing.leftovers import owner, temporary_folder
with temporary_folder() as folder:
    print(folder, owner(), flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def test_a_folder_goes_with_its_block_and_anybody_may_enter_it() -> None:
    with temporary_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o755
    assert not folder.exists()


def test_the_folder_of_a_killed_process_is_removed_by_the_next_and_that_of_a_living_one_is_not() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDS_ONE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        name, its_owner = process.stdout.readline().split()
        with temporary_folder():
            assert Path(name).is_dir()
        assert not has_ended(its_owner)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert Path(name).is_dir()
        with temporary_folder():
            assert not Path(name).exists()
        assert has_ended(its_owner)


def test_a_process_of_another_machine_may_live_and_another_one_with_our_number_is_not_us() -> None:
    host, pid, began = owner().rsplit("/", 2)
    assert not has_ended(f"elsewhere/{pid}/{began}1")
    assert has_ended(f"{host}/{pid}/{began}1")
    assert not has_ended(owner())
