"""The comparison of safekeepers with the primary behind a run: one that differs, and one that does not catch up."""

from pathlib import Path
from typing import Any

import pytest

from safekeeper.base.lsn import format_lsn, segment_name
from walproxy.lab.torture import wal_check
from walproxy.lab.torture.wal_check import check_safekeepers, wait_until_reached

SIZE = 1 << 20
END_LSN = SIZE + 1000
NAMES = ("safekeeper1", "safekeeper2")


class Folders:
    """A cluster that is folders: one segment, equal everywhere; what the safekeepers say of themselves is given."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.statuses: dict[str, dict[str, Any] | None] = {}
        for member, wal in (("postgres", "pg_wal"), ("safekeeper1", "wal"), ("safekeeper2", "wal")):
            (directory / member / wal).mkdir(parents=True)
            (directory / member / wal / segment_name(1, SIZE, SIZE)).write_bytes(bytes(range(250)) * 4000)
            self.reaches(member, END_LSN, END_LSN)

    def reaches(self, member: str, flush_lsn: int, commit_lsn: int) -> None:
        self.statuses[member] = {"flush_lsn": format_lsn(flush_lsn), "commit_lsn": format_lsn(commit_lsn)}

    def status_of(self, who: str) -> dict[str, Any] | None:
        return self.statuses[who]

    def data_folder(self, who: str) -> Path:
        return self._directory / who


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(wal_check, "CATCHES_UP_WITHIN_S", 0.1)
    return Folders(tmp_path)


def test_safekeepers_with_the_primarys_bytes_are_fine(folders: Any) -> None:
    assert check_safekeepers(folders, NAMES, END_LSN, SIZE) == []


def test_a_byte_that_differs_is_a_violation_of_that_safekeeper(folders: Any) -> None:
    path = folders.data_folder("safekeeper2") / "wal" / segment_name(1, SIZE, SIZE)
    path.write_bytes(path.read_bytes()[:999] + b"x" + path.read_bytes()[1000:])
    [violation] = check_safekeepers(folders, NAMES, END_LSN, SIZE)
    assert violation.rule == "BytesDiffer"
    assert violation.message.startswith("safekeeper2: ")
    assert violation.message.endswith(f"at {format_lsn(SIZE + 999)}")


@pytest.mark.parametrize(("flush_lsn", "commit_lsn"), [(END_LSN - 1, END_LSN), (END_LSN, END_LSN - 1)])
def test_a_safekeeper_that_does_not_catch_up_is_left_behind(folders: Any, flush_lsn: int, commit_lsn: int) -> None:
    folders.reaches("safekeeper1", flush_lsn, commit_lsn)
    [violation] = check_safekeepers(folders, NAMES, END_LSN, SIZE)
    assert violation.rule == "LeftBehind"
    assert violation.message.startswith("safekeeper1 has committed WAL up to 0/1003E7, not to 0/1003E8")


def test_a_safekeeper_that_does_not_answer_is_left_behind(folders: Any) -> None:
    folders.statuses["safekeeper1"] = None
    [violation] = check_safekeepers(folders, NAMES, END_LSN, SIZE)
    assert violation.message.startswith("safekeeper1 has committed WAL up to 0/0")


def test_a_position_that_comes_is_waited_for() -> None:
    positions = iter([5, 7, 9])
    assert wait_until_reached(lambda: next(positions), 8) == 9
