"""`walproxy torture` without --soak: what it leaves behind, what it prints, how it exits. Nothing is stressed here."""

import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from safekeeper.base.errors import ConfigurationError, WalproxyError
from walproxy.cli.torture import torture
from walproxy.lab.torture.record import Fault, Operation, Run, Violation
from walproxy.lab.torture.run import RunOptions, Stressed, Watcher

LOST = Violation("Lost", "insert 7: acknowledged at 1.100 s, and not in the table")


class Stress:
    """In the place of a real one: notes the plan, leaves a file, and ends as the test asks."""

    def __init__(self) -> None:
        self.plans: list[RunOptions] = []
        self.violations: list[Violation] = []
        self.error: Exception | None = None

    def __call__(self, plan: RunOptions, watcher: Watcher) -> Stressed:
        self.plans.append(plan)
        plan.directory.mkdir()
        (plan.directory / "safekeeper-1.log").write_text("INFO")
        watcher.show(1.0, "kill [safekeeper1]")
        watcher.add_line(1.0, "kill [safekeeper1] for 2.0 s: commits resumed after 0.1 s")
        if self.error is not None:
            raise self.error
        operations = [Operation(1, "unique", 1.0, 1.1, "ok", "insert 7")]
        faults = [Fault("kill", "safekeeper1", 1.0, 3.0)]
        return Stressed(Run(plan.seed, 5.0, "processes", "18.1", 3, operations, faults, [], self.violations), [0.1])


@pytest.fixture
def stress(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Stress]:
    stress = Stress()
    monkeypatch.setattr("walproxy.cli.torture.stress", stress)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    handler = signal.getsignal(signal.SIGTERM)
    yield stress
    signal.signal(signal.SIGTERM, handler)


def run(*words: str) -> Result:
    return CliRunner().invoke(torture, ["--seed", "7", "--minutes", "0.5", *words])


def test_a_run_that_went_well_exits_with_0_and_leaves_nothing(stress: Stress, tmp_path: Path) -> None:
    result = run()
    assert result.exit_code == 0
    assert "1.0 s  kill [safekeeper1] for 2.0 s: commits resumed after 0.1 s" in result.stderr
    assert "1: kill 1" in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_broken_promise_exits_with_1_and_names_it_the_seed_and_the_folder(stress: Stress, tmp_path: Path) -> None:
    stress.violations = [LOST]
    result = run()
    assert result.exit_code == 1
    assert f"VIOLATION Lost: {LOST.message}" in result.stderr
    [folder] = tmp_path.iterdir()
    assert re.search(rf"seed 7: data, logs and run.json are in {folder}$", result.stderr, re.MULTILINE)
    assert (folder / "cluster" / "safekeeper-1.log").exists()
    kept = msgspec.json.decode((folder / "run.json").read_bytes(), type=Run)
    assert (kept.seed, kept.violations, len(kept.operations)) == (7, [LOST], 1)


def test_json_has_the_figures_and_the_violations(stress: Stress) -> None:
    stress.violations = [LOST]
    content = msgspec.json.decode(run("--json").stdout)
    assert content["violations"] == [{"rule": "Lost", "message": LOST.message}]
    assert content["operations"] == {"unique": {"ok": 1, "fail": 0, "unknown": 0}}
    assert (content["seed"], content["fault_count"]) == (7, 1)


def test_the_options_become_the_plan(stress: Stress) -> None:
    words = ("--clients", "3", "--rate", "50", "--safekeepers", "5", "--postgres", "17", "--engine", "processes")
    assert run(*words).exit_code == 0
    [plan] = stress.plans
    assert (plan.seed, plan.seconds, plan.clients, plan.rate) == (7, 30.0, 3, 50.0)
    assert (plan.safekeepers, plan.postgres, plan.engine) == (5, "17", "processes")


def test_without_a_seed_one_is_chosen_and_printed(stress: Stress) -> None:
    result = CliRunner().invoke(torture, [])
    assert f"seed {stress.plans[0].seed}\n" in result.stderr


def test_what_there_is_stays_when_the_torture_itself_fails(stress: Stress, tmp_path: Path) -> None:
    stress.error = WalproxyError("the relay does not answer")
    result = run()
    [folder] = tmp_path.iterdir()
    assert str(result.exception) == f"the relay does not answer; the data up to then is in {folder}"


def test_nothing_stays_when_it_cannot_begin(stress: Stress, tmp_path: Path) -> None:
    stress.error = ConfigurationError("there is no such PostgreSQL")
    assert str(run().exception) == "there is no such PostgreSQL"
    assert list(tmp_path.iterdir()) == []
