"""The proposer whose shell has several hosts to try: what it does after it has refused one of them."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from safekeeper.base.errors import InvariantViolation
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.messages import (
    AppendResponse,
    DigestRequest,
    DigestResponse,
    Elected,
    PreVoteRequest,
    TailResponse,
)
from safekeeper.consensus.term_history import HistoryEntry
from tests.unit.proposer.test_proposer import (
    BASE,
    CRCS,
    END,
    LOG,
    PRIMARY,
    SEGMENT,
    Table,
    greeting,
    vote,
)
from walproxy.proposer.actions import (
    Disconnect,
    Finish,
    IdentifyPrimary,
    Note,
    RefusePrimary,
    ReportStatus,
    StartReplication,
)
from walproxy.proposer.phase import Phase
from walproxy.proposer.primary import Ancestor, PrimaryIdentity
from walproxy.proposer.verification import refusal_in_term

SWITCHED = (*LOG, HistoryEntry(4, END - 200, 2))
PROMOTED = msgspec.structs.replace(PRIMARY, tli=2, ancestors=(Ancestor(1, END - 200),))


def switched() -> Table:
    """A quorum whose log has gone on with timeline 2; nobody leads it."""
    table = Table(several_primaries=True)
    table.connects(1, 2, 3)
    return table


def leads_switched() -> tuple[Table, LeaderId]:
    """A term on timeline 2, in which everything up to END is committed."""
    table = switched()
    table.sees(PROMOTED)
    leader_id = table.votes(history=SWITCHED)
    table.sees(PROMOTED)
    table.pass_check()
    table.acknowledge(leader_id, END, 1, 2)
    assert table.proposer.leadership is not None and table.proposer.leadership.commit_lsn == END
    return table, leader_id


def test_an_old_primary_that_answers_first_is_put_aside_and_the_next_one_is_led() -> None:
    table = switched()
    table.sees()
    table.votes(history=SWITCHED)
    table.sees()
    (refused,) = table.did(RefusePrimary)
    assert "has stayed on it" in refused.reason
    assert not table.did(Finish) and not table.did(StartReplication)
    (note,) = [action.text for action in table.did(Note) if "is not led" in action.text]
    assert note.endswith(f"is not led, the primary is refused: {refused.reason}")
    assert table.proposer.phase is Phase.GATHERING and table.proposer.primary is None
    table.sees(PROMOTED)
    table.ticks()
    leader_id = table.votes(history=SWITCHED)
    assert table.did(IdentifyPrimary)
    table.sees(PROMOTED)
    table.pass_check()
    assert table.sent(Elected)[1].history == (*SWITCHED, HistoryEntry(leader_id.term, END, 2, given=2))


def test_an_old_primary_costs_no_term_that_has_gone_on_without_it() -> None:
    table, leader_id = leads_switched()
    table.event(table.proposer.primary_lost(table.now))
    table.sees(own=CRCS)
    (refused,) = table.did(RefusePrimary)
    assert "has stayed on it" in refused.reason
    assert table.proposer.leadership is not None and table.proposer.leadership.leader_id == leader_id
    assert table.sent(PreVoteRequest) == {}
    # Its successor is streamed again in the same term.
    table.sees(PROMOTED, own=CRCS)
    sequence = table.proposer.leadership.sequence
    for safekeeper_id in (1, 2):
        table.deliver(safekeeper_id, AppendResponse(leader_id, END, END, sequence))
        if table.did(StartReplication):
            break
    assert table.did(StartReplication)[0].resumes


def test_other_bytes_on_the_same_timeline_cost_no_term_and_are_sent_nothing() -> None:
    table, leader_id = leads_switched()
    table.event(table.proposer.primary_lost(table.now))
    table.sees(PROMOTED, own=CRCS)
    assert table.proposer.leadership is not None
    sequence = table.proposer.leadership.sequence
    for safekeeper_id in (1, 2):
        table.deliver(safekeeper_id, AppendResponse(leader_id, END, END, sequence))
        if table.did(StartReplication):
            break
    table.event(table.proposer.primary_checked(BASE, END, (2,), table.now))
    assert "differs from the WAL that it sent before" in table.did(RefusePrimary)[0].reason
    assert all(not status.flush_lsn for status in table.did(ReportStatus))
    assert not table.proposer.leadership.streaming


def test_a_refused_primary_s_wal_is_never_taken() -> None:
    table, _ = leads_switched()
    table.event(table.proposer.primary_lost(table.now))
    table.sees(own=CRCS)
    assert table.did(RefusePrimary)
    with pytest.raises(InvariantViolation, match="must not be streamed"):
        table.proposer.wal_received(END + 10, table.now)
    with pytest.raises(InvariantViolation, match="must not be streamed"):
        table.proposer.primary_checked(BASE, END, CRCS, table.now)


def test_the_old_primary_comes_back_after_a_standby_that_lacks_acknowledged_wal() -> None:
    table = Table(several_primaries=True)
    leader_id = table.leads()
    table.acknowledge(leader_id, END, 1, 2)
    table.event(table.proposer.primary_lost(table.now))
    fork_lsn = END - 100
    behind = msgspec.structs.replace(PRIMARY, tli=2, ancestors=(Ancestor(1, fork_lsn),))
    table.sees(behind)
    log = (*LOG, HistoryEntry(leader_id.term, END, 1))
    table.connects(1, 2, 3, last_term=leader_id.term, promised=leader_id)
    table.ticks()
    table.votes(history=log)
    table.sees(behind)
    table.deliver(1, TailResponse(0, fork_lsn, END, BASE))
    (refused,) = table.did(RefusePrimary)
    assert "may have been acknowledged" in refused.reason
    assert not table.did(StartReplication) and table.sent(Elected) == {}
    table.sees()
    table.ticks()
    table.votes(history=log)
    table.sees()
    assert table.sent(DigestRequest)[1].end_lsn == END


@pytest.mark.parametrize(("record_end_lsn", "refused"), [(END, True), (END + 1, False)])
def test_the_run_that_held_the_term_cuts_by_what_it_knows_to_be_committed(record_end_lsn: int, refused: bool) -> None:
    table = Table(several_primaries=True)
    leader_id = table.leads()
    table.event(table.proposer.wal_received(END + 50, table.now))
    table.acknowledge(leader_id, END, 1, 2)
    # Safekeeper 1 has more, which nobody was told of.
    table.deliver(1, AppendResponse(leader_id, END + 50, END + 50, 0))
    table.event(table.proposer.primary_lost(table.now))
    promoted = msgspec.structs.replace(PRIMARY, tli=2, ancestors=(Ancestor(1, END - 10),))
    table.sees(promoted)
    log = (*LOG, HistoryEntry(leader_id.term, END, 1))
    table.connects(1, 2, last_term=leader_id.term, promised=leader_id)
    table.ticks()
    candidate = table.collect_pre_votes(1, 2)
    # Not all vote, so that the votes alone would say END + 50.
    table.deliver(1, vote(candidate, history=log, flush_lsn=END + 50))
    table.deliver(2, vote(candidate, history=log))
    table.ticks(0.2)
    table.sees(promoted)
    table.deliver(1, TailResponse(0, END - 10, record_end_lsn, BASE))
    assert bool(table.did(RefusePrimary)) == refused


def test_what_members_said_of_another_postgresql_is_not_held_against_the_next_one() -> None:
    table = Table(several_primaries=True)
    table.connects(1, 2)
    table.event(table.proposer.connected(3, table.now))
    table.sees(msgspec.structs.replace(PRIMARY, system_id=8))
    assert "safekeepers refuse it" in table.did(RefusePrimary)[0].reason
    # Also the one that has yet to say so is asked anew.
    assert {action.safekeeper_id for action in table.did(Disconnect)} == {1, 2, 3}
    for safekeeper_id in (1, 2, 3):
        table.event(table.proposer.disconnected(safekeeper_id, table.now))
    table.sees()
    assert not table.did(RefusePrimary)
    for safekeeper_id in (1, 2, 3):
        table.event(table.proposer.connected(safekeeper_id, table.now))
        table.deliver(safekeeper_id, greeting(safekeeper_id))
    table.ticks()
    assert table.sent(PreVoteRequest) or table.proposer.phase is Phase.PRE_VOTING


def test_refusals_do_not_make_the_next_primary_wait() -> None:
    table = switched()
    for number in range(8):
        table.sees(msgspec.structs.replace(PRIMARY, host=f"db{number}"))
        table.ticks()
        table.votes(history=SWITCHED)
        table.sees()
        assert table.did(RefusePrimary)
    table.sees(PROMOTED)
    table.ticks(table.proposer.timing.retry_interval_s)
    assert table.proposer.phase is Phase.PRE_VOTING


OLD = msgspec.structs.replace(PRIMARY, host="old")
AS_SWITCHED = {"last_term": 4}
LEADER = LeaderId(6, "run1")
RETRY_S = 10.0


def is_refused_by_its_lineage() -> tuple[Table, str]:
    """The host "old" was refused once, by an election; return why."""
    table = switched()
    table.sees(OLD)
    table.votes(history=SWITCHED)
    table.sees(OLD)
    (refused,) = table.did(RefusePrimary)
    return table, refused.reason


def is_refused_by_its_bytes(table: Table, primary: PrimaryIdentity = OLD) -> None:
    """An election finds other bytes; the host is at hand, and pre-votes are asked for."""
    assert table.sent(PreVoteRequest) or table.proposer.phase is Phase.PRE_VOTING
    table.votes()
    table.sees(primary)
    table.deliver(1, DigestResponse(table.proposer.term, BASE, END, CRCS))
    table.event(table.proposer.primary_checked(BASE, END, (2,), table.now))
    assert "differs from safekeeper 1's" in table.did(RefusePrimary)[0].reason


def comes_back(table: Table, primary: PrimaryIdentity = OLD, after_s: float = RETRY_S) -> None:
    """A host is tried again after a while. `said` has all that was done."""
    table.ticks(after_s)
    table.sees(primary)
    said = list(table.said)
    table.ticks(table.proposer.timing.retry_interval_s)
    table.said = said + table.said


def test_a_refused_host_costs_a_term_each_time_after_waits_that_grow() -> None:
    table, reason = is_refused_by_its_lineage()
    term, elections = table.proposer.term, []
    for number in range(200):
        comes_back(table)
        if table.proposer.phase is Phase.PRE_VOTING:
            elections.append(number)
            table.votes(history=SWITCHED)
            table.sees(OLD)
        assert [action.reason for action in table.did(RefusePrimary)] == [reason]
        assert table.proposer.phase is Phase.GATHERING and table.proposer.primary is None
    waits = [after - before for before, after in pairwise(elections)]
    assert elections[0] == 0 and waits == sorted(waits) and len(elections) < 15
    assert max(waits) * RETRY_S <= 300 + RETRY_S
    assert table.proposer.term == term + len(elections)


def test_a_host_that_waits_is_refused_without_a_request() -> None:
    table, reason = is_refused_by_its_lineage()
    comes_back(table, after_s=1.0)
    assert [action.reason for action in table.did(RefusePrimary)] == [reason]
    assert not table.sent(PreVoteRequest) and not table.did(Note)


def test_other_bytes_make_a_host_wait_as_well() -> None:
    table = switched()
    table.sees(OLD)
    is_refused_by_its_bytes(table)
    comes_back(table, after_s=1.0)
    assert "differs from safekeeper 1's" in table.did(RefusePrimary)[0].reason
    comes_back(table)
    is_refused_by_its_bytes(table)


def test_the_right_primary_is_elected_at_once_after_a_refusal_without_a_term() -> None:
    table, _ = is_refused_by_its_lineage()
    comes_back(table, after_s=1.0)
    assert table.did(RefusePrimary)
    table.sees(msgspec.structs.replace(PROMOTED, host="new"))
    table.ticks(table.proposer.timing.retry_interval_s)
    assert table.proposer.phase is Phase.PRE_VOTING


def test_a_host_that_was_repaired_is_elected_when_it_is_tried_again() -> None:
    table, _ = is_refused_by_its_lineage()
    comes_back(table, msgspec.structs.replace(PROMOTED, host="old"), after_s=1.0)
    assert table.proposer.phase is Phase.PRE_VOTING and not table.did(RefusePrimary)


def test_the_operator_s_signal_has_every_host_judged_anew() -> None:
    table, _ = is_refused_by_its_lineage()
    table.proposer.forget_refusals()
    comes_back(table, after_s=1.0)
    assert table.proposer.phase is Phase.PRE_VOTING


@pytest.mark.parametrize(("commit_lsn", "is_refused"), [(END, False), (END + 50, True)])
def test_an_old_primary_is_compared_with_what_is_committed_in_the_term(commit_lsn: int, is_refused: bool) -> None:
    elected = SimpleNamespace(system_id=7, segment_size=SEGMENT, history=(*LOG, HistoryEntry(4, END, 2)))
    led: Any = SimpleNamespace(
        elected=elected, tli=2, commit_lsn=commit_lsn, write_lsn=END + 100, received_lsn=END + 100
    )
    assert bool(refusal_in_term(led, PRIMARY, several_primaries=True)) is is_refused
