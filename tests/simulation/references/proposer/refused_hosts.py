"""The hosts that elections have refused, as docs/design/protocol.md states them (4.10).

Part of the reference of the proposer (proposer.py).
"""

from collections.abc import Mapping
from typing import NamedTuple

from safekeeper.consensus.membership import Identity
from safekeeper.consensus.messages import VoteResponse
from tests.simulation.references.acceptor.histories import last_term
from tests.simulation.references.proposer.ballots import Refused, beginning_of_term, can_elect
from tests.simulation.references.proposer.campaign import ReferenceCampaign
from tests.simulation.references.proposer.roster import Cluster, ReferenceRoster
from walproxy.proposer.liveness import Timing
from walproxy.proposer.primary import PrimaryIdentity


class Refusal(NamedTuple):
    """The last refusal of a host by an election: its identity, whose members voted, and the votes.

    `wait_s` is the time until its bytes may be compared again, 0 if they were not the reason; it ends at `waits_until`.
    """

    primary: PrimaryIdentity
    cluster: Cluster
    votes: Mapping[Identity, VoteResponse]
    wait_s: float
    waits_until: float

    def waits(self, primary: PrimaryIdentity, now: float) -> bool:
        """Whether it is the same host, and its wait has not ended."""
        return now < self.waits_until and _is_same(self.primary, primary)


class RefusedHosts:
    """What a run keeps of the hosts that its elections have refused."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._refusals: dict[str, Refusal] = {}

    def refused_by(self, campaign: ReferenceCampaign, now: float) -> None:
        """An election has refused its primary."""
        primary = campaign.primary
        assert primary is not None
        wait_s = 0.0
        if campaign.beginning is not None:  # By 4.5 to 4.7.
            wait_s = self._timing.refused_wait_min_s
            before = self._refusals.get(primary.host)
            if (
                before is not None
                and before.wait_s
                and _is_same(before.primary, primary)
                and before.cluster.is_same(campaign.cluster)
                and before.votes.keys() == campaign.votes.keys()
            ):
                wait_s = min(2 * before.wait_s, self._timing.refused_wait_max_s)
        self._refusals[primary.host] = Refusal(primary, campaign.cluster, dict(campaign.votes), wait_s, now + wait_s)

    def forget(self) -> None:
        """SIGHUP."""
        self._refusals.clear()

    def is_suspect(self, primary: PrimaryIdentity, now: float) -> bool:
        """Whether the members are to greet again before anything begins with this primary."""
        refusal = self._refusals.get(primary.host)
        if refusal is None:
            return False
        return refusal.waits(primary, now) or any(_refuses(vote, primary) for vote in refusal.votes.values())

    def is_refused_again(self, primary: PrimaryIdentity, roster: ReferenceRoster, now: float) -> bool:
        """Whether the members that have greeted show that an election would refuse it again, or it waits."""
        refusal, cluster = self._refusals.get(primary.host), roster.cluster()
        if refusal is None or cluster is None or not refusal.cluster.is_same(cluster):
            return False
        votes = refusal.votes
        voters = {folder: roster.greetings()[i] for i, folder in roster.voters(cluster).items()}
        for folder, greeting in voters.items():
            vote = votes.get(folder)
            if vote is None or (*_position(vote), vote.wal_begin_lsn) != (
                greeting.last_term,
                greeting.flush_lsn,
                greeting.wal_begin_lsn,
            ):
                return False
        donors = [
            donor
            for donor in voters
            if can_elect(cluster.membership, [f for f in voters if _position(votes[f]) <= _position(votes[donor])])
        ]
        if all(_refuses(votes[donor], primary) for donor in donors):
            return True
        return refusal.waits(primary, now) and voters.keys() == votes.keys()


def _refuses(vote: VoteResponse, primary: PrimaryIdentity) -> bool:
    """4.4."""
    try:
        beginning_of_term(vote, primary)
    except Refused:
        return True
    return False


def _position(vote: VoteResponse) -> tuple[int, int]:
    """4.1."""
    return last_term(vote.history), vote.flush_lsn


def _is_same(before: PrimaryIdentity, now: PrimaryIdentity) -> bool:
    """The same server, and not gone back."""
    return before.flush_lsn <= now.flush_lsn and (
        before.system_id,
        before.segment_size,
        before.tli,
        before.ancestors,
    ) == (now.system_id, now.segment_size, now.tli, now.ancestors)
