"""The decisions of an election, each a function of the votes.

The donor is the voter whose log is the newest: the highest term of its last history entry, then the highest position.
Its log contains all WAL that may have been committed, because a quorum has the committed WAL and two quorums overlap.
"""

from collections.abc import Mapping

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.consensus.commitment import QuorumRule
from safekeeper.consensus.control_state import LeaderId, TliHistory
from safekeeper.consensus.membership import Identity, Membership
from safekeeper.consensus.messages import VoteResponse
from safekeeper.consensus.term_history import (
    HistoryEntry,
    TermHistory,
    bound_history,
    check_history,
    cut_history,
    describe_history,
    forget_front,
    last_term,
)
from walproxy.proposer.primary import LogPlan
from walproxy.proposer.purpose import Purpose

TLI_HISTORY_BYTES_MAX = 512 << 10
# `Elected` repeats a vote's description of its log, has more fields, and must fit a frame of 2 MiB.
VOTE_BYTES_MAX = 3 << 19
_ENTRY_BYTES = 32

# The granted votes, by data folder.
Votes = Mapping[Identity, VoteResponse]


def check_vote(vote: VoteResponse) -> None:
    """Refuse a granted vote that no valid acceptor sends: no term could be based on it.

    Raises:
        RemoteProtocolError: its history reaches beyond its log or has the term that is voted for, or does not fit
            `Elected`.
    """
    check_history(vote.history)
    size = sum(len(each.content) for each in vote.tli_histories) + _ENTRY_BYTES * len(vote.history)
    if size > VOTE_BYTES_MAX:
        raise RemoteProtocolError(f"the histories of a vote for {vote.leader_id} take {size} bytes: too many")
    if last_term(vote.history) >= vote.leader_id.term or cut_history(vote.history, vote.flush_lsn) != vote.history:
        raise RemoteProtocolError(
            f"a vote for {vote.leader_id} has a log that ends at {format_lsn(vote.flush_lsn)}, and the history "
            f"{describe_history(vote.history[-2:])}"
        )


def choose_donor(votes: Votes) -> Identity:
    """Return the voter with the newest log (step 4); the lowest id among equals."""
    return max(votes, key=lambda voter: (last_term(votes[voter].history), votes[voter].flush_lsn, -voter[0]))


def highest_possible_commit(
    votes: Votes,
    donor: Identity,
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
    if membership.identities() <= votes.keys():
        # All members have voted: WAL that no quorum of that term has was not committed in it, and WAL that older terms
        # committed is below its start.
        flush_lsns = {voter: v.flush_lsn for voter, v in votes.items() if last_term(v.history) == donor_term}
        start_lsn = vote.history[-1].start_lsn if vote.history else 0
        return max(start_lsn, QuorumRule(membership, 0).possible_lsn(flush_lsns))
    return vote.flush_lsn


def extend_history(
    history: TermHistory, plan: LogPlan, leader_id: LeaderId, gives_up: bool = False, purpose: Purpose | None = None
) -> TermHistory:
    """Return the history of the new term's log: the donor's up to the plan's start, then the new term.

    An empty entry at the start itself is removed, too: it showed that its owner is newer than logs without it, and so
    does the new one. The first entry stays, because all logs have it, unless it is on another timeline: no WAL of that
    one was streamed, and this primary may not have it.

    WAL that a dropped entry has given up stays given up: a member that has not received that entry still holds it.

    Args:
        gives_up: this term itself cuts what may have been committed (S9).
        purpose: what a tail term does to the numbers of timelines, which any other term inherits (S15).
    """
    kept = tuple(
        entry
        for entry in cut_history(history, plan.start_lsn)
        if entry.start_lsn < plan.start_lsn or (entry is history[0] and entry.tli == plan.tli)
    )
    gives_up = gives_up or any(entry.gives_up for entry in history if entry not in kept)
    if purpose is not None:
        floor, given = purpose.numbers(history[-1])
    else:
        floor, given = (history[-1].floor, history[-1].given) if history else (0, 0)
        given = max(given, plan.tli)
    return (*kept, HistoryEntry(leader_id.term, plan.start_lsn, plan.tli, gives_up, floor, given))


def collect_tli_histories(
    history: TermHistory, of_primary: tuple[TliHistory, ...], known: tuple[TliHistory, ...]
) -> tuple[TliHistory, ...]:
    """Return the history files of the timelines above 1 in `history`: the primary's, else those of the votes.

    Timelines that are no longer in `history` are removed (S9). The oldest ones are removed when all of them do not fit
    in a message; the newest one lists every ancestor, which suffices for readers.
    """
    content = {entry.tli: entry.content for entry in known}
    content.update({entry.tli: entry.content for entry in of_primary})
    tlis = {entry.tli for entry in history}
    kept: list[TliHistory] = []
    room = TLI_HISTORY_BYTES_MAX
    for tli in sorted(tlis & content.keys(), reverse=True):
        room -= len(content[tli])
        if room < 0 and kept:
            break
        kept.append(TliHistory(tli, content[tli]))
    return tuple(reversed(kept))


def shorten_history(
    history: TermHistory, votes: Votes, donor: Identity, membership: Membership
) -> tuple[TermHistory, int]:
    """Return the new term's history without what no member needs, and the highest term that was ever removed from it.

    If every member has voted, entries wholly below the WAL that any of them retains are removed. A member that has not
    voted may need them, so then nothing is removed before the history is too long for a message.
    """
    vote = votes[donor]
    forgotten_term = vote.forgotten_term
    if membership.identities() <= votes.keys():
        begins = [vote.wal_begin_lsn for vote in votes.values() if vote.flush_lsn]
        history, forgotten_term = forget_front(history, forgotten_term, min(begins, default=0))
    # WAL that this term cuts is no longer committed (S9).
    return bound_history(history, forgotten_term, min(vote.commit_lsn, history[-1].start_lsn))
