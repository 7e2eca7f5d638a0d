"""One attempt to win a term: who was asked, what they said, and what that amounts to.

First the pre-vote, then the vote, then the check of the primary (docs/protocol.md, steps 2 to 4). A campaign only
counts; the proposer asks, and acts on the outcome.
"""

from dataclasses import dataclass, field
from enum import Enum

from safekeeper.consensus.control_state import NodeId
from safekeeper.consensus.election import highest_possible_commit
from safekeeper.consensus.membership import Membership
from safekeeper.consensus.messages import PreVoteResponse, VoteResponse
from safekeeper.consensus.primary import LogPlan
from safekeeper.consensus.roster import Cluster
from safekeeper.lsn import Lsn


class Outcome(Enum):
    """What the answers so far amount to."""

    OPEN = "open"  # more answers may decide it
    WON = "won"  # a quorum agrees
    LOST = "lost"  # no quorum can agree any more


@dataclass(slots=True)
class Campaign:
    """The state of one attempt.

    Attributes:
        began_at: when the present round of questions began.
        cluster: whose members were asked.
        asked: the members that are asked, or were.
        node_id: what the votes are for; None during the pre-vote.
        refusals: who refused, or is gone.
        quorum_at: when a quorum had voted.
        donor: whose log is the newest.
        plan: where the term is to begin; None until the primary has said who it is after the votes.
        links: the segment to compare is gone, so a record must link instead (S10).
        our_page_crcs, their_page_crcs: the checksums to compare, None until they are there.
    """

    began_at: float
    cluster: Cluster
    asked: set[int]
    node_id: NodeId | None = None
    pre_votes: dict[int, PreVoteResponse] = field(default_factory=dict)
    votes: dict[int, VoteResponse] = field(default_factory=dict)
    refusals: set[int] = field(default_factory=set)
    quorum_at: float | None = None
    donor: int = 0
    plan: LogPlan | None = None
    links: bool = False
    our_page_crcs: tuple[int, ...] | None = None
    their_page_crcs: tuple[int, ...] | None = None

    @property
    def membership(self) -> Membership:
        """Who counts."""
        return self.cluster.membership

    def pre_vote_outcome(self) -> Outcome:
        """Whether a quorum would let this run be elected (step 2)."""
        granted = {i for i, response in self.pre_votes.items() if response.granted}
        if self.membership.has_quorum(granted):
            return Outcome.WON
        silent = self.asked - self.pre_votes.keys() - self.refusals
        return Outcome.OPEN if self.membership.has_quorum(granted | silent) else Outcome.LOST

    def rivals(self, run: str) -> dict[int, str]:
        """Return, by member, the other run that it holds for alive."""
        return {i: r.live_run for i, r in self.pre_votes.items() if r.live_run not in ("", run)}

    def vote_outcome(self, now: float, grace_s: float) -> Outcome:
        """Whether a quorum has promised (step 3).

        With a quorum it stays open for `grace_s` while others may still answer: their votes make M exact (S9) and the
        donor the best one.
        """
        if self.membership.has_quorum(self.votes):
            if self.quorum_at is None:
                self.quorum_at = now
            all_answered = self.asked <= self.votes.keys() | self.refusals
            return Outcome.WON if all_answered or now - self.quorum_at >= grace_s else Outcome.OPEN
        return Outcome.OPEN if self.membership.has_quorum(self.asked - self.refusals) else Outcome.LOST

    def possible_commit_lsn(self, held_term: int, held_commit_lsn: Lsn) -> Lsn:
        """Return M, the highest position that may have been committed (S9)."""
        return highest_possible_commit(self.votes, self.donor, self.membership, held_term, held_commit_lsn)
