"""Each scenario of other synchronous replications, and each bug of Tarantool's, has a test; here is which."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
LIMBO, SHELL, QUEUE = (
    "integration/failover/test_limbo.py",
    "unit/limbo/test_limbo.py",
    "unit/limbo/test_transactions.py",
)
OWN = "integration/failover/test_limbo_scenarios.py"
STATE, POLICY = "unit/limbo/test_entry_state.py", "unit/limbo/test_commit_policy.py"
SCENARIOS = {
    # Tarantool's.
    "data on the replica after a confirm": (
        "integration/serving/test_serve_standby.py",
        "test_standby_streams_under_load_and_is_equal_to_the_primary",
    ),
    "data on the replica after a restart": (
        "integration/serving/test_serve_standby.py",
        "test_standby_of_a_single_safekeeper_comes_back_whether_that_crashes_or_is_stopped",
    ),
    "a raised quorum blocks, a quorum of one confirms": (
        STATE,
        "test_a_raised_quorum_blocks_and_a_quorum_of_one_confirms",
    ),
    "an acknowledgement waits for no heartbeat": (
        "unit/proposer/test_leadership.py",
        "test_a_commit_that_no_wal_follows_is_told_at_once_to_those_with_readers_and_to_nobody_else",
    ),
    "the order of clients is kept": (OWN, "test_the_order_of_the_clients_is_that_of_the_queue"),
    "role swap": (OWN, "test_a_spare_that_takes_over_confirms_everything_that_was_left"),
    "replica write failure": (
        "integration/refusals/test_faults_safekeeper.py",
        "test_a_full_disk_costs_the_others_nothing_and_heals_by_itself",
    ),
    "a timeout during a confirm does not discard": (SHELL, "test_a_confirm_that_races_a_timeout_saves_the_wait"),
    "acknowledgements during a discard do not confirm": (QUEUE, "test_a_discarded_entry_does_not_return"),
    "formulas are refused": (
        "unit/consensus/test_quorum_expression.py",
        "test_what_has_no_value_is_refused_with_the_place",
    ),
    "a duplicate acknowledgement": (
        STATE,
        "test_members_lack_what_is_above_their_position_and_a_duplicate_acknowledgement_changes_nothing",
    ),
    "one confirm for each position": (QUEUE, "test_one_confirm_per_position_and_in_order"),
    "the new owner commits everything that is left": (
        OWN,
        "test_a_spare_that_takes_over_confirms_everything_that_was_left",
    ),
    "a foreign queue is refused": (
        "integration/refusals/test_refusals_lineage.py",
        "test_other_bytes_on_the_same_timeline_are_refused_with_where_they_differ",
    ),
    "a confirm of an old term is no alarm": (QUEUE, "test_the_same_timeline_discards_nothing"),
    "lose one, lose two, regain": (
        OWN,
        "test_one_lost_safekeeper_changes_nothing_two_make_commits_wait_and_each_is_confirmed_when_one_returns",
    ),
    "no rollback after ten timeouts": (LIMBO, "test_warn_rolls_nothing_back_after_many_timeouts"),
    "shutdown with a queue": (OWN, "test_a_proxy_that_stops_with_a_queue_confirms_nothing_and_the_next_one_all"),
    "bug 7486: rollback by timeout": (POLICY, "test_no_action_is_a_rollback_and_a_transaction_is_counted_once"),
    "bug 5140: an entry resurrects": (QUEUE, "test_a_discarded_entry_does_not_return"),
    "bug 5185: confirm races rollback": (SHELL, "test_a_confirm_that_races_a_timeout_saves_the_wait"),
    "bug 9138: false split brain": (QUEUE, "test_the_same_timeline_discards_nothing"),
    "bug 5119: a changed quorum": (STATE, "test_a_raised_quorum_blocks_and_a_quorum_of_one_confirms"),
    "bug 10181: a wait without end": (POLICY, "test_nothing_is_done_without_a_timeout_or_before_it"),
    # NoisePage's.
    "insert on the primary, select on the replica": (
        "integration/cluster/test_cluster_remote_apply.py",
        "test_a_commit_with_remote_apply_is_seen_on_the_standby_when_it_returns_also_when_it_is_the_only_one",
    ),
    "a transaction over all batches": (OWN, "test_a_transaction_over_several_segments_is_one_entry"),
    "interleaved batch": (QUEUE, "test_interleaved_transactions_are_entries_in_the_order_of_their_ends"),
    "the last commit, then silence": (
        "integration/cluster/test_cluster_remote_apply.py",
        "test_a_commit_with_remote_apply_is_seen_on_the_standby_when_it_returns_also_when_it_is_the_only_one",
    ),
    "read-only transaction": (OWN, "test_a_read_only_transaction_never_enters_the_queue"),
    "no replicas": (
        "integration/serving/test_serve_levels.py",
        "test_without_a_designated_standby_remote_apply_waits_no_longer_than_on_and_the_log_reports_it",
    ),
    "duplicate and re-ordered batches": (QUEUE, "test_wal_that_is_received_a_second_time_has_the_same_entries_once"),
    # PostgreSQL's.
    "cancel": (LIMBO, "test_a_cancelled_wait_is_detached_and_a_local_commit_does_not_wait"),
    "terminate": (LIMBO, "test_terminate_ends_the_sessions_and_the_transactions_are_confirmed_later"),
    "immediate restart": (OWN, "test_transactions_that_waited_at_an_immediate_restart_are_committed_and_confirmed"),
    "emptied standby names": (
        OWN,
        "test_emptied_standby_names_release_a_waiter_and_the_queue_shows_that_no_quorum_has_it",
    ),
    "prepared transactions": (LIMBO, "test_prepared_transactions_are_listed_by_name_and_kind_with_their_sessions"),
    "a commit that ends on a page boundary": (
        QUEUE,
        "test_a_commit_that_ends_on_a_page_boundary_waits_for_exactly_that",
    ),
    "a commit that is split over messages": (
        SHELL,
        "test_a_commit_that_is_split_over_messages_waits_since_its_last_byte",
    ),
    "restart of the proxy": (LIMBO, "test_a_restarted_proxy_that_leads_finds_the_same_queue"),
    "failover and pg_rewind": ("integration/failover/test_discarded.py", "test_report_is_what_the_clients_did"),
}


@pytest.mark.parametrize(("file", "name"), SCENARIOS.values(), ids=SCENARIOS)
def test_every_scenario_has_its_test(file: str, name: str) -> None:
    assert re.search(rf"^(async )?def {name}\(", (TESTS / file).read_text(), re.MULTILINE)
