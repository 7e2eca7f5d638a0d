"""A leader whose members pull WAL from each other: when, from which of them, and what it sends meanwhile."""

import msgspec
import pytest

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.lsn import Lsn
from safekeeper.consensus.membership import Member
from safekeeper.consensus.messages import (
    AppendResponse,
    ArchiveReport,
    PullEnded,
    PullSource,
    PullWal,
    ReadRequest,
    ReadResponse,
)
from tests.unit.proposer.leader_table import ELECTED, MEMBERS, NODE_ID
from walproxy.proposer.actions import Action, Disconnect, Level, Note, SendAppend, SendMessage
from walproxy.proposer.apply_rule import parse_apply_rule
from walproxy.proposer.leadership import Leadership
from walproxy.proposer.liveness import Timing
from walproxy.proposer.progress import State
from walproxy.proposer.pulling import (
    PULL_AGAIN_S,
    PULL_BYTES_MIN,
    PULL_STALL_S,
    Candidate,
    addresses_of,
    plan_pull,
)
from walproxy.proposer.standbys import Standbys

MIB = 1 << 20
BEGIN = 8 * MIB
START = BEGIN + 200 * MIB
ADDRESSES = {1: "one:1", 2: "two:2", 3: "three:3"}


class Table:
    """A leader whose term begins at START; 1 and 2 have all WAL from BEGIN on, and it is committed."""

    def __init__(self, addresses: dict[int, str] | None = None, commits: bool = True) -> None:
        history = (msgspec.structs.replace(ELECTED.history[0], start_lsn=START),)
        elected = msgspec.structs.replace(ELECTED, history=history, base_lsn=BEGIN, settled_lsn=START)
        self.out: list[Action] = []
        self.said: list[Action] = []
        self.now = 10.0
        self.leadership = Leadership(
            elected,
            1,
            Standbys(parse_apply_rule("")),
            Timing(),
            self.now,
            self.out,
            ADDRESSES if addresses is None else addresses,
        )
        self.leadership.streaming = True
        for safekeeper_id in (1, 2) if commits else (1,):
            self.joins(safekeeper_id, START)

    def take(self) -> None:
        self.leadership.check()
        self.said = self.out.copy()
        self.out.clear()

    def joins(self, safekeeper_id: int, lsn: Lsn, begin_lsn: Lsn = BEGIN) -> None:
        self.leadership.on_greeting((safekeeper_id, str(safekeeper_id) * 32), self.now)
        self.take()
        self.leadership.on_archive_report(safekeeper_id, ArchiveReport(begin_lsn, False), self.now)
        self.acks(safekeeper_id, lsn)
        self.leadership.on_archive_report(safekeeper_id, ArchiveReport(begin_lsn, False), self.now)

    def acks(self, safekeeper_id: int, lsn: Lsn) -> None:
        response = AppendResponse(NODE_ID, lsn, lsn, self.leadership.sequence)
        self.leadership.on_append_response(safekeeper_id, response, self.now)
        self.take()

    def ends(self, safekeeper_id: int, lsn: Lsn, problem: str = "", request_id: int | None = None) -> None:
        pull = self.leadership.members[safekeeper_id].pull
        number = request_id if request_id is not None else pull.request_id if pull is not None else 0
        self.leadership.on_pull_ended(safekeeper_id, PullEnded(NODE_ID, number, lsn, problem), self.now)
        self.take()

    def ticks(self, seconds: float = 0.3) -> None:
        """Let time pass; the others answer."""
        self.now += seconds
        for safekeeper_id in (1, 2):
            if safekeeper_id in self.leadership.members and self.leadership.members[safekeeper_id].follows:
                self.acks(safekeeper_id, self.leadership.members[safekeeper_id].write_lsn)
        self.leadership.tick(self.now)
        self.take()

    def pulls(self) -> list[tuple[int, PullWal]]:
        return [
            (a.safekeeper_id, a.message)
            for a in self.said
            if isinstance(a, SendMessage) and isinstance(a.message, PullWal)
        ]

    def reads(self) -> list[tuple[int, ReadRequest]]:
        return [
            (a.safekeeper_id, a.message)
            for a in self.said
            if isinstance(a, SendMessage) and isinstance(a.message, ReadRequest)
        ]

    def sent_to(self, safekeeper_id: int) -> list[SendAppend]:
        return [a for a in self.said if isinstance(a, SendAppend) and safekeeper_id in a.safekeeper_ids]

    def notes(self, level: Level) -> list[str]:
        return [a.text for a in self.said if isinstance(a, Note) and a.level is level]

    def state(self, safekeeper_id: int) -> State:
        return self.leadership.members[safekeeper_id].state


def pulling() -> Table:
    """Return a leader whose third member pulls WAL from BEGIN on."""
    table = Table()
    table.joins(3, BEGIN)
    assert table.state(3) is State.PULLING
    return table


# When, and from which.


def test_a_member_that_lacks_much_wal_is_sent_to_the_others_and_no_wal() -> None:
    table = Table()
    table.leadership.on_greeting((3, "3" * 32), table.now)
    table.take()
    table.acks(3, BEGIN)
    ((receiver, request),) = table.pulls()
    sources = (PullSource(1, "one:1"), PullSource(2, "two:2"))
    assert (receiver, request) == (3, PullWal(NODE_ID, 1, START, Timing().catchup_bytes_per_s, sources))
    assert not table.reads() and not table.sent_to(3)
    assert table.notes(Level.INFO) == ["safekeeper 3 pulls WAL [0/800000, 0/D000000) from safekeeper 1, 2"]


@pytest.mark.parametrize(
    ("lsn", "addresses", "commits"),
    [
        (START - PULL_BYTES_MIN + 1, None, True),
        (BEGIN, {}, True),
        (BEGIN, None, False),
    ],
    ids=["little is lacking", "no address is known", "nothing is committed in this term"],
)
def test_else_it_is_fed_through_the_proxy(lsn: Lsn, addresses: dict[int, str] | None, commits: bool) -> None:
    table = Table(addresses, commits)
    table.leadership.on_greeting((3, "3" * 32), table.now)
    table.take()
    table.acks(3, lsn)
    assert table.state(3) is State.FETCHING
    assert not table.pulls() and len(table.reads()) == 1


def test_a_pull_ends_at_what_is_committed_in_this_term() -> None:
    table = Table()
    table.leadership.on_wal_received(START + 500, table.now)
    table.take()
    table.acks(1, START + 500)
    table.leadership.window_begin_lsn = START
    table.joins(3, BEGIN)
    pull = table.leadership.members[3].pull
    assert pull is not None and pull.end_lsn == START == table.leadership.commit_lsn


def test_sources_are_those_with_the_next_byte_the_least_busy_ones_first() -> None:
    commit_lsn = START + 100
    candidates = [
        Candidate(1, BEGIN, START + 900, ("one:1",)),
        Candidate(2, BEGIN, START + 100, ("two:2",)),
        Candidate(3, BEGIN + 1, START + 900, ("no begin:3",)),
        Candidate(4, BEGIN, BEGIN, ("no more:4",)),
        Candidate(5, BEGIN, START - 5, ("not all:5",)),
        Candidate(6, BEGIN, START - 4, ("not all:6",)),
        Candidate(7, BEGIN, START + 900, ()),
    ]
    plan = plan_pull(BEGIN, commit_lsn, candidates)
    assert plan is not None
    assert (plan[0], [source.safekeeper_id for source in plan[1]]) == (commit_lsn, [2, 1, 6, 5])
    # Without one that has all of it the range is shorter.
    plan = plan_pull(BEGIN, commit_lsn, candidates[4:])
    assert plan is not None and (plan[0], [source.safekeeper_id for source in plan[1]]) == (START - 4, [6, 5])
    assert plan_pull(BEGIN, BEGIN + PULL_BYTES_MIN - 1, candidates) is None
    plan = plan_pull(BEGIN, BEGIN + PULL_BYTES_MIN, candidates)
    assert plan is not None and plan[0] == BEGIN + PULL_BYTES_MIN
    assert plan_pull(BEGIN, commit_lsn, []) is None


def test_a_source_is_tried_at_the_address_of_the_membership_then_at_the_configured_one() -> None:
    members = (Member(1, "1" * 32, "stored:1"), Member(2, "2" * 32), Member(3, "3" * 32, "three:3"))
    membership = msgspec.structs.replace(MEMBERS, members=members, new_members=(Member(4, "4" * 32, "new:4"),))
    found = [addresses_of(i, membership, {1: "one:1", 2: "two:2", 3: "three:3"}) for i in (1, 2, 3, 4, 5)]
    assert found == [("stored:1", "one:1"), ("two:2",), ("three:3",), ("new:4",), ()]
    plan = plan_pull(BEGIN, START, [Candidate(i, BEGIN, START, found[i - 1]) for i in (1, 2, 4)])
    assert plan is not None
    assert [source.address for source in plan[1]] == ["stored:1", "two:2", "new:4", "one:1"]


# While it pulls.


def test_its_positions_count_and_it_is_sent_heartbeats_only() -> None:
    table = pulling()
    for step in range(1, 5):
        table.acks(3, BEGIN + step * MIB)
        assert table.leadership.members[3].sent_lsn == table.leadership.members[3].flush_lsn == BEGIN + step * MIB
        assert not table.said
    table.leadership.on_wal_received(START + 100, table.now)
    table.take()
    assert not table.sent_to(3)
    table.ticks()
    (heartbeat,) = table.sent_to(3)
    assert heartbeat.begin_lsn == heartbeat.end_lsn == BEGIN + 4 * MIB
    table.leadership.update_truncate()
    assert table.leadership.truncate_lsn == BEGIN + 4 * MIB


def test_at_its_end_the_member_is_sent_the_next_wal_from_the_window() -> None:
    table = pulling()
    table.leadership.on_wal_received(START + 100, table.now)
    table.take()
    table.ends(3, START)
    assert table.state(3) is State.STREAMING
    (append,) = table.sent_to(3)
    assert (append.begin_lsn, append.end_lsn) == (START, START + 100)
    assert table.leadership.members[3].pulled_bytes == START - BEGIN
    assert table.notes(Level.INFO) == [f"safekeeper 3 has pulled {START - BEGIN} bytes of WAL in 0.0 s"]


def test_it_pulls_again_if_much_was_committed_meanwhile() -> None:
    table = pulling()
    end_lsn = START + 2 * PULL_BYTES_MIN
    table.leadership.on_wal_received(end_lsn, table.now)
    table.take()
    for safekeeper_id in (1, 2):
        table.acks(safekeeper_id, end_lsn)
    table.leadership.window_begin_lsn = end_lsn
    table.ends(3, START)
    ((_, request),) = table.pulls()
    assert (request.request_id, request.end_lsn) == (2, end_lsn)


def test_the_end_of_an_older_pull_is_none() -> None:
    table = pulling()
    table.ends(3, START, request_id=0)
    assert table.state(3) is State.PULLING and not table.said
    table.leadership.disconnected(3, table.now)
    table.ends(3, START, request_id=1)
    assert table.state(3) is State.DISCONNECTED


@pytest.mark.parametrize("lsn", [BEGIN + MIB - 1, START + 1])
def test_a_pull_that_ends_beside_the_log_breaks_the_protocol(lsn: Lsn) -> None:
    table = pulling()
    table.acks(3, BEGIN + MIB)
    with pytest.raises(RemoteProtocolError, match="a pull cannot end at"):
        table.ends(3, lsn)


def test_a_pull_of_another_term_ends_nothing_here() -> None:
    table = pulling()
    other = NODE_ID._replace(term=3)
    with pytest.raises(RemoteProtocolError, match="a pull cannot end"):
        table.leadership.on_pull_ended(3, PullEnded(other, 1, START), table.now)


# When it fails.


def test_after_a_failed_pull_the_proxy_feeds_for_a_while_and_says_so_once() -> None:
    table = pulling()
    table.ends(3, BEGIN + MIB, "safekeeper 1 at one:1: timeout")
    assert table.state(3) is State.FETCHING
    ((source, request),) = table.reads()
    assert request.begin_lsn == BEGIN + MIB
    assert table.notes(Level.WARNING) == [
        "safekeeper 3 receives old WAL through this proxy, it cannot pull it: safekeeper 1 at one:1: timeout"
    ]
    table.now += PULL_AGAIN_S - 0.1
    payload = bytes(request.end_lsn - request.begin_lsn)
    table.leadership.on_read_response(source, ReadResponse(request.request_id, request.begin_lsn, payload), table.now)
    table.take()
    assert table.state(3) is State.FETCHING
    ((source, request),) = table.reads()
    table.now += 0.2
    payload = bytes(request.end_lsn - request.begin_lsn)
    table.leadership.on_read_response(source, ReadResponse(request.request_id, request.begin_lsn, payload), table.now)
    table.take()
    ((_, pull),) = table.pulls()
    assert table.state(3) is State.PULLING and pull.request_id > request.request_id
    table.ends(3, request.end_lsn, "safekeeper 1 at one:1: timeout")
    assert not table.notes(Level.WARNING)


def test_a_pull_without_progress_is_ended_and_one_that_does_not_end_is_cut_off() -> None:
    table = pulling()
    table.ticks(PULL_STALL_S - 0.5)
    table.acks(3, BEGIN + MIB)
    table.ticks(PULL_STALL_S - 0.5)
    assert not table.pulls()
    table.acks(3, BEGIN + MIB)
    table.ticks(1.0)
    ((receiver, request),) = table.pulls()
    assert (receiver, request.request_id, request.sources) == (3, 2, ())
    # It had ended by itself at that moment.
    table.ends(3, BEGIN + MIB, "an older one", request_id=1)
    assert table.state(3) is State.PULLING
    table.acks(3, BEGIN + MIB)
    table.ticks(Timing().response_timeout_s - 0.5)
    assert not table.pulls()
    table.acks(3, BEGIN + MIB)
    table.ticks(1.0)
    (cut,) = [action for action in table.said if isinstance(action, Disconnect)]
    assert cut.safekeeper_id == 3 and "the end of a pull was not confirmed" in cut.reason


def test_a_stalled_pull_that_is_ended_is_followed_by_the_proxys_way() -> None:
    table = pulling()
    table.ticks(PULL_STALL_S + 0.5)
    table.ends(3, BEGIN + MIB)
    assert table.state(3) is State.FETCHING
    assert "it cannot pull it: no progress for 20 s" in table.notes(Level.WARNING)[0]


def test_when_commits_begin_to_wait_for_the_member_its_rate_is_no_longer_limited() -> None:
    table = pulling()
    table.leadership.disconnected(2, table.now)
    table.take()
    table.ticks()
    ((_, request),) = table.pulls()
    assert request.sources == ()
    table.ends(3, BEGIN + MIB)
    ((_, request),) = table.pulls()
    assert (request.bytes_per_s, request.sources) == (0, (PullSource(1, "one:1"),))
    table.ticks()
    assert table.pulls() == [], "that commits wait for it is no reason to end this one"


def test_the_end_of_the_members_connection_ends_its_pull() -> None:
    table = pulling()
    table.leadership.disconnected(3, table.now)
    table.take()
    assert table.leadership.members[3].pull is None
    table.joins(3, BEGIN + 3 * MIB)
    pull = table.leadership.members[3].pull
    assert pull is not None and pull.begin_lsn == BEGIN + 3 * MIB


def test_the_end_of_a_pull_is_an_answer() -> None:
    table = pulling()
    table.leadership.members[3].waiting_since = table.now
    table.ends(3, START)
    assert table.leadership.members[3].waiting_since is None
