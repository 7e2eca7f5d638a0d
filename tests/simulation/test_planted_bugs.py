"""The simulator finds what it is made to find: each rule that is dropped is seen to lose or corrupt something."""

import pytest

from tests.simulation.__main__ import main
from tests.simulation.bugs import BUGS, Bug, planted
from tests.simulation.hunt import BugMisfit, failure_in, find
from tests.simulation.runner import Failure, Task, attempt
from walproxy.proposer.proposer import Proposer

QUICK = (
    "ack_before_flush",
    "leader_id_compared_as_pair",
    "run_id_of_the_server",
    "no_truncate",
    "gap_accepted",
    "pull_with_a_gap",
    "pull_for_the_deposed",
    "wiped_member_votes",
    "tli_cut_unchecked",
    "tli_cut_guarded_by_commit_lsn",
    "primary_unchecked",
    "commit_above_cut",
    "end_of_wal_underestimated",
    "apply_follows_flush",
    "giving_up_is_forgotten",
    "readers_ahead_of_commit",
    "timeline_shown_at_its_fork",
    "commit_told_with_wal_only",
    "heartbeat_behind_the_window",
    "wal_begin_of_unadopted_member",
    "truncate_lsn_survives_a_cut",
    "slot_follows_commit",
    "refusal_of_another_server",
    "old_member_joins_unwiped",
    "votes_in_any_cluster",
    "history_cut_above_commit",
    "change_before_term_start",
    "membership_not_on_a_quorum",
    "not_counted_again",
    "counted_again_over_too_few",
    "votes_over_commit",
    "commit_over_a_majority",
    "new_sizes_of_both_halves",
    "commit_and_elect_without_overlap",
    "elections_without_overlap",
    "sizes_on_too_few",
    "tail_term_over_a_live_proposer",
    "seal_not_heeded",
    "seal_of_the_promoted",
    "timeline_number_taken_twice",
    "promoted_at_once",
    "seal_not_led_on",
    "flush_counted_twice",
    "cut_during_a_flush",
    "failed_sync_swallowed",
    "failed_effect_swallowed",
    "closed_connection_read_on",
    "control_state_stored_later",
    "control_file_renamed_without_a_sync",
    "copied_folder_starts",
    "reported_as_it_is_received",
    "reported_when_it_stops",
    "repeats_positions_of_an_ended_term",
    "closed_link_read_on",
    "window_trimmed_silently",
)
SEEDS = 150


@pytest.mark.parametrize("bug", QUICK)
def test_a_planted_bug_is_found(bug: str) -> None:
    failure = find(bug, 0, SEEDS)
    assert failure is not None, f"{bug} ({BUGS[bug].rule}) was not found in {SEEDS} seeds"
    assert failure.trace


def test_a_planted_bug_that_does_not_fit_the_code_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_another_signature() -> None: ...

    swaps = ((Proposer, "tick", of_another_signature),)
    monkeypatch.setitem(BUGS, "misfit", Bug("S1", "it fits", "calm", swaps, scenario="e_own_term_first"))
    with pytest.raises(BugMisfit, match="misfit does not fit the code: TypeError"):
        find("misfit", 0, 1)
    with pytest.raises(BugMisfit, match="misfit does not fit the code: TypeError"):
        failure_in("e_own_term_first", "misfit")


def test_a_planted_bug_is_gone_afterwards() -> None:
    failure = find("ack_before_flush", 0, SEEDS)
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
