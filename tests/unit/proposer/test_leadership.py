"""What a leader tells PostgreSQL of standbys, how soon readers hear of commits, and how WAL is put into appends."""

import msgspec
import pytest

from safekeeper.base.errors import InvariantViolation
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.membership import Member, Membership
from safekeeper.consensus.messages import AppendResponse, Elected, Standby
from safekeeper.consensus.term_history import HistoryEntry
from walproxy.proposer.actions import Action, Note, ReportStatus, SendAppend
from walproxy.proposer.apply_rule import parse_apply_rule
from walproxy.proposer.leadership import Leadership
from walproxy.proposer.liveness import Timing
from walproxy.proposer.replication import APPEND_BYTES_MAX
from walproxy.proposer.standbys import Standbys

START = 1 << 20
NODE_ID = LeaderId(4, "run1")
MEMBERS = Membership(1, tuple(Member(i, str(i) * 32) for i in (1, 2, 3)))
ELECTED = Elected(
    NODE_ID, "c" * 32, 7, 1 << 20, 150000, MEMBERS, (HistoryEntry(4, START, 1),), (), base_lsn=START, commit_lsn=0
)


class Table:
    """A leader whose term begins at START. `said` is what the last event made it do."""

    def __init__(self, rule: str = "", answers: bool = True) -> None:
        self.standbys = Standbys(parse_apply_rule(rule))
        self.out: list[Action] = []
        self.leadership = Leadership(ELECTED, 1, self.standbys, Timing(), 10.0, self.out)
        self.said: list[Action] = []
        self.now = 10.0
        self.leadership.streaming = True
        for safekeeper_id in (1, 2, 3):
            self.leadership.on_greeting((safekeeper_id, str(safekeeper_id) * 32), self.now)
            self.take()
            if answers:
                self.acks(safekeeper_id, START)

    def take(self) -> None:
        """Check the positions after an event, as the proposer does, and keep what it asks for in `said`."""
        self.leadership.check()
        self.said = self.out.copy()
        self.out.clear()

    def acks(self, safekeeper_id: int, lsn: int, *, readers: bool = False, flush_lsn: int | None = None) -> None:
        flushed = lsn if flush_lsn is None else flush_lsn
        response = AppendResponse(NODE_ID, lsn, flushed, 0, readers)
        self.leadership.on_append_response(safekeeper_id, response, self.now)
        self.take()

    def receives(self, end_lsn: int) -> None:
        self.leadership.on_wal_received(end_lsn, self.now)
        self.take()

    def hears(self, safekeeper_id: int, *standbys: Standby) -> None:
        self.leadership.on_standby_feedback(safekeeper_id, standbys)
        self.take()

    def tick(self) -> None:
        self.leadership.tick(self.now)
        self.take()

    def heartbeats(self) -> list[int]:
        """Return who was just sent a word without WAL."""
        return [
            safekeeper_id
            for a in self.said
            if isinstance(a, SendAppend) and a.begin_lsn == a.end_lsn
            for safekeeper_id in a.safekeeper_ids
        ]

    def appends(self, safekeeper_id: int) -> list[tuple[int, int]]:
        """Return from where to where, counted from START, WAL was just sent to a member."""
        sent = [a for a in self.said if isinstance(a, SendAppend) and safekeeper_id in a.safekeeper_ids]
        return [(a.begin_lsn - START, a.end_lsn - START) for a in sent if a.begin_lsn < a.end_lsn]

    def reports(self) -> list[ReportStatus]:
        return [action for action in self.said if isinstance(action, ReportStatus)]


def test_an_answer_that_was_sent_before_the_member_skipped_wal_is_no_everyday_one() -> None:
    table = Table()
    progress = table.leadership.members[2]
    answer = AppendResponse(NODE_ID, START, START, 0)
    assert table.leadership.on_steady_answer(2, progress, answer, table.now)
    progress.become_skipping(START + 100)
    assert not table.leadership.on_steady_answer(2, progress, answer, table.now)


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


def test_received_wal_of_a_data_folder_that_was_replaced_is_not_reported_again_with_an_apply_position() -> None:
    table = Table("a")
    table.acks(1, START, readers=True)
    whose_second_member_has_lost_its_disk(table)
    assert table.reports() == []
    table.hears(1, at(START + 20))
    assert table.reports() == [ReportStatus(START + 50, START + 50, START + 20)]


def test_a_primary_that_streams_again_is_not_told_the_received_wal_of_a_data_folder_that_was_replaced() -> None:
    # Commits that wait for remote_write in that PostgreSQL would be released by a member that has nothing.
    table = Table()
    table.leadership.set_streaming(False)
    whose_second_member_has_lost_its_disk(table)
    table.leadership.set_streaming(True)
    table.take()
    assert table.reports() == [ReportStatus(START + 50, START + 50, START + 50)]


def at(lsn: int, name: str = "a") -> Standby:
    return Standby(name, lsn, lsn, lsn)


# Readers hear of commits at once (S7).


def test_a_commit_that_no_wal_follows_is_told_at_once_to_those_with_readers_and_to_nobody_else() -> None:
    table = Table()
    table.acks(3, START, readers=True)
    table.receives(START + 50)
    table.acks(1, START + 50)
    assert table.heartbeats() == []
    table.acks(2, START + 50)
    assert table.leadership.commit_lsn == START + 50
    assert table.heartbeats() == [3]
    table.acks(3, START + 50, readers=True)
    assert table.heartbeats() == []


def test_a_commit_is_told_while_the_members_own_flush_is_under_way() -> None:
    table = Table()
    table.receives(START + 50)
    table.acks(3, START + 50, flush_lsn=START, readers=True)
    table.acks(1, START + 50)
    table.acks(2, START + 50)
    assert table.heartbeats() == [3]


def test_readers_that_come_when_all_is_said_hear_of_it_at_once() -> None:
    table = Table()
    table.receives(START + 50)
    for safekeeper_id in (1, 2, 3):
        table.acks(safekeeper_id, START + 50)
    table.acks(3, START + 50, readers=True)
    assert table.heartbeats() == [3]
    table.acks(3, START + 50, readers=True)
    assert table.heartbeats() == []


def test_a_commit_that_came_between_elected_and_its_answer_is_told_with_the_answer() -> None:
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


def test_members_that_are_equally_far_are_sent_one_append() -> None:
    table = Table()
    table.receives(START + 50)
    (append,) = (action for action in table.said if isinstance(action, SendAppend))
    assert append.safekeeper_ids == [1, 2, 3]
    table.acks(1, START + 50)
    table.acks(2, START + 50)
    table.receives(START + 70)
    (later, *_) = (action for action in table.said if isinstance(action, SendAppend))
    assert (later.header.commit_lsn, later.header.begin_lsn) == (START + 50, START + 50)


# The apply position (S1).


def test_an_advance_of_apply_alone_is_reported_at_once_and_only_once() -> None:
    table = Table("a")
    table.acks(1, START, readers=True)
    table.receives(START + 50)
    for safekeeper_id in (1, 2):
        table.acks(safekeeper_id, START + 50, readers=safekeeper_id == 1)
    assert table.leadership.status() == ReportStatus(START + 50, START + 50, 0)
    table.hears(1, at(START + 20))
    assert table.reports() == [ReportStatus(START + 50, START + 50, START + 20)]
    table.hears(1, at(START + 20), Standby("other", START + 50))
    assert table.reports() == []
    table.hears(1, at(START + 10))
    assert table.reports() == [ReportStatus(START + 50, START + 50, START + 10)]


def test_a_write_position_that_was_lowered_with_an_apply_position_is_reported_when_it_is_back() -> None:
    table = Table("a")
    table.acks(1, START, readers=True)
    table.receives(START + 100)
    for safekeeper_id in (1, 2):
        table.acks(safekeeper_id, START + 100, readers=safekeeper_id == 1, flush_lsn=START + 50)
    assert table.reports()[-1].write_lsn == START + 100
    table.leadership.disconnected(2, table.now)
    table.hears(1, at(START + 20))
    assert [(report.write_lsn, report.apply_lsn) for report in table.reports()] == [(START + 50, START + 20)]
    table.acks(3, START + 100, flush_lsn=START + 50)
    assert [report.write_lsn for report in table.reports()] == [START + 100]


def test_apply_is_never_above_what_is_committed_and_0_before_the_terms_start_is() -> None:
    table = Table("a", answers=False)
    table.acks(1, START, readers=True)
    table.hears(1, at(START + 90))
    assert table.reports() == [] and table.leadership.status() == ReportStatus(0, 0, 0)
    table.acks(2, START)
    assert table.reports() == [ReportStatus(START, START, START)]


def test_nobody_designated_apply_follows_flush_and_feedback_is_no_news() -> None:
    table = Table()
    table.acks(1, START, readers=True)
    table.hears(1, at(START))
    assert table.reports() == []
    assert table.leadership.status() == ReportStatus(START, START, START)


def test_nothing_is_reported_while_the_primary_does_not_stream() -> None:
    table = Table("a")
    table.leadership.set_streaming(False)
    table.acks(1, START, readers=True)
    table.hears(1, at(START))
    assert table.reports() == [] and table.leadership.status() == ReportStatus(0, 0, 0)
    table.leadership.set_streaming(True)
    table.take()
    assert table.reports() == [ReportStatus(START, START, START)]


def test_feedback_of_a_safekeeper_that_has_not_adopted_the_term_says_nothing_of_its_log() -> None:
    table = Table("a")
    table.leadership.disconnected(1, table.now)
    table.leadership.on_greeting((1, "1" * 32), table.now)
    table.hears(1, at(START))
    assert table.standbys.rows() == [] and table.reports() == []


def test_an_answer_without_readers_says_that_no_standby_streams_there() -> None:
    table = Table("a")
    table.acks(1, START, readers=True)
    table.hears(1, at(START), at(START, "other"))
    table.standbys.disconnected(1)
    table.leadership.disconnected(1, table.now)
    table.leadership.on_greeting((1, "1" * 32), table.now)
    table.hears(2, at(START, "b"))
    table.acks(1, START)
    # They are gone, and what the designated one had replayed stays replayed.
    assert [(row.standby.name, row.connected) for row in table.standbys.rows()] == [("a", False), ("b", True)]
    assert table.leadership.status().apply_lsn == START


def test_no_standby_streams_from_a_member_whose_first_answer_makes_it_skip_wal() -> None:
    table = Table()
    table.acks(1, START, readers=True)
    table.hears(1, at(START, "other"))
    table.standbys.disconnected(1)
    table.leadership.disconnected(1, table.now)
    table.receives(START + 100)
    for safekeeper_id in (2, 3):
        table.acks(safekeeper_id, START + 100)
    table.leadership.on_greeting((1, "1" * 32), table.now)
    table.leadership.window_begin_lsn = START + 100
    for safekeeper_id in (2, 3):
        table.leadership.members[safekeeper_id].wal_begin_lsn = START + 20
    table.acks(1, START)
    assert not table.leadership.members[1].follows
    assert table.standbys.rows() == []


def test_wal_is_sent_before_a_report_after_which_the_window_may_shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table("a")
    table.receives(START + 100)
    for safekeeper_id in (1, 2):
        table.acks(safekeeper_id, START + 100)
    table.hears(1, at(START + 20))
    table.leadership.disconnected(3, table.now)
    table.leadership.on_greeting((3, "3" * 32), table.now)
    table.take()
    # Its first answer says that no standby streams there, and that moves `apply`.
    monkeypatch.setattr(table.standbys, "on_report", lambda *_: setattr(table.standbys, "applied_lsn", START + 50))
    table.acks(3, START)
    assert table.appends(3) == [(0, 100)] and table.reports() == [ReportStatus(START + 100, START + 100, START + 50)]
    kinds = [type(action) for action in table.said]
    assert kinds.index(SendAppend) < kinds.index(ReportStatus)


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


def test_a_commit_below_the_terms_start_is_noticed() -> None:
    table = Table(answers=False)
    table.leadership.commit_lsn = table.leadership.write_lsn = START - 1
    with pytest.raises(InvariantViolation, match="commit_lsn 0/FFFFF is below the start of term 4, 0/100000"):
        table.leadership.check()
