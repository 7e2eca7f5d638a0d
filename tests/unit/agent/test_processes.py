"""postmaster.pid, and which processes belong to a data folder."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from walproxy.agent import processes
from walproxy.agent.processes import PidFile, parse_pid_file


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("4", PidFile(4, "")),
        ("-4\n/data\n", PidFile(4, "")),
        ("1\n", None),
        ("0\n", None),
        ("nothing\n", None),
        ("17\n/data\n1790000000\n5432\n\n127.0.0.1\n  1 2\nstandby \n", PidFile(17, "standby", 5432, "127.0.0.1")),
        ("17\n/data\n1790000000\n5432\n/run\n*\n", PidFile(17, "", 5432, "/run")),
    ],
)
def test_the_pid_file_is_read(text: str, expected: PidFile | None) -> None:
    assert parse_pid_file(text) == expected


@pytest.fixture
def impostor(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process called postgres, with the folder `one`."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "postgres").symlink_to("/bin/sleep")
    process = subprocess.Popen([tmp_path / "postgres", "60"], cwd=tmp_path / "one")
    yield process
    process.kill()
    process.wait()


def test_a_process_belongs_to_its_own_folder_only(impostor: subprocess.Popen[bytes], tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert processes.processes_of(one) == [impostor.pid]
    assert processes.processes_of(two) == []
    for folder in (one, two):
        (folder / "postmaster.pid").write_text(f"{impostor.pid}\n")
        processes.remove_stale_pid_file(folder)
    assert [folder.joinpath("postmaster.pid").exists() for folder in (one, two)] == [True, False]
    (two / "postmaster.pid").write_text(f"{impostor.pid}\n")
    assert [processes.postmaster_of(folder) for folder in (one, two)] == [impostor.pid, None]
    assert processes.kill_all(two, 1.0) == 0
    assert impostor.poll() is None
    assert processes.kill_all(one, 5.0) == 1
    assert impostor.wait(5) == -9


def test_a_process_of_another_name_does_not_belong_to_it(tmp_path: Path) -> None:
    (tmp_path / "postmaster.pid").write_text(f"{os.getpid()}\n")
    with subprocess.Popen(["sleep", "60"], cwd=tmp_path) as bystander:
        assert processes.processes_of(tmp_path) == []
        assert processes.postmaster_of(tmp_path) is None
        bystander.kill()
