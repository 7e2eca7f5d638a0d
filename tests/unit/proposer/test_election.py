import msgspec
import pytest

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.consensus.control_state import LeaderId, TliHistory
from safekeeper.consensus.membership import Member, Membership, QuorumSizes
from safekeeper.consensus.messages import VoteResponse
from safekeeper.consensus.term_history import HistoryEntry
from walproxy.proposer.election import (
    TLI_HISTORY_BYTES_MAX,
    check_vote,
    choose_donor,
    collect_tli_histories,
    extend_history,
    highest_possible_commit,
    shorten_history,
)
from walproxy.proposer.primary import LogPlan, PrimaryIdentity

ASKED = LeaderId(9, "run")
THREE = Membership(1, tuple(Member(i, f"{i:032x}") for i in (1, 2, 3)))
ONE, TWO, THIRD = (member.identity for member in THREE.members)


def vote(flush_lsn: int, *entries: tuple[int, int, int], commit_lsn: int = 0) -> VoteResponse:
    history = tuple(HistoryEntry(*entry) for entry in entries)
    return VoteResponse(ASKED, True, ASKED, history, flush_lsn=flush_lsn, commit_lsn=commit_lsn)


def test_a_vote_whose_history_has_the_term_that_is_voted_for_is_refused_whatever_it_promises() -> None:
    valid = vote(300, (1, 100, 1), (8, 150, 1))
    check_vote(valid)
    for promised in (ASKED, LeaderId(20, "other")):
        history = (*valid.history, HistoryEntry(ASKED.term, 200, 1))
        with pytest.raises(RemoteProtocolError, match=r"a vote for \(9, run\) has a log that ends at 0/12C"):
            check_vote(msgspec.structs.replace(valid, history=history, promised=promised))


def test_the_donor_has_the_highest_last_term_and_then_the_longest_log() -> None:
    old_and_long, new_and_short = vote(900, (1, 100, 1)), vote(200, (1, 100, 1), (2, 150, 1))
    assert choose_donor({ONE: old_and_long, TWO: new_and_short}) == TWO
    assert choose_donor({ONE: vote(300, (1, 100, 1)), TWO: old_and_long}) == TWO


def test_among_equals_the_lowest_id_is_the_donor() -> None:
    assert choose_donor({THIRD: vote(300, (1, 100, 1)), TWO: vote(300, (1, 100, 1))}) == TWO


def test_whoever_held_the_term_knows_what_was_committed() -> None:
    votes = {ONE: vote(300, (1, 100, 1), (4, 150, 1)), TWO: vote(200, (1, 100, 1), (4, 150, 1))}
    assert highest_possible_commit(votes, ONE, THREE, held_term=4, held_commit_lsn=180) == 180


def test_if_all_voted_what_a_quorum_lacks_was_not_committed() -> None:
    votes = {
        ONE: vote(300, (1, 100, 1), (4, 150, 1)),
        TWO: vote(200, (1, 100, 1), (4, 150, 1)),
        THIRD: vote(900, (1, 100, 1), (2, 120, 1)),
    }
    assert highest_possible_commit(votes, ONE, THREE, 0, 0) == 200


def test_under_a_joint_membership_either_half_may_have_committed_alone() -> None:
    new = Member(3, "f" * 32)
    joint = Membership(2, THREE.members, (*THREE.members[:2], new))
    term = ((1, 100, 1), (4, 150, 1))
    votes = {ONE: vote(300, *term), TWO: vote(200, *term), THIRD: vote(280, *term), new.identity: vote(160, *term)}
    # 1 and the old folder of 3 have 280; a quorum of the new half has 200.
    assert highest_possible_commit(votes, ONE, joint, 0, 0) == 280


@pytest.mark.parametrize(("sizes", "possible_lsn"), [(("1", "N"), 300), (("N/2+1", "N"), 200), (("N", "N/2+1"), 180)])
def test_what_a_commit_quorum_has_may_have_been_committed(sizes: tuple[str, str], possible_lsn: int) -> None:
    membership = msgspec.structs.replace(THREE, quorum_sizes=QuorumSizes(*sizes))
    votes = {who: vote(lsn, (4, 150, 1)) for who, lsn in ((ONE, 300), (TWO, 180), (THIRD, 200))}
    assert highest_possible_commit(votes, ONE, membership, 0, 0) == possible_lsn


def test_a_term_that_no_quorum_has_reached_has_committed_nothing_above_its_start() -> None:
    votes = {ONE: vote(300, (1, 100, 1), (4, 150, 1)), TWO: vote(140, (1, 100, 1)), THIRD: vote(140, (1, 100, 1))}
    assert highest_possible_commit(votes, ONE, THREE, 0, 0) == 150


def test_logs_without_a_term_have_committed_nothing() -> None:
    assert highest_possible_commit({who: vote(0) for who in (ONE, TWO, THIRD)}, ONE, THREE, 0, 0) == 0


def test_if_a_vote_is_missing_all_of_the_donor_may_have_been_committed() -> None:
    votes = {ONE: vote(300, (1, 100, 1), (4, 150, 1), commit_lsn=160), TWO: vote(200, (1, 100, 1))}
    assert highest_possible_commit(votes, ONE, THREE, held_term=3, held_commit_lsn=170) == 300


def test_the_new_term_follows_the_donors_history() -> None:
    donor = (HistoryEntry(1, 100, 1), HistoryEntry(4, 150, 1))
    assert extend_history(donor, LogPlan(300, 1, cuts=False), ASKED) == (*donor, HistoryEntry(9, 300, 1, given=1))


def test_entries_above_a_fork_and_empty_ones_go() -> None:
    donor = (HistoryEntry(1, 100, 1), HistoryEntry(4, 150, 2), HistoryEntry(5, 200, 2))
    assert extend_history(donor, LogPlan(150, 1, cuts=True), ASKED) == (donor[0], HistoryEntry(9, 150, 1, given=1))
    assert extend_history(donor, LogPlan(150, 3, cuts=True), ASKED) == (donor[0], HistoryEntry(9, 150, 3, given=3))
    assert extend_history(donor, LogPlan(150, 2, cuts=True), ASKED) == (donor[0], HistoryEntry(9, 150, 2, given=2))


def test_the_first_entry_stays_without_a_byte_only_on_its_own_timeline() -> None:
    donor = (HistoryEntry(1, 100, 1), HistoryEntry(4, 100, 1))
    assert extend_history(donor, LogPlan(100, 1, cuts=False), ASKED) == (donor[0], HistoryEntry(9, 100, 1, given=1))
    assert extend_history(donor, LogPlan(100, 2, cuts=False), ASKED) == (HistoryEntry(9, 100, 2, given=2),)
    assert extend_history(donor, LogPlan(101, 1, cuts=False), ASKED) == (*donor, HistoryEntry(9, 101, 1, given=1))


def test_what_was_given_up_stays_given_up_when_the_entry_that_says_so_is_replaced() -> None:
    donor = (HistoryEntry(1, 100, 1), HistoryEntry(4, 150, 2, gives_up=True))
    for start_lsn, tli in ((150, 3), (120, 3)):
        extended = extend_history(donor, LogPlan(start_lsn, tli, cuts=True), ASKED)
        assert extended == (donor[0], HistoryEntry(9, start_lsn, tli, gives_up=True, given=3))
    # Where that entry stays, it says so itself.
    assert not extend_history(donor, LogPlan(200, 2, cuts=False), ASKED)[-1].gives_up


def test_a_term_inherits_what_is_sealed_and_what_was_handed_out_also_where_that_entry_goes() -> None:
    donor = (HistoryEntry(1, 100, 1, given=1), HistoryEntry(4, 150, 1, floor=1, given=3))
    for lsn in (150, 200):
        for tli, given in ((1, 3), (2, 3), (4, 4)):
            new = extend_history(donor, LogPlan(lsn, tli, cuts=False), ASKED)[-1]
            assert (new.floor, new.given) == (1, given)


def test_timelines_that_are_in_the_history_no_more_are_forgotten() -> None:
    primary = PrimaryIdentity(
        system_id=7,
        tli=3,
        flush_lsn=1,
        segment_size=1024,
        server_version=150000,
        tli_histories=(TliHistory(3, b"three"),),
    )
    known = (TliHistory(2, b"two"), TliHistory(3, b"an older three"), TliHistory(4, b"four"))
    history = (HistoryEntry(1, 100, 1), HistoryEntry(4, 150, 2), HistoryEntry(9, 200, 3))
    kept = (TliHistory(2, b"two"), TliHistory(3, b"three"))
    assert collect_tli_histories(history, primary.tli_histories, known) == kept


def test_terms_that_come_to_nothing_do_not_make_the_history_longer() -> None:
    history: tuple[HistoryEntry, ...] = (HistoryEntry(1, 100, 1),)
    for term in range(2, 50):
        history = extend_history(history, LogPlan(200, 1, cuts=False), LeaderId(term, "run"))
    assert history == (HistoryEntry(1, 100, 1), HistoryEntry(49, 200, 1, given=1))


def test_what_lies_below_the_wal_of_every_member_is_forgotten_when_all_have_voted() -> None:
    entries = ((1, 100, 1), (2, 200, 1), (3, 300, 1), (4, 400, 1), (5, 500, 1))
    votes = {voter: vote(900, *entries, commit_lsn=850) for voter in (ONE, TWO, THIRD)}
    for voter, begin_lsn in ((ONE, 350), (TWO, 450), (THIRD, 800)):
        votes[voter] = msgspec.structs.replace(votes[voter], wal_begin_lsn=begin_lsn)
    history = extend_history(votes[ONE].history, LogPlan(900, 1, cuts=False), ASKED)
    assert shorten_history(history, votes, ONE, THREE) == ((history[0], *history[2:]), 2)
    # One that has no WAL needs none of it.
    votes[ONE] = msgspec.structs.replace(votes[ONE], flush_lsn=0, wal_begin_lsn=0)
    assert shorten_history(history, votes, TWO, THREE) == ((history[0], *history[3:]), 3)
    # One that is away may need all of it.
    del votes[ONE]
    assert shorten_history(history, votes, TWO, THREE) == (history, 0)


def test_files_of_old_timelines_go_when_not_all_of_them_fit() -> None:
    primary = PrimaryIdentity(system_id=7, tli=1, flush_lsn=1, segment_size=1024, server_version=150000)
    history = tuple(HistoryEntry(term, 100 * term, term) for term in range(1, 11))
    known = tuple(TliHistory(tli, bytes(TLI_HISTORY_BYTES_MAX // 4)) for tli in range(2, 11))
    assert collect_tli_histories(history, primary.tli_histories, known) == known[-4:]


def test_the_file_of_the_newest_timeline_is_kept_whatever_its_size() -> None:
    known = (TliHistory(2, b"two"), TliHistory(3, bytes(TLI_HISTORY_BYTES_MAX + 1)))
    history = (HistoryEntry(1, 100, 1), HistoryEntry(4, 150, 2), HistoryEntry(9, 200, 3))
    assert collect_tli_histories(history, (), known) == known[1:]
