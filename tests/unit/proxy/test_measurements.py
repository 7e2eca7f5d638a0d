"""Elections, terms, reconnects, votes and refusals, as a proxy counts them."""

from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.messages import PreVoteResponse, Refusal, RefusalCode
from walproxy.proposer.phase import Phase
from walproxy.proxy.election_times import ElectionTimes
from walproxy.proxy.measurements import Measurements
from walproxy.proxy.status_fields import ElectionCounts


def observed(*phases: tuple[Phase, float]) -> ElectionTimes:
    times = ElectionTimes()
    for phase, now in phases:
        times.observe(phase, now)
    return times


def test_a_won_election_lasts_from_its_first_request_and_its_term_until_another_phase() -> None:
    times = observed(
        (Phase.PRE_VOTING, 1.0),
        (Phase.VOTING, 1.25),
        (Phase.VERIFYING, 1.5),
        (Phase.LEADING, 3.0),
        (Phase.LEADING, 50.0),
    )
    assert times.describe(53.0) == ElectionCounts(won=1, lost=0, declined=0, term_s=50.0)
    assert (times.elections.count, times.elections.total, times.terms.count) == (1, 2.0, 0)
    # One term ends and the next campaign begins in the same event.
    times.observe(Phase.PRE_VOTING, 63.0)
    times.observe(Phase.LEADING, 64.0)
    assert (times.terms.count, times.terms.total) == (1, 60.0)
    assert (times.won, times.elections.total, times.term_began_at) == (2, 3.0, 64.0)


def test_an_attempt_without_a_pre_vote_is_declined_and_one_without_votes_is_lost() -> None:
    times = observed((Phase.PRE_VOTING, 1.0), (Phase.GATHERING, 1.5), (Phase.PRE_VOTING, 2.0), (Phase.GATHERING, 2.5))
    assert (times.declined, times.lost, times.elections.count) == (2, 0, 0)
    for phase, now in ((Phase.PRE_VOTING, 3.0), (Phase.VOTING, 3.5), (Phase.FINISHED, 5.0)):
        times.observe(phase, now)
    assert (times.declined, times.lost, times.won) == (2, 1, 0)
    assert (times.elections.count, times.elections.total) == (1, 2.0)


def test_a_connection_counts_as_made_again_only_after_one_was_lost() -> None:
    measured = Measurements()
    measured.primary_lost()  # An attempt that failed.
    measured.primary_identified()
    measured.primary_identified()
    assert measured.primary_reconnects == 0
    measured.primary_lost()
    measured.primary_lost()
    measured.primary_identified()
    for safekeeper_id in (1, 2, 2):
        measured.connected(safekeeper_id)
    measured.forget(1)
    assert (measured.primary_reconnects, measured.reconnects) == (1, {2: 1})


def test_only_votes_and_refusals_are_counted() -> None:
    measured = Measurements()
    refusal = Refusal(RefusalCode.HISTORY, "it differs", LeaderId(1, "a" * 32))
    for message in (refusal, refusal, PreVoteResponse(True, "")):
        measured.answers.count(message)
    assert {code: count for code, count in measured.answers.refusals.items() if count} == {RefusalCode.HISTORY: 2}
    assert (measured.answers.granted, measured.answers.refused) == (0, 0)
