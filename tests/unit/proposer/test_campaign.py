"""One attempt to win a term: which answers count for it, at which moment, and from whom."""

import msgspec
import pytest

from safekeeper.base.errors import Fenced
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.messages import (
    AppendResponse,
    Bootstrap,
    DigestResponse,
    Elected,
    PreVoteRequest,
    PreVoteResponse,
    Refusal,
    RefusalCode,
    TailResponse,
    VoteRequest,
)
from safekeeper.consensus.term_history import HistoryEntry
from tests.unit.proposer.test_proposer import (
    BASE,
    CLUSTER,
    END,
    LOG,
    MEMBERS,
    PRIMARY,
    SEGMENT,
    Table,
    campaigning,
    empty,
    greeting,
    vote,
)
from tests.unit.proposer.test_proposer_events import candidate, verifying
from tests.unit.proposer.test_proposer_tail import leads_tail, table_of
from walproxy.proposer.actions import Finish, IdentifyPrimary, Note, RefusePrimary, SendMessage
from walproxy.proposer.phase import Phase
from walproxy.proposer.primary import Ancestor

STRANGER = msgspec.structs.replace(empty(3), incarnation="9" * 32)  # Another data folder than the member's.


# Pre-votes.


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_a_member_that_is_disconnected_is_not_waited_for_in_the_pre_vote(order: tuple[int, int]) -> None:
    table = campaigning()
    table.event(table.proposer.disconnected(3, table.now))
    assert table.proposer.phase is Phase.PRE_VOTING
    table.deliver(order[0], PreVoteResponse(False, "other"))
    assert table.proposer.phase is Phase.GATHERING, "one of three is no quorum"


def test_a_pre_vote_that_was_denied_leaves_it_open_until_the_others_have_answered() -> None:
    table = campaigning()
    table.deliver(1, PreVoteResponse(False, "other"))
    table.deliver(2, PreVoteResponse(True))
    assert table.proposer.phase is Phase.PRE_VOTING
    table.deliver(3, PreVoteResponse(True))
    assert table.proposer.phase is Phase.VOTING


def deposed() -> Table:
    """Return a proposer that has led a term, and asks for pre-votes again."""
    table = Table()
    table.leads()
    table.deliver(3, Refusal(RefusalCode.STALE_TERM, "deposed", LeaderId(9, "other")))
    for safekeeper_id in (1, 2, 3):
        table.deliver(safekeeper_id, greeting(safekeeper_id, promised=LeaderId(9, "other")))
    # The first attempt began when two had greeted; the next one asks all.
    table.deliver(1, PreVoteResponse(False, ""))
    table.sees()
    table.ticks()
    assert table.sent(PreVoteRequest).keys() == {1, 2, 3} and not table.proposer.is_spare
    return table


@pytest.mark.parametrize(
    ("first", "second", "is_fenced", "is_spare"),
    [
        ("other", "other", True, False),
        ("other", "another", True, False),
        ("other", "", False, True),
        ("run1", "run1", False, False),
        ("other", "run1", False, True),
        ("", "", False, False),
    ],
)
def test_a_proposer_that_has_led_is_fenced_by_a_quorum_that_follows_others(
    first: str, second: str, is_fenced: bool, is_spare: bool
) -> None:
    table = deposed()
    table.deliver(1, PreVoteResponse(False, first))
    table.deliver(2, PreVoteResponse(False, second))
    assert [type(finish.error) for finish in table.did(Finish)] == [Fenced] * is_fenced
    assert table.proposer.is_spare is is_spare


def test_a_spare_is_none_any_more_as_soon_as_it_asks_for_votes() -> None:
    table = campaigning()
    for safekeeper_id in (1, 2):
        table.deliver(safekeeper_id, PreVoteResponse(False, "other"))
    assert table.proposer.is_spare and any("spare" in note.text for note in table.did(Note))
    table.ticks()
    assert [note for note in table.did(Note) if "spare" in note.text] == []
    for safekeeper_id in (1, 2):
        table.deliver(safekeeper_id, PreVoteResponse(False, "other"))
        assert [note for note in table.did(Note) if "spare" in note.text] == [], "it was noted before"
    table.ticks()
    table.collect_pre_votes(1, 2)
    assert table.proposer.phase is Phase.VOTING and not table.proposer.is_spare


def test_the_votes_have_their_own_time() -> None:
    table = campaigning()
    timeout_s = table.proposer.timing.vote_timeout_s
    table.ticks(timeout_s - 0.1)
    table.collect_pre_votes(1, 2)
    table.ticks(timeout_s - 0.1)
    assert table.proposer.phase is Phase.VOTING
    table.ticks(0.2)
    assert table.proposer.phase is Phase.GATHERING


@pytest.mark.parametrize(("after_s", "is_lost"), [(0.0, False), (0.01, True)])
def test_a_pre_vote_without_answers_is_given_up_after_its_timeout(after_s: float, is_lost: bool) -> None:
    table = campaigning()
    table.ticks(table.proposer.timing.vote_timeout_s + after_s)
    assert (table.proposer.phase is Phase.GATHERING) is is_lost


# Votes.


def test_a_vote_that_comes_after_the_decision_does_not_change_it() -> None:
    table, leader_id = candidate()
    table.collect_votes(leader_id, 1, 2)
    table.ticks(0.2)
    assert table.did(IdentifyPrimary) and table.proposer.campaign is not None
    table.deliver(3, vote(leader_id, flush_lsn=END + 50))
    assert table.said == [] and len(table.proposer.campaign.votes) == 2 and table.proposer.campaign.donor == 1


@pytest.mark.parametrize("what", ["refuses", "is disconnected"])
def test_a_voter_that_is_lost_after_the_decision_does_not_change_it(what: str) -> None:
    table = verifying()
    assert table.proposer.campaign is not None
    if what == "refuses":
        table.deliver(3, Refusal(RefusalCode.NOT_A_MEMBER, "gone", LeaderId(5, "before")))
    else:
        table.event(table.proposer.disconnected(3, table.now))
    assert len(table.proposer.campaign.votes) == 3 and not table.did(IdentifyPrimary)
    assert table.proposer.phase is Phase.VERIFYING


def test_a_safekeeper_that_is_no_voter_is_not_asked_and_its_end_or_its_vote_changes_nothing() -> None:
    table = Table()
    table.connects(1, 2)
    table.event(table.proposer.connected(3, table.now))
    table.deliver(3, STRANGER)
    table.sees()
    table.collect_pre_votes(1, 2)
    assert table.sent(VoteRequest).keys() == {1, 2}
    leader_id = table.sent(VoteRequest)[1].leader_id
    table.deliver(3, vote(leader_id))
    table.deliver(1, vote(leader_id))
    table.event(table.proposer.disconnected(3, table.now))
    assert table.proposer.phase is Phase.VOTING
    table.event(table.proposer.connected(3, table.now))
    table.deliver(3, STRANGER)
    assert table.sent(VoteRequest) == {}
    table.deliver(2, vote(leader_id))
    assert table.did(IdentifyPrimary), "all voters have answered"
    assert table.proposer.campaign is not None and len(table.proposer.campaign.votes) == 2


def test_a_member_that_missed_the_end_of_the_bootstrap_is_sent_it_before_its_vote_is_asked_for() -> None:
    table = Table()
    table.connects(1, 2)
    table.event(table.proposer.connected(3, table.now))
    table.deliver(3, empty(3))
    table.sees()
    table.collect_pre_votes(1, 2)
    assert table.sent(Bootstrap).keys() == {3} and table.sent(VoteRequest).keys() == {1, 2, 3}
    to_third = [type(a.message) for a in table.did(SendMessage) if a.safekeeper_id == 3]
    assert to_third == [Bootstrap, VoteRequest]
    assert table.sent(Bootstrap)[3].membership == MEMBERS and table.sent(Bootstrap)[3].cluster_id == CLUSTER


def test_without_a_primary_another_members_greeting_names_the_server() -> None:
    """Simulator, failovers 211933: without the third member there was no quorum."""
    table = Table(tail_after_s=3.0)
    table.ticks(0.05)
    table.connects(1, 2)
    table.event(table.proposer.connected(3, table.now))
    table.deliver(3, empty(3))
    table.ticks(3.0)
    table.collect_pre_votes(1, 2)
    reported, greeting = table.sent(Bootstrap)[3], table.proposer.peers[1].greeting
    assert greeting is not None and table.sent(VoteRequest).keys() == {1, 2, 3}
    assert (reported.cluster_id, reported.membership) == (CLUSTER, MEMBERS)
    assert (reported.system_id, reported.segment_size) == (greeting.system_id, greeting.segment_size)
    assert reported.server_version == greeting.server_version
    # The log of the third is chosen, whose own greeting does not name the server.
    leader_id = table.sent(VoteRequest)[3].leader_id
    table.event(table.proposer.disconnected(1, table.now))
    table.deliver(2, vote(leader_id))
    table.deliver(3, vote(leader_id, flush_lsn=END + 100))
    elected = table.sent(Elected)[3]
    assert (elected.system_id, elected.segment_size) == (greeting.system_id, greeting.segment_size)


def test_a_vote_that_is_refused_and_then_given_on_another_connection_counts() -> None:
    table, leader_id = candidate()
    table.deliver(1, Refusal(RefusalCode.NOT_A_MEMBER, "reason", LeaderId(3, "before")))
    table.event(table.proposer.disconnected(1, table.now))
    table.connects(1)
    assert table.sent(VoteRequest).keys() == {1}
    assert table.proposer.campaign is not None and 1 not in table.proposer.campaign.refusals
    table.collect_votes(leader_id, 1, 2, 3)
    assert table.did(IdentifyPrimary)


# The check of the primary.


@pytest.mark.parametrize("crc", [1, 2])
def test_only_a_primary_with_equal_bytes_passes_the_check(crc: int) -> None:
    table = verifying()
    campaign = table.proposer.campaign
    assert campaign is not None and campaign.verification is not None
    table.deliver(1, DigestResponse(table.proposer.term, BASE, END, (1,)))
    campaign.verification.on_primary_checked((crc,))
    assert campaign.verification.is_passed is (crc == 1)
    assert bool(campaign.verification.refusal) is (crc != 1)


# What the members are told.


def test_the_members_of_a_term_are_sent_what_the_primary_and_the_donor_are() -> None:
    table = verifying(forgotten_term=2)
    campaign = table.proposer.campaign
    assert campaign is not None
    message = campaign.elected()
    assert (message.cluster_id, message.system_id, message.segment_size, message.server_version) == (
        CLUSTER, 7, SEGMENT, 150000
    )  # fmt: skip
    assert message.history == (*LOG, HistoryEntry(6, END, 1, given=1))
    assert (message.base_lsn, message.commit_lsn, message.settled_lsn, message.forgotten_term) == (BASE, 0, BASE, 2)
    assert message.membership == msgspec.structs.replace(MEMBERS, author=6)


def test_they_are_sent_what_the_primary_is_that_was_identified_last() -> None:
    campaign = verifying().proposer.campaign
    assert campaign is not None and campaign.primary is not None
    campaign.primary = msgspec.structs.replace(campaign.primary, server_version=150001)
    assert campaign.elected().server_version == 150001


def test_in_a_tail_term_they_are_sent_what_the_donor_s_log_is() -> None:
    table = table_of(server_version=140000)
    message = leads_tail(table, forgotten_term=2, commit_lsn=END - 7)[1]
    assert isinstance(message, Elected)
    assert (message.system_id, message.segment_size, message.server_version) == (7, SEGMENT, 140000)
    assert message.history == (*LOG, HistoryEntry(6, END, 1, given=1))
    assert (message.settled_lsn, message.forgotten_term) == (END - 7, 2)


# What may have been committed (S9).


@pytest.mark.parametrize(("record_end_lsn", "is_refused"), [(END, True), (END + 1, False)])
def test_a_term_that_was_held_without_a_commit_began_where_others_may_have_committed(
    record_end_lsn: int, is_refused: bool
) -> None:
    """All below its start counts, whatever this term itself has committed."""
    table = Table(several_primaries=True)
    held = table.leads()
    table.deliver(1, AppendResponse(held, END, END, 0))
    assert table.proposer.leadership is not None and table.proposer.leadership.commit_lsn == 0
    table.event(table.proposer.primary_lost(table.now))
    promoted = msgspec.structs.replace(PRIMARY, tli=2, ancestors=(Ancestor(1, END - 10),))
    table.sees(promoted)
    assert table.proposer.leadership is None
    table.connects(1, 2, last_term=held.term, promised=held)
    table.ticks()
    leader_id = table.collect_pre_votes(1, 2)
    # Not all vote: the votes alone would say END + 50.
    table.deliver(1, vote(leader_id, history=(*LOG, HistoryEntry(held.term, END, 1)), flush_lsn=END + 50))
    table.deliver(2, vote(leader_id))
    table.ticks(0.2)
    table.sees(promoted)
    table.deliver(1, TailResponse(0, END - 10, record_end_lsn, BASE))
    assert bool(table.did(RefusePrimary)) is is_refused
