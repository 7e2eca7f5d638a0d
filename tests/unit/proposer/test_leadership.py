"""How soon readers hear of commits, how WAL is put into appends, and which members take part."""

import msgspec
import pytest

from safekeeper.base.errors import InvariantViolation
from tests.unit.proposer.leader_table import ELECTED, START, TIMING, Table, at, in_state
from walproxy.proposer.actions import Note, ReportStatus, SendAppend
from walproxy.proposer.apply_rule import parse_apply_rule
from walproxy.proposer.leadership import Leadership
from walproxy.proposer.replication import APPEND_BYTES_MAX
from walproxy.proposer.standbys import Standbys


def test_what_every_member_has_is_counted_anew_in_each_term_once_all_have_adopted_it() -> None:
    table = Table(answers=False)
    for safekeeper_id in (1, 2):
        table.acks(safekeeper_id, START)
        table.tick()
    assert (table.leadership.commit_lsn, table.leadership.truncate_lsn) == (START, 0)
    # Nothing is committed with the last one's answer.
    table.acks(3, START)
    table.tick()
    assert table.leadership.truncate_lsn == START


def test_wal_that_a_member_had_only_received_before_it_reconnected_is_not_reported_as_received() -> None:
    table = Table()
    table.receives(START + 100)
    for safekeeper_id in (1, 2):
        table.acks(safekeeper_id, START + 100, flush_lsn=START)
    assert table.reports() == [ReportStatus(START + 100, START, START)]
    # The end of its connection was not seen before it greets again.
    table.leadership.on_greeting((2, "2" * 32), table.now)
    table.take()
    table.acks(1, START + 100, flush_lsn=START + 50)
    assert table.reports() == [ReportStatus(START, START, START)]


def whose_second_member_has_lost_its_disk(table: Table) -> None:
    """Members 1 and 2 have received 100 bytes and flushed 50 and 100; then 2 greets with another data folder."""
    table.receives(START + 100)
    table.acks(1, START + 100, flush_lsn=START + 50)
    table.acks(2, START + 100)
    assert table.leadership.commit_lsn == START + 50 and table.leadership.write_lsn == START + 100
    table.leadership.disconnected(2, table.now)
    table.take()
    # It has flushed all that it had received: a closed connection alone takes nothing from what a quorum has received.
    assert table.leadership.write_lsn == START + 100
    table.leadership.on_greeting((2, "9" * 32), table.now)
    table.take()


def test_what_was_committed_was_received_though_a_folder_that_has_it_was_replaced() -> None:
    table = Table()
    table.receives(START + 100)
    for safekeeper_id in (1, 2):
        table.acks(safekeeper_id, START + 100)
    table.tick()
    table.leadership.on_greeting((2, "9" * 32), table.now)
    table.take()
    table.receives(START + 200)
    # Of the two folders that count, all is flushed, and both have only what every member has.
    table.acks(1, START + 200)
    leadership = table.leadership
    assert (leadership.truncate_lsn, leadership.commit_lsn, leadership.write_lsn) == (START, START + 100, START + 100)


def test_received_wal_of_a_data_folder_that_was_replaced_is_not_reported_again_with_an_apply_position() -> None:
    table = Table("a")
    table.acks(1, START, readers=True)
    whose_second_member_has_lost_its_disk(table)
    assert table.reports() == []
    table.deliver(1, at(START + 20))
    assert table.reports() == [ReportStatus(START + 50, START + 50, START + 20)]


def test_a_primary_that_streams_again_is_not_sent_the_received_wal_of_a_data_folder_that_was_replaced() -> None:
    # Commits that wait for remote_write in that PostgreSQL would be released by a member that has nothing.
    table = Table()
    table.leadership.set_streaming(False)
    whose_second_member_has_lost_its_disk(table)
    table.leadership.set_streaming(True)
    table.take()
    assert table.reports() == [ReportStatus(START + 50, START + 50, START + 50)]


def test_a_commit_is_reported_while_the_members_own_flush_is_under_way() -> None:
    table = Table()
    table.receives(START + 50)
    table.acks(3, START + 50, flush_lsn=START, readers=True)
    table.acks(1, START + 50)
    table.acks(2, START + 50)
    assert table.heartbeats() == [3]


def test_readers_that_come_when_all_is_said_receive_it_at_once() -> None:
    table = Table()
    table.receives(START + 50)
    for safekeeper_id in (1, 2, 3):
        table.acks(safekeeper_id, START + 50)
    table.acks(3, START + 50, readers=True)
    assert table.heartbeats() == [3]
    table.acks(3, START + 50, readers=True)
    assert table.heartbeats() == []


def test_a_commit_that_came_between_elected_and_its_answer_is_reported_with_the_answer() -> None:
    table = Table()
    table.receives(START + 50)
    table.acks(1, START + 50)
    table.leadership.disconnected(3, table.now)
    table.take()
    table.leadership.on_greeting((3, "3" * 32), table.now)
    table.take()
    table.acks(2, START + 50)
    assert table.leadership.commit_lsn == START + 50
    table.acks(3, START + 50, readers=True)
    assert table.heartbeats() == [3]


def test_where_wal_is_to_be_sent_it_brings_the_news() -> None:
    table = Table()
    table.acks(3, START, readers=True)
    table.receives(START + 50)
    table.leadership.members[3].sent_lsn = START
    table.acks(1, START + 50)
    table.acks(2, START + 50)
    assert table.heartbeats() == []
    table.acks(3, START, readers=True)
    (append,) = [action for action in table.said if isinstance(action, SendAppend)]
    assert (append.safekeeper_ids, append.begin_lsn, append.end_lsn) == ([3], START, START + 50)
    assert append.header.commit_lsn == START + 50


def test_wal_that_is_sent_with_an_answer_carries_the_commit_that_the_answer_has_made() -> None:
    table = Table()
    table.receives(START + 50)
    table.acks(1, START + 50)
    # Member 2 has two appends of a full size on their way, and more to get.
    table.receives(START + 50 + 3 * APPEND_BYTES_MAX)
    table.acks(2, START + 50)
    sent = [a for a in table.said if isinstance(a, SendAppend) and 2 in a.safekeeper_ids]
    assert table.leadership.commit_lsn == START + 50
    assert all(append.header.commit_lsn == START + 50 for append in sent)


# The apply position (S1).


def test_elected_carries_the_commit_that_is_known_by_then() -> None:
    table = Table()
    table.receives(START + 50)
    for safekeeper_id in (1, 2):
        table.acks(safekeeper_id, START + 50)
    table.leadership.on_greeting((3, "3" * 32), table.now)
    table.take()
    (action,) = table.said
    expected = msgspec.structs.replace(ELECTED, commit_lsn=START + 50)
    assert getattr(action, "message", None) == expected
    table.acks(3, START + 50, readers=True)
    assert table.heartbeats() == []


# What comes while two appends are under way goes with the next.


def test_the_third_append_waits_for_the_first_one_s_answer_and_takes_all_that_has_come() -> None:
    table = Table()
    for begin, end in ((0, 10), (10, 20)):
        table.receives(START + end)
        assert table.appends(1) == table.appends(3) == [(begin, end)]
    for end in (30, 40):
        table.receives(START + end)
        assert table.appends(1) == table.appends(3) == []
    table.acks(1, START + 10)
    assert table.appends(1) == [(20, 40)]
    # Each member for itself: one that answers late is waited for by nobody else.
    table.receives(START + 50)
    assert table.appends(1) == table.appends(3) == []
    table.acks(1, START + 20)
    assert table.appends(1) == [(40, 50)]
    table.acks(3, START + 20, flush_lsn=START)
    assert table.appends(3) == [(20, 50)]


def test_a_full_append_waits_for_no_answer() -> None:
    table = Table()
    table.receives(START + 10)
    table.receives(START + 20)
    table.receives(START + 20 + APPEND_BYTES_MAX - 1)
    assert table.appends(2) == []
    table.receives(START + 20 + APPEND_BYTES_MAX)
    assert table.appends(2) == [(20, 20 + APPEND_BYTES_MAX)]


# Members without room for WAL.


def test_members_that_refuse_wal_are_no_quorum_until_an_append_has_succeeded() -> None:
    table = Table()
    table.receives(START + 50)
    table.acks(1, START + 50)
    leadership = table.leadership
    for safekeeper_id in (2, 3):
        assert leadership.is_served(table.now)
        leadership.on_storage_full(safekeeper_id, "No space left on device")
        table.take()
        assert [type(action) for action in table.said] == [Note]
        leadership.on_storage_full(safekeeper_id, "No space left on device")
        table.take()
        assert table.said == [], "logged once"
    assert not leadership.is_served(table.now)
    # Each attempt begins well: it greets, adopts the term and answers.
    leadership.disconnected(2, table.now)
    leadership.on_greeting((2, "2" * 32), table.now)
    table.take()
    table.acks(2, START)
    assert leadership.answers(table.now) and not leadership.is_served(table.now)
    table.acks(2, START + 10)
    assert leadership.is_served(table.now) and any(isinstance(action, Note) for action in table.said)


def test_a_member_that_had_no_room_to_adopt_takes_part_again_once_it_lacks_nothing() -> None:
    table = Table(answers=False)
    table.acks(1, START)
    table.leadership.on_storage_full(2, "No space left on device")
    table.take()
    table.leadership.on_greeting((2, "2" * 32), table.now)
    table.take()
    table.acks(2, START)
    assert table.leadership.members[2].refusal == ""


def test_a_member_that_answers_and_refuses_does_not_stand_in_for_one_that_is_away() -> None:
    table = Table()
    table.receives(START + 50)
    table.leadership.on_storage_full(2, "No space left on device")
    table.leadership.disconnected(3, table.now)
    table.now += 2.0
    for safekeeper_id in (1, 2):
        table.acks(safekeeper_id, START)
    assert table.leadership.answers(table.now) and not table.leadership.is_served(table.now)


def test_a_member_whose_connection_broke_with_wal_on_its_way_takes_part_once_an_append_has_succeeded() -> None:
    table = Table()
    table.receives(START + 50)
    table.acks(1, START + 50)
    for safekeeper_id in (2, 3):
        # Its refusal is lost with the connection that it closes.
        table.leadership.disconnected(safekeeper_id, table.now)
        table.leadership.on_greeting((safekeeper_id, str(safekeeper_id) * 32), table.now)
        table.acks(safekeeper_id, START)
    assert table.leadership.answers(table.now) and not table.leadership.is_served(table.now)
    table.acks(2, START + 10)
    assert table.leadership.is_served(table.now)


def test_a_member_that_lacked_nothing_when_its_connection_broke_takes_part_at_once() -> None:
    table = Table()
    table.leadership.disconnected(2, table.now)
    table.leadership.disconnected(3, table.now)
    table.now += 2.0
    for safekeeper_id in (1, 2):
        table.leadership.on_greeting((safekeeper_id, str(safekeeper_id) * 32), table.now)
        table.receives(START + 50)
        table.acks(safekeeper_id, START)
    assert table.leadership.is_served(table.now)


# What cannot be is noticed after the event, in production too.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"commit_lsn": START + 10}, "has gone back"),
        ({"truncate_lsn": START}, "has gone back"),
        ({"write_lsn": START + 10}, "are not in order"),
        ({"commit_lsn": START + 200, "write_lsn": START + 200}, "are not in order"),
        ({"truncate_lsn": START + 60}, "are not in order"),
        ({"received_lsn": START + 20}, "are not in order"),
    ],
)
def test_positions_that_cannot_be_are_noticed(change: dict[str, int], message: str) -> None:
    table = Table()
    table.receives(START + 50)
    for safekeeper_id in (1, 2, 3):
        table.acks(safekeeper_id, START + 50)
    table.tick()
    assert (table.leadership.commit_lsn, table.leadership.truncate_lsn) == (START + 50, START + 50)
    for name, value in change.items():
        setattr(table.leadership, name, value)
    with pytest.raises(InvariantViolation, match=message):
        table.leadership.check()


def test_positions_that_go_back_above_the_other_one_are_noticed() -> None:
    table = Table(answers=False)
    table.receives(START + 50)
    for safekeeper_id in (1, 2):
        table.acks(safekeeper_id, START + 50)
    assert table.leadership.truncate_lsn < START
    table.leadership.commit_lsn = START + 10
    with pytest.raises(InvariantViolation, match="has gone back"):
        table.leadership.check()


def test_a_commit_below_the_terms_start_is_noticed() -> None:
    table = Table(answers=False)
    table.leadership.commit_lsn = table.leadership.write_lsn = START - 1
    with pytest.raises(InvariantViolation, match="commit_lsn 0/FFFFF is below the start of term 4, 0/100000"):
        table.leadership.check()


def test_before_the_first_member_greets_a_term_counts_as_answered_for_the_time_of_a_heartbeat() -> None:
    leadership = Leadership(ELECTED, 1, Standbys(parse_apply_rule("")), TIMING, 10.0, [])
    assert leadership.answers(10.0 + TIMING.heartbeat_timeout_s - 0.1)
    assert not leadership.answers(10.0 + TIMING.heartbeat_timeout_s)


def test_a_member_that_is_to_skip_wal_answers_as_long_as_it_does() -> None:
    table = Table()
    table.leadership.disconnected(3, table.now)
    table.now += TIMING.heartbeat_timeout_s
    for safekeeper_id in (1, 2):
        in_state(table, safekeeper_id, last_response_at=table.now)
    in_state(table, 2, follows=False)
    assert table.leadership.is_served(table.now)


def test_the_archiver_is_chosen_by_what_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(answers=False)
    table.receives(START + 100)
    table.acks(1, START + 100, flush_lsn=START + 50)
    table.acks(2, START + 100, flush_lsn=START + 60)
    asked: list[int] = []
    monkeypatch.setattr(table.leadership.archiving, "choose", lambda commit_lsn, now: asked.append(commit_lsn) or "")
    table.tick()
    assert (table.leadership.truncate_lsn, table.leadership.write_lsn) == (0, START + 100)
    assert asked == [START + 50]


def test_a_commit_that_an_append_carries_is_not_sent_to_the_readers_once_more() -> None:
    table = Table()
    table.receives(START + 50)
    for safekeeper_id in (1, 2, 3):
        table.acks(safekeeper_id, START + 50)
    table.receives(START + 60)
    assert {a.header.commit_lsn for a in table.said if isinstance(a, SendAppend)} == {START + 50}
    table.acks(1, START + 60, readers=True)
    assert not [a for a in table.said if isinstance(a, SendAppend)]


def test_each_probe_has_its_own_number_whatever_was_requested_meanwhile() -> None:
    table = Table()
    table.leadership.probe(table.now)
    table.take()
    table.leadership._request_id = table.leadership.sequence
    table.leadership.probe(table.now)
    table.take()
    assert {a.header.sequence for a in table.said if isinstance(a, SendAppend)} == {table.leadership.sequence}


def test_wal_that_follows_an_answer_counts_as_sent_then() -> None:
    table = Table()
    for end_lsn in (START + 10, START + 20, START + 30):  # Two appends at a time are in flight.
        table.receives(end_lsn)
    table.now += 1.0
    table.acks(1, START + 20)
    assert table.appends(1) == [(20, 30)]
    assert table.leadership.members[1].last_sent_at == table.now


def test_a_heartbeat_counts_as_sent_with_the_commit_that_it_carries() -> None:
    table = Table()
    table.receives(START + 50)
    for safekeeper_id in (1, 2, 3):
        table.acks(safekeeper_id, START + 50)
    table.now += TIMING.heartbeat_interval_s
    table.tick()
    assert table.heartbeats() == [1, 2, 3]
    table.now += TIMING.heartbeat_interval_s / 2
    table.tick()
    assert table.heartbeats() == []
    table.acks(1, START + 50, readers=True)
    assert table.heartbeats() == [], "it has the commit"
