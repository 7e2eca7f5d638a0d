"""What is looked at when the stress is over, as far as it needs no database."""

from pathlib import Path
from typing import Any

from walproxy.lab.torture.aftermath import check_logs, keep_logs

FALLEN = """2026-11-22T10:09:42.121Z INFO safekeeper 2 term 3: follows
Traceback (most recent call last):
  File "node.py", line 7, in step
    raise KeyError(7)
KeyError: 7
2026-11-22T10:09:43.000Z INFO goes on"""


class LoggedCluster:
    """A cluster that has logs and nothing else."""

    def __init__(self, **logs: str) -> None:
        self._logs = logs
        self.members = tuple(logs)

    def logs(self, who: str, lines: int = 20) -> str:
        return "\n".join(self._logs[who].splitlines()[-lines:])


def logged(**logs: str) -> Any:
    return LoggedCluster(**logs)


def test_logs_without_a_traceback_are_fine() -> None:
    assert check_logs(logged(postgres="LOG:  ready", walproxy="INFO streaming")) == []


def test_a_traceback_in_a_log_is_a_violation_that_names_its_error() -> None:
    [violation] = check_logs(logged(postgres="LOG:  ready", safekeeper2=f"{FALLEN}\n{FALLEN}"))
    assert violation.rule == "FellOver"
    assert violation.message == "safekeeper2 fell over 2 times, first with: KeyError: 7; see its log"


def test_a_panic_of_postgres_is_a_violation() -> None:
    [violation] = check_logs(logged(postgres="LOG:  ready\nPANIC:  could not write\nLOG:  aborting"))
    assert violation.message.startswith("postgres fell over 1 times")


def test_logs_are_kept_as_they_are(tmp_path: Path) -> None:
    keep_logs(logged(postgres="LOG:  ready", safekeeper2=FALLEN), tmp_path)
    assert (tmp_path / "safekeeper2.log").read_text() == FALLEN
    assert {path.name for path in tmp_path.iterdir()} == {"postgres.log", "safekeeper2.log"}
