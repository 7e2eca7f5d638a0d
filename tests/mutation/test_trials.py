"""Trials of a toy module, whose mutations are known, and of rules that no change may lose."""

import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.mutation import targets, trials
from tests.mutation.children import Send, limit_cpu, run_all
from tests.mutation.edits import Mutation, first_line, functions
from tests.mutation.install import functions_of, install
from tests.mutation.reach import FAILED, SuiteFails, measure
from tests.mutation.scores import table
from tests.mutation.suites import Scenarios, Seeds, Suite
from tests.mutation.trials import Limits, Verdict, try_all

SOURCE = '''
def total(numbers: list[int], limit: int) -> int:
    """Add numbers up to a limit."""
    result = 0
    index = 0
    while index < len(numbers):
        result += numbers[index]
        index += 1
    if result > limit:
        result = limit
    return result


def unused(number: int) -> bool:
    return number < 3
'''
CPU_S = 1.0
WAITS_S_MAX = 120.0


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module with known mutations, the only one that is mutated."""
    path = tmp_path / "mutated_toy.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("mutated_toy", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "mutated_toy", module)
    for name in list(targets.MODULES):
        monkeypatch.delitem(targets.MODULES, name)
    monkeypatch.setitem(targets.MODULES, "mutated_toy", path)
    targets.names.cache_clear()
    yield module
    targets.names.cache_clear()


class ToySuite:
    """Two tests, of which one passes whatever the toy does."""

    def __init__(self, module: ModuleType, name: str = "simulator") -> None:
        self.name = name
        self.tests = ["adds", "anything"]
        self._total = module.total

    def run(self, test: str) -> str:
        found = self._total([1, 2, 3], 100) if test == "adds" else 6
        return "" if found == 6 else f"{found} is not 6"


def verdicts_of(suite: ToySuite, mutations: list[Mutation]) -> dict[str, Verdict]:
    reach = measure([suite])
    limits = {suite.name: Limits(CPU_S, 10)}
    changes = {mutation.id: mutation.change for mutation in mutations}
    return {changes[verdict.id]: verdict for verdict in try_all(mutations, [suite], reach, limits, 2)}


def test_mutations_are_detected_survive_or_end_at_a_limit(toy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "GRACE_S", 0.0)
    mutations = list(targets.all_mutations())
    verdicts = verdicts_of(ToySuite(toy), mutations)
    assert len(verdicts) == len({each.change for each in mutations})
    detected = verdicts["dropped: result += numbers[index]"]
    assert (detected.killed_by, detected.test, detected.why) == ("simulator", "adds", "0 is not 6")
    assert verdicts["result > limit -> result >= limit"].survived
    loop = verdicts["dropped: index += 1"]
    assert (loop.killed_by, loop.test, loop.timed_out) == ("simulator", "adds", True)
    assert not verdicts["number < 3 -> number <= 3"].ran["simulator"], "no test executes it"
    assert toy.total([1, 2, 3], 100) == 6, "a mutation was applied in this process"


class WeakFirst(ToySuite):
    """One whose first test runs the toy, and passes whatever it does."""

    def run(self, test: str) -> str:
        found = self._total([1, 2, 3], 100)
        return "" if found == 6 or test == "adds" else f"{found} is not 6"


@pytest.mark.parametrize(("killed_by", "test", "ran"), [("units", "anything", 1), ("units", "gone", 2)])
def test_what_has_detected_a_mutation_before_is_tried_first(
    toy: ModuleType, tmp_path: Path, killed_by: str, test: str, ran: int
) -> None:
    mutation = next(each for each in targets.all_mutations() if each.change == "dropped: result += numbers[index]")
    results = tmp_path / "results.jsonl"
    other_version = f"{trials.without_digest(mutation.id)}@other"
    trials.write(results, Verdict(other_version, killed_by, False, test, "why", {"units": 2}, 0.1))
    suite = WeakFirst(toy, "units")
    before = trials.detected_before([results])
    (verdict,) = try_all([mutation], [suite], measure([suite]), {"units": Limits(CPU_S, 10)}, 1, before)
    assert (verdict.test, verdict.ran) == ("anything", {"units": ran})


def test_a_test_that_reached_a_limit_or_detected_nothing_is_not_tried_first(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    trials.write(results, Verdict("slow@1", "units", True, "test", "a time limit", {"units": 1}, 20.0))
    trials.write(results, verdict_of("survivor@1", trials.SURVIVED))
    assert trials.detected_before([results]) == {}


def test_a_child_that_waits_is_killed_and_counts_as_detected() -> None:
    def waits(send: Send) -> None:
        send({"suite": "units", "test": "waits", "ran": {}, "cpu_s": 0.0})
        threading.Event().wait()

    (ended,) = run_all([("id", waits)], 1, 5.0)
    assert ended.hung and ended.timed_out
    verdict = trials._verdict(ended)
    assert (verdict.killed_by, verdict.test, verdict.timed_out) == ("units", "waits", True)


def test_a_child_that_somebody_else_ends_has_no_verdict() -> None:
    def is_ended(send: Send) -> None:
        send({"suite": "units", "test": "runs", "ran": {}, "cpu_s": 0.0})
        os.kill(os.getpid(), signal.SIGTERM)

    (ended,) = run_all([("id", is_ended)], 1, WAITS_S_MAX)
    with pytest.raises(trials.TrialFailed, match="id: signal 15 has ended the child"):
        trials._verdict(ended)


def test_a_child_that_computes_without_end_reaches_its_limit() -> None:
    def computes(send: Send) -> None:
        limit_cpu(0.0)
        while True:
            pass

    (ended,) = run_all([("id", computes)], 1, WAITS_S_MAX)
    assert ended.timed_out and not ended.hung


def test_the_tests_of_the_mutated_module_are_run_first() -> None:
    tests = [
        f"tests/unit/{name}::test" for name in ("node/test_node.py", "storage/test_folder.py", "storage/test_wal.py")
    ]
    assert trials.nearest_first(tests, "safekeeper.storage.wal") == [tests[2], tests[1], tests[0]]
    seeds = ["seed 2 calm", "seed 1 storage"]
    assert trials.nearest_first(seeds, "safekeeper.storage.wal") == seeds


def folders_of(*modules: str) -> list[str]:
    mutations = [next(targets.all_mutations(module)) for module in modules]
    return [folder.rpartition("/")[2] for folder in targets.unit_folders(mutations)]


def test_only_the_tests_that_can_execute_a_mutated_package_are_collected() -> None:
    pure = ["acceptor", "consensus", "proposer"]
    assert folders_of("safekeeper.acceptor.trimming", "walproxy.proposer.purpose") == pure
    assert folders_of("safekeeper.storage.recovery") == ["storage", "node"]
    assert folders_of("safekeeper.node.readable_log") == ["node"]
    assert folders_of("safekeeper.node.readable_log", "safekeeper.storage.recovery") == ["storage", "node"]
    assert folders_of("safekeeper.node.readable_log", "walproxy.proposer.purpose") == [*pure, "storage", "node"]


def test_a_test_that_fails_without_a_mutation_is_reported(toy: ModuleType) -> None:
    suite = ToySuite(toy)
    suite.run = lambda test: "broken"  # type: ignore[method-assign]
    with pytest.raises(SuiteFails, match="adds: broken"):
        measure([suite])


def test_a_unit_test_that_fails_without_a_mutation_is_left_out(toy: ModuleType) -> None:
    suite = ToySuite(toy, "units")
    suite.run = lambda test: "broken" if test == "adds" else str(toy.total([], 0) or "")  # type: ignore[method-assign]
    reach = measure([suite])
    assert reach[FAILED] == {"adds": ["broken"]}
    assert {test for tests in reach["units"].values() for test in tests} == {"anything"}


def test_an_installed_mutation_is_what_importers_run(toy: ModuleType) -> None:
    imported, before = toy.total, toy.total.__code__
    chosen = next(each for each in targets.all_mutations() if each.change == "dropped: result += numbers[index]")
    try:
        install(*targets.mutated(chosen.id))
        assert imported([1, 2, 3], 100) == 0
    finally:
        imported.__code__ = before


def verdict_of(mutation_id: str, killed_by: str) -> Verdict:
    return Verdict(mutation_id, killed_by, False, "test", "why", {"units": 1}, 0.1)


def test_results_of_an_interrupted_run_are_read_without_the_incomplete_line(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    assert trials.read(path) == {}
    one, other = verdict_of("one", "units"), verdict_of("other", trials.SURVIVED)
    trials.write(path, one)
    with path.open("a") as file:
        file.write('{"id": "oth')
    assert trials.read(path) == {"one": one}
    trials.write(path, other)
    assert trials.read(path) == {"one": one, "other": other}


def test_the_score_is_what_the_simulator_detects_and_what_all_tests_detect(toy: ModuleType) -> None:
    mutations = list(targets.all_mutations())[:5]
    killed_by = ("simulator", "units", "scenarios", "simulator", trials.SURVIVED)
    tried = [(each, verdict_of(each.id, suite)) for each, suite in zip(mutations, killed_by, strict=True)]
    last = table(tried).splitlines()[-1]
    assert last.split() == ["all", "5", "2", "1", "1", "0", "1", "40.0", "80.0"]


def test_every_function_of_the_project_that_is_mutated_can_get_other_code() -> None:
    targets.import_all()
    for module in targets.MODULES:
        found = {(each.__qualname__, each.__code__.co_firstlineno) for each in functions_of(sys.modules[module])}
        in_source = {(name, first_line(function)) for name, _, function in functions(targets.tree_of(module))}
        assert in_source <= found, module


# The beginning of the name, a part of the change, and the suite that must detect it.
KNOWN = [
    ("safekeeper.acceptor.acceptor:Acceptor._vote:effect", "self._persist(promised=", Scenarios()),
    ("safekeeper.acceptor.acceptor_log:AcceptorLog._flush_all:effect", "dropped: yield FlushWal", Seeds(0, 40)),
    ("safekeeper.consensus.commitment:QuorumRule.__init__:number", "len(half) - size -> len(half) + size", Seeds(0, 1)),
]


@pytest.mark.parametrize(("prefix", "change", "suite"), KNOWN)
def test_a_mutation_that_breaks_a_rule_is_detected(prefix: str, change: str, suite: Suite) -> None:
    found = targets.all_mutations(prefix.split(":")[0])
    mutation = next(each for each in found if each.id.startswith(prefix) and change in each.change)
    reach = {suite.name: {f"{mutation.module}:{mutation.line}": list(suite.tests)}}
    (verdict,) = try_all([mutation], [suite], reach, {suite.name: Limits(60.0, 100)}, 1)
    assert verdict.killed_by == suite.name
