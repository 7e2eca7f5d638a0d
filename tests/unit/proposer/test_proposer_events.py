"""Events of a proposer whose effect depends on several facts: refusals, greetings, votes, and what is reported."""

from typing import Any

import msgspec
import pytest

from safekeeper.base.errors import ConfigurationError, PrimaryRefused, RemoteProtocolError
from safekeeper.base.lsn import format_lsn
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.folder_state import FolderState
from safekeeper.consensus.membership import Membership
from safekeeper.consensus.messages import (
    DIGEST_PAGE_SIZE,
    Bootstrap,
    Bootstrapped,
    ChangeMembers,
    DigestRequest,
    DigestResponse,
    Elected,
    FolderStates,
    MembersAnswer,
    PreVoteRequest,
    PreVoteResponse,
    ProposerGreeting,
    Refusal,
    RefusalCode,
    Standby,
    StandbyFeedback,
    TailRequest,
    TailResponse,
    VoteRequest,
    VoteResponse,
)
from safekeeper.consensus.term_history import HistoryEntry
from tests.unit.proposer.test_proposer import (
    BASE,
    CRCS,
    END,
    LOG,
    MEMBERS,
    PRIMARY,
    SEGMENT,
    Table,
    campaigning,
    empty,
    greet_empty,
    greeting,
    vote,
)
from walproxy.proposer.actions import (
    Disconnect,
    Finish,
    IdentifyPrimary,
    Level,
    Note,
    RefusePrimary,
    ReportStatus,
    StartReplication,
    StopReplication,
)
from walproxy.proposer.phase import Phase
from walproxy.proposer.primary import Ancestor
from walproxy.proposer.progress import Fetch


def leading(*followers: int, **config: Any) -> tuple[Table, LeaderId]:
    table = Table(**config)
    leader_id = table.leads()
    table.acknowledge(leader_id, END, *(followers or (1, 2, 3)))
    return table, leader_id


def candidate(**config: Any) -> tuple[Table, LeaderId]:
    """Return a proposer that has asked for votes."""
    table = campaigning(**config)
    table.collect_pre_votes(1, 2)
    return table, table.sent(VoteRequest)[1].leader_id


def verifying(**of_vote: Any) -> Table:
    """Return a proposer with the votes of all, whose primary was identified again."""
    table = campaigning()
    table.votes(**of_vote)
    table.sees()
    return table


# Greetings during a term.


@pytest.mark.parametrize("has_log", [False, True])
def test_a_folder_of_another_cluster_follows_only_if_it_is_empty(has_log: bool) -> None:
    table, _ = leading(1, 2)
    table.event(table.proposer.disconnected(3, table.now))
    table.event(table.proposer.connected(3, table.now))
    log = {"last_term": 1, "flush_lsn": END} if has_log else {}
    # A bootstrap has reached it that reached nobody else.
    table.deliver(3, msgspec.structs.replace(empty(3), cluster_id="d" * 32, membership=MEMBERS, **log))
    assert (3 in table.sent(Elected)) is not has_log
    assert (table.proposer.peers[3].refused_code is RefusalCode.OTHER_CLUSTER) is has_log


# Refusals of safekeepers.


@pytest.mark.parametrize(("term", "ends"), [(5, False), (6, False), (7, True)])
def test_only_a_higher_promise_ends_a_term(term: int, ends: bool) -> None:
    table, leader_id = leading()
    assert leader_id.term == 6
    table.deliver(2, Refusal(RefusalCode.STALE_TERM, "deposed", LeaderId(term, "other")))
    assert (table.proposer.leadership is None) is ends
    assert bool(table.sent(ProposerGreeting)) is ends
    assert table.did(ReportStatus) == [ReportStatus(0, 0, 0)] * ends
    assert [(note.text, note.event) for note in table.did(Note)] == [
        (f"term 6 ends: safekeeper 2 has promised ({term}, other)", "term-lost")
    ] * ends
    known = table.proposer.peers[2].greeting
    assert ends or (known is not None and known.promised.term == term)


@pytest.mark.parametrize("code", [RefusalCode.POSITION, RefusalCode.NOT_ADOPTED, RefusalCode.GENERATION])
def test_a_safekeeper_that_refuses_a_message_is_connected_to_again_and_the_term_continues(code: RefusalCode) -> None:
    table, leader_id = leading()
    table.deliver(2, Refusal(code, "reason", leader_id))
    assert [(each.safekeeper_id, each.reason) for each in table.did(Disconnect)] == [(2, "reason")]
    assert [note.level for note in table.did(Note)] == [Level.WARNING]
    assert table.proposer.leadership is not None and not table.proposer.peers[2].refused


@pytest.mark.parametrize(
    "code", [RefusalCode.OTHER_CLUSTER, RefusalCode.OTHER_SYSTEM, RefusalCode.VERSION, RefusalCode.NOT_A_MEMBER]
)
def test_a_safekeeper_that_refuses_this_proposer_counts_as_missing(code: RefusalCode) -> None:
    table, leader_id = leading()
    table.deliver(2, Refusal(code, "reason", leader_id))
    peer = table.proposer.peers[2]
    assert (peer.refused, peer.refused_code, peer.greeting) == ("reason", code, None)
    assert [each.safekeeper_id for each in table.did(Disconnect)] == [2]


@pytest.mark.parametrize("code", list(RefusalCode))
def test_a_refusal_to_vote_is_a_vote_less_and_of_a_learner_no_reason_to_leave_it_out(code: RefusalCode) -> None:
    table, _ = candidate()
    table.deliver(1, Refusal(code, "reason", LeaderId(3, "before")))
    campaign = table.proposer.campaign
    is_counted = code not in (
        RefusalCode.STALE_TERM,
        RefusalCode.POSITION,
        RefusalCode.NOT_ADOPTED,
        RefusalCode.GENERATION,
        RefusalCode.STORAGE_FULL,
    )
    assert campaign is not None and (1 in campaign.refusals) is is_counted
    assert bool(table.proposer.peers[1].refused) is (is_counted and code is not RefusalCode.NOT_A_MEMBER)


@pytest.mark.parametrize(("safekeeper_id", "is_lost"), [(1, True), (2, False)])
@pytest.mark.parametrize("code", [None, *RefusalCode])
def test_without_the_donor_s_answers_the_primary_is_not_checked(
    code: RefusalCode | None, safekeeper_id: int, is_lost: bool
) -> None:
    table = verifying()
    assert table.sent(DigestRequest).keys() == {1}
    if code is None:
        table.event(table.proposer.disconnected(safekeeper_id, table.now))
    else:
        table.deliver(safekeeper_id, Refusal(code, "removed", LeaderId(6, "run1")))
    assert (table.proposer.campaign is None) is is_lost
    assert (table.proposer.phase is Phase.GATHERING) is is_lost


def test_a_campaign_is_lost_as_soon_as_no_quorum_can_vote_for_it() -> None:
    table, _ = candidate()
    for safekeeper_id, phase in ((1, Phase.VOTING), (2, Phase.GATHERING)):
        table.deliver(safekeeper_id, Refusal(RefusalCode.NOT_A_MEMBER, "reason", LeaderId(3, "before")))
        assert table.proposer.phase is phase
    assert "not elected: a quorum did not vote for it" in [note.text for note in table.did(Note)]


def test_a_member_without_disk_space_is_noted_and_connected_to_again() -> None:
    table, leader_id = leading()
    table.deliver(2, Refusal(RefusalCode.STORAGE_FULL, "no space", leader_id))
    assert [(each.safekeeper_id, each.reason) for each in table.did(Disconnect)] == [(2, "no space")]
    assert [note.text for note in table.did(Note)] == ["safekeeper 2 refuses WAL: no space"]


def test_a_member_that_cannot_adopt_the_term_is_noted_and_stays_connected() -> None:
    table, leader_id = leading(1, 2)
    table.deliver(3, Refusal(RefusalCode.RANGE, "it retains its WAL", leader_id))
    assert [note.text for note in table.did(Note)] == ["safekeeper 3 does not take part in term 6: it retains its WAL"]
    assert table.did(Disconnect) == [] and not table.proposer.peers[3].refused


def test_a_primary_that_a_majority_of_greetings_refuses_is_another_postgresql() -> None:
    table = Table()
    table.sees()
    for safekeeper_id in (1, 2):
        assert not table.did(Finish)
        table.event(table.proposer.connected(safekeeper_id, table.now))
        table.deliver(safekeeper_id, Refusal(RefusalCode.OTHER_SYSTEM, "another system", LeaderId(3, "before")))
    (finish,) = table.did(Finish)
    assert isinstance(finish.error, PrimaryRefused) and "2 of 3 safekeepers refuse it" in str(finish.error)


# Votes.


def test_a_vote_counts_no_more_once_its_connection_has_ended() -> None:
    table, leader_id = candidate()
    table.deliver(1, vote(leader_id))
    table.event(table.proposer.disconnected(1, table.now))
    table.deliver(2, vote(leader_id))
    table.ticks(0.2)
    assert table.proposer.phase is Phase.VOTING and not table.did(IdentifyPrimary)
    table.deliver(3, vote(leader_id))
    table.ticks(0.2)
    assert table.proposer.phase is Phase.VERIFYING


@pytest.mark.parametrize(("after_s", "is_won"), [(0.09, False), (0.11, True)])
def test_a_quorum_of_votes_waits_for_the_others_for_a_short_time(after_s: float, is_won: bool) -> None:
    table, leader_id = candidate()
    table.collect_votes(leader_id, 1, 2)
    assert not table.did(IdentifyPrimary)
    table.ticks(after_s)
    assert bool(table.did(IdentifyPrimary)) is is_won
    if not is_won:
        table.deliver(3, VoteResponse(leader_id, False, LeaderId(9, "other")))
        assert table.did(IdentifyPrimary), "all have answered"


def test_a_promise_that_a_vote_reports_raises_the_next_term_and_never_lowers_it() -> None:
    table, leader_id = candidate()
    for safekeeper_id, term in ((1, 20), (2, 4)):
        table.deliver(safekeeper_id, VoteResponse(leader_id, False, LeaderId(term, "other")))
    known = [table.proposer.peers[i].greeting for i in (1, 2)]
    assert [each.promised.term for each in known if each is not None] == [20, 5]
    table.ticks(60.0)
    table.collect_pre_votes(1, 2)
    assert table.sent(VoteRequest)[1].leader_id.term == 21


def test_a_pre_vote_of_a_safekeeper_that_was_not_asked_or_comes_late_counts_for_nothing() -> None:
    table = Table()
    table.sees()
    table.connects(1, 2)
    table.connects(3)
    table.deliver(3, PreVoteResponse(True))
    table.deliver(1, PreVoteResponse(True))
    assert table.proposer.phase is Phase.PRE_VOTING
    table.deliver(2, PreVoteResponse(True))
    assert table.proposer.phase is Phase.VOTING
    table.deliver(1, PreVoteResponse(False, "other"))
    assert table.proposer.phase is Phase.VOTING and not table.proposer.is_spare


def test_a_member_that_greets_during_the_votes_is_asked_for_its_vote() -> None:
    table, leader_id = candidate()
    table.event(table.proposer.disconnected(3, table.now))
    table.connects(3)
    assert table.sent(VoteRequest).keys() == {3}
    table.deliver(3, vote(leader_id))
    table.deliver(1, vote(leader_id))
    table.deliver(2, vote(leader_id))
    assert table.did(IdentifyPrimary)
    table.event(table.proposer.disconnected(3, table.now))
    table.connects(3)
    assert table.sent(VoteRequest) == {}, "the votes are over"


def test_a_campaign_without_answers_is_given_up_after_its_timeout() -> None:
    table, _ = candidate()
    timeout_s = table.proposer.timing.vote_timeout_s
    table.ticks(timeout_s - 0.1)
    assert table.proposer.phase is Phase.VOTING
    table.ticks(0.2)
    assert table.proposer.phase is Phase.GATHERING
    assert table.did(Note)[0].text == "not elected: a quorum did not reply before the timeout"


def test_a_check_of_much_wal_has_more_time() -> None:
    begin_lsn = BASE - 3 * SEGMENT
    table = verifying(wal_begin_lsn=begin_lsn, history=(HistoryEntry(3, begin_lsn, 1),))
    crcs = tuple(range(-(-(END - begin_lsn) // DIGEST_PAGE_SIZE)))
    table.deliver(1, DigestResponse(table.proposer.term, begin_lsn, END, crcs, begin_lsn + 5))
    assert table.did(StartReplication)
    for safekeeper_id in (1, 2, 3):
        table.proposer.peers[safekeeper_id].waiting_since = None
    table.ticks(table.proposer.timing.verify_timeout_s + 0.3)
    assert table.proposer.phase is Phase.VERIFYING
    table.ticks(0.1)  # 3.5 MB are compared at 8 MiB a second.
    assert table.proposer.phase is Phase.GATHERING


def test_while_the_slot_is_in_use_the_check_does_not_time_out() -> None:
    table = verifying()
    table.deliver(1, DigestResponse(table.proposer.term, BASE, END, CRCS))
    assert table.did(StartReplication)
    for _ in range(10):
        for safekeeper_id in (1, 2, 3):
            table.proposer.peers[safekeeper_id].waiting_since = None
        table.ticks(table.proposer.timing.verify_timeout_s - 0.1)
        table.event(table.proposer.primary_slot_in_use(table.now))
    assert table.proposer.phase is Phase.VERIFYING
    table.ticks(table.proposer.timing.verify_timeout_s + 1)
    assert table.proposer.phase is Phase.GATHERING
    table.event(table.proposer.primary_slot_in_use(table.now))
    assert table.proposer.phase is Phase.GATHERING, "the reply was sent before the attempt ended"


# The check of the primary.


def test_answers_of_others_than_the_donor_are_no_answers_of_the_donor() -> None:
    table = verifying()
    table.deliver(2, DigestResponse(table.proposer.term, BASE, END, CRCS))
    assert table.did(StartReplication) == []
    table.deliver(1, DigestResponse(table.proposer.term, BASE, END, CRCS))
    assert len(table.did(StartReplication)) == 1
    table.deliver(1, DigestResponse(table.proposer.term, BASE, END, (CRCS[0] + 1,)))
    assert table.did(StartReplication) == [], "they are known already"


def test_a_primary_that_is_identified_during_the_votes_or_the_check_is_not_checked_again() -> None:
    table, leader_id = candidate()
    table.sees()
    assert table.said == [] and table.proposer.phase is Phase.VOTING
    table.collect_votes(leader_id, 1, 2, 3)
    assert table.did(IdentifyPrimary)
    table.sees()
    assert table.sent(DigestRequest)
    table.sees()
    assert table.said == [] and table.proposer.phase is Phase.VERIFYING


@pytest.mark.parametrize("changes", [{"system_id": 8}, {"segment_size": 2 * SEGMENT}])
def test_another_postgresql_that_answers_after_the_votes_is_refused_before_anything_is_compared(
    changes: dict[str, int],
) -> None:
    table, leader_id = candidate()
    table.collect_votes(leader_id, 1, 2, 3)
    assert table.did(IdentifyPrimary)
    table.sees(msgspec.structs.replace(PRIMARY, **changes))
    assert not table.sent(DigestRequest) and not table.did(StartReplication)
    (finish,) = table.did(Finish)
    assert isinstance(finish.error, PrimaryRefused) and "it is another PostgreSQL server" in str(finish.error)


@pytest.mark.parametrize(("end_lsn", "is_lost"), [(END - 1, True), (END + 1, True), (END, False)])
def test_a_timeline_that_ends_during_the_check_ends_it_unless_its_wal_does_too(end_lsn: int, is_lost: bool) -> None:
    table = verifying()
    table.deliver(1, DigestResponse(table.proposer.term, BASE, END, CRCS))
    assert table.did(StartReplication)
    table.event(table.proposer.timeline_ended(2, end_lsn, table.now))
    assert (table.proposer.campaign is None) is is_lost
    assert [note.text for note in table.did(Note)] == [
        f"not elected: timeline ended at {format_lsn(end_lsn)}, but its WAL did not"
    ] * is_lost
    assert bool(table.did(StopReplication)) is is_lost and (table.proposer.primary is None) is is_lost


@pytest.mark.parametrize(
    ("timed_lsn", "is_proof"),
    [
        (BASE - 2 * SEGMENT - 1, False),
        (BASE - 2 * SEGMENT, True),
        (END - 1, True),
        (END, False),
        (0, False),
    ],
)
def test_a_record_with_a_time_proves_the_primary_if_it_is_in_the_compared_range(timed_lsn: int, is_proof: bool) -> None:
    begin_lsn = BASE - 2 * SEGMENT
    for allows in (False, True):
        table = Table(allow_unverified_primary=allows)
        table.connects(1, 2, 3)
        table.sees()
        table.votes(wal_begin_lsn=begin_lsn, history=(HistoryEntry(1, SEGMENT, 1),))
        table.sees()
        crcs = tuple(range(-(-(END - begin_lsn) // DIGEST_PAGE_SIZE)))
        table.deliver(1, DigestResponse(table.proposer.term, begin_lsn, END, crcs, timed_lsn))
        assert bool(table.did(StartReplication)) is (is_proof or allows)
        assert bool(table.did(Finish)) is not (is_proof or allows)


@pytest.mark.parametrize("begin_lsn", [BASE - DIGEST_PAGE_SIZE, BASE + DIGEST_PAGE_SIZE])
def test_the_next_checksums_continue_the_first(begin_lsn: int) -> None:
    first_lsn = BASE - 2 * SEGMENT
    table = verifying(wal_begin_lsn=first_lsn, history=(HistoryEntry(1, SEGMENT, 1),))
    pages = 2 * SEGMENT // DIGEST_PAGE_SIZE
    table.deliver(1, DigestResponse(table.proposer.term, first_lsn, BASE, (1,) * pages, first_lsn + 5))
    assert table.sent(DigestRequest)[1].begin_lsn == BASE
    crcs = (1,) * (-(-(END - begin_lsn) // DIGEST_PAGE_SIZE))
    with pytest.raises(RemoteProtocolError, match="not the requested ones"):
        table.deliver(1, DigestResponse(table.proposer.term, begin_lsn, END, crcs, 0))


@pytest.mark.parametrize("allow_data_loss", [False, True])
@pytest.mark.parametrize(("begin_lsn", "is_refused"), [(END - 100, False), (END - 99, True)])
def test_a_fork_at_the_very_beginning_of_the_quorum_s_log_can_be_compared_and_one_below_not(
    begin_lsn: int, is_refused: bool, allow_data_loss: bool
) -> None:
    table = campaigning(allow_data_loss=allow_data_loss)
    table.votes(wal_begin_lsn=begin_lsn)
    table.sees(PROMOTED)
    reasons = [str(finish.error) for finish in table.did(Finish)]
    assert bool(reasons) is is_refused and bool(table.sent(TailRequest)) is not is_refused
    assert all(f"before the beginning of the quorum's log at {format_lsn(begin_lsn)}" in each for each in reasons)


FORK = END - 100
PROMOTED = msgspec.structs.replace(PRIMARY, tli=2, ancestors=(Ancestor(1, FORK),))


@pytest.mark.parametrize("lsn", [FORK - 1, FORK + 1])
def test_a_report_of_records_elsewhere_than_at_the_fork_decides_nothing(lsn: int) -> None:
    table = campaigning()
    table.votes()
    table.sees(PROMOTED)
    assert table.sent(TailRequest)[1].lsn == FORK
    table.deliver(1, TailResponse(0, lsn, END, BASE))
    assert not table.did(Finish) and not table.sent(DigestRequest) and table.proposer.campaign is not None


@pytest.mark.parametrize(
    ("commit_lsns", "record_end_lsn", "is_refused"),
    [
        # All have voted: what no quorum has was not committed.
        ((END, END, END), END, True),
        ((END, FORK, FORK), END, False),
        ((END, FORK + 50, FORK), FORK + 50, True),
        ((END, FORK + 50, FORK), FORK + 51, False),
    ],
)
def test_a_fork_may_cut_what_no_quorum_has(
    commit_lsns: tuple[int, int, int], record_end_lsn: int, is_refused: bool
) -> None:
    table, leader_id = candidate()
    for safekeeper_id, flush_lsn in zip((1, 2, 3), commit_lsns, strict=True):
        table.deliver(safekeeper_id, vote(leader_id, flush_lsn=flush_lsn))
    table.sees(PROMOTED)
    table.deliver(1, TailResponse(0, FORK, record_end_lsn, BASE))
    assert bool(table.did(Finish)) is is_refused


@pytest.mark.parametrize("settled_lsn", [BASE, FORK - 1, FORK, FORK + 1, END])
def test_what_was_committed_before_a_term_is_settled_up_to_its_fork(settled_lsn: int) -> None:
    table = campaigning(allow_data_loss=True)
    table.votes(commit_lsn=settled_lsn)
    table.sees(PROMOTED)
    table.deliver(1, TailResponse(0, FORK, 0, BASE))
    table.deliver(1, DigestResponse(table.proposer.term, BASE, FORK, CRCS))
    table.event(table.proposer.primary_checked(BASE, FORK, CRCS, table.now))
    message = table.sent(Elected)[1]
    assert message.settled_lsn == min(settled_lsn, FORK) and message.history == (
        *LOG,
        HistoryEntry(6, FORK, 2, given=2),
    )


def test_a_first_log_begins_with_the_segment_of_the_primary_and_nothing_is_compared() -> None:
    table = Table()
    table.connects(1, 2, 3, last_term=0, flush_lsn=0, commit_lsn=0, wal_begin_lsn=0, promised=LeaderId(0, ""))
    table.sees()
    table.votes(history=(), flush_lsn=0, wal_begin_lsn=0, commit_lsn=0, truncate_lsn=0)
    table.sees()
    (start,) = table.did(StartReplication)
    assert (start.check_begin_lsn, start.begin_lsn, start.tli) == (BASE, BASE, 1)
    message = table.sent(Elected)[1]
    assert message.history == (HistoryEntry(1, BASE, 1, given=1),)
    assert (message.base_lsn, message.settled_lsn, message.commit_lsn) == (BASE, 0, 0)
    assert message.membership == msgspec.structs.replace(MEMBERS, author=1)


# A primary in a term that is led.


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"system_id": 8}, "it is another PostgreSQL server"),
        ({"segment_size": 2 * SEGMENT}, "it is another PostgreSQL server"),
        ({"flush_lsn": END + 49}, "it was restored from a backup or lost its disk"),
        ({"flush_lsn": END + 50}, ""),
    ],
)
def test_a_primary_that_cannot_be_the_one_of_the_term_is_refused(changes: dict[str, int], reason: str) -> None:
    table, leader_id = leading()
    table.event(table.proposer.wal_received(END + 50, table.now))
    table.acknowledge(leader_id, END + 50, 1, 2, 3)
    table.event(table.proposer.primary_lost(table.now))
    table.sees(msgspec.structs.replace(PRIMARY, **changes), own=CRCS)
    finishes = table.did(Finish)
    assert bool(finishes) is bool(reason)
    if reason:
        assert isinstance(finishes[0].error, PrimaryRefused) and reason in str(finishes[0].error)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("fork_lsn", [END - 1, END])
def test_a_primary_on_another_timeline_ends_the_term_if_a_later_log_may_be_its_own(
    fork_lsn: int, several: bool
) -> None:
    table, _ = leading(several_primaries=several)
    table.event(table.proposer.primary_lost(table.now))
    table.sees(msgspec.structs.replace(PRIMARY, tli=2, ancestors=(Ancestor(1, fork_lsn),)))
    # An election decides what a fork below the end would cut.
    assert table.proposer.leadership is None and not table.did(RefusePrimary)


@pytest.mark.parametrize(("several", "followers"), [(False, (1, 2)), (True, (1, 2)), (True, (1,))])
def test_a_primary_of_another_line_of_descent_is_refused_in_the_term_if_there_are_others_to_try(
    several: bool, followers: tuple[int, ...]
) -> None:
    table, _ = leading(*followers, several_primaries=several)
    table.event(table.proposer.primary_lost(table.now))
    table.sees(msgspec.structs.replace(PRIMARY, tli=3, ancestors=(Ancestor(2, END),)))
    is_refused = several and len(followers) == 2  # Before the term's start is committed, nothing is known.
    assert bool(table.did(RefusePrimary)) is is_refused
    assert (table.proposer.leadership is not None) is is_refused


# What is reported.


def test_feedback_of_standbys_is_reported_only_while_a_verified_primary_streams_and_a_quorum_follows() -> None:
    table = Table()
    leader_id = table.leads()
    standbys = (Standby("a", END, END, END, 700, 600),)
    assert table.proposer.hot_standby_feedback() is None
    table.acknowledge(leader_id, END, 1)
    table.deliver(1, StandbyFeedback(standbys))
    assert table.proposer.hot_standby_feedback() is None, "no quorum follows"
    table.acknowledge(leader_id, END, 2)
    assert table.proposer.hot_standby_feedback() == (700, 600)
    table.event(table.proposer.primary_lost(table.now))
    assert table.proposer.hot_standby_feedback() is None


def test_the_positions_of_a_term_are_known_while_it_is_led() -> None:
    table = Table()
    assert (table.proposer.committed_lsns(), table.proposer.quorum_end_lsn) == ((0, 0), 0)
    table.connects(1)
    table.connects(2, flush_lsn=END + 7)
    assert table.proposer.quorum_end_lsn == END + 7
    table, leader_id = leading(1, 2)
    assert (table.proposer.committed_lsns(), table.proposer.quorum_end_lsn) == ((END, 0), END)
    table.acknowledge(leader_id, END, 3)
    assert table.proposer.committed_lsns() == (END, END)
    table.deliver(2, Refusal(RefusalCode.STALE_TERM, "deposed", LeaderId(9, "other")))
    assert table.proposer.committed_lsns() == (0, 0)


def test_a_proposer_is_steady_while_all_follow_and_are_fed_from_the_window() -> None:
    table = Table()
    assert not table.proposer.is_steady
    leader_id = table.leads()
    for safekeeper_id in (1, 2, 3):
        assert not table.proposer.is_steady
        table.acknowledge(leader_id, END, safekeeper_id)
    assert table.proposer.is_steady
    table.event(table.proposer.wal_received(END + 50, table.now))
    for begin_lsn, is_steady in ((END + 50, True), (END + 51, False), (END + 50, True)):
        table.proposer.wal_evicted(begin_lsn)
        assert table.proposer.is_steady is is_steady
    leadership = table.proposer.leadership
    assert leadership is not None
    leadership.members[2].become_fetching(Fetch(1, 1, END, END + 50))
    assert not table.proposer.is_steady
    leadership.members[2].end_fetch()
    table.event(table.proposer.disconnected(2, table.now))
    assert not table.proposer.is_steady


def test_whether_a_cluster_is_known() -> None:
    table = Table()
    assert not table.proposer.knows_a_cluster
    table.event(table.proposer.connected(1, table.now))
    table.deliver(1, empty(1))
    assert not table.proposer.knows_a_cluster
    table.connects(2)
    assert table.proposer.knows_a_cluster


# Bootstraps.


def bootstrapping() -> tuple[Table, Bootstrap]:
    table = Table()
    table.sees()
    table.connect(1, 2, 3)
    greet_empty(table)
    return table, table.sent(Bootstrap)[1]


def test_a_confirmation_of_another_bootstrap_confirms_nothing() -> None:
    table, bootstrap = bootstrapping()
    for safekeeper_id in (1, 2):
        table.deliver(safekeeper_id, Bootstrapped(bootstrap.cluster_id, 1))
    table.deliver(3, Bootstrapped("e" * 32, 1))
    assert table.proposer.phase is Phase.BOOTSTRAPPING
    table.deliver(3, Bootstrapped(bootstrap.cluster_id, 1))
    assert table.proposer.phase is Phase.GATHERING
    table.deliver(3, Bootstrapped(bootstrap.cluster_id, 1))
    assert table.said == []


@pytest.mark.parametrize("what", ["disconnection", "refusal"])
def test_a_bootstrap_that_a_safekeeper_leaves_begins_again_with_greetings(what: str) -> None:
    table, _ = bootstrapping()
    if what == "refusal":
        table.deliver(2, Refusal(RefusalCode.NOT_EMPTY, "it is not empty", LeaderId(0, "")))
    else:
        table.event(table.proposer.disconnected(2, table.now))
    assert table.proposer.phase is Phase.GATHERING
    assert set(table.sent(ProposerGreeting)) >= {1, 3}
    assert all(table.proposer.peers[i].greeting is None for i in (1, 2, 3))


# Changes of the members.


@pytest.mark.parametrize(("generation", "is_refused"), [(0, True), (1, False), (2, False), (3, True)])
def test_a_change_that_was_asked_for_before_the_last_one_is_refused(generation: int, is_refused: bool) -> None:
    table, leader_id = leading()
    two = MEMBERS.members[:2]
    table.event(table.proposer.change_members(two, table.now))
    leadership = table.proposer.leadership
    assert leadership is not None
    assert leadership.membership == Membership(2, MEMBERS.members, two, author=leader_id.term)
    table.deliver(1, ChangeMembers(17, leadership.elected.cluster_id, generation, two))
    refusal = table.sent(MembersAnswer)[1].refusal
    assert ("has changed meanwhile" in refusal) is is_refused and bool(refusal) is is_refused


def test_a_change_asked_of_a_proposer_that_leads_no_term_is_answered() -> None:
    table = Table()
    table.connects(1, 2, 3)
    table.deliver(2, ChangeMembers(17, "c" * 32, 1, MEMBERS.members))
    assert table.sent(MembersAnswer)[2].refusal.startswith("this proxy leads no term")
    with pytest.raises(ConfigurationError, match="leads no term"):
        table.proposer.change_members(MEMBERS.members, table.now)


# Silence.


def test_a_message_ends_the_wait_for_an_answer_unless_it_is_only_about_data_folders() -> None:
    table = campaigning()
    asked_at = table.now
    assert table.sent(PreVoteRequest) and table.proposer.peers[1].waiting_since == asked_at
    table.now += 1.0
    folders = FolderStates(greeting(1).cluster_id, _folders(1))
    table.deliver(1, folders)
    assert table.proposer.peers[1].waiting_since == asked_at
    table.deliver(1, PreVoteResponse(False, "other"))
    assert table.proposer.peers[1].waiting_since is None
    table.event(table.proposer.disconnected(2, table.now))
    table.event(table.proposer.connected(2, table.now))
    greeted_at, table.now = table.now, table.now + 1.0
    assert table.proposer.peers[2].waiting_since == greeted_at
    table.deliver(2, PreVoteResponse(True))
    assert table.proposer.peers[2].waiting_since == table.now, "its greeting is still awaited"


def _folders(safekeeper_id: int) -> tuple[Any, ...]:
    return (FolderState(safekeeper_id, str(safekeeper_id) * 32, 1, 3, END),)
