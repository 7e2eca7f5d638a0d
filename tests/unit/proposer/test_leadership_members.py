"""A leader and the members of its term: whose positions count, who answers, and when a term has lost its start."""

from typing import Any

import pytest

from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.folder_state import FolderState
from safekeeper.consensus.membership import Member, QuorumSizes
from safekeeper.consensus.messages import (
    ArchiveReport,
    FolderStates,
    Reconfigured,
)
from tests.unit.proposer.leader_table import MEMBERS, NODE_ID, START, TIMING, Table, in_state
from walproxy.proposer.actions import Disconnect, Note, SendAppend, SendMessage
from walproxy.proposer.member_change import Target
from walproxy.proposer.progress import Progress, State
from walproxy.proposer.replication import APPEND_BYTES_MAX, IN_FLIGHT_BYTES_MAX

ONE, OTHER = (1, "1" * 32), (1, "9" * 32)


# What is known of a member that reconnects.


@pytest.mark.parametrize(
    ("was_voter", "is_voter", "identity", "counts", "generation"),
    [
        (True, True, ONE, True, 4),
        (False, True, ONE, False, 4),
        (True, False, ONE, False, 4),
        (True, True, OTHER, False, 0),
        (False, False, ONE, False, 4),
    ],
)
def test_wal_of_the_connection_before_counts_only_for_a_member_with_the_same_folder(
    was_voter: bool, is_voter: bool, identity: tuple[int, str], counts: bool, generation: int
) -> None:
    known = Progress(
        ONE, was_voter, generation=4, refusal="full", pulled_bytes=7, pull_allowed_at=5.0, pull_problem="nobody has it"
    )
    known.become_streaming(900)
    known.sent_lsn, known.write_lsn, known.flush_lsn = 950, 940, 930
    progress = Progress.of(identity, is_voter, known)
    assert (progress.adopted, progress.flush_lsn, progress.write_lsn) == ((True, 930, 930) if counts else (False, 0, 0))
    assert (progress.generation, progress.voter, progress.state) == (generation, is_voter, State.ADOPTING)
    assert (progress.refusal, progress.pulled_bytes, progress.sent_lsn) == ("full", 7, 0)
    assert (progress.pull_allowed_at, progress.pull_problem) == (5.0, "nobody has it")
    known.adopted = False
    assert not Progress.of(identity, is_voter, known).adopted


def test_a_term_is_sent_to_a_data_folder_once_on_each_connection() -> None:
    table = Table()
    assert table.leadership.has_sent(ONE) and not table.leadership.has_sent(OTHER)
    assert not table.leadership.has_sent((9, "9" * 32))
    table.leadership.disconnected(1, table.now)
    assert not table.leadership.has_sent(ONE)


@pytest.mark.parametrize("voter", [True, False])
def test_a_doubted_member_is_trusted_again_once_an_append_has_succeeded(voter: bool) -> None:
    table = Table()
    table.receives(START + 100)
    progress = in_state(table, 2, is_doubted=True, voter=voter)
    table.acks(2, START)
    assert progress.is_doubted
    table.acks(2, START + 50)
    assert not progress.is_doubted


def test_a_member_that_was_never_there_has_nothing() -> None:
    assert Progress.of(ONE, True, None) == Progress(ONE, True)


# Whether the WAL below the term's start can still reach a quorum (step 6).


@pytest.mark.parametrize(
    ("flush_lsn", "adopted", "holder_connected", "donor_connected", "is_lost"),
    [
        (START, True, True, False, False),
        (START, True, False, False, True),
        (START, True, False, True, False),
        (START - 1, True, True, False, True),
        (START - 1, True, True, True, False),
        (START + 1, True, True, False, False),
        (0, False, True, False, True),
        (0, False, False, False, True),
    ],
)
def test_a_term_has_lost_its_start_without_its_donor_and_without_a_member_that_has_it(
    flush_lsn: int, adopted: bool, holder_connected: bool, donor_connected: bool, is_lost: bool
) -> None:
    table = Table(answers=False)
    if adopted:
        table.acks(2, START)
        in_state(table, 2, flush_lsn=flush_lsn, write_lsn=max(flush_lsn, START), sent_lsn=max(flush_lsn, START))
    if not holder_connected:
        table.leadership.disconnected(2, table.now)
    if not donor_connected:
        table.leadership.disconnected(1, table.now)
    assert table.leadership.has_lost_its_start() is is_lost


def test_a_term_whose_start_is_committed_or_whose_donor_was_never_there() -> None:
    table = Table()
    for safekeeper_id in (1, 2, 3):
        table.leadership.disconnected(safekeeper_id, table.now)
    assert table.leadership.commit_lsn == START and not table.leadership.has_lost_its_start()
    table = Table(answers=False)
    del table.leadership.members[1]
    assert table.leadership.has_lost_its_start()


# Time.


@pytest.mark.parametrize(("waited_s", "is_closed"), [(0.0, False), (0.01, True)])
def test_a_member_that_does_not_answer_in_time_is_disconnected(waited_s: float, is_closed: bool) -> None:
    table = Table()
    for safekeeper_id in (1, 2, 3):
        in_state(table, safekeeper_id, waiting_since=table.now if safekeeper_id == 2 else None)
    table.now += TIMING.response_timeout_s + waited_s
    table.tick()
    assert [action.safekeeper_id for action in table.said if isinstance(action, Disconnect)] == [2] * is_closed
    assert sorted(table.heartbeats()) == ([1, 3] if is_closed else [1, 2, 3])


@pytest.mark.parametrize(("after_s", "is_sent"), [(-0.01, False), (0.0, True)])
def test_a_heartbeat_is_sent_to_those_that_follow_when_its_time_has_come(after_s: float, is_sent: bool) -> None:
    table = Table(answers=False)
    for safekeeper_id in (1, 2):
        table.acks(safekeeper_id, START)
    table.leadership.disconnected(2, table.now)
    for progress in table.leadership.members.values():
        progress.last_sent_at = table.now
    table.now += TIMING.heartbeat_interval_s + after_s
    table.tick()
    assert table.heartbeats() == [1] * is_sent


# Confirmation, and whether a quorum answers.


@pytest.mark.parametrize(
    ("changes", "confirmed"),
    [
        ({}, True),
        ({"acked_sequence": 6}, False),
        ({"acked_sequence": 8}, True),
        ({"follows": False}, False),
        ({"voter": False}, False),
    ],
)
def test_a_term_is_confirmed_by_members_that_follow_and_have_answered_since(
    changes: dict[str, Any], confirmed: bool
) -> None:
    table = Table()
    in_state(table, 1, acked_sequence=7)
    in_state(table, 2, **{"acked_sequence": 7, **changes})
    assert table.leadership.confirmed_since(7) is confirmed


@pytest.mark.parametrize("after_s", [TIMING.heartbeat_timeout_s - 0.01, TIMING.heartbeat_timeout_s])
def test_members_answer_until_the_heartbeat_timeout(after_s: float) -> None:
    table = Table()
    table.now += 5.0
    for safekeeper_id in (1, 2):
        in_state(table, safekeeper_id, last_response_at=table.now)
    is_in_time = after_s < TIMING.heartbeat_timeout_s
    now = table.now + after_s
    assert table.leadership.taking_part(now) == ({1, 2} if is_in_time else set())
    assert table.leadership.answers(now) is table.leadership.is_served(now) is is_in_time
    in_state(table, 2, refusal="full")
    assert table.leadership.taking_part(now) == ({1} if is_in_time else set())
    in_state(table, 2, refusal="", is_doubted=True)
    assert table.leadership.taking_part(now) == ({1} if is_in_time else set())


@pytest.mark.parametrize("event", ["none", "disconnected", "greeted again"])
def test_a_quorum_that_has_answered_counts_no_longer_as_soon_as_it_is_none(event: str) -> None:
    """Otherwise a leader would claim for up to a heartbeat timeout that it is healthy, and keep others away."""
    table = Table()
    leadership = table.leadership
    table.now += 5.0
    table.leadership.disconnected(3, table.now)
    for safekeeper_id in (1, 2):
        table.acks(safekeeper_id, START)
    assert leadership.answers(table.now)
    now = table.now + TIMING.heartbeat_timeout_s / 2
    if event == "disconnected":
        leadership.disconnected(2, now)
    elif event == "greeted again":
        leadership.on_greeting((2, "2" * 32), now)
    assert leadership.answers(now) is (event == "none")


def test_appends_after_a_change_of_the_members_have_its_generation_also_at_the_same_moment() -> None:
    table = Table()
    table.leadership.probe(table.now)
    table.take()
    two = Target(MEMBERS.members[:2], QuorumSizes())
    table.leadership.begin_change(two, force=False, now=table.now)
    assert table.leadership.membership.generation == 2
    table.leadership.sequence -= 1  # Each probe has its own.
    table.leadership.probe(table.now)
    table.take()
    assert {a.header.generation for a in table.said if isinstance(a, SendAppend)} == {2}


def test_a_change_is_noted_once_and_again_if_it_is_forced() -> None:
    table = Table(answers=False)
    two = Target(MEMBERS.members[:2], QuorumSizes())
    for force, count in ((False, 1), (False, 0), (True, 1), (True, 0), (False, 1)):
        table.leadership.begin_change(two, force, table.now)
        table.take()
        assert table.leadership.is_forced is force
        assert len([action for action in table.said if isinstance(action, Note)]) == count


@pytest.mark.parametrize("state", [{"refusal": "its disk is full"}, {"is_doubted": True}, {"follows": False}])
def test_a_change_does_not_count_on_a_member_that_refuses_wal_or_may_do_so(state: dict[str, Any]) -> None:
    table = Table()
    two = Target(MEMBERS.members[:2], QuorumSizes())
    assert table.leadership.refusal_of_change(two, force=False) == ""
    in_state(table, 2, **state)
    assert "only 1 would follow, and commits need 2" in table.leadership.refusal_of_change(two, force=False)


def test_a_member_that_is_disconnected_has_a_membership_on_disk_only_once_it_is_back() -> None:
    table = Table()
    table.leadership.begin_change(Target(MEMBERS.members[:2], QuorumSizes()), force=False, now=table.now)
    table.leadership.disconnected(2, table.now)
    for safekeeper_id in (1, 2):
        table.leadership.on_reconfigured(safekeeper_id, Reconfigured(NODE_ID, 2), table.now)
    generations = [table.leadership.members[safekeeper_id].generation for safekeeper_id in (1, 2)]
    assert generations[0] == 2 > generations[1]


def test_a_membership_that_another_leader_decided_counts_for_nothing() -> None:
    table = Table()
    table.leadership.on_reconfigured(1, Reconfigured(LeaderId(NODE_ID.term, "other"), 2), table.now)
    assert table.leadership.members[1].generation < 2


def test_a_safekeeper_that_is_not_known_refuses_nothing_and_has_no_membership() -> None:
    table = Table()
    table.leadership.on_reconfigured(9, Reconfigured(NODE_ID, 2), table.now)
    table.leadership.on_storage_full(9, "No space left on device")
    table.take()
    assert table.said == []


def test_members_that_have_answered_all_are_waited_for_again_when_the_members_change() -> None:
    table = Table()
    assert [member.waiting_since for member in table.leadership.members.values()] == [None] * 3
    table.now += 1.0
    table.leadership.begin_change(Target(MEMBERS.members[:2], QuorumSizes()), force=False, now=table.now)
    assert [member.waiting_since for member in table.leadership.members.values()] == [table.now] * 3


NEW = (3, "9" * 32)


def test_nobody_is_replaced_if_nobody_is_lost_also_after_a_replacement_was_cancelled() -> None:
    table = Table()
    table.leadership.cancelled = Target((*MEMBERS.members[:2], Member(*NEW)), QuorumSizes())
    wanted = table.leadership.wanted
    table.leadership.replace_lost(table.now)
    table.take()
    assert table.leadership.wanted == wanted and table.said == []


# Bytes in flight, and commits for readers.


@pytest.mark.parametrize("received", [IN_FLIGHT_BYTES_MAX - 1, IN_FLIGHT_BYTES_MAX, IN_FLIGHT_BYTES_MAX + 1])
@pytest.mark.parametrize("sent", [0, IN_FLIGHT_BYTES_MAX - 10])
def test_no_more_than_a_limit_is_in_flight_to_a_member(received: int, sent: int) -> None:
    table = Table()
    table.leadership.on_wal_received(START + received, table.now)
    table.out.clear()
    in_state(table, 2, sent_lsn=START + sent, write_lsn=START, last_begin_lsn=START)
    for safekeeper_id in (1, 3):
        in_state(table, safekeeper_id, sent_lsn=START + received, write_lsn=START + received)
    table.tick()
    assert table.leadership.members[2].sent_lsn == START + min(received, IN_FLIGHT_BYTES_MAX)
    ranges = table.appends(2)
    assert ranges[0][0] == sent and ranges[-1][1] == min(received, IN_FLIGHT_BYTES_MAX)
    assert [begin for begin, _ in ranges[1:]] == [end for _, end in ranges[:-1]]
    assert all(end - begin <= APPEND_BYTES_MAX for begin, end in ranges)


@pytest.mark.parametrize(
    ("changes", "is_sent"),
    [
        ({}, True),
        ({"voter": False}, True),
        ({"has_readers": False}, False),
        ({"sent_commit_lsn": START + 50}, False),
        ({"sent_lsn": START + 40}, False),
        ({"follows": False, "state": State.SKIPPING}, False),
    ],
)
def test_a_commit_is_sent_at_once_to_a_member_with_readers_that_follows_and_is_sent_no_wal(
    changes: dict[str, Any], is_sent: bool
) -> None:
    table = Table()
    table.acks(3, START, readers=True)
    table.receives(START + 50)
    in_state(table, 3, **changes)
    table.leadership._group()
    for safekeeper_id in (1, 2):
        table.acks(safekeeper_id, START + 50)
    assert table.leadership.commit_lsn == START + 50
    assert table.heartbeats() == [3] * is_sent


@pytest.mark.parametrize(("readers", "lacks", "is_sent"), [(True, 10, True), (True, 0, False), (False, 10, False)])
def test_an_everyday_answer_of_a_member_with_readers_is_followed_by_a_commit_that_it_was_not_sent(
    readers: bool, lacks: int, is_sent: bool
) -> None:
    table = Table()
    table.receives(START + 50)
    for safekeeper_id in (1, 2, 3):
        table.acks(safekeeper_id, START + 50, readers=readers and safekeeper_id == 3)
    in_state(table, 3, sent_commit_lsn=START + 50 - lacks)
    table.acks(3, START + 50, readers=readers)
    assert table.heartbeats() == [3] * is_sent


# Data folders, and the archive.


def test_members_that_follow_are_sent_data_folders_once_and_of_news() -> None:
    table = Table(answers=False)
    for safekeeper_id in (1, 2):
        table.acks(safekeeper_id, START)
    known = {state.identity: state for state in table.leadership.folder_states()}
    assert sorted(known) == [MEMBERS.members[0].identity, MEMBERS.members[1].identity]
    stranger = FolderState(9, "9" * 32, 1, 1, START)

    def reported(states: dict[tuple[int, str], FolderState]) -> list[int]:
        table.leadership.send_folders(states)
        table.take()
        messages = [a for a in table.said if isinstance(a, SendMessage) and isinstance(a.message, FolderStates)]
        assert all(stranger not in a.message.folders for a in messages)  # type: ignore[union-attr]
        return [a.safekeeper_id for a in messages]

    assert reported({stranger.identity: stranger}) == []
    assert reported({**known, stranger.identity: stranger}) == [1, 2]
    assert reported(known) == []
    table.acks(3, START)
    assert reported(known) == [3]
    moved = FolderState(1, "1" * 32, 2, 4, START + 5)
    assert reported({**known, moved.identity: moved}) == [1, 2, 3]


def test_a_report_of_the_archive_before_the_answer_to_elected_is_of_another_log() -> None:
    table = Table(answers=False)
    for safekeeper_id in (1, 9):
        table.leadership.on_archive_report(safekeeper_id, ArchiveReport(START - 50, True, True, START - 10), table.now)
    table.take()
    assert table.leadership.members[1].wal_begin_lsn == 0 and not table.leadership.archiving.is_configured
    table.acks(1, START)
    table.leadership.on_archive_report(1, ArchiveReport(START - 50, True, True, START - 10), table.now)
    table.take()
    assert table.leadership.members[1].wal_begin_lsn == START - 50 and table.leadership.archiving.is_configured


def test_two_appends_are_sent_to_a_member_before_the_first_is_answered_and_the_window_s_begin_counts() -> None:
    table = Table()
    for begin_lsn, is_sent in ((START, True), (START + 1, False)):
        table.leadership.window_begin_lsn = begin_lsn
        in_state(table, 2, sent_lsn=START, write_lsn=START, last_begin_lsn=START)
        in_state(table, 1, sent_lsn=START + 50, write_lsn=START + 50)
        in_state(table, 3, sent_lsn=START + 50, write_lsn=START + 50)
        table.leadership.on_wal_received(START + 50, table.now)
        sent = [a for a in table.leadership._out if isinstance(a, SendAppend) and 2 in a.safekeeper_ids]
        table.leadership._out.clear()
        assert bool(sent) is is_sent
