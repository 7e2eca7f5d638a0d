"""A leader, members that lack WAL which nobody keeps any more, and the archive."""

import msgspec

from safekeeper.consensus.messages import (
    AppendResponse,
    ArchiveAssignment,
    ArchiveReport,
    Elected,
    ReadRequest,
)
from tests.unit.proposer.leader_table import ELECTED, NODE_ID
from walproxy.proposer.actions import Action, Level, Note, SendAppend, SendMessage
from walproxy.proposer.apply_rule import parse_apply_rule
from walproxy.proposer.archiving import GONE_GRACE_S, INCUMBENT_GRACE_S
from walproxy.proposer.leadership import Leadership
from walproxy.proposer.liveness import Timing
from walproxy.proposer.standbys import Standbys

SEGMENT = 1 << 20
BEGIN = 8 * SEGMENT
START = 20 * SEGMENT


class Table:
    """A leader whose term begins at START, behind a donor, 1, whose log begins at BEGIN. The window holds nothing."""

    def __init__(self, settled_lsn: int = START) -> None:
        history = (msgspec.structs.replace(ELECTED.history[0], start_lsn=START),)
        elected = msgspec.structs.replace(ELECTED, history=history, base_lsn=BEGIN, settled_lsn=settled_lsn)
        self.out: list[Action] = []
        self.leadership = Leadership(elected, 1, Standbys(parse_apply_rule("")), Timing(), 10.0, self.out)
        self.now = 10.0
        self.said: list[Action] = []

    def take(self) -> None:
        """Check the positions after an event, as the proposer does, and keep what it asks for in `said`."""
        self.leadership.check()
        self.said = self.out.copy()
        self.out.clear()

    def welcomes(self, safekeeper_id: int) -> Elected:
        self.leadership.on_greeting((safekeeper_id, str(safekeeper_id) * 32), self.now)
        self.take()
        return self.elected(safekeeper_id)[0]

    def acks(self, safekeeper_id: int, lsn: int) -> None:
        response = AppendResponse(NODE_ID, lsn, lsn, self.leadership.sequence)
        self.leadership.on_append_response(safekeeper_id, response, self.now)
        self.take()

    def deliver(
        self, safekeeper_id: int, begin_lsn: int = BEGIN, archived_lsn: int = 0, is_archiver: bool = False
    ) -> None:
        report = ArchiveReport(begin_lsn, True, is_archiver, archived_lsn)
        self.leadership.on_archive_report(safekeeper_id, report, self.now)
        self.take()

    def joins(self, safekeeper_id: int, lsn: int, begin_lsn: int = BEGIN) -> None:
        self.welcomes(safekeeper_id)
        self.acks(safekeeper_id, lsn)
        self.deliver(safekeeper_id, begin_lsn)

    def ticks(self, seconds: float = 1.0) -> None:
        self.now += seconds
        self.leadership.tick(self.now)
        self.take()

    def messages(self) -> list[tuple[int, object]]:
        return [(action.safekeeper_id, action.message) for action in self.said if isinstance(action, SendMessage)]

    def elected(self, safekeeper_id: int) -> list[Elected]:
        return [m for i, m in self.messages() if i == safekeeper_id and isinstance(m, Elected)]

    def orders(self) -> dict[int, tuple[int, int]]:
        """Return who was just told which archiver, and how far the archive is."""
        return {i: (m.archiver, m.archived_lsn) for i, m in self.messages() if isinstance(m, ArchiveAssignment)}

    def reads(self) -> list[tuple[int, int]]:
        """Return who was just asked for WAL, and from where on."""
        return [(i, m.begin_lsn) for i, m in self.messages() if isinstance(m, ReadRequest)]


# Where a member's log is to begin.


def test_before_anybody_has_said_what_it_keeps_a_log_begins_where_the_donors_does() -> None:
    table = Table(settled_lsn=START - 7)
    first = table.welcomes(1)
    assert (first.base_lsn, first.settled_lsn) == (BEGIN, START - 7)
    # What a member has said before it has adopted the term may be of another log.
    table.deliver(1, BEGIN + SEGMENT)
    assert table.welcomes(2).base_lsn == BEGIN


def test_a_log_begins_with_the_oldest_wal_that_another_member_is_there_to_give() -> None:
    table = Table()
    table.joins(1, START, BEGIN + 3 * SEGMENT)
    table.joins(2, START, BEGIN + 2 * SEGMENT)
    assert table.welcomes(3).base_lsn == BEGIN + 2 * SEGMENT
    assert table.welcomes(2).base_lsn == BEGIN + 3 * SEGMENT
    table.leadership.disconnected(1, table.now)
    table.take()
    assert table.welcomes(2).base_lsn == BEGIN
    # Who has adopted the term and not said yet what it keeps is not waited for.
    table.joins(1, START, BEGIN + 3 * SEGMENT)
    table.acks(2, START)
    assert table.welcomes(3).base_lsn == BEGIN + 3 * SEGMENT


def test_what_a_member_has_removed_was_committed_whatever_this_term_knows() -> None:
    table = Table(settled_lsn=BEGIN)
    table.joins(2, START, BEGIN + 5 * SEGMENT)
    message = table.welcomes(3)
    assert table.leadership.commit_lsn == 0
    assert message.base_lsn == message.settled_lsn == BEGIN + 5 * SEGMENT


def test_what_was_settled_before_the_term_stays_so() -> None:
    table = Table(settled_lsn=START - 3)
    table.joins(1, START, BEGIN + SEGMENT)
    assert table.welcomes(2).settled_lsn == START - 3


# Setting forward (S6).


def test_a_member_whose_next_wal_nobody_keeps_is_sent_where_to_go_on() -> None:
    table = Table(settled_lsn=BEGIN)
    table.joins(2, START, BEGIN + 6 * SEGMENT)
    table.welcomes(3)
    table.acks(3, BEGIN + SEGMENT)
    (message,) = table.elected(3)
    assert message.base_lsn == message.settled_lsn == BEGIN + 6 * SEGMENT
    assert any(isinstance(a, Note) and a.level is Level.WARNING and "skips from" in a.text for a in table.said)
    # It is told once, and fed when it has answered.
    table.ticks(0.1)
    assert not table.elected(3) and not any(isinstance(a, SendAppend) and 3 in a.safekeeper_ids for a in table.said)
    table.acks(3, BEGIN + 6 * SEGMENT)
    assert table.reads() == [(2, BEGIN + 6 * SEGMENT)]


def test_two_members_that_are_behind_do_not_wait_for_each_other() -> None:
    table = Table()
    table.joins(2, BEGIN + SEGMENT)
    table.joins(3, BEGIN + SEGMENT)
    table.joins(1, START, BEGIN + 6 * SEGMENT)
    table.ticks(0.1)
    reported = [message.base_lsn for safekeeper_id in (2, 3) for message in table.elected(safekeeper_id)]
    assert reported == [BEGIN + 6 * SEGMENT] * 2


def test_a_member_that_others_have_no_newer_wal_than_waits() -> None:
    table = Table()
    table.joins(2, BEGIN + SEGMENT, BEGIN)
    table.welcomes(3)
    table.acks(3, BEGIN + SEGMENT)
    assert table.messages() == []
    for _ in range(3):
        table.ticks(0.1)
        assert table.messages() == []


def test_an_answer_that_crossed_the_word_to_go_on_elsewhere_does_no_harm() -> None:
    table = Table()
    table.joins(2, START, BEGIN + 6 * SEGMENT)
    table.welcomes(3)
    table.acks(3, BEGIN + SEGMENT)
    assert table.elected(3)
    table.acks(3, BEGIN + SEGMENT)
    assert table.said == []
    # A heartbeat at a position that the member is giving up would close the connection.
    table.ticks()
    assert not [action for action in table.said if isinstance(action, SendAppend) and 3 in action.safekeeper_ids]
    table.acks(3, BEGIN + 6 * SEGMENT)
    assert table.leadership.members[3].write_lsn == BEGIN + 6 * SEGMENT and not table.elected(3)


# Who archives.


def test_all_are_sent_who_archives_when_it_is_named_and_how_far_the_archive_is_when_that_changes() -> None:
    table = Table()
    for safekeeper_id in (1, 2):
        table.joins(safekeeper_id, START)
        assert table.orders() == {}
    table.ticks(INCUMBENT_GRACE_S)
    assert table.orders() == {1: (1, 0), 2: (1, 0)}
    assert Note(Level.INFO, "safekeeper 1 is the archiver") in table.said
    table.deliver(1, archived_lsn=BEGIN + 7, is_archiver=True)
    assert table.orders() == {1: (1, BEGIN + 7), 2: (1, BEGIN + 7)}
    table.deliver(1, archived_lsn=BEGIN + 7, is_archiver=True)
    table.deliver(2, archived_lsn=BEGIN + 9)
    assert table.orders() == {}
    table.deliver(1, archived_lsn=BEGIN + 5, is_archiver=True)
    assert table.orders() == {1: (1, BEGIN + 5), 2: (1, BEGIN + 5)}


def test_a_member_that_comes_later_is_sent_it_behind_its_first_answer_and_only_then() -> None:
    table = Table()
    table.joins(1, START)
    table.deliver(1, archived_lsn=BEGIN + 7, is_archiver=True)
    table.ticks(0.1)
    table.welcomes(2)
    assert table.orders() == {}
    table.acks(2, START)
    assert table.orders() == {2: (1, BEGIN + 7)}
    table.acks(2, START)
    assert table.orders() == {}


def test_one_that_is_gone_is_replaced_and_all_that_are_there_are_sent_it() -> None:
    table = Table()
    for safekeeper_id in (1, 2, 3):
        table.joins(safekeeper_id, START)
    table.ticks(INCUMBENT_GRACE_S)
    for safekeeper_id in (2, 3):
        table.acks(safekeeper_id, START)
    table.leadership.disconnected(1, table.now)
    table.take()
    table.ticks(GONE_GRACE_S - 1.0)
    assert table.orders() == {}
    table.ticks(1.0)
    assert table.orders() == {2: (2, 0), 3: (2, 0)}
