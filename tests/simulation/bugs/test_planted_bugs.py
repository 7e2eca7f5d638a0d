"""The simulator finds what it is made to find: each rule that is dropped is seen to lose or corrupt something."""

import pytest

from tests.simulation.__main__ import main
from tests.simulation.bugs.planted import BUGS, Bug, planted
from tests.simulation.scenarios.scenario import FAILS_WITH
from tests.simulation.seeds.hunt import BugMisfit, failure_in, find
from tests.simulation.seeds.runner import Failure, Task, attempt
from walproxy.proposer.proposer import Proposer

# The seed to begin at: the first one that finds the bug, or 0 if that is an early one. Once the simulator has changed,
# a later one may have to, which takes longer.
QUICK = {
    "ack_before_flush": 0,
    "leader_id_compared_as_pair": 0,
    "run_id_of_the_server": 0,
    "no_truncate": 17,
    "gap_accepted": 0,
    "pull_with_a_gap": 110,
    "pull_for_the_deposed": 78,
    "wiped_member_votes": 0,
    "tli_cut_unchecked": 0,
    "tli_cut_guarded_by_commit_lsn": 0,
    "primary_unchecked": 37,
    "commit_above_cut": 0,
    "end_of_wal_underestimated": 0,
    "apply_follows_flush": 0,
    "giving_up_is_forgotten": 2,
    "readers_ahead_of_commit": 0,
    "timeline_shown_at_its_fork": 0,
    "commit_sent_with_wal_only": 0,
    "heartbeat_behind_the_window": 0,
    "wal_begin_of_unadopted_member": 0,
    "truncate_lsn_survives_a_cut": 0,
    "slot_follows_commit": 24,
    "refusal_of_another_server": 36,
    "old_member_joins_unwiped": 0,
    "votes_in_any_cluster": 3,
    "history_cut_above_commit": 89,
    "change_before_term_start": 82,
    "membership_not_on_a_quorum": 0,
    "not_counted_again": 37,
    "counted_again_over_too_few": 62,
    "votes_over_commit": 25,
    "commit_over_a_majority": 2,
    "new_sizes_of_both_halves": 0,
    "commit_and_elect_without_overlap": 0,
    "elections_without_overlap": 45,
    "sizes_on_too_few": 0,
    "tail_term_over_a_live_proposer": 0,
    "seal_not_heeded": 0,
    "seal_of_the_promoted": 0,
    "timeline_number_taken_twice": 3,
    "promoted_at_once": 3,
    "seal_not_led_on": 24,
    "flush_counted_twice": 2,
    "cut_during_a_flush": 2,
    "failed_sync_swallowed": 4,
    "failed_effect_swallowed": 0,
    "closed_connection_read_on": 3,
    "control_state_stored_later": 0,
    "control_file_renamed_without_a_sync": 0,
    "copied_folder_starts": 8,
    "reported_as_it_is_received": 0,
    "reported_when_it_stops": 0,
    "repeats_positions_of_an_ended_term": 5,
    "closed_link_read_on": 0,
    "window_trimmed_silently": 2,
}
SEEDS = 150


@pytest.mark.parametrize("bug", QUICK)
def test_a_planted_bug_is_found(bug: str) -> None:
    # One seed after the other: the first usually finds it, and a pool would begin with dozens.
    failure = find(bug, QUICK[bug], SEEDS, processes=1)
    assert failure is not None, f"{bug} ({BUGS[bug].rule}) was not found in {SEEDS} seeds from {QUICK[bug]} on"
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
