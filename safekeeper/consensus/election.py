"""The decisions of an election, each a function of the votes.

The donor is the voter whose log is the newest: the highest term of its last history entry, then the highest position.
Everything that may have been committed lies in its log, because a quorum holds what is committed and two quorums meet.
"""

from collections.abc import Mapping

from safekeeper.consensus.commitment import quorum_lsn
from safekeeper.consensus.control_state import NodeId, TliHistory
from safekeeper.consensus.membership import Membership
from safekeeper.consensus.messages import VoteResponse
from safekeeper.consensus.primary import LogPlan, PrimaryIdentity
from safekeeper.consensus.term_history import HistoryEntry, TermHistory, cut_history, last_term
from safekeeper.lsn import Lsn


def choose_donor(votes: Mapping[int, VoteResponse]) -> int:
    """Return the id of the voter with the newest log (step 4); the lowest id among equals."""
    return max(votes, key=lambda voter: (last_term(votes[voter].history), votes[voter].flush_lsn, -voter))


def highest_possible_commit(
    votes: Mapping[int, VoteResponse],
    donor: int,
    membership: Membership,
    held_term: int,
    held_commit_lsn: Lsn,
) -> Lsn:
    """Return M, the highest position that may have been committed (S9).

    Args:
        held_term, held_commit_lsn: the last term that this run held, and the exact commit_lsn of that term (at least
            its start); 0 if it held none.
    """
    vote = votes[donor]
    donor_term = last_term(vote.history)
    if donor_term and donor_term == held_term:
        return held_commit_lsn
    if membership.ids() <= votes.keys():
        # Nobody is missing: what a quorum of that term does not have was not committed in it, and what older terms
        # committed lies below its start.
        flush_lsns = {voter: v.flush_lsn for voter, v in votes.items() if last_term(v.history) == donor_term}
        start_lsn = vote.history[-1].start_lsn if vote.history else 0
        return max(start_lsn, quorum_lsn(flush_lsns, membership, 0))
    return vote.flush_lsn


def extend_history(history: TermHistory, plan: LogPlan, node_id: NodeId, gives_up: bool = False) -> TermHistory:
    """Return the history of the new term's log: the donor's up to the plan's start, then the new term.

    An empty entry at the start itself goes too if it belongs to another timeline: nothing was streamed of it, and it
    may be none of this primary's.

    What a dropped entry has given up stays given up: a member that has not heard of that entry still holds the WAL.

    Args:
        gives_up: this term itself cuts what may have been committed (S9).
    """
    kept = tuple(
        entry
        for entry in cut_history(history, plan.start_lsn)
        if entry.start_lsn < plan.start_lsn or entry.tli == plan.tli
    )
    gives_up = gives_up or any(entry.gives_up for entry in history if entry not in kept)
    floor = history[-1].floor if history else 0
    return (*kept, HistoryEntry(node_id.term, plan.start_lsn, plan.tli, gives_up, floor))


def collect_tli_histories(
    history: TermHistory, primary: PrimaryIdentity, known: tuple[TliHistory, ...]
) -> tuple[TliHistory, ...]:
    """Return the history files of the timelines above 1 in `history`: the primary's, else the ones already known.

    Timelines that are not in `history` any more are forgotten with it (S9).
    """
    content = {entry.tli: entry.content for entry in known}
    content.update({entry.tli: entry.content for entry in primary.tli_histories})
    tlis = sorted({entry.tli for entry in history if entry.tli in content})
    return tuple(TliHistory(tli, content[tli]) for tli in tlis)
