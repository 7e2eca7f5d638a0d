"""Every scenario file, replayed. Some of them again with the rule dropped that they are about: then they must fail."""

import re
from pathlib import Path

import pytest

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.acceptor.effects import Effects
from safekeeper.consensus.messages import Bootstrap, RefusalCode
from tests.simulation.scenarios.scenario import SCENARIOS, ScenarioFailed, Stage, perform, play
from tests.simulation.seeds.hunt import failure_in
from tests.simulation.world.world import SimulationFailed

BITES = {
    "a_standby_has_received_a_record_that_nobody_sees": "unseen_records_overlooked",
    "a_live_proposer_without_a_primary_is_left_alone": "tail_term_over_a_live_proposer",
    "a_fork_below_what_is_archived": "archived_lsn_survives_a_fork",
    "a_folder_that_was_replaced_comes_back": "ids_counted_for_folders",
    "a_fork_that_one_member_has_heard_of": "truncate_lsn_survives_a_cut",
    "members_change_before_the_term_has_committed": "change_before_term_start",
    "a_history_is_adopted_while_wal_is_not_flushed": "adopts_unflushed",
    "a_laggard_remembers_what_every_member_had": "truncate_lsn_of_the_votes",
    "a_member_pulls_from_one_that_has_not_adopted_the_term": "pull_from_unadopted",
    "a_member_was_away_when_wal_was_given_up": "giving_up_is_forgotten",
    "a_member_begins_anew_for_what_no_quorum_has": "begins_anew_at_once",
    "a_member_of_the_quorum_has_forgotten_more_than_others": "superseded_by_any_log",
    "a_primary_from_a_backup": "primary_unchecked",
    "a_primary_is_exchanged_behind_its_name": "primary_unchecked",
    "a_primary_is_compared_with_what_is_left": "last_committed_byte_trimmed",
    "a_primary_that_is_put_aside_is_read_no_further": "refused_primary_read_on",
    "a_primary_that_repeats_the_last_segment": "last_segment_compared",
    "a_primary_that_repeats_the_last_segment_in_a_term": "last_segment_compared_in_term",
    "a_promise_survives_a_crash": "vote_not_persisted",
    "a_quorum_needs_a_member_that_skips_wal": "wal_begin_of_unadopted_member",
    "a_recycled_primary_is_told_nothing_yet": "unlinked_primary_told",
    "a_refused_host_fits_a_log_that_was_cut": "refusal_of_older_logs",
    "a_refused_host_leads_to_another_server": "refusal_of_another_server",
    "a_standby_that_is_gone_holds_remote_apply_back": "apply_follows_flush",
    "a_term_is_held_and_nothing_is_committed_in_it": "held_term_without_its_start",
    "a_timeline_that_another_one_replaces": "timeline_shown_with_its_term",
    "an_undo_brings_back_the_latest_members": "undone_to_older_members",
    "an_undo_finds_no_log": "undone_without_its_log",
    "an_undo_is_half_done": "undo_over_acknowledged_wal",
    "an_older_copy_of_a_folder_does_not_vote": "older_copy_counts",
    "another_run_has_written_meanwhile": "copy_goes_on_over_another_term",
    "b_terms_are_unique": "no_truncate",
    "d_recovery_truncates_at_the_divergence": "no_truncate",
    "e_own_term_first": "commit_before_term_start",
    "f_no_spliced_log": "no_truncate",
    "g_history_is_on_disk_before_the_first_ack": "no_truncate",
    "greetings_of_different_times": "greetings_of_different_times",
    "h_two_proxies_of_one_primary": "run_id_of_the_server",
    "i_the_end_of_the_log_is_exact": "end_of_wal_underestimated",
    "j_adoption_is_atomic": "cut_before_history",
    "k_a_wiped_member_does_not_vote": "wiped_member_votes",
    "l_commit_is_lowered_with_the_cut": "commit_above_cut",
    "m_a_higher_run_does_not_outrank": "leader_id_compared_as_pair",
    "n_a_fork_below_what_was_acknowledged": "tli_cut_guarded_by_commit_lsn",
    "n_with_the_right_primary_in_the_list": "tli_cut_guarded_by_commit_lsn",
    "nothing_is_removed_between_a_vote_and_the_election": "trims_before_the_term",
    "o_a_replacement_that_lacks_wal": "wiped_member_votes",
    "q_an_old_member_after_a_rebootstrap": "old_member_joins_unwiped",
    "terms_are_forgotten_that_no_quorum_has_adopted": "history_cut_above_commit",
    "the_last_commit_is_not_removed": "timed_record_trimmed",
    "the_last_commit_reaches_readers_at_once": "commit_told_with_wal_only",
    "the_slot_keeps_what_a_primary_is_compared_with": "slot_follows_commit",
    "wal_is_given_up_that_no_quorum_can_cut": "gives_up_what_no_quorum_can_cut",
    "what_every_member_had_is_cut": "truncate_lsn_survives_a_cut",
    "zenith_example_1_longer_but_older": "no_truncate",
}


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.txt")), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    play(path)


@pytest.mark.parametrize("name", BITES)
def test_scenario_fails_without_the_rule_that_it_is_about(name: str) -> None:
    assert failure_in(name, BITES[name])


def test_a_restored_folder_loses_what_was_acknowledged() -> None:
    path = SCENARIOS / "misuse" / "a_folder_comes_back_from_a_snapshot.txt"
    with pytest.raises(SimulationFailed, match=r"the committed record .* is cut"):
        play(path)


def test_the_same_member_without_the_snapshot_loses_nothing(tmp_path: Path) -> None:
    text = (SCENARIOS / "misuse" / "a_folder_comes_back_from_a_snapshot.txt").read_text()
    path = tmp_path / "some.txt"
    path.write_text(re.sub("S2 comes back .*", "", text).replace("until P2 leads", "until P2 is refused"))
    play(path)


def test_only_what_was_copied_comes_back() -> None:
    with pytest.raises(ScenarioFailed, match="there is no copy of S1"):
        perform(Stage(), "S1 comes back as it was copied")


def test_a_scenario_says_which_line_it_does_not_understand(tmp_path: Path) -> None:
    path = tmp_path / "some.txt"
    path.write_text("P1 starts on A\n\nP1 dances\n")
    with pytest.raises(ScenarioFailed, match=r"some\.txt:3: no such command: 'P1 dances'"):
        play(path)


def test_a_scenario_fails_where_its_expectation_does_not_hold() -> None:
    stage = Stage()
    perform(stage, "P1 starts on A")
    perform(stage, "until P1 leads")
    with pytest.raises(ScenarioFailed, match="does not hold: P1 is refused"):
        perform(stage, "expect P1 is refused")


def test_a_rebootstrap_names_only_data_folders_that_there_are() -> None:
    stage = Stage()
    perform(stage, "S3 loses its disk")
    with pytest.raises(ScenarioFailed, match=r"\['S3'\] have no data folder to name"):
        perform(stage, "operator rebootstraps over S1 S2 S3")


class _RefusesToReplace(Acceptor):
    def _replace_cluster(self, connection: int, message: Bootstrap) -> Effects:
        yield from self._refuse(connection, RefusalCode.NOT_EMPTY, "not over this")


class _StageOfRefusers(Stage):
    acceptor_class = _RefusesToReplace
    has_reference = False


def test_a_rebootstrap_that_is_refused_fails_the_scenario() -> None:
    stage = _StageOfRefusers()
    with pytest.raises(ScenarioFailed, match="the rebootstrap failed: not over this"):
        perform(stage, "operator rebootstraps over S1 S2 S3")
