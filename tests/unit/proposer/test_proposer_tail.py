"""A tail term: without a primary, a proposer makes known where the quorum's log ends (step 12)."""

from typing import Any

import pytest

from safekeeper.consensus.messages import (
    AppendResponse,
    Elected,
    PreVoteRequest,
    PreVoteResponse,
    ProposerGreeting,
    Refusal,
    RefusalCode,
    TailPreVoteRequest,
    VoteRequest,
)
from safekeeper.consensus.term_history import HistoryEntry
from tests.unit.proposer.test_proposer import BASE, CLUSTER, END, LOG, PRIMARY, SEGMENT, Table, greeting, vote
from walproxy.proposer.actions import EmptyWindow, Finish, Level, Note, ReportStatus, SendAppend
from walproxy.proposer.phase import Phase

AFTER_S = 3.0


def table_of(tail_after_s: float | None = AFTER_S, **changes: Any) -> Table:
    table = Table(tail_after_s=tail_after_s)
    table.ticks(0.05)
    table.connects(1, 2, 3, **changes)
    return table


def asks(table: Table) -> None:
    """Let the time pass after which it asks whether it may win a tail term."""
    table.ticks(AFTER_S)
    assert table.sent(TailPreVoteRequest).keys() == {1, 2, 3}


def leads_tail(table: Table, **of_vote: Any) -> Any:
    """Bring it to leading a tail term; return what it sends to the members first."""
    asks(table)
    leader_id = table.collect_pre_votes(1, 2)
    table.collect_votes(leader_id, 1, 2, 3, **of_vote)
    return table.sent(Elected)


def test_without_being_wanted_there_is_none() -> None:
    table = table_of(None)
    table.ticks(1000)
    assert table.sent(TailPreVoteRequest) == {} and table.proposer.phase is Phase.GATHERING


def test_it_is_asked_for_only_after_so_long_without_a_primary() -> None:
    table = table_of()
    table.ticks(AFTER_S - 0.1)
    assert table.sent(TailPreVoteRequest) == {}
    table.ticks(0.1)
    assert table.sent(TailPreVoteRequest)[2] == TailPreVoteRequest("run1") and table.sent(PreVoteRequest) == {}


def test_a_primary_that_was_there_meanwhile_begins_the_time_anew() -> None:
    table = Table(tail_after_s=AFTER_S)
    table.ticks(0.05)
    table.ticks(AFTER_S - 0.1)
    table.sees()
    table.ticks(0.05)
    table.event(table.proposer.primary_lost(table.now))
    table.connects(1, 2, 3)
    table.ticks(0.05)
    table.ticks(AFTER_S - 0.1)
    assert table.sent(TailPreVoteRequest) == {}
    asks(table)


def test_a_primary_that_ended_a_tail_term_begins_the_time_anew() -> None:
    table = table_of()
    leads_tail(table)
    table.sees()
    table.ticks(0.05)
    assert table.proposer.leadership is None
    table.event(table.proposer.primary_lost(table.now))
    table.connects(1, 2, 3)
    table.ticks(AFTER_S - 0.1)
    assert table.sent(TailPreVoteRequest) == {}
    table.ticks(0.05)
    asks(table)


@pytest.mark.parametrize("last", [3, 4])
def test_a_log_that_everybody_has_as_committed_needs_none(last: int) -> None:
    table = table_of(commit_lsn=END)
    table.event(table.proposer.disconnected(3, table.now))
    table.connects(3, commit_lsn=END, last_term=last)
    table.ticks(AFTER_S)
    assert bool(table.sent(TailPreVoteRequest)) is (last != 3)


def test_nothing_is_asked_without_a_quorum() -> None:
    table = Table(tail_after_s=AFTER_S)
    table.connects(1)
    table.ticks(0.05)
    table.ticks(AFTER_S)
    assert table.sent(TailPreVoteRequest) == {}


def test_a_proposer_that_is_alive_is_left_alone_and_no_spare_is_announced() -> None:
    table = table_of()
    asks(table)
    for safekeeper_id in (1, 2, 3):
        table.deliver(safekeeper_id, PreVoteResponse(False, "run2"))
    assert table.sent(VoteRequest) == {} and table.did(Note) == [] and not table.proposer.is_spare
    assert table.proposer.phase is Phase.GATHERING


def test_a_campaign_that_was_lost_is_repeated() -> None:
    table = table_of()
    asks(table)
    leader_id = table.collect_pre_votes(1, 2)
    for safekeeper_id in (1, 2):
        table.deliver(
            safekeeper_id, vote(leader_id, granted=False, promised=leader_id._replace(term=leader_id.term + 1))
        )
    assert table.proposer.campaign is None
    table.ticks(0.01)
    assert table.sent(TailPreVoteRequest) == {}, "candidates must not start at the same time"
    table.ticks(1.0)
    assert table.sent(TailPreVoteRequest).keys() == {1, 2, 3}


def test_the_donor_s_log_is_taken_whole() -> None:
    table = table_of()
    elected = leads_tail(table)[1]
    assert elected.history == (*LOG, HistoryEntry(elected.leader_id.term, END, 1, given=1))
    assert (elected.cluster_id, elected.system_id, elected.segment_size) == (CLUSTER, 7, SEGMENT)
    assert elected.server_version == 150000 and elected.base_lsn == BASE
    assert table.did(EmptyWindow) == [EmptyWindow(END)]
    (note,) = [note.text for note in table.did(Note) if note.level is Level.INFO]
    assert note.startswith(f"tail term {elected.leader_id.term}: elected by 3 of 3, donor 1: the log ends at")


def test_the_timeline_is_that_of_the_last_byte() -> None:
    history = (HistoryEntry(3, BASE, 1), HistoryEntry(4, END, 2))
    elected = leads_tail(table_of(last_term=4), history=history)[1]
    assert elected.history == (HistoryEntry(3, BASE, 1), HistoryEntry(elected.leader_id.term, END, 1, given=1))


def test_a_log_without_a_byte_gets_none() -> None:
    assert leads_tail(table_of(), history=(HistoryEntry(3, END, 1),)) == {}


def test_the_end_of_the_log_is_committed_when_a_quorum_has_it_and_postgresql_is_sent_nothing() -> None:
    table = table_of()
    elected = leads_tail(table)[1]
    reports = table.did(ReportStatus)
    for safekeeper_id in (1, 2):
        table.deliver(safekeeper_id, AppendResponse(elected.leader_id, END, END, 0, has_readers=True))
        reports += table.did(ReportStatus)
    assert table.proposer.leadership.commit_lsn == END
    assert [action.header.commit_lsn for action in table.did(SendAppend)] == [END, END], "its readers see it at once"
    assert all(report == ReportStatus(0, 0, 0) for report in reports)


def test_it_never_counts_as_healthy() -> None:
    table = table_of()
    elected = leads_tail(table)[1]
    for safekeeper_id in (1, 2, 3):
        table.deliver(safekeeper_id, AppendResponse(elected.leader_id, END, END, 0))
    table.ticks(0.5)
    heartbeats = table.did(SendAppend)
    assert heartbeats and not any(action.header.healthy for action in heartbeats)


def test_a_primary_ends_it_at_the_next_tick_and_is_compared() -> None:
    table = table_of()
    leader_id = leads_tail(table)[1].leader_id
    table.acknowledge(leader_id, END, 1, 2)
    table.sees()
    assert table.proposer.leadership is not None and table.said == [], "not within the event"
    table.ticks(0.05)
    assert table.proposer.leadership is None and table.sent(ProposerGreeting).keys() == {1, 2, 3}
    table.deliver(1, greeting(1))
    table.deliver(2, greeting(2))
    assert table.sent(PreVoteRequest).keys() == {1, 2}


def test_a_term_that_a_tick_wins_lasts_until_the_next_one() -> None:
    table = table_of()
    asks(table)
    leader_id = table.collect_pre_votes(1, 2)
    table.collect_votes(leader_id, 1, 2)
    table.sees()
    table.ticks(table.proposer.timing.vote_grace_s + 0.1)
    assert table.sent(Elected).keys() == {1, 2, 3} and table.proposer.leadership is not None
    table.ticks(0.05)
    assert table.proposer.leadership is None


def test_a_primary_that_comes_during_the_votes_waits_for_its_end() -> None:
    table = table_of()
    asks(table)
    leader_id = table.collect_pre_votes(1, 2)
    table.sees(PRIMARY)
    assert table.proposer.campaign is not None and table.proposer.campaign.primary is None
    table.collect_votes(leader_id, 1, 2, 3)
    assert table.sent(Elected).keys() == {1, 2, 3}
    table.ticks(0.05)
    assert table.proposer.leadership is None


def test_a_deposed_run_that_has_only_led_tail_terms_is_not_fenced() -> None:
    table = table_of()
    leader_id = leads_tail(table)[1].leader_id
    higher = leader_id._replace(term=leader_id.term + 1, proposer_id="run2")
    table.deliver(1, Refusal(RefusalCode.STALE_TERM, "deposed", higher))
    assert table.proposer.leadership is None
    for safekeeper_id in (1, 2, 3):
        table.deliver(safekeeper_id, greeting(safekeeper_id, promised=higher))
    table.sees()
    table.ticks(0.5)  # the pause after a term that nobody had adopted
    assert table.sent(PreVoteRequest).keys() == {1, 2, 3}
    for safekeeper_id in (1, 2, 3):
        table.deliver(safekeeper_id, PreVoteResponse(False, "run2"))
    assert table.did(Finish) == [] and table.proposer.is_spare
