"""The simulator finds what it is made to find: each rule that is dropped is seen to lose or corrupt something."""

import pytest

from tests.simulation.__main__ import main
from tests.simulation.bugs.planted import BUGS, Bug, planted
from tests.simulation.scenarios.scenario import FAILS_WITH
from tests.simulation.seeds.hunt import BugMisfit, failure_in, find
from tests.simulation.seeds.runner import Failure, Task, attempt
from walproxy.proposer.proposer import Proposer

SEEDS = 150


@pytest.mark.parametrize(("name", "first"), [(name, bug.quick) for name, bug in BUGS.items() if bug.quick is not None])
def test_a_planted_bug_is_found(name: str, first: int) -> None:
    # One seed after the other: the first usually finds it, and a pool would begin with dozens.
    failure = find(name, first, SEEDS, processes=1)
    assert failure is not None, f"{name} ({BUGS[name].rule}) was not found in {SEEDS} seeds from {first} on"
    assert failure.trace


def test_a_bug_that_no_seed_is_to_find_is_that_of_its_scenario() -> None:
    assert not [name for name, bug in BUGS.items() if bug.scenario and FAILS_WITH[bug.scenario] != name]


def test_a_planted_bug_that_does_not_fit_the_code_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_another_signature() -> None: ...

    swaps = ((Proposer, "tick", of_another_signature),)
    monkeypatch.setitem(BUGS, "misfit", Bug("S1", "it fits", "calm", swaps, scenario="e_own_term_first"))
    with pytest.raises(BugMisfit, match="misfit does not fit the code: TypeError"):
        find("misfit", 0, 1)
    with pytest.raises(BugMisfit, match="misfit does not fit the code: TypeError"):
        failure_in("e_own_term_first", "misfit")


def test_a_planted_bug_is_gone_afterwards() -> None:
    failure = find("ack_before_flush", 0, SEEDS, processes=1)
    assert failure is not None
    assert not isinstance(attempt(Task(failure.task.seed, "crashy")), Failure)


def test_a_failure_names_its_seed_and_how_to_run_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "20", "--bug", "ack_before_flush", "--shrink-s", "0"]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("seeds 0..19")
    assert "CommittedNotOverwritten" in printed
    assert 'run_seed(0, bug="ack_before_flush")' in printed


@pytest.mark.parametrize("name", BUGS)
def test_nothing_of_a_planted_bug_remains(name: str) -> None:
    holders = [holder for holder, _, _ in BUGS[name].swaps]
    before = [dict(vars(holder)) for holder in holders]
    with planted(BUGS[name]):
        pass
    assert [dict(vars(holder)) for holder in holders] == before
