"""A COPY and its term: when the next term may continue it, and what a term that is over may have committed."""

from typing import Any

import msgspec
import pytest

from safekeeper.base.errors import InvariantViolation, PrimaryRefused
from safekeeper.base.lsn import format_lsn
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.messages import (
    DIGEST_PAGE_SIZE,
    AppendResponse,
    ArchiveReport,
    DigestRequest,
    DigestResponse,
    Elected,
    PreVoteRequest,
    ReadRequest,
    Refusal,
    RefusalCode,
    Standby,
    StandbyFeedback,
    TailRequest,
    TailResponse,
    VoteResponse,
)
from safekeeper.consensus.term_history import HistoryEntry
from tests.unit.proposer.test_proposer import BASE, CRCS, END, LOG, PRIMARY, SEGMENT, Table, campaigning, greeting, vote
from walproxy.proposer.actions import (
    Finish,
    IdentifyPrimary,
    Note,
    ReportStatus,
    SendAppend,
    StartReplication,
    StopReplication,
)
from walproxy.proposer.apply_rule import parse_apply_rule
from walproxy.proposer.phase import Phase
from walproxy.proposer.primary import Ancestor

RECEIVED = END + 100
OTHER = LeaderId(9, "other")


def reports(lsn: int) -> StandbyFeedback:
    return StandbyFeedback((Standby("a", lsn, lsn, lsn),))


def loses_its_term(table: Table, promised: LeaderId = OTHER) -> None:
    """Let a safekeeper report a higher promise, and all greet again."""
    table.deliver(3, Refusal(RefusalCode.STALE_TERM, "deposed", promised))
    assert table.proposer.leadership is None
    for safekeeper_id in (1, 2, 3):
        table.deliver(safekeeper_id, greeting(safekeeper_id, promised=promised))
    table.ticks()


def follows(table: Table, leader_id: LeaderId, lsn: int) -> None:
    """Let a quorum, which has readers, have the log up to `lsn`."""
    for safekeeper_id in (1, 2):
        table.deliver(safekeeper_id, AppendResponse(leader_id, lsn, lsn, 0, has_readers=True))


def leads_with_wal(**config: Any) -> tuple[Table, LeaderId]:
    """Return a proposer that leads, and has received 100 bytes of WAL above the term's start."""
    table = Table(**config)
    leader_id = table.leads()
    table.event(table.proposer.wal_received(RECEIVED, table.now))
    return table, leader_id


def asks_again(table: Table, held: LeaderId, flush_lsn: int, last: HistoryEntry | None = None) -> None:
    """Let all vote; the donor's log ends at `flush_lsn` in the term that was held, or in `last`."""
    entry = last or HistoryEntry(held.term, END, 1)
    table.votes(history=(*LOG, entry), flush_lsn=flush_lsn)


@pytest.mark.parametrize("flush_lsn", [END, END + 1, RECEIVED])
def test_the_next_term_continues_an_open_copy_where_the_donor_s_log_ends(flush_lsn: int) -> None:
    table, held = leads_with_wal()
    loses_its_term(table)
    asks_again(table, held, flush_lsn)
    assert table.proposer.phase is Phase.LEADING
    for kind in (IdentifyPrimary, StartReplication, StopReplication):
        assert table.did(kind) == []
    before = () if flush_lsn == END else (HistoryEntry(held.term, END, 1),)
    assert table.sent(Elected)[1].history == (*LOG, *before, HistoryEntry(10, flush_lsn, 1, given=1))
    for safekeeper_id in (1, 2):
        table.deliver(safekeeper_id, AppendResponse(LeaderId(10, "run1"), flush_lsn, flush_lsn, 0))
    assert table.did(ReportStatus) == [ReportStatus(flush_lsn, flush_lsn, flush_lsn)]
    sent = [(a.begin_lsn, a.end_lsn) for a in table.did(SendAppend) if a.begin_lsn < a.end_lsn]
    assert sent == ([] if flush_lsn == RECEIVED else [(flush_lsn, RECEIVED)])


def test_a_term_that_continues_an_open_copy_is_an_event_as_any_other() -> None:
    table, held = leads_with_wal()
    loses_its_term(table)
    asks_again(table, held, END + 1)
    assert [(note.event, note.term) for note in table.did(Note) if note.event] == [("term-won", 10)]


@pytest.mark.parametrize(
    ("flush_lsn", "last"),
    [
        (END + 50, HistoryEntry(7, END, 1)),
        (END + 50, HistoryEntry(5, END, 1)),
        (END + 50, HistoryEntry(6, END, 2)),
        (END - 1, None),
        (RECEIVED + 1, None),
    ],
    ids=["a later run", "an earlier run", "another timeline", "below the window", "above what was received"],
)
def test_an_open_copy_is_closed_if_the_donor_s_log_is_not_the_one_that_it_continues(
    flush_lsn: int, last: HistoryEntry | None
) -> None:
    table, held = leads_with_wal()
    assert held.term == 6
    loses_its_term(table)
    history = (*LOG, last or HistoryEntry(held.term, END - 1 if flush_lsn < END else END, 1))
    table.votes(history=history, flush_lsn=flush_lsn)
    assert table.proposer.leadership is None and table.sent(Elected) == {}
    assert table.did(StopReplication) == [StopReplication("no term is held")]
    assert [note.text for note in table.did(Note)] == [
        "not elected: another proposer has written to the log, so the primary is checked again"
    ]
    with pytest.raises(InvariantViolation, match="must not be streamed"):
        table.proposer.wal_received(RECEIVED + 10, table.now)
    table.ticks()
    assert table.proposer.primary is None and table.sent(PreVoteRequest) == {}, "the primary must connect again"


@pytest.mark.parametrize(("window_lsn", "is_fed"), [(END, True), (END + 10, True), (END + 11, False)])
def test_a_term_that_continues_a_copy_sends_wal_of_the_window_from_before_its_start(
    window_lsn: int, is_fed: bool
) -> None:
    table, held = leads_with_wal()
    table.proposer.wal_evicted(window_lsn)
    loses_its_term(table)
    asks_again(table, held, RECEIVED)
    leader_id = LeaderId(table.proposer.term, "run1")
    table.deliver(1, AppendResponse(leader_id, RECEIVED, RECEIVED, 0))
    table.deliver(1, ArchiveReport(BASE, has_archive=False))
    table.deliver(3, AppendResponse(leader_id, END + 10, END + 10, 0))
    sent = [(a.begin_lsn, a.end_lsn) for a in table.did(SendAppend) if a.begin_lsn < a.end_lsn]
    assert sent == ([(END + 10, RECEIVED)] if is_fed else [])
    assert bool(table.sent(ReadRequest)) is not is_fed


BORDER = BASE + SEGMENT


def awaits_link() -> tuple[Table, LeaderId]:
    """Return a leader whose primary has recycled the WAL to compare, and streams from where the log ends."""
    table = Table(allow_unverified_primary=True)
    primary = msgspec.structs.replace(PRIMARY, flush_lsn=BORDER + 100)
    table.connects(1, 2, 3)
    table.sees(primary)
    leader_id = table.votes(flush_lsn=BORDER)
    table.sees(primary)
    crcs = tuple(range(SEGMENT // DIGEST_PAGE_SIZE))
    table.deliver(1, DigestResponse(table.proposer.term, BASE, BORDER, crcs, BASE + 100))
    table.event(table.proposer.primary_segment_removed(table.now))
    table.deliver(1, TailResponse(0, BORDER, 0, BASE + 8))
    (start,) = table.did(StartReplication)
    assert (start.check_begin_lsn, start.begin_lsn, start.previous_record_lsn) == (BORDER, BORDER, BASE + 8)
    assert table.proposer.phase is Phase.LEADING
    return table, leader_id


def test_nothing_is_reported_to_a_primary_whose_first_record_is_to_link_to_the_log_before_it_has() -> None:
    table, leader_id = awaits_link()
    for safekeeper_id in (1, 2, 3):
        table.deliver(safekeeper_id, AppendResponse(leader_id, BORDER, BORDER, 0))
        assert table.did(ReportStatus) == [] and table.proposer.hot_standby_feedback() is None
    assert not table.proposer._steady, "the next WAL is no everyday event"
    table.ticks(0.3)
    assert not any(append.header.healthy for append in table.did(SendAppend))
    table.event(table.proposer.wal_received(BORDER + 50, table.now))
    assert table.did(ReportStatus) == [ReportStatus(BORDER, BORDER, BORDER)]
    assert table.proposer.hot_standby_feedback() == (0, 0)
    table.ticks(0.05)
    assert len(table.proposer._steady) == 3
    table.event(table.proposer.wal_received(BORDER + 60, table.now))
    assert table.did(ReportStatus) == []


def test_a_copy_whose_first_record_has_not_linked_yet_is_not_continued_by_the_next_term() -> None:
    table, held = awaits_link()
    loses_its_term(table)
    table.votes(history=(*LOG, HistoryEntry(held.term, BORDER, 1)), flush_lsn=BORDER)
    assert table.proposer.leadership is None and table.did(StopReplication)


def loses_a_campaign(table: Table) -> float:
    """Lose a campaign after its votes, and return the time until the next one."""
    while table.proposer.phase is Phase.GATHERING:
        table.ticks(0.01)
    leader_id = table.collect_pre_votes(1, 2)
    for safekeeper_id in (1, 2, 3):
        table.deliver(safekeeper_id, VoteResponse(leader_id, False, LeaderId(leader_id.term, "other")))
    lost_at = table.now
    while table.proposer.phase is Phase.GATHERING:
        table.ticks(0.01)
    return table.now - lost_at


def wins_a_term(table: Table) -> LeaderId:
    """Win the campaign that has begun."""
    table.votes()
    table.sees()
    table.pass_check()
    assert table.proposer.leadership is not None
    return table.proposer.leadership.leader_id


def is_deposed(table: Table) -> float:
    """Lose the term to another candidate, and return the time until the next campaign."""
    table.event(table.proposer.primary_lost(table.now))
    table.deliver(3, Refusal(RefusalCode.STALE_TERM, "deposed", LeaderId(table.proposer.term + 1, "other")))
    for safekeeper_id in (1, 2, 3):
        table.deliver(safekeeper_id, greeting(safekeeper_id))
    table.sees()
    lost_at = table.now
    while table.proposer.phase is Phase.GATHERING:
        table.ticks(0.01)
    return table.now - lost_at


def test_the_pauses_between_campaigns_are_short_again_after_a_term() -> None:
    table = campaigning()
    waits = [loses_a_campaign(table) for _ in range(4)]
    assert waits[-1] > 2 * waits[0]
    leader_id = wins_a_term(table)
    table.acknowledge(leader_id, END, 1, 2)
    assert is_deposed(table) == 0
    assert loses_a_campaign(table) < 1.5 * waits[0]


def test_a_term_that_was_lost_before_a_quorum_had_its_start_makes_the_pauses_longer() -> None:
    """Two candidates that depose each other by turns would otherwise both begin at once, as long as it takes."""
    table = campaigning()
    waits = [loses_a_campaign(table) for _ in range(3)]
    wins_a_term(table)
    waits.append(is_deposed(table))
    waits.append(loses_a_campaign(table))
    assert waits[3] > 1.5 * waits[2]
    assert waits[4] > 1.5 * waits[3]


def test_a_copy_whose_wal_was_not_compared_yet_is_not_continued_by_the_next_term() -> None:
    table, held = leads_with_wal()
    table.acknowledge(held, RECEIVED, 1, 2)
    reconnects(table, held)
    assert len(table.did(StartReplication)) == 1
    # It is open, and its checksums are awaited.
    loses_its_term(table)
    asks_again(table, held, RECEIVED)
    assert table.proposer.leadership is None and table.did(StopReplication)


def reconnects(table: Table, held: LeaderId) -> None:
    """Let a primary be identified anew on another connection, and a quorum confirm the term."""
    table.sees(msgspec.structs.replace(PRIMARY, flush_lsn=RECEIVED), own=CRCS, own_begin_lsn=BASE)
    leadership = table.proposer.leadership
    assert leadership is not None
    for safekeeper_id in (1, 2):
        table.deliver(safekeeper_id, AppendResponse(held, RECEIVED, RECEIVED, leadership.sequence))


def test_wal_of_a_primary_that_has_reconnected_is_not_taken_before_it_was_asked_for() -> None:
    table, _ = leads_with_wal()
    table.sees(msgspec.structs.replace(PRIMARY, flush_lsn=RECEIVED), own=CRCS, own_begin_lsn=BASE)
    with pytest.raises(InvariantViolation, match="must not be streamed"):
        table.proposer.wal_received(RECEIVED + 10, table.now)


def test_wal_of_a_timeline_that_has_ended_is_our_own_mistake_even_if_a_link_to_the_log_is_awaited() -> None:
    table, _ = leads_with_wal()
    stream = table.proposer._stream
    stream.is_open, stream.awaits_link = False, True
    with pytest.raises(InvariantViolation, match="must not be streamed"):
        table.proposer.wal_received(RECEIVED + 10, table.now)


def test_a_term_that_is_confirmed_after_its_primary_was_lost_again_streams_nothing() -> None:
    table, held = leads_with_wal()
    table.sees(msgspec.structs.replace(PRIMARY, flush_lsn=RECEIVED), own=CRCS, own_begin_lsn=BASE)
    leadership = table.proposer.leadership
    assert leadership is not None
    table.event(table.proposer.primary_lost(table.now))
    for safekeeper_id in (1, 2):
        table.deliver(safekeeper_id, AppendResponse(held, RECEIVED, RECEIVED, leadership.sequence))
        assert table.did(StartReplication) == [] and table.proposer.leadership is leadership


def test_a_term_that_ends_before_a_reconnected_primary_was_asked_for_wal_leaves_no_copy_to_continue() -> None:
    table, held = leads_with_wal()
    table.sees(msgspec.structs.replace(PRIMARY, flush_lsn=RECEIVED), own=CRCS, own_begin_lsn=BASE)
    loses_its_term(table)
    asks_again(table, held, RECEIVED)
    assert table.did(IdentifyPrimary) and table.proposer.leadership is None


def test_a_reconnected_primary_streams_only_when_a_quorum_has_confirmed_the_term_since() -> None:
    table, held = leads_with_wal()
    table.acknowledge(held, RECEIVED, 1, 2)
    table.event(table.proposer.primary_lost(table.now))
    assert table.did(ReportStatus) == [ReportStatus(0, 0, 0)]
    leadership = table.proposer.leadership
    assert leadership is not None
    before = leadership.sequence
    table.sees(msgspec.structs.replace(PRIMARY, flush_lsn=RECEIVED), own=CRCS, own_begin_lsn=BASE)
    probed = leadership.sequence
    assert probed > before and {i for a in table.did(SendAppend) for i in a.safekeeper_ids} == {1, 2}
    for safekeeper_id, sequence in ((1, before), (2, before), (1, probed)):
        table.deliver(safekeeper_id, AppendResponse(held, RECEIVED, RECEIVED, sequence))
        assert table.did(StartReplication) == []
    table.deliver(2, AppendResponse(held, RECEIVED, RECEIVED, probed))
    (start,) = table.did(StartReplication)
    assert (start.check_begin_lsn, start.begin_lsn, start.resumes) == (BASE, RECEIVED, True)
    assert table.did(ReportStatus) == []
    table.event(table.proposer.primary_checked(BASE, RECEIVED, CRCS, table.now))
    assert table.did(ReportStatus) == [ReportStatus(RECEIVED, RECEIVED, RECEIVED)]


def test_a_reconnected_primary_with_other_bytes_is_refused_and_nothing_is_reported_to_it() -> None:
    table, held = leads_with_wal()
    table.acknowledge(held, RECEIVED, 1, 2)
    reconnects(table, held)
    table.event(table.proposer.primary_checked(BASE, RECEIVED, (CRCS[0] + 1,), table.now))
    (finish,) = table.did(Finish)
    assert isinstance(finish.error, PrimaryRefused)
    assert f"differs from the WAL that it sent before in the page at {format_lsn(BASE)}" in str(finish.error)
    assert all(status == ReportStatus(0, 0, 0) for status in table.did(ReportStatus))


# What a term that is over may have committed (S9).


FORK = END - 100
PROMOTED = msgspec.structs.replace(PRIMARY, tli=2, ancestors=(Ancestor(1, FORK),))


def votes_then_sees_a_fork(table: Table, held: LeaderId, flush_lsn: int, **changes: Any) -> None:
    """Let two of three vote, so that M is not known by their positions; the primary was promoted at FORK."""
    leader_id = table.collect_pre_votes(1, 2)
    for safekeeper_id in (1, 2):
        history = (*LOG, HistoryEntry(held.term, END, 1))
        table.deliver(safekeeper_id, vote(leader_id, history=history, flush_lsn=flush_lsn, **changes))
    table.ticks(table.proposer.timing.vote_grace_s + 0.05)
    assert table.did(IdentifyPrimary)
    table.sees(PROMOTED)
    assert table.sent(TailRequest)[1].lsn == FORK


def without_primary(table: Table) -> None:
    """Let the primary of a term that is led be lost, and its end be reported."""
    table.event(table.proposer.primary_lost(table.now))
    loses_its_term(table)
    table.sees(PROMOTED)
    table.ticks()


@pytest.mark.parametrize(
    ("committed_lsn", "record_end_lsn", "is_refused"),
    [
        # Nothing was committed in the term: what is below its start may have been, by the terms before.
        (0, END - 50, True),
        (0, END, True),
        (0, END + 1, False),
        (0, RECEIVED, False),
        (0, 0, False),
        (END, END, True),
        (END, END + 1, False),
        (END + 60, END + 60, True),
        (END + 60, END + 61, False),
    ],
)
def test_what_a_held_term_may_have_committed_is_its_start_or_its_commit(
    committed_lsn: int, record_end_lsn: int, is_refused: bool
) -> None:
    table, held = leads_with_wal()
    if committed_lsn:
        for safekeeper_id in (1, 2):
            table.deliver(safekeeper_id, AppendResponse(held, RECEIVED, committed_lsn, 0))
        leadership = table.proposer.leadership
        assert leadership is not None and leadership.commit_lsn == committed_lsn
    without_primary(table)
    votes_then_sees_a_fork(table, held, RECEIVED)
    table.deliver(1, TailResponse(0, FORK, record_end_lsn, BASE))
    assert bool(table.did(Finish)) is is_refused
    assert bool(table.sent(DigestRequest)) is not is_refused
    if is_refused:
        possible_lsn = committed_lsn or END
        assert f"WAL up to {format_lsn(possible_lsn)} may have been acknowledged" in str(table.did(Finish)[0].error)


def test_the_commit_of_an_older_held_term_counts_in_a_later_one_that_has_committed_nothing() -> None:
    table, held = leads_with_wal()
    table.acknowledge(held, RECEIVED, 1, 2)
    loses_its_term(table)
    asks_again(table, held, RECEIVED)
    assert table.proposer.phase is Phase.LEADING
    later = LeaderId(table.proposer.term, "run1")
    table.event(table.proposer.primary_lost(table.now))
    loses_its_term(table, LeaderId(20, "other"))
    table.sees(PROMOTED)
    table.ticks()
    leader_id = table.collect_pre_votes(1, 2)
    history = (*LOG, HistoryEntry(held.term, END, 1), HistoryEntry(later.term, RECEIVED, 1))
    table.collect_votes(leader_id, 1, 2, history=history, flush_lsn=RECEIVED)
    table.ticks(table.proposer.timing.vote_grace_s + 0.05)
    table.sees(PROMOTED)
    table.deliver(1, TailResponse(0, FORK, RECEIVED, BASE))
    (finish,) = table.did(Finish)
    assert isinstance(finish.error, PrimaryRefused)


def test_what_a_standby_has_replayed_above_the_start_of_a_term_is_not_of_its_log() -> None:
    table, held = leads_with_wal(apply_rule=parse_apply_rule("a"))
    follows(table, held, RECEIVED)
    table.deliver(1, reports(RECEIVED))
    assert table.did(ReportStatus) == [ReportStatus(RECEIVED, RECEIVED, RECEIVED)]
    loses_its_term(table)
    asks_again(table, held, END + 20)
    leader_id = LeaderId(table.proposer.term, "run1")
    follows(table, leader_id, END + 20)
    follows(table, leader_id, RECEIVED)
    assert table.did(ReportStatus) == [ReportStatus(RECEIVED, RECEIVED, END + 20)]
    table.deliver(1, reports(RECEIVED))
    assert table.did(ReportStatus) == [ReportStatus(RECEIVED, RECEIVED, RECEIVED)]


@pytest.mark.parametrize("ends_by", ["timeline", "term"])
def test_a_timeline_that_ends_elsewhere_than_its_wal_is_not_followed(ends_by: str) -> None:
    table, held = leads_with_wal()
    table.acknowledge(held, RECEIVED, 1, 2)
    end_lsn = RECEIVED if ends_by == "term" else RECEIVED - 1
    table.event(table.proposer.timeline_ended(2, end_lsn, table.now))
    if ends_by == "term":
        assert table.proposer.leadership is None and table.did(StopReplication) == []
    else:
        assert table.proposer.leadership is not None and table.proposer.primary is None
        assert table.did(StopReplication) == [
            StopReplication(f"timeline ended at {format_lsn(end_lsn)}, but its WAL did not")
        ]
        assert table.did(ReportStatus) == [ReportStatus(0, 0, 0)]
    with pytest.raises(InvariantViolation, match="must not be streamed"):
        table.proposer.wal_received(RECEIVED + 10, table.now)


def test_a_segment_that_is_gone_in_a_campaign_closes_the_copy() -> None:
    table = campaigning()
    table.votes()
    table.sees()
    table.deliver(1, DigestResponse(table.proposer.term, BASE, END, CRCS))
    assert table.did(StartReplication)
    table.event(table.proposer.primary_segment_removed(table.now))
    assert table.did(Finish)
    with pytest.raises(InvariantViolation, match="must not be streamed"):
        table.proposer.primary_checked(BASE, END, CRCS, table.now)


def test_a_segment_that_is_gone_when_nothing_is_compared_any_more_refuses_nobody() -> None:
    table = campaigning()
    table.event(table.proposer.disconnected(1, table.now))
    table.event(table.proposer.disconnected(2, table.now))
    assert table.proposer.campaign is None and table.proposer.leadership is None
    table.event(table.proposer.primary_segment_removed(table.now))
    assert not table.did(Finish)


def test_where_the_primary_can_no_longer_continue_is_said_of_what_it_has_sent() -> None:
    table, _ = awaits_link()
    table.event(table.proposer.wal_received(BORDER + 100, table.now))
    table.event(table.proposer.primary_segment_removed(table.now))
    assert f"has recycled the WAL at {format_lsn(BORDER + 100)}" in str(table.did(Finish)[0].error)


def test_wal_that_ends_below_what_members_have_received_is_our_own_mistake() -> None:
    table = Table()
    leader_id = table.leads()
    table.event(table.proposer.wal_received(END + 100, table.now))
    table.acknowledge(leader_id, END + 100, 1, 2, 3)
    assert table.proposer.is_steady
    with pytest.raises(InvariantViolation, match="are not in order"):
        table.proposer.wal_received(END + 99, table.now)


def test_what_a_safekeeper_has_sent_before_it_was_disconnected_is_ignored() -> None:
    table = Table()
    table.connects(1)
    table.event(table.proposer.disconnected(1, table.now))
    table.deliver(1, greeting(1))
    assert table.proposer.peers[1].greeting is None


def test_a_term_ends_when_the_only_member_that_has_its_start_greets_with_another_folder() -> None:
    table = Table()
    leader_id = table.leads()
    table.deliver(2, AppendResponse(leader_id, END, END, 0))
    table.event(table.proposer.disconnected(1, table.now))
    assert table.proposer.phase is Phase.LEADING
    table.connects(2, incarnation="e" * 32)
    table.ticks()
    assert table.proposer.phase is not Phase.LEADING
