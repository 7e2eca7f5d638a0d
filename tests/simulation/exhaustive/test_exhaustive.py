"""All of a small world holds, and a rule that is dropped is found in it."""

from contextlib import ExitStack

import numpy as np
import pytest

from tests.simulation.bugs.planted import BUGS, planted, swapped
from tests.simulation.checks.violation import Violation
from tests.simulation.exhaustive.__main__ import main, search
from tests.simulation.exhaustive.search import Fingerprints, Search
from tests.simulation.exhaustive.steps import Bounds, State, Steps
from tests.simulation.exhaustive.world import SWAPS


def searched_one_by_one(steps: Steps) -> tuple[int, int, int, str]:
    """Return states, transitions, depth and the violated invariant of a search that executes the definition only."""
    layer = [steps.beginning()]
    seen, transitions, depth = set(layer), 0, 0
    while layer:
        following: list[State] = []
        for state in layer:
            try:
                for _, after in steps.steps(state):
                    transitions += 1
                    if after not in seen:
                        seen.add(after)
                        following.append(after)
            except Violation as violation:
                return len(seen), transitions, depth + 1, violation.invariant
        layer = following
        depth += bool(layer)
    return len(seen), transitions, depth, ""


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(terms=1, records=1),
        Bounds(terms=1, records=1, prompt_answers=True, change=True),
        Bounds(terms=1, records=0, crashes=1, prompt_flushes=True),
        Bounds(terms=1, records=1, crashes=1, prompt_answers=True, prompt_flushes=True, change=True),
        Bounds(terms=1, records=1, figure_8=True, prompt_answers=True, prompt_flushes=True),
    ],
    ids=str,
)
def test_many_states_at_once_and_one_by_one_are_the_same_search(bounds: Bounds) -> None:
    with ExitStack() as stack:
        stack.enter_context(swapped(SWAPS))
        columns = Search(bounds)
        found = columns.run()
        assert found.violation is None
        assert (found.states, found.transitions, found.depth, "") == searched_one_by_one(columns.steps)
        assert found.states > 100


@pytest.mark.parametrize(
    ("bug", "bounds"),
    [
        ("ack_before_flush", Bounds(terms=1, records=1, prompt_answers=True)),
        ("no_truncate", Bounds(terms=1, records=1, figure_8=True, prompt_answers=True, prompt_flushes=True)),
    ],
)
def test_a_violation_is_found_at_the_same_depth_as_one_by_one(bug: str, bounds: Bounds) -> None:
    with ExitStack() as stack:
        stack.enter_context(swapped(SWAPS))
        stack.enter_context(planted(BUGS[bug]))
        found = Search(bounds).run()
        assert found.violation is not None
        *_, depth, invariant = searched_one_by_one(Steps(bounds))
        assert (found.depth, found.violation.invariant) == (depth, invariant)
        assert len(found.path) == depth
        assert found.path[-1] == f"(next) {found.violation}"


def test_a_set_of_fingerprints_lacks_what_was_not_added() -> None:
    added = np.sort(np.random.default_rng(1).integers(0, 1 << 64, 1000, np.uint64))
    fingerprints = Fingerprints()
    assert fingerprints.lacks(added).all()
    fingerprints.add(added[::2].copy())
    fingerprints.add(added[1::4].copy())
    assert len(fingerprints) == 750
    assert np.flatnonzero(fingerprints.lacks(added)).tolist() == list(range(3, 1000, 4))
    assert fingerprints.lacks(added[:1] - np.uint64(1)).all()


def test_every_interleaving_of_one_term_holds() -> None:
    found = search(Bounds(terms=1, records=1))
    assert found.violation is None
    assert found.states > 1000


@pytest.mark.parametrize("records", [2, pytest.param(3, marks=pytest.mark.nightly)])
def test_a_term_on_what_two_older_ones_have_left_holds(records: int) -> None:
    bounds = Bounds(terms=1, records=records, figure_8=True, prompt_answers=True, prompt_flushes=True)
    found = search(bounds)
    assert found.violation is None
    assert found.states > 1000
    found = search(bounds, "no_truncate")
    assert found.violation is not None
    assert found.violation.invariant == "LogMatching"


def test_a_commit_before_the_terms_start_is_found_to_be_lost() -> None:
    bounds = Bounds(terms=2, records=2, figure_8=True, prompt_answers=True, prompt_flushes=True)
    found = search(bounds, "commit_before_term_start")
    assert found.violation is not None
    assert found.violation.invariant == "LeaderCompleteness"


def test_a_log_that_is_not_cut_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--terms", "2", "--records", "1", "--prompt", "--bug", "no_truncate"]) == 1
    printed = capsys.readouterr().out
    assert "P2 starts" in printed
    assert "LogMatching does not hold" in printed


def test_wal_that_is_called_flushed_before_it_is_is_found() -> None:
    found = search(Bounds(terms=1, records=1), "ack_before_flush")
    assert found.violation is not None
    assert found.violation.invariant == "AckImpliesFlushed"


def test_a_change_of_the_only_member_holds_and_rules_of_it_that_are_dropped_are_found() -> None:
    bounds = Bounds(terms=2, records=1, change=True, prompt_answers=True, prompt_flushes=True)
    found = search(bounds)
    assert found.violation is None
    assert found.states > 10_000
    found = search(bounds, "new_members_at_once")
    assert found.violation is not None
    assert found.violation.invariant == "LeaderCompleteness"
    assert "P1 goes on with the change" in found.path
