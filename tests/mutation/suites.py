"""The suites that a mutation is tried against: seeds of the simulator, unit tests, scenarios."""

import os
import sys
from collections.abc import Sequence
from typing import Protocol

import pytest

from tests.simulation.scenarios.scenario import SCENARIOS, play
from tests.simulation.seeds.runner import Failure, Task, attempt

WHY_BYTES_MAX = 200


class Suite(Protocol):
    """Tests with names. `run` returns why a test fails, in one line; empty if it passes."""

    name: str
    tests: Sequence[str]

    def run(self, test: str) -> str:
        """Run one test in this process."""


class Seeds:
    """Runs of the simulator, all profiles alternately."""

    name = "simulator"

    def __init__(self, first: int, count: int) -> None:
        self.tests = [f"seed {seed} {Task(seed).profile_name}" for seed in range(first, first + count)]

    def run(self, test: str) -> str:
        """Run a seed."""
        outcome = attempt(Task(int(test.split()[1])))
        return first_line(f"{outcome.invariant}: {outcome.text}") if isinstance(outcome, Failure) else ""


class Scenarios:
    """The scenario files."""

    name = "scenarios"

    def __init__(self) -> None:
        self.tests = sorted(path.stem for path in SCENARIOS.glob("*.txt"))

    def run(self, test: str) -> str:
        """Replay a scenario."""
        play(SCENARIOS / f"{test}.txt")
        return ""


class Units:
    """The unit tests that pytest has collected in this process."""

    name = "units"

    def __init__(self, session: pytest.Session) -> None:
        self._items = {item.nodeid: item for item in session.items}
        self.tests = sorted(self._items)
        self._failures: list[str] = []
        session.config.pluginmanager.register(self)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Receive the result of a phase of a test (a hook of pytest)."""
        if report.failed:
            self._failures.append(f"{report.when}: {str(report.longrepr).splitlines()[-1] if report.longrepr else ''}")

    def run(self, test: str) -> str:
        """Run a unit test with its fixtures."""
        self._failures.clear()
        item = self._items[test]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return first_line(self._failures[0]) if self._failures else ""


def run_caught(suite: Suite, test: str) -> str:
    """Run one test; an error that it raises is why it fails."""
    try:
        return suite.run(test)
    except Exception as error:
        return first_line(f"{type(error).__name__}: {error}")


def first_line(text: str) -> str:
    """Return the beginning of a text in one line."""
    return " ".join(text.split())[:WHY_BYTES_MAX]


def silence() -> None:
    """Discard what this process prints from now on."""
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)
