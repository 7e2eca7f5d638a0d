"""A seal: no server on an old timeline commits again (step 13, S15)."""

from typing import Any

import msgspec
import pytest

from safekeeper.consensus.messages import (
    AppendResponse,
    DigestResponse,
    Elected,
    PreVoteRequest,
    PreVoteResponse,
    Refusal,
    RefusalCode,
    TailPreVoteRequest,
    VoteRequest,
)
from safekeeper.consensus.term_history import HistoryEntry, last_tli
from tests.unit.proposer.test_proposer import BASE, CRCS, END, LOG, PRIMARY, Table, greeting
from walproxy.proposer.actions import Finish, Note, RefusePrimary
from walproxy.proposer.phase import Phase
from walproxy.proposer.primary import Ancestor, PrimaryIdentity
from walproxy.proposer.purpose import (
    CancelSeal,
    Obstacle,
    Purpose,
    Readmit,
    Reserve,
    Seal,
    TakeBack,
    sealed_reason,
)

PROMOTED = msgspec.structs.replace(PRIMARY, tli=2, flush_lsn=END, ancestors=(Ancestor(1, END),))


def entry(tli: int, floor: int = 0, given: int = 0) -> HistoryEntry:
    return HistoryEntry(3, BASE, tli, floor=floor, given=given)


@pytest.mark.parametrize(
    ("purpose", "last", "numbers"),
    [
        (Seal(1), entry(1, given=1), (1, 1)),
        (Seal(1), entry(1, floor=1, given=3), (1, 3)),  # It does not rise from attempt to attempt.
        (Seal(1), entry(2, given=2), (1, 2)),  # Timeline 2 was elected and has no byte.
        (Seal(4), entry(3, floor=2, given=3), (4, 3)),
        (Reserve(1, 2), entry(1, floor=1, given=1), (1, 2)),
        (Reserve(1, 3, is_taken=True), entry(1, floor=1, given=4), (1, 4)),
        (TakeBack(1, 1), entry(1, floor=1, given=2), (0, 1)),
        (TakeBack(4, 5), entry(4, floor=2, given=6), (2, 5)),  # Another one has cancelled it meanwhile.
        (CancelSeal(1), entry(1, floor=1, given=3), (0, 3)),
        (CancelSeal(4), entry(4, floor=4, given=4), (3, 4)),
        (Readmit(2), entry(1, floor=3, given=3), (1, 3)),
        (Readmit(3), entry(1, floor=0, given=3), (0, 3)),
    ],
)
def test_what_a_purpose_makes_of_the_numbers(purpose: Purpose, last: HistoryEntry, numbers: tuple[int, int]) -> None:
    assert purpose.numbers(last) == numbers


@pytest.mark.parametrize(
    ("purpose", "is_admitted", "of_a_later_timeline", "of_another_proposer"),
    [
        (Seal(1), True, False, True),
        (Reserve(1, 2), True, False, False),
        (Reserve(1, 2, is_taken=True), True, True, True),
        (TakeBack(1, 1), True, False, False),
        (CancelSeal(1), True, False, True),
        (Readmit(1), True, True, True),
    ],
)
def test_which_logs_admit_a_purpose(
    purpose: Purpose, is_admitted: bool, of_a_later_timeline: bool, of_another_proposer: bool
) -> None:
    last = entry(1, floor=1, given=1)
    found = [
        purpose.obstacle(last, log_tli, is_own=is_own) is None for log_tli, is_own in ((1, True), (2, True), (1, False))
    ]
    assert found == [is_admitted, of_a_later_timeline, of_another_proposer]


def test_what_is_not_sealed_is_not_cancelled() -> None:
    assert CancelSeal(2).obstacle(entry(2, floor=1), 2, is_own=True) == Obstacle("timeline 2 is not sealed")


def test_timelines_at_and_below_the_floor_are_refused() -> None:
    assert sealed_reason(PRIMARY, 0) == "" and sealed_reason(PRIMARY, 2).startswith("the primary is on timeline 1, ")
    assert sealed_reason(PRIMARY, PRIMARY.tli) and not sealed_reason(PRIMARY, PRIMARY.tli - 1)


def test_the_last_timeline_is_that_of_the_last_byte() -> None:
    history = (HistoryEntry(3, BASE, 1), HistoryEntry(4, END, 2))
    assert [last_tli(history, lsn) for lsn in (BASE, BASE + 1, END, END + 1)] == [0, 1, 1, 2] and last_tli((), 5) == 0


def seals(table: Table, **of_vote: Any) -> dict[int, Any]:
    """Bring a sealing proposer to leading its term; return what it sends to the members first."""
    table.connects(1, 2)
    return is_voted_for(table, **of_vote)


def is_voted_for(table: Table, **of_vote: Any) -> dict[int, Any]:
    assert table.sent(PreVoteRequest).keys() == {1, 2}
    leader_id = table.collect_pre_votes(1, 2)
    table.collect_votes(leader_id, 1, 2, **of_vote)
    return table.sent(Elected)


def adopts(table: Table, elected: Elected, *safekeeper_ids: int) -> None:
    for safekeeper_id in safekeeper_ids:
        table.deliver(safekeeper_id, AppendResponse(elected.leader_id, END, END, 0))


def is_deposed(table: Table, elected: Elected) -> None:
    higher = elected.leader_id._replace(term=elected.leader_id.term + 50)
    table.deliver(1, Refusal(RefusalCode.STALE_TERM, "deposed", higher))
    assert table.proposer.leadership is None and table.did(Finish) == []
    table.now += 1
    for safekeeper_id in (1, 2):
        table.deliver(safekeeper_id, greeting(safekeeper_id, promised=higher))


def test_it_campaigns_at_once_and_as_a_proxy_does_that_leaves_a_healthy_one_alone() -> None:
    table = Table(purpose=Seal(1))
    table.connects(1, 2, commit_lsn=END)
    assert table.sent(TailPreVoteRequest) == {}
    assert table.sent(PreVoteRequest)[1] == PreVoteRequest("run1", takeover=False)
    notes = []
    for safekeeper_id in (1, 2):
        table.deliver(safekeeper_id, PreVoteResponse(False, "run2"))
        notes += table.did(Note)
    assert table.sent(VoteRequest) == {} and table.proposer.is_spare and table.proposer.tail_elected is None
    assert [note.text for note in notes] == ["another proxy serves (run run2): nothing is sealed"]


def test_its_term_begins_where_the_log_ends_with_the_floor() -> None:
    table = Table(purpose=Seal(1))
    elected = seals(table)[1]
    assert elected.history == (*LOG, HistoryEntry(elected.leader_id.term, END, 1, floor=1))
    assert "seals timeline 1" in table.did(Note)[-1].text


def test_it_is_sealed_only_when_a_quorum_has_adopted_the_term() -> None:
    table = Table(purpose=Seal(1))
    elected = seals(table)[1]
    adopts(table, elected, 2)
    assert table.proposer.tail_elected is None
    adopts(table, elected, 1)
    assert table.proposer.tail_elected == elected and table.proposer.leadership.commit_lsn == END


def test_the_timeline_that_was_named_is_sealed_and_no_later_one() -> None:
    table = Table(purpose=Seal(1), takeover=True)
    history = (HistoryEntry(3, BASE, 1), HistoryEntry(4, END - 8, 2))
    assert seals(table, history=history) == {}
    assert table.proposer.tail_elected is None and table.proposer.candidacy.obstacle.log_tli == 2
    assert "timeline 1 is not sealed: the log has gone on to timeline 2" in table.did(Note)[-1].text
    table.ticks(60)
    assert table.sent(PreVoteRequest) == {}, "there is nothing to seal"


def test_it_takes_over_until_it_has_sealed_and_then_never_again() -> None:
    table = Table(purpose=Seal(1), takeover=True)
    elected = seals(table)[1]
    is_deposed(table, elected)
    assert table.sent(PreVoteRequest)[2].takeover, "the seal is not committed"
    elected = is_voted_for(table)[1]
    adopts(table, elected, 1, 2)
    table.ticks(0.05)
    is_deposed(table, elected)
    assert table.sent(PreVoteRequest) == {}, "its purpose is served"
    table.event(table.proposer.pursue(TakeBack(1, 0), table.now))
    table.ticks(0.05)
    assert not table.sent(PreVoteRequest)[2].takeover


def test_the_terms_of_an_attempt_follow_each_other_in_one_run() -> None:
    table = Table(purpose=Seal(1))
    sealed = seals(table)[1]
    adopts(table, sealed, 1, 2)
    table.event(table.proposer.pursue(Reserve(1, 2), table.now))
    assert table.proposer.tail_elected is None
    for safekeeper_id in (1, 2):  # As soon as a quorum has greeted, without a wait for the next tick.
        table.deliver(safekeeper_id, greeting(safekeeper_id, promised=sealed.leader_id))
    leader_id = table.collect_pre_votes(1, 2)
    table.collect_votes(leader_id, 1, 2, history=sealed.history)
    reserved = table.sent(Elected)[1]
    assert reserved.history == (*LOG, HistoryEntry(leader_id.term, END, 1, floor=1, given=2))
    adopts(table, reserved, 1, 2)
    assert table.proposer.tail_elected == reserved


def test_a_number_is_not_reserved_after_another_proposers_term() -> None:
    table = Table(purpose=Seal(1))
    sealed = seals(table)[1]
    adopts(table, sealed, 1, 2)
    is_deposed(table, sealed)
    table.event(table.proposer.pursue(Reserve(1, 2), table.now))
    table.ticks(0.05)
    assert is_voted_for(table, history=(*LOG, HistoryEntry(40, END, 1, floor=1, given=1))) == {}
    assert "another proposer has written to the log" in table.proposer.candidacy.obstacle.reason


def test_what_another_attempt_has_handed_out_between_two_terms_stays_handed_out() -> None:
    table = Table(purpose=Seal(1))
    lost = seals(table)[1]
    assert table.proposer.candidacy.given_before == 0
    is_deposed(table, lost)  # Before it was committed: the run seals again, after a term that has reserved 2.
    later = HistoryEntry(50, END, 1, floor=1, given=2)
    assert is_voted_for(table, history=(*LOG, later))[1].history[-1].given == 2
    assert table.proposer.candidacy.given_before == 2


def test_a_cancelled_seal_is_a_term_of_its_own() -> None:
    table = Table(purpose=CancelSeal(1))
    elected = seals(table, history=(*LOG, HistoryEntry(4, END, 1, floor=1)))[1]
    assert elected.history == (*LOG, HistoryEntry(elected.leader_id.term, END, 1))
    assert "cancels the seal" in table.did(Note)[-1].text


def follows(table: Table, primary: PrimaryIdentity, floor: int) -> None:
    """Let an ordinary proxy be voted for by a log with a floor, and see a primary."""
    table.connects(1, 2, 3)
    table.sees(primary)
    table.votes(history=(*LOG, HistoryEntry(4, END, 1, floor=floor)))
    table.sees(primary)


def test_a_sealed_primary_is_refused_at_the_election() -> None:
    table = Table()
    follows(table, PRIMARY, 1)
    (finish,) = table.did(Finish)
    assert "a failover has sealed the timelines up to 1" in str(finish.error)


def test_a_promoted_primary_continues_and_inherits_the_floor_although_the_sealing_entry_goes() -> None:
    table = Table()
    follows(table, PROMOTED, 1)
    assert table.did(Finish) == []
    assert table.proposer.campaign is not None and table.proposer.campaign.plan is not None
    assert table.proposer.campaign.elected().history[-1] == HistoryEntry(table.proposer.term, END, 2, floor=1, given=2)
    assert all(entry.term != 4 for entry in table.proposer.campaign.elected().history), "it forks off at the seal"


def test_a_sealed_host_is_put_aside_in_a_term_without_another_term() -> None:
    table = Table(several_primaries=True)
    follows(table, PROMOTED, 1)
    term = table.proposer.term
    table.deliver(1, DigestResponse(term, BASE, END, CRCS))
    table.event(table.proposer.primary_checked(BASE, END, CRCS, table.now))
    assert table.proposer.phase is Phase.LEADING
    table.event(table.proposer.primary_lost(table.now))
    table.sees()
    assert any("has sealed" in action.reason for action in table.did(RefusePrimary)) and table.proposer.term == term
