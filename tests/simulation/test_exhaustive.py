"""All of a small world holds, and a rule that is dropped is found in it."""

import pytest

from tests.simulation.exhaustive import Bounds, main, search


def test_every_interleaving_of_one_term_holds() -> None:
    found = search(Bounds(terms=1, records=1))
    assert found.violation is None
    assert found.states > 1000


def test_a_term_on_what_two_older_ones_have_left_holds() -> None:
    bounds = Bounds(terms=1, records=3, figure_8=True, prompt_answers=True, prompt_flushes=True)
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
