"""What a leader does with the answer of a member."""

import pytest

from safekeeper.base.errors import InvariantViolation, RemoteProtocolError
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.messages import (
    AppendResponse,
)
from tests.unit.proposer.leader_table import NODE_ID, START, Table, in_state


@pytest.mark.parametrize(
    ("write_lsn", "flush_lsn", "changes"),
    [
        (START + 100, START + 101, {}),
        (START + 101, START + 100, {}),
        (START + 201, START + 100, {"sent_lsn": START + 200}),
    ],
)
def test_an_answer_whose_positions_cannot_be_breaks_the_protocol(
    write_lsn: int, flush_lsn: int, changes: dict[str, int]
) -> None:
    table = Table()
    table.receives(START + 100)
    before = table.leadership.commit_lsn
    with pytest.raises(RemoteProtocolError, match="cannot be: the log ends at"):
        table.leadership.on_append_response(2, AppendResponse(NODE_ID, write_lsn, flush_lsn, 0), table.now)
    assert table.leadership.commit_lsn == before


@pytest.mark.parametrize("what", ["unknown", "disconnected", "another term"])
def test_an_answer_that_is_none_of_this_term_changes_nothing(what: str) -> None:
    table = Table()
    table.receives(START + 100)
    leader_id = LeaderId(4, "other") if what == "another term" else NODE_ID
    if what == "disconnected":
        table.leadership.disconnected(2, table.now)
        table.take()
    safekeeper_id = 9 if what == "unknown" else 2
    table.leadership.on_append_response(
        safekeeper_id, AppendResponse(leader_id, START + 100, START + 100, 5), table.now
    )
    table.take()
    assert table.said == [] and table.leadership.members[2].flush_lsn == START
    assert table.leadership.members[2].acked_sequence == 0


@pytest.mark.parametrize(("write_lsn", "follows"), [(START + 99, False), (START + 100, True), (START + 150, True)])
def test_a_member_that_skips_wal_follows_with_the_first_answer_from_there(write_lsn: int, follows: bool) -> None:
    table = Table()
    table.receives(START + 200)
    progress = table.leadership.members[2]
    progress.become_skipping(START + 100)
    table.acks(2, write_lsn)
    assert progress.follows is follows
    assert progress.write_lsn == (write_lsn if follows else START)


def test_an_answer_that_repeats_a_position_confirms_a_later_message() -> None:
    table = Table()
    table.receives(START + 100)
    progress = in_state(table, 2, sent_lsn=START + 80, write_lsn=START + 80, flush_lsn=START + 60)
    for sequence in (3, 4):
        table.leadership.on_append_response(2, AppendResponse(NODE_ID, START + 80, START + 60, sequence), table.now)
        assert progress.acked_sequence == sequence


@pytest.mark.parametrize(
    ("write_lsn", "flush_lsn", "sent_lsn", "commit_lsn", "quorum_write_lsn", "end_lsn"),
    [
        (60, 60, 100, 60, 80, 100),
        (90, 50, 100, 50, 90, 100),
        (80, 50, 80, 50, 80, 100),
        (80, 50, 100, 50, 80, 100),
    ],
    ids=["flush", "write", "send", "nothing"],
)
def test_an_answer_moves_what_it_can_move(
    write_lsn: int, flush_lsn: int, sent_lsn: int, commit_lsn: int, quorum_write_lsn: int, end_lsn: int
) -> None:
    table = Table()
    table.receives(START + 100)
    table.acks(1, START + 100, flush_lsn=START + 100)
    table.acks(2, START + 80, flush_lsn=START + 50)
    assert (table.leadership.commit_lsn, table.leadership.write_lsn) == (START + 50, START + 80)
    progress = in_state(table, 3, sent_lsn=START + sent_lsn)
    table.acks(3, START + write_lsn, flush_lsn=START + flush_lsn)
    found = (table.leadership.commit_lsn, table.leadership.write_lsn, progress.sent_lsn)
    assert found == (START + commit_lsn, START + quorum_write_lsn, START + end_lsn)
    assert [(report.flush_lsn, report.write_lsn) for report in table.reports()] == (
        [found[:2]] if found[:2] != (START + 50, START + 80) else []
    )


def test_what_a_primary_was_sent_when_it_began_to_stream_is_not_reported_again() -> None:
    table = Table()
    table.receives(START + 100)
    for safekeeper_id in (1, 2):
        table.acks(safekeeper_id, START + 100, flush_lsn=START + 50)
    table.leadership.set_streaming(True)
    table.take()
    table.acks(3, START + 100, flush_lsn=START + 60)
    assert table.reports() == []
    table.acks(1, START + 100, flush_lsn=START + 60)
    assert [(report.write_lsn, report.flush_lsn) for report in table.reports()] == [(START + 100, START + 60)]


def test_a_write_position_that_a_lost_member_has_lowered_is_reported_at_the_next_answer() -> None:
    table = Table()
    table.receives(START + 100)
    for safekeeper_id in (1, 2):
        table.acks(safekeeper_id, START + 100, flush_lsn=START + 50)
    assert [report.write_lsn for report in table.reports()] == [START + 100]
    table.leadership.disconnected(2, table.now)
    table.take()
    assert table.leadership.write_lsn == START + 50 and table.reports() == []
    table.acks(1, START + 100, flush_lsn=START + 50)
    assert [report.write_lsn for report in table.reports()] == [START + 50]


def test_an_answer_ends_the_wait_for_one_only_if_it_is_about_all_that_was_sent() -> None:
    table = Table()
    table.receives(START + 100)
    progress = table.leadership.members[2]
    assert progress.waiting_since == table.now
    for lsn, waiting_since in ((START + 50, 11.0), (START + 100, None)):
        table.now += 1.0
        table.acks(2, lsn, flush_lsn=START + 40)
        assert (progress.waiting_since, progress.last_response_at) == (waiting_since, table.now)


def test_a_write_position_that_goes_back_in_an_answer_is_reported_with_the_next_advance() -> None:
    table = Table()
    table.receives(START + 100)
    for safekeeper_id in (1, 2):
        table.acks(safekeeper_id, START + 100, flush_lsn=START + 50)
    table.acks(2, START + 60, flush_lsn=START + 50)
    table.acks(1, START + 100, flush_lsn=START + 55)
    assert [(report.write_lsn, report.flush_lsn) for report in table.reports()] == [(START + 60, START + 50)]


def test_after_an_answer_the_positions_of_its_member_are_checked_and_those_of_the_quorum() -> None:
    table = Table()
    table.receives(START + 100)
    table.acks(2, START + 100)
    leadership = table.leadership
    leadership.check_answer(leadership.members[2])
    progress = in_state(table, 2, sent_lsn=START + 99)
    with pytest.raises(InvariantViolation, match="a member cannot be streaming with"):
        leadership.check_answer(progress)
    leadership.truncate_lsn = leadership.commit_lsn + 1
    with pytest.raises(InvariantViolation, match="are not in order"):
        leadership.check_answer(leadership.members[1])
