"""Situations in which a rule is decided by several conditions of different functions: no single branch shows them.

Each is a method of the product and a condition on its arguments, evaluated before each call while points are watched
(`sometimes.py`). Mutations that no seed found have had such conjunctions: add one for each that is found so.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.consensus.messages import AppendRequest, Elected, VoteRequest
from safekeeper.consensus.term_history import last_term
from walproxy.proposer.campaign import Campaign


@dataclass(frozen=True)
class Situation:
    """A situation: `holds` of the arguments of the method `method` of `owner`, when it is called."""

    name: str
    owner: type
    method: str
    holds: Callable[..., bool]


def _has_unflushed(acceptor: Acceptor, *_: Any) -> bool:
    return acceptor.write_lsn > acceptor.flush_lsn


def _unflushed_without_vote(acceptor: Acceptor, _: int, message: Elected, now: float) -> bool:
    return _has_unflushed(acceptor) and acceptor.control.promised.term < message.leader_id.term


def _cuts_unflushed(acceptor: Acceptor, _: int, message: Elected, now: float) -> bool:
    return bool(message.history) and acceptor.flush_lsn < message.history[-1].start_lsn < acceptor.write_lsn


def _forks_below_truncate(acceptor: Acceptor, _: int, message: Elected, now: float) -> bool:
    return bool(message.history) and message.history[-1].start_lsn < acceptor.truncate_lsn


def _forks_below_truncate_without_archive(acceptor: Acceptor, _: int, message: Elected, now: float) -> bool:
    return _forks_below_truncate(acceptor, _, message, now) and not acceptor._has_archive


def _has_pull(acceptor: Acceptor, *_: Any) -> bool:
    return acceptor.pull is not None


def _has_pull_of_this_term(acceptor: Acceptor, _: int, message: Elected, now: float) -> bool:
    return acceptor.pull is not None and acceptor.pull.leader_id == message.leader_id


def _votes_again(acceptor: Acceptor, _: int, message: VoteRequest, now: float) -> bool:
    return acceptor.control.promised == message.leader_id and acceptor.leader is not None


def _learner_receives(acceptor: Acceptor, _: int, message: AppendRequest, now: float) -> bool:
    return bool(message.payload) and not acceptor.is_voter


def _held_without_commit(campaign: Campaign) -> bool:
    held, vote = campaign._candidacy, campaign.donor_vote
    return bool(vote.history) and (held.held_term, held.held_commit_lsn) == (
        last_term(vote.history),
        vote.history[-1].start_lsn,
    )


def _held_without_commit_and_lower_fork(campaign: Campaign) -> bool:
    plan = campaign.plan
    return _held_without_commit(campaign) and plan is not None and plan.start_lsn < campaign.donor_vote.flush_lsn


SITUATIONS = (
    Situation("WAL is not flushed", Acceptor, "_vote", _has_unflushed),
    Situation("a repeated request of the leader that it follows", Acceptor, "_vote", _votes_again),
    Situation("WAL is not flushed", Acceptor, "_elected", _has_unflushed),
    Situation("WAL is not flushed, and no vote was given", Acceptor, "_elected", _unflushed_without_vote),
    Situation("the term begins within the WAL that is not flushed", Acceptor, "_elected", _cuts_unflushed),
    Situation("the term begins below truncate_lsn", Acceptor, "_elected", _forks_below_truncate),
    Situation(
        "the term begins below truncate_lsn, without an archive",
        Acceptor,
        "_elected",
        _forks_below_truncate_without_archive,
    ),
    Situation("a pull is open", Acceptor, "_elected", _has_pull),
    Situation("a pull of the same term is open", Acceptor, "_elected", _has_pull_of_this_term),
    Situation("a learner receives WAL", Acceptor, "_append", _learner_receives),
    Situation("the donor's term was held, without a commit", Campaign, "possible_commit_lsn", _held_without_commit),
    Situation(
        "the donor's term was held, without a commit, and the primary forks below its end",
        Campaign,
        "possible_commit_lsn",
        _held_without_commit_and_lower_fork,
    ),
)
