"""A leader at work, for the tests of what it tells whom."""

from typing import Any

from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.membership import Member, Membership
from safekeeper.consensus.messages import AppendResponse, Elected, ReadRequest, Standby
from safekeeper.consensus.term_history import HistoryEntry
from walproxy.proposer.actions import Action, ReportStatus, SendAppend, SendMessage
from walproxy.proposer.apply_rule import parse_apply_rule
from walproxy.proposer.leadership import Leadership
from walproxy.proposer.liveness import Timing
from walproxy.proposer.progress import Progress
from walproxy.proposer.standbys import Standbys

START = 1 << 20
NODE_ID = LeaderId(4, "run1")
TIMING = Timing()
MEMBERS = Membership(1, tuple(Member(i, str(i) * 32) for i in (1, 2, 3)))
ELECTED = Elected(
    NODE_ID, "c" * 32, 7, 1 << 20, 150000, MEMBERS, (HistoryEntry(4, START, 1),), (), base_lsn=START, commit_lsn=0
)


class Table:
    """A leader whose term begins at START. `said` is what the last event made it do."""

    def __init__(self, rule: str = "", answers: bool = True) -> None:
        self.standbys = Standbys(parse_apply_rule(rule))
        self.out: list[Action] = []
        self.leadership = Leadership(ELECTED, 1, self.standbys, TIMING, 10.0, self.out)
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

    def deliver(self, safekeeper_id: int, *standbys: Standby) -> None:
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


def at(lsn: int, name: str = "a") -> Standby:
    return Standby(name, lsn, lsn, lsn)


# Readers hear of commits at once (S7).


def in_state(table: Table, safekeeper_id: int, **changes: Any) -> Progress:
    """Set positions of a member, as events of any order may have left them."""
    progress = table.leadership.members[safekeeper_id]
    for name, value in changes.items():
        setattr(progress, name, value)
    return progress


def reads(table: Table) -> list[tuple[int, int, int]]:
    """Return from whom WAL was just requested, and its range counted from START."""
    return [
        (action.safekeeper_id, action.message.begin_lsn - START, action.message.end_lsn - START)
        for action in table.said
        if isinstance(action, SendMessage) and isinstance(action.message, ReadRequest)
    ]


def lagging(**of_second: Any) -> Table:
    """Return a leader whose third member needs WAL from START + 10 on, which the window has from START + 60 on."""
    table = Table()
    table.receives(START + 100)
    for safekeeper_id in (1, 2):
        table.acks(safekeeper_id, START + 100)
    table.leadership.window_begin_lsn = START + 60
    in_state(table, 1, wal_begin_lsn=START + 11)
    in_state(table, 2, **{"wal_begin_lsn": START, **of_second})
    positions = {"sent_lsn": START + 10, "write_lsn": START + 10, "flush_lsn": START + 10, "last_begin_lsn": START}
    in_state(table, 3, waiting_since=None, **positions)
    return table
