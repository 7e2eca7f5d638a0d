"""The proposer, event by event: what it sends, whom it asks, when it gives up. Its wins and losses of data are the
simulator's business."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from safekeeper.base.errors import (
    ConfigurationError,
    InvariantViolation,
    PrimaryRefused,
    RemoteProtocolError,
)
from safekeeper.base.lsn import format_lsn
from safekeeper.consensus.control_state import NOBODY, TERM_MAX, LeaderId, TliHistory
from safekeeper.consensus.membership import Member, Membership, QuorumSizes, bootstrap_cluster_id
from safekeeper.consensus.messages import (
    DIGEST_PAGE_SIZE,
    AcceptorGreeting,
    AppendResponse,
    ArchiveAssignment,
    ArchiveReport,
    Bootstrap,
    Bootstrapped,
    DigestRequest,
    DigestResponse,
    Elected,
    PreVoteRequest,
    PreVoteResponse,
    ProposerGreeting,
    Refusal,
    RefusalCode,
    TailRequest,
    TailResponse,
    VoteRequest,
    VoteResponse,
)
from safekeeper.consensus.term_history import HistoryEntry
from safekeeper.peers.codec import encode
from tests.unit.greetings import empty
from walproxy.proposer.actions import (
    Action,
    Disconnect,
    Finish,
    IdentifyPrimary,
    Level,
    Note,
    ReportStatus,
    SendAppend,
    SendMessage,
    StartReplication,
    StopReplication,
)
from walproxy.proposer.phase import Phase, ProposerConfig
from walproxy.proposer.primary import Ancestor, PrimaryIdentity
from walproxy.proposer.proposer import Proposer
from walproxy.proposer.purpose import Purpose

SEGMENT = 1 << 20
BASE = 4 * SEGMENT
END = BASE + 500
MEMBERS = Membership(1, tuple(Member(i, str(i) * 32) for i in (1, 2, 3)))
CLUSTER = bootstrap_cluster_id(7, MEMBERS.members)
PRIMARY = PrimaryIdentity(system_id=7, tli=1, flush_lsn=END + 100, segment_size=SEGMENT, server_version=150000)
LOG = (HistoryEntry(3, BASE, 1),)
CRCS = (1,)


class Table:
    """A proposer and the time; `said` is what the last event made it do."""

    def __init__(self, *, purpose: Purpose | None = None, **config: Any) -> None:
        self.proposer = Proposer(ProposerConfig(proposer_id="run1", safekeeper_ids=(1, 2, 3), **config))
        self.now = 10.0
        self.said: list[Action] = []
        if purpose is not None:
            self.event(self.proposer.pursue(purpose, self.now))

    def event(self, actions: list[Action]) -> list[Action]:
        self.said = actions
        return actions

    def sent(self, kind: type[Any]) -> dict[int, Any]:
        """Return the messages of a kind that were just sent, by safekeeper."""
        return {
            action.safekeeper_id: action.message
            for action in self.said
            if isinstance(action, SendMessage) and isinstance(action.message, kind)
        }

    def did(self, kind: type[Any]) -> list[Any]:
        return [action for action in self.said if isinstance(action, kind)]

    def deliver(self, safekeeper_id: int, message: Any) -> None:
        self.event(self.proposer.message(safekeeper_id, message, self.now))

    def ticks(self, seconds: float = 1.0) -> None:
        self.now += seconds
        self.event(self.proposer.tick(self.now, 0.0))

    def sees(self, primary: PrimaryIdentity = PRIMARY, own: tuple[int, ...] = (), own_begin_lsn: int = BASE) -> None:
        self.event(self.proposer.primary_identified(primary, self.now, own, own_begin_lsn))

    def connects(self, *safekeeper_ids: int, **changes: Any) -> None:
        for safekeeper_id in safekeeper_ids:
            self.event(self.proposer.connected(safekeeper_id, self.now))
            self.deliver(safekeeper_id, greeting(safekeeper_id, **changes))

    def votes(self, **changes: Any) -> LeaderId:
        """Bring it from greetings to the vote of all; return the candidate."""
        leader_id = self.collect_pre_votes(1, 2, 3)
        self.collect_votes(leader_id, 1, 2, 3, **changes)
        return leader_id

    def connect(self, *safekeeper_ids: int) -> None:
        """Open connections, on which nothing is received yet."""
        for safekeeper_id in safekeeper_ids:
            self.event(self.proposer.connected(safekeeper_id, self.now))

    def collect_pre_votes(self, *safekeeper_ids: int) -> Any:
        """Let these grant their pre-votes; return the candidate for which votes are requested, None if they are not."""
        leader_id = None
        for safekeeper_id in safekeeper_ids:
            self.deliver(safekeeper_id, PreVoteResponse(True))
            leader_id = next((request.leader_id for request in self.sent(VoteRequest).values()), leader_id)
        return leader_id

    def collect_votes(self, leader_id: LeaderId, *safekeeper_ids: int, **changes: Any) -> None:
        for safekeeper_id in safekeeper_ids:
            self.deliver(safekeeper_id, vote(leader_id, **changes))

    def pass_check(self) -> None:
        """Let the donor and the primary report the same checksums of the WAL below END."""
        self.deliver(1, DigestResponse(self.proposer.term, BASE, END, CRCS))
        self.event(self.proposer.primary_checked(BASE, END, CRCS, self.now))

    def acknowledge(self, leader_id: LeaderId, lsn: int, *safekeeper_ids: int) -> None:
        """Let these have the log up to a position."""
        for safekeeper_id in safekeeper_ids:
            self.deliver(safekeeper_id, AppendResponse(leader_id, lsn, lsn, 0))

    def leads(self) -> LeaderId:
        """Bring it from nothing to leading a term that begins at END."""
        self.connects(1, 2, 3)
        self.sees()
        leader_id = self.votes()
        self.sees()
        self.pass_check()
        assert self.proposer.phase is Phase.LEADING
        return leader_id


def campaigning(**config: Any) -> Table:
    """Return a proposer that has requested the pre-votes of three members."""
    table = Table(**config)
    table.connects(1, 2, 3)
    table.sees()
    return table


def greeting(safekeeper_id: int, **changes: Any) -> AcceptorGreeting:
    of_log = {
        "cluster_id": CLUSTER,
        "system_id": 7,
        "segment_size": SEGMENT,
        "server_version": 150000,
        "membership": MEMBERS,
        "promised": LeaderId(5, "before"),
        "last_term": 3,
        "wal_begin_lsn": BASE,
        "flush_lsn": END,
        "commit_lsn": BASE,
        "truncate_lsn": BASE,
    }
    return empty(safekeeper_id, **{**of_log, **changes})


def greet_empty(table: "Table") -> None:
    """All three have been connected to, and greet: once to each connection, and once more, all after the last."""
    for _ in range(2):
        for safekeeper_id in (1, 2, 3):
            table.deliver(safekeeper_id, empty(safekeeper_id))


def vote(leader_id: LeaderId, **changes: Any) -> VoteResponse:
    message = VoteResponse(leader_id, True, leader_id, LOG, (), BASE, END, BASE, BASE)
    return msgspec.structs.replace(message, **changes)


def test_a_second_greeting_on_a_connection_on_which_the_term_was_announced_changes_nothing() -> None:
    table = Table()
    table.leads()
    table.event(table.proposer.disconnected(3, table.now))
    table.event(table.proposer.connected(3, table.now))
    table.proposer.roster.greet(3, PRIMARY, table.now)  # It was greeted twice, as when the primary comes into sight.
    table.deliver(3, greeting(3))
    assert table.sent(Elected).keys() == {3}
    table.deliver(3, greeting(3))
    assert table.said == []
    table.event(table.proposer.disconnected(3, table.now))
    table.connects(3)
    assert table.sent(Elected).keys() == {3}, "on another connection it is told again"


# Gathering and bootstrap.


def test_nothing_is_asked_before_there_is_a_primary() -> None:
    table = Table()
    table.connects(1, 2, 3)
    table.ticks()
    assert table.sent(PreVoteRequest) == {}
    table.sees()
    assert table.sent(PreVoteRequest).keys() == {1, 2, 3}, "at once, also after ticks"


def test_a_later_attempt_waits_for_its_time_also_if_the_primary_comes_back_before() -> None:
    table = campaigning()
    table.collect_pre_votes(1, 2, 3)
    table.ticks(table.proposer.timing.vote_timeout_s + 1)
    assert table.proposer.phase is Phase.GATHERING
    table.event(table.proposer.primary_lost(table.now))
    table.ticks()
    table.sees()
    assert table.sent(PreVoteRequest) == {}
    table.ticks(table.proposer._next_attempt_at - table.now)
    assert table.sent(PreVoteRequest).keys() == {1, 2, 3}


SLOTTED = msgspec.structs.replace(PRIMARY, slot="walproxy")


def greets_again(table: Table, **of: AcceptorGreeting) -> None:
    assert table.sent(ProposerGreeting).keys() == {1, 2, 3}
    for safekeeper_id in (1, 2, 3):
        table.deliver(safekeeper_id, of.get(f"s{safekeeper_id}", empty(safekeeper_id)))


def test_empty_safekeepers_of_a_primary_that_has_our_slot_are_no_first_start() -> None:
    table = Table()
    table.sees(SLOTTED)
    table.connect(1, 2, 3)
    for safekeeper_id in (1, 2, 3):
        table.deliver(safekeeper_id, empty(safekeeper_id))
    # Another proxy may have begun the cluster, and made the slot, a moment ago.
    greets_again(table)
    (note,) = table.did(Note)
    assert note.level is Level.ERROR and note.text == table.proposer.stuck
    for part in ('slot "walproxy"', "mounted elsewhere", "another cluster", "--bootstrap true", "walproxy rebootstrap"):
        assert part in note.text
    table.ticks()
    assert table.said == [] and table.proposer.phase is Phase.GATHERING
    # The folders are mounted where they belong.
    for safekeeper_id in (1, 2, 3):
        table.event(table.proposer.disconnected(safekeeper_id, table.now))
    table.ticks()
    assert table.did(Note) == []
    table.connects(1, 2, 3)
    table.ticks()
    assert table.sent(PreVoteRequest) and not table.proposer.stuck


def test_a_first_start_is_declared_by_the_operator() -> None:
    table = Table(bootstrap=True)
    table.sees(SLOTTED)
    table.connect(1, 2, 3)
    greet_empty(table)
    assert table.sent(Bootstrap).keys() == {1, 2, 3}


def test_a_bootstrap_that_was_begun_with_these_folders_is_finished_whoever_made_the_slot() -> None:
    begun = Table()
    begun.sees()
    begun.connect(1, 2, 3)
    greet_empty(begun)
    message = begun.sent(Bootstrap)[1]
    half_done = msgspec.structs.replace(empty(1), cluster_id=message.cluster_id, membership=message.membership)
    table = Table()
    table.sees(SLOTTED)
    table.connect(1, 2, 3)
    for safekeeper_id in (1, 2, 3):
        table.deliver(safekeeper_id, half_done if safekeeper_id == 1 else empty(safekeeper_id))
    assert table.proposer.phase is Phase.PRE_VOTING and not table.proposer.stuck


def test_takeover_counts_once_in_a_run() -> None:
    table = campaigning(takeover=True)
    assert {request.takeover for request in table.sent(PreVoteRequest).values()} == {True}
    table.collect_pre_votes(1, 2, 3)
    for safekeeper_id in (1, 2, 3):
        table.deliver(safekeeper_id, VoteResponse(LeaderId(6, "run1"), False, LeaderId(7, "other")))
    # Another one was quicker: that was no takeover.
    table.ticks()
    assert {request.takeover for request in table.sent(PreVoteRequest).values()} == {True}
    table.votes()
    table.event(table.proposer.disconnected(1, table.now))
    table.connects(1)
    table.ticks()
    assert {request.takeover for request in table.sent(PreVoteRequest).values()} == {False}


def test_greetings_of_different_times_are_not_combined_for_a_bootstrap() -> None:
    table = Table()
    table.sees()
    for safekeeper_id in (2, 3):
        table.event(table.proposer.connected(safekeeper_id, table.now))
        table.deliver(safekeeper_id, empty(safekeeper_id))
    # Another proxy bootstraps 1 and 3, and they acknowledge WAL. Then the disk of 1 is lost. 2 has missed all of it.
    table.event(table.proposer.connected(1, table.now))
    table.deliver(1, wiped(1))
    assert (table.sent(Bootstrap), table.sent(ProposerGreeting).keys()) == ({}, {1, 2, 3})
    for safekeeper_id, message in ((1, wiped(1)), (2, empty(2)), (3, greeting(3))):
        table.deliver(safekeeper_id, message)
        assert table.sent(Bootstrap) == {}
    # 2 and 3 are a quorum of the cluster that there is.
    assert table.proposer.phase is Phase.PRE_VOTING


def test_a_greeting_that_was_requested_before_the_last_connection_does_not_count_for_a_bootstrap() -> None:
    table = Table()
    table.sees()
    table.event(table.proposer.connected(3, table.now))
    table.connect(1, 2)
    for safekeeper_id in (1, 2, 3):
        table.deliver(safekeeper_id, empty(safekeeper_id))  # That of 3 was on its way.
    assert table.sent(Bootstrap) == {}
    for safekeeper_id in (1, 2, 3):
        table.deliver(safekeeper_id, empty(safekeeper_id))
    assert table.sent(Bootstrap).keys() == {1, 2, 3}


def test_a_bootstrap_needs_every_member() -> None:
    table = Table()
    table.sees()
    for safekeeper_id in (1, 2):
        table.event(table.proposer.connected(safekeeper_id, table.now))
        table.deliver(safekeeper_id, empty(safekeeper_id))
        assert table.sent(Bootstrap) == {}
    table.event(table.proposer.connected(3, table.now))
    table.deliver(3, empty(3))
    assert table.sent(Bootstrap) == {}
    for safekeeper_id in (1, 2, 3):
        table.deliver(safekeeper_id, empty(safekeeper_id))
    assert {message.membership for message in table.sent(Bootstrap).values()} == {MEMBERS}
    for safekeeper_id in (1, 2):
        table.deliver(safekeeper_id, Bootstrapped(CLUSTER, 1))
        assert table.proposer.phase is Phase.BOOTSTRAPPING
    table.deliver(3, Bootstrapped(CLUSTER, 1))
    assert table.sent(ProposerGreeting).keys() == {1, 2, 3}


def test_after_a_bootstrap_that_was_interrupted_nobody_counts_as_empty_that_has_not_greeted_again() -> None:
    table = Table()
    table.sees()
    table.connect(1, 2, 3)
    greet_empty(table)
    for safekeeper_id in (2, 3):
        table.deliver(safekeeper_id, Bootstrapped(CLUSTER, 1))
    table.event(table.proposer.disconnected(1, table.now))
    assert table.proposer.phase is Phase.GATHERING
    # Another proxy may lead by now: 2 and 3 are a quorum. Then the disk of 2 is lost, and 1 has missed all of it.
    table.event(table.proposer.disconnected(2, table.now))
    for safekeeper_id, lost in ((1, False), (2, True)):
        table.event(table.proposer.connected(safekeeper_id, table.now))
        table.deliver(safekeeper_id, wiped(safekeeper_id) if lost else empty(safekeeper_id))
    table.ticks()
    assert table.sent(Bootstrap) == {}
    table.deliver(3, greeting(3, promised=LeaderId(1, "another")))
    table.ticks()
    assert table.sent(PreVoteRequest).keys() == {1, 3}


def test_a_primary_of_another_system_is_refused_before_anybody_votes() -> None:
    table = Table()
    table.connects(1, 2, 3, system_id=8)
    table.sees()
    assert table.sent(PreVoteRequest) == {}
    (finish,) = table.did(Finish)
    assert isinstance(finish.error, PrimaryRefused)


def test_a_safekeeper_that_does_not_greet_is_connected_anew() -> None:
    table = Table()
    table.event(table.proposer.connected(1, table.now))
    table.ticks(table.proposer.timing.response_timeout_s + 1)
    assert [action.safekeeper_id for action in table.did(Disconnect)] == [1]


# Elections.


def test_the_term_is_above_every_promise_that_was_seen() -> None:
    table = Table()
    table.connects(1, 2)
    table.connects(3, promised=LeaderId(8, "other"))
    table.sees()
    assert table.votes().term == 9


def test_a_run_never_asks_for_a_term_twice() -> None:
    table = campaigning()
    terms = []
    for _ in range(2):
        table.deliver(1, PreVoteResponse(True))
        table.deliver(2, PreVoteResponse(True))
        terms.append(table.sent(VoteRequest)[1].leader_id.term)
        table.ticks(table.proposer.timing.vote_timeout_s + 1)
        table.ticks(60.0)
    assert terms == [6, 7]


def test_whoever_greets_during_the_pre_vote_is_asked_for_its_vote_too() -> None:
    table = Table()
    table.sees()
    table.connects(1, 2)
    assert table.sent(PreVoteRequest).keys() == {1, 2}
    table.connects(3)
    table.deliver(1, PreVoteResponse(True))
    table.deliver(2, PreVoteResponse(True))
    assert table.sent(VoteRequest).keys() == {1, 2, 3}


def test_votes_of_another_term_do_not_count() -> None:
    table = campaigning()
    table.deliver(1, PreVoteResponse(True))
    table.deliver(2, PreVoteResponse(True))
    table.deliver(1, vote(LeaderId(4, "run1")))
    table.deliver(2, vote(LeaderId(4, "run1")))
    table.ticks(0.5)
    assert table.proposer.phase is Phase.VOTING


@pytest.mark.parametrize("waits_s", [0.5, 30.0])
def test_a_proxy_that_has_waited_for_its_primary_greets_again_before_its_first_election(waits_s: float) -> None:
    table = Table()
    table.connects(1, 2, 3)
    table.ticks(waits_s)
    table.sees()
    assert sorted(table.sent(ProposerGreeting)) == [1, 2, 3]
    # A failover may have sealed the log meanwhile: an election by the old greetings would be refused.
    assert bool(table.sent(PreVoteRequest)) == (waits_s < 1)
    table.deliver(1, greeting(1))
    table.deliver(2, greeting(2))
    assert table.proposer.phase is Phase.PRE_VOTING


def test_of_several_identities_that_are_due_the_last_one_counts() -> None:
    table = campaigning()
    table.votes()
    table.event(table.proposer.disconnected(1, table.now))
    table.ticks()
    table.connects(1, 2, 3)
    table.votes()
    assert table.did(IdentifyPrimary)
    # A primary that hung answers both: were the first one taken, the second one would come into the COPY.
    table.sees()
    assert table.sent(DigestRequest) == {} and table.proposer.phase is Phase.VERIFYING
    table.sees()
    assert table.sent(DigestRequest).keys() == {1}
    table.event(table.proposer.primary_lost(table.now))
    table.sees()
    assert table.proposer.primary is PRIMARY


# The check of the primary (S9, S10).


def test_nothing_is_reported_before_the_primary_was_compared() -> None:
    table = campaigning()
    table.votes()
    table.sees()
    request = table.sent(DigestRequest)[1]
    assert (request.begin_lsn, request.end_lsn, request.back_to_timed) == (BASE, END, True)
    assert table.sent(Elected) == {} and not table.did(StartReplication)
    table.deliver(1, DigestResponse(table.proposer.term, BASE, END, CRCS))
    (start,) = table.did(StartReplication)
    assert (start.check_begin_lsn, start.begin_lsn, start.resumes) == (BASE, END, False)
    assert table.sent(Elected) == {}
    table.event(table.proposer.primary_checked(BASE, END, CRCS, table.now))
    assert table.sent(Elected).keys() == {1, 2, 3}
    assert table.sent(Elected)[1].history == (*LOG, HistoryEntry(6, END, 1, given=1))


# The log's last two segments have no record that bears a time; the safekeepers keep it from OLD on.
OLD = BASE - 3 * SEGMENT
TRIMMED = {"history": (HistoryEntry(1, OLD // 2, 1),), "wal_begin_lsn": OLD}
TIMED_LSN = BASE - 2 * SEGMENT + 5000


def verifying(**config: Any) -> Table:
    """Return one that has asked the donor for its checksums, of a log that OLD is the beginning of."""
    table = campaigning(**config)
    table.votes(**TRIMMED)
    table.sees()
    return table


def crcs_of(begin_lsn: int, end_lsn: int) -> tuple[int, ...]:
    return tuple(range(begin_lsn // DIGEST_PAGE_SIZE, -(-end_lsn // DIGEST_PAGE_SIZE)))


def answers(table: Table, begin_lsn: int, timed_lsn: int, end_lsn: int = END) -> None:
    table.deliver(1, DigestResponse(table.proposer.term, begin_lsn, end_lsn, crcs_of(begin_lsn, end_lsn), timed_lsn))


def test_a_primary_is_compared_back_to_a_record_that_bears_a_time() -> None:
    table = verifying()
    begin_lsn = BASE - 2 * SEGMENT
    answers(table, begin_lsn, TIMED_LSN)
    (start,) = table.did(StartReplication)
    assert (start.check_begin_lsn, start.begin_lsn) == (begin_lsn, END)
    theirs = (1, *crcs_of(begin_lsn, END)[1:])
    table.event(table.proposer.primary_checked(begin_lsn, END, theirs, table.now))
    assert f"in the page at {format_lsn(begin_lsn)}" in str(table.did(Finish)[0].error)


def test_checksums_of_much_wal_come_in_several_answers() -> None:
    table = verifying()
    begin_lsn = BASE - 2 * SEGMENT
    answers(table, begin_lsn, TIMED_LSN, end_lsn=BASE)
    request = table.sent(DigestRequest)[1]
    assert (request.begin_lsn, request.end_lsn, request.back_to_timed) == (BASE, END, False)
    assert not table.did(StartReplication)
    answers(table, BASE, 0)
    assert table.did(StartReplication)[0].check_begin_lsn == begin_lsn
    table.event(table.proposer.primary_checked(begin_lsn, END, crcs_of(begin_lsn, END), table.now))
    assert table.proposer.phase is Phase.LEADING


def test_an_answer_to_another_campaign_says_nothing() -> None:
    table = verifying()
    table.deliver(1, DigestResponse(table.proposer.term - 1, BASE, END + 10, (1, 2, 3), BASE))
    assert not table.did(StartReplication) and not table.did(Finish)


@pytest.mark.parametrize(
    ("begin_lsn", "end_lsn", "pages"),
    [
        (BASE + DIGEST_PAGE_SIZE, END, None),
        (OLD + DIGEST_PAGE_SIZE, END, None),
        (BASE, END + 1, None),
        (BASE, BASE, 0),
        (BASE, END, 1000),
    ],
)
def test_checksums_that_were_not_asked_for_break_the_protocol(begin_lsn: int, end_lsn: int, pages: int | None) -> None:
    table = verifying()
    crcs = crcs_of(begin_lsn, end_lsn) if pages is None else (1,) * pages
    with pytest.raises(RemoteProtocolError, match="not the requested ones"):
        table.deliver(1, DigestResponse(table.proposer.term, begin_lsn, end_lsn, crcs, BASE))


def test_a_log_without_a_record_that_bears_a_time_is_enough_from_its_very_beginning_only() -> None:
    table = verifying()
    answers(table, OLD, 0)
    reason = str(table.did(Finish)[0].error)
    assert f"begins at {format_lsn(OLD)} and has no record with a time" in reason
    assert "--allow-unverified-primary" in reason
    table = campaigning()
    table.votes()
    table.sees()
    answers(table, BASE, 0)
    assert table.did(StartReplication)[0].check_begin_lsn == BASE


def test_a_primary_that_has_recycled_what_proves_it_is_refused() -> None:
    table = verifying()
    answers(table, BASE - 2 * SEGMENT, TIMED_LSN)
    table.event(table.proposer.primary_segment_removed(table.now))
    reason = str(table.did(Finish)[0].error)
    assert f"has recycled WAL of [{format_lsn(BASE - 2 * SEGMENT)}, {format_lsn(END)})" in reason
    assert "--allow-unverified-primary" in reason


def test_an_operator_may_vouch_for_a_primary_of_which_the_last_segment_is_compared() -> None:
    table = verifying(allow_unverified_primary=True)
    answers(table, BASE - 2 * SEGMENT, TIMED_LSN)
    table.event(table.proposer.primary_segment_removed(table.now))
    (start,) = table.did(StartReplication)
    assert (start.check_begin_lsn, start.begin_lsn) == (BASE, END)
    table.event(table.proposer.primary_checked(BASE, END, (1,), table.now))
    assert isinstance(table.did(Finish)[0].error, PrimaryRefused)


def test_what_is_left_to_compare_are_the_bytes_of_the_last_segment() -> None:
    table = verifying(allow_unverified_primary=True)
    answers(table, BASE - 2 * SEGMENT, TIMED_LSN)
    table.event(table.proposer.primary_segment_removed(table.now))
    table.event(table.proposer.primary_checked(BASE, END, crcs_of(BASE, END), table.now))
    assert table.proposer.phase is Phase.LEADING


def segment_to_compare_is_gone(end_lsn: int) -> Table:
    """Return a campaign for a log that ends there, when its primary has recycled the last segment to compare."""
    table = Table(allow_unverified_primary=True)
    primary = msgspec.structs.replace(PRIMARY, flush_lsn=end_lsn + 3 * SEGMENT)
    table.connects(1, 2, 3)
    table.sees(primary)
    table.votes(flush_lsn=end_lsn)
    table.sees(primary)
    answers(table, BASE, BASE + 100, end_lsn=end_lsn)
    table.event(table.proposer.primary_segment_removed(table.now))
    return table


def test_within_a_segment_a_log_cannot_be_continued_by_a_link() -> None:
    table = segment_to_compare_is_gone(BASE + SEGMENT // 2)
    assert "has recycled the WAL" in str(table.did(Finish)[0].error)
    assert not table.sent(TailRequest)


def test_a_primary_with_other_bytes_is_refused() -> None:
    table = campaigning()
    table.votes()
    table.sees()
    table.deliver(1, DigestResponse(table.proposer.term, BASE, END, CRCS))
    table.event(table.proposer.primary_checked(BASE, END, (2,), table.now))
    (finish,) = table.did(Finish)
    assert isinstance(finish.error, PrimaryRefused)
    assert table.sent(Elected) == {}


@pytest.mark.parametrize(("record_end_lsn", "refused"), [(END, True), (END + 1, False), (0, False)])
def test_a_fork_may_only_cut_a_record_that_nobody_was_promised(record_end_lsn: int, refused: bool) -> None:
    table = campaigning()
    table.votes()
    fork_lsn = END - 100
    table.sees(msgspec.structs.replace(PRIMARY, tli=2, ancestors=(Ancestor(1, fork_lsn),)))
    assert table.sent(TailRequest)[1].lsn == fork_lsn
    table.deliver(1, TailResponse(0, fork_lsn, record_end_lsn, BASE))
    assert bool(table.did(Finish)) == refused
    assert bool(table.sent(DigestRequest)) != refused


def test_data_loss_may_be_allowed_explicitly() -> None:
    table = campaigning(allow_data_loss=True)
    table.votes()
    fork_lsn = END - 100
    table.sees(msgspec.structs.replace(PRIMARY, tli=2, ancestors=(Ancestor(1, fork_lsn),)))
    table.deliver(1, TailResponse(0, fork_lsn, END - 50, BASE))
    table.deliver(1, DigestResponse(table.proposer.term, BASE, fork_lsn, CRCS))
    assert table.did(StartReplication)
    table.event(table.proposer.primary_checked(BASE, fork_lsn, CRCS, table.now))
    assert table.sent(Elected)[1].history[-1].gives_up


def test_nothing_is_given_up_as_long_as_too_few_for_a_commit_quorum_have_voted() -> None:
    table = Table(allow_data_loss=True)
    table.connects(1, 2, membership=msgspec.structs.replace(MEMBERS, quorum_sizes=QuorumSizes(commit="N")))
    table.sees()
    leader_id = table.collect_pre_votes(1, 2)
    table.collect_votes(leader_id, 1, 2)
    fork_lsn = END - 100
    table.sees(msgspec.structs.replace(PRIMARY, tli=2, ancestors=(Ancestor(1, fork_lsn),)))
    table.deliver(1, TailResponse(0, fork_lsn, END - 50, BASE))
    (finish,) = table.did(Finish)
    assert "too few safekeepers have voted for a commit quorum to cut its log there" in str(finish.error)


def test_votes_are_not_awaited_longer_because_there_was_a_quorum_of_them() -> None:
    table = campaigning()
    leader_id = table.collect_pre_votes(1, 2)
    table.collect_votes(leader_id, 1, 2)
    table.event(table.proposer.disconnected(2, table.now))
    table.ticks(table.proposer.timing.vote_timeout_s + 0.1)
    assert table.proposer.phase is Phase.GATHERING


def test_a_timeline_may_end_as_soon_as_the_term_is_led() -> None:
    table = campaigning()
    leader_id = table.votes()
    table.sees(msgspec.structs.replace(PRIMARY, tli=2, ancestors=(Ancestor(1, END + 50),)))
    table.pass_check()
    table.event(table.proposer.wal_received(END + 50, table.now))
    table.event(table.proposer.timeline_ended(2, END + 50, table.now))
    assert table.proposer.phase is Phase.LEADING
    for safekeeper_id in (1, 2):
        table.deliver(safekeeper_id, AppendResponse(leader_id, END, END, 0))
        table.deliver(safekeeper_id, AppendResponse(leader_id, END + 50, END + 50, 0))
    assert table.proposer.phase is not Phase.LEADING


# Leading.


def test_nothing_is_reported_before_the_terms_start_is_on_a_quorum() -> None:
    table = Table()
    leader_id = table.leads()
    table.event(table.proposer.wal_received(END + 50, table.now))
    table.deliver(1, AppendResponse(leader_id, END, END, 0))
    assert table.did(ReportStatus) == []
    table.deliver(2, AppendResponse(leader_id, END, END, 0))
    assert table.did(ReportStatus) == [ReportStatus(END, END, END)]


def test_wal_goes_to_whoever_has_adopted_the_history() -> None:
    table = Table()
    leader_id = table.leads()
    table.event(table.proposer.wal_received(END + 50, table.now))
    assert table.did(SendAppend) == []
    table.deliver(2, AppendResponse(leader_id, END, END, 0))
    assert [(a.safekeeper_ids, a.begin_lsn, a.end_lsn) for a in table.did(SendAppend)] == [([2], END, END + 50)]


def steady(table: Table) -> list[int]:
    """Return the members whose everyday answers need nothing else at present."""
    return list(table.proposer._steady)


def test_answers_are_everyday_ones_once_the_terms_start_is_on_a_quorum_and_the_member_follows() -> None:
    table = Table()
    leader_id = table.leads()
    table.event(table.proposer.wal_received(END + 50, table.now))
    table.deliver(1, AppendResponse(leader_id, END, END, 0))
    assert steady(table) == []
    table.deliver(2, AppendResponse(leader_id, END, END, 0))
    assert steady(table) == [1, 2]
    table.deliver(3, AppendResponse(leader_id, END, END, 0))
    assert steady(table) == [1, 2, 3]


@pytest.mark.parametrize(
    ("event", "left"),
    [
        (lambda p, now: p.disconnected(2, now), [1, 3]),
        (lambda p, now: p.message(2, Refusal(RefusalCode.STORAGE_FULL, "full", p.leadership.leader_id), now), [1, 3]),
        (lambda p, now: p.message(2, Refusal(RefusalCode.STALE_TERM, "", LeaderId(99, "other")), now), []),
        (lambda p, now: p.timeline_ended(2, END + 50, now), []),
        (lambda p, now: (p.primary_lost(now), p.primary_identified(PRIMARY, now, CRCS, BASE)), []),
        (lambda p, now: p.connected(2, now), [1, 3]),  # It has not answered the greeting yet.
        (lambda p, now: p.tick(now, 0.0), [1, 2, 3]),
    ],
)
def test_no_answer_is_an_everyday_one_while_something_else_is_due(
    event: Callable[[Proposer, float], object], left: list[int]
) -> None:
    table = Table()
    leader_id = table.leads()
    table.event(table.proposer.wal_received(END + 50, table.now))
    table.acknowledge(leader_id, END, 1, 2, 3)
    assert steady(table) == [1, 2, 3]
    event(table.proposer, table.now)
    assert steady(table) == left


def test_an_answer_that_ends_a_logged_problem_is_no_everyday_one() -> None:
    table = Table()
    leader_id = table.leads()
    table.acknowledge(leader_id, END, 1, 2, 3)
    table.proposer.peers[2].log.is_new("some reason")
    table.ticks(0.1)
    assert steady(table) == [1, 3]
    table.deliver(2, AppendResponse(leader_id, END, END, 1))
    assert steady(table) == [1, 2, 3]
    assert table.proposer.peers[2].log.is_new("some reason")


def test_a_primary_that_comes_back_receives_nothing_before_it_was_compared() -> None:
    table = Table()
    leader_id = table.leads()
    table.event(table.proposer.wal_received(END + 50, table.now))
    table.acknowledge(leader_id, END + 50, 1, 2)
    assert table.did(ReportStatus)[-1].flush_lsn == END + 50
    table.event(table.proposer.primary_lost(table.now))
    assert table.did(ReportStatus) == [ReportStatus(0, 0, 0)]
    table.sees(own=CRCS)
    sequence = table.proposer.leadership.sequence if table.proposer.leadership else 0
    table.deliver(3, AppendResponse(leader_id, END + 50, END + 50, sequence))
    table.deliver(1, AppendResponse(leader_id, END + 50, END + 50, sequence))
    (start,) = table.did(StartReplication)
    assert (start.check_begin_lsn, start.begin_lsn, start.resumes) == (BASE, END + 50, True)
    assert table.did(ReportStatus) == []
    table.event(table.proposer.primary_checked(BASE, END + 50, CRCS, table.now))
    assert table.did(ReportStatus) == [ReportStatus(END + 50, END + 50, END + 50)]


def test_a_primary_that_comes_back_with_other_bytes_is_refused() -> None:
    table = Table()
    leader_id = table.leads()
    table.event(table.proposer.primary_lost(table.now))
    table.sees(own=CRCS)
    sequence = table.proposer.leadership.sequence if table.proposer.leadership else 0
    for safekeeper_id in (1, 2):
        table.deliver(safekeeper_id, AppendResponse(leader_id, END, END, 0))
        table.deliver(safekeeper_id, AppendResponse(leader_id, END, END, sequence))
    table.event(table.proposer.primary_checked(BASE, END, (2,), table.now))
    assert isinstance(table.did(Finish)[0].error, PrimaryRefused)


def test_a_higher_term_ends_the_term_and_nothing_is_reported_any_more() -> None:
    table = Table()
    leader_id = table.leads()
    table.acknowledge(leader_id, END, 1, 2)
    table.deliver(3, Refusal(RefusalCode.STALE_TERM, "deposed", LeaderId(9, "other")))
    assert table.did(ReportStatus) == [ReportStatus(0, 0, 0)]
    assert table.proposer.leadership is None
    assert table.sent(ProposerGreeting).keys() == {1, 2, 3}


def test_without_a_term_the_connection_to_the_primary_is_closed() -> None:
    table = Table()
    table.leads()
    table.deliver(3, Refusal(RefusalCode.STALE_TERM, "deposed", LeaderId(9, "other")))
    for safekeeper_id in (1, 2, 3):
        table.deliver(safekeeper_id, greeting(safekeeper_id, promised=LeaderId(9, "other")))
    table.ticks()
    for safekeeper_id in (1, 2, 3):
        table.deliver(safekeeper_id, PreVoteResponse(False, ""))
        if table.did(StopReplication):
            return
    raise AssertionError("the COPY of a term that is over stayed open")


def test_a_learner_is_fed_and_does_not_count() -> None:
    table = Table()
    leader_id = table.leads()
    table.event(table.proposer.disconnected(3, table.now))
    table.event(table.proposer.connected(3, table.now))
    stranger = msgspec.structs.replace(empty(3), incarnation="9" * 32)
    table.deliver(3, stranger)
    assert table.sent(Elected).keys() == {3}
    table.event(table.proposer.wal_received(END + 50, table.now))
    table.deliver(1, AppendResponse(leader_id, END + 50, END + 50, 0))
    table.deliver(3, AppendResponse(leader_id, END + 50, END + 50, 0))
    assert table.did(ReportStatus) == []


def test_a_copy_whose_segment_was_recycled_is_not_taken_for_one_that_goes_on() -> None:
    table = Table()
    held = table.leads()
    table.event(table.proposer.primary_segment_removed(table.now))
    table.connects(1, 2, 3)
    table.votes(history=(*LOG, HistoryEntry(held.term, END, 1)))
    # The donor's log is this run's own, but no COPY is open any more: the primary is asked, and checked, anew.
    assert table.did(IdentifyPrimary)
    assert table.proposer.leadership is None


def test_a_primary_that_has_recycled_the_next_segment_too_is_refused_instead_of_a_term_after_the_other() -> None:
    border_lsn = BASE + SEGMENT
    table = segment_to_compare_is_gone(border_lsn)
    assert table.sent(TailRequest).keys() == {1}
    table.deliver(1, TailResponse(0, border_lsn, 0, BASE))
    assert table.proposer.phase is Phase.LEADING
    table.event(table.proposer.primary_segment_removed(table.now))
    (finish,) = table.did(Finish)
    assert isinstance(finish.error, PrimaryRefused)
    assert f"has recycled the WAL at {format_lsn(border_lsn)}, where the quorum's log ends" in str(finish.error)


# What members say that a rebootstrap has reached: one that never promised anything, and one that did, as usual.
BEGUN = [NOBODY, LeaderId(1, "run1")]


@pytest.mark.parametrize("promised", BEGUN)
def test_a_member_that_a_rebootstrap_has_begun_with_counts_as_missing_and_ends_no_term(promised: LeaderId) -> None:
    table = Table()
    leader_id = table.leads()
    table.acknowledge(leader_id, END, 1, 2)
    later = Membership(2, MEMBERS.members)
    begun = msgspec.structs.replace(empty(3), cluster_id="d" * 32, membership=later, promised=promised)
    for _ in range(2):
        table.event(table.proposer.disconnected(3, table.now))
        table.event(table.proposer.connected(3, table.now))
        table.deliver(3, begun)
        assert table.proposer.leadership is not None and not table.sent(Elected)
    assert "a rebootstrap, or the undo of one, has begun with it" in table.proposer.peers[3].problem


@pytest.mark.parametrize("promised", BEGUN)
def test_a_term_ends_once_a_quorum_belongs_to_a_later_cluster(promised: LeaderId) -> None:
    table = Table()
    table.leads()
    for safekeeper_id in (2, 3):
        assert table.proposer.leadership is not None
        membership = Membership(2, MEMBERS.members)
        later = msgspec.structs.replace(
            empty(safekeeper_id), cluster_id="d" * 32, membership=membership, promised=promised
        )
        table.event(table.proposer.disconnected(safekeeper_id, table.now))
        table.event(table.proposer.connected(safekeeper_id, table.now))
        table.deliver(safekeeper_id, later)
    assert table.proposer.leadership is None


# The archive, and WAL that is not kept any more.


def test_a_report_of_the_archive_is_received_in_a_term_only() -> None:
    table = Table()
    report = ArchiveReport(BASE, has_archive=True, is_archiver=True, archived_lsn=BASE + 50)
    table.connects(1)
    table.deliver(1, report)
    assert table.said == []
    leader_id = table.leads()
    table.deliver(1, AppendResponse(leader_id, END, END, 0))
    table.deliver(1, report)
    table.ticks(0.1)
    assert table.sent(ArchiveAssignment) == {1: ArchiveAssignment(leader_id, 1, BASE + 50)}


# The list of safekeepers and the membership.


def lists(*safekeeper_ids: int) -> Table:
    """Return a proposer whose configuration names these safekeepers."""
    table = Table()
    table.proposer = Proposer(ProposerConfig(proposer_id="run1", safekeeper_ids=safekeeper_ids))
    return table


def wiped(safekeeper_id: int) -> AcceptorGreeting:
    return msgspec.structs.replace(empty(safekeeper_id), incarnation="e" * 31 + str(safekeeper_id))


@pytest.mark.parametrize("listed", [(1,), (1, 2), (1, 4, 5)])
def test_a_list_that_lacks_members_is_refused_with_the_difference(listed: tuple[int, ...]) -> None:
    table = lists(*listed)
    table.sees()
    for safekeeper_id in listed:
        assert not table.did(Finish)
        table.event(table.proposer.connected(safekeeper_id, table.now))
        table.deliver(safekeeper_id, greeting(safekeeper_id) if safekeeper_id <= 3 else wiped(safekeeper_id))
    (finish,) = table.did(Finish)
    assert isinstance(finish.error, ConfigurationError)
    missing = ", ".join(str(each) for each in (1, 2, 3) if each not in listed)
    assert "(generation 1: 1, 2, 3)" in str(finish.error) and f"it lacks {missing};" in str(finish.error)


def test_a_listed_safekeeper_that_is_not_a_member_does_no_harm() -> None:
    table = lists(1, 2, 3, 9)
    table.sees()
    table.connects(1, 2, 3)
    assert table.proposer.refusal is None and table.proposer.phase is Phase.PRE_VOTING


def test_lost_folders_in_a_list_that_fits_are_still_reported_as_such() -> None:
    table = lists(1, 2, 3)
    table.sees()
    table.connects(1)
    for safekeeper_id in (2, 3):
        table.event(table.proposer.connected(safekeeper_id, table.now))
        table.deliver(safekeeper_id, wiped(safekeeper_id))
    assert table.proposer.refusal is None and "data folders were lost" in table.proposer.stuck


def test_a_stranger_with_a_greater_membership_does_not_make_a_list_unfit() -> None:
    table = lists(1, 2, 3)
    others = Membership(7, tuple(Member(i, "f" * 32) for i in (3, 4, 5)))
    table.sees()
    table.connects(3, cluster_id="d" * 32, membership=others, incarnation="f" * 32)
    table.connects(1)
    table.event(table.proposer.connected(2, table.now))
    table.deliver(2, wiped(2))
    assert table.proposer.refusal is None


def test_a_safekeeper_that_falls_silent_in_a_bootstrap_is_connected_to_again() -> None:
    table = Table()
    table.connect(1, 2, 3)
    table.sees()  # Each is greeted once more.
    for safekeeper_id in (1, 2, 3, 1, 2):
        table.deliver(safekeeper_id, empty(safekeeper_id))
    bootstrap = table.sent(Bootstrap)[1]
    # The answer to the second greeting was on its way.
    table.deliver(3, empty(3))
    for safekeeper_id in (1, 2):
        table.deliver(safekeeper_id, Bootstrapped(bootstrap.cluster_id, 1))
    table.now += table.proposer.timing.response_timeout_s + 1
    table.event(table.proposer.tick(table.now, 0.5))
    assert [action.safekeeper_id for action in table.did(Disconnect)] == [3]


def test_a_state_that_does_not_fit_the_phase_is_noticed() -> None:
    table = Table()
    table.leads()
    table.proposer.leadership = None
    with pytest.raises(InvariantViolation, match="a proposer that is leading has another phase's state"):
        table.ticks()
    table = campaigning()
    table.proposer.campaign = None
    with pytest.raises(InvariantViolation, match="a proposer that is pre_voting has another phase's state"):
        table.ticks()


# What no honest peer sends, and what comes late, must not end the process.


def test_there_is_no_term_above_the_last_one() -> None:
    table = Table()
    table.connects(1, 2, promised=LeaderId(TERM_MAX, "other"))
    table.sees()
    table.deliver(1, PreVoteResponse(True))
    table.deliver(2, PreVoteResponse(True))
    assert not table.sent(VoteRequest) and table.proposer.phase is Phase.GATHERING
    assert f"term {TERM_MAX} was promised, the highest possible one" in table.did(Note)[0].text


@pytest.mark.parametrize(
    "changes",
    [
        {"flush_lsn": BASE - 1},
        {"flush_lsn": 0},
        {"history": (HistoryEntry(6, BASE, 1),)},
        {"history": (HistoryEntry(7, BASE, 1),)},
        {"history": (HistoryEntry(3, BASE, 1), HistoryEntry(4, END + 1, 1))},
    ],
)
def test_a_vote_whose_history_cannot_be_does_not_count(changes: dict[str, Any]) -> None:
    table = campaigning()
    table.deliver(1, PreVoteResponse(True))
    table.deliver(2, PreVoteResponse(True))
    leader_id = table.sent(VoteRequest)[1].leader_id
    assert leader_id.term == 6
    with pytest.raises(RemoteProtocolError, match=r"a vote for \(6, run1\) has a log that ends at"):
        table.deliver(1, vote(leader_id, **changes))
    assert table.proposer.campaign is not None and not table.proposer.campaign.votes


@pytest.mark.parametrize(
    "changes",
    [
        {"tli_histories": (TliHistory(1, bytes((2 << 20) - 400)),)},
        {"history": tuple(HistoryEntry(term, BASE, 1) for term in range(1, 1 << 16)), "commit_lsn": 0},
    ],
)
def test_a_vote_that_is_too_long_for_what_is_sent_to_the_members_does_not_count(changes: dict[str, Any]) -> None:
    table = Table()
    table.connects(1, 2, 3, promised=LeaderId(1 << 16, "before"))
    table.sees()
    table.deliver(1, PreVoteResponse(True))
    table.deliver(2, PreVoteResponse(True))
    message = vote(table.sent(VoteRequest)[1].leader_id, **changes)
    encode(message)
    with pytest.raises(RemoteProtocolError, match=r"the histories of a vote for .* bytes: too many"):
        table.deliver(1, message)


def test_a_primary_that_is_refused_after_the_end_changes_nothing() -> None:
    table = Table()
    table.leads()
    table.event(table.proposer.primary_refused("no link", table.now))
    (finish,) = table.did(Finish)
    table.event(table.proposer.primary_refused("no link either", table.now))
    assert table.said == [] and table.proposer.refusal is finish.error and table.proposer.phase is Phase.FINISHED


def test_a_message_after_the_end_changes_nothing() -> None:
    table = Table()
    table.leads()
    table.event(table.proposer.primary_refused("no link", table.now))
    table.deliver(2, Refusal(RefusalCode.STALE_TERM, "deposed", LeaderId(99, "other")))
    known = table.proposer.peers[2].greeting
    assert table.said == [] and known is not None and known.promised.term < 99


def test_what_follows_from_a_state_that_cannot_be_is_not_carried_out_later() -> None:
    table = Table()
    leader_id = table.leads()
    table.deliver(1, AppendResponse(leader_id, END, END, 0))
    leadership = table.proposer.leadership
    assert leadership is not None
    leadership._checked = (END + 1, 0)
    with pytest.raises(InvariantViolation):
        table.deliver(2, AppendResponse(leader_id, END, END, 0))  # END is committed with it, and reported.
    leadership._checked = (0, 0)
    assert leadership.commit_lsn == END and table.event(table.proposer.disconnected(3, table.now)) == []


def test_an_everyday_answer_is_checked_as_every_event_is() -> None:
    table = Table()
    leader_id = table.leads()
    table.acknowledge(leader_id, END, 1, 2, 3)
    assert steady(table) == [1, 2, 3] and table.proposer.leadership is not None
    table.proposer.leadership._checked = (END + 1, 0)
    with pytest.raises(InvariantViolation, match="has gone back"):
        table.deliver(1, AppendResponse(leader_id, END, END, 1))
