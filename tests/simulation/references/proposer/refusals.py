"""Hosts that elections have refused, as docs/design/protocol.md states it (4.10).

Part of the reference of the proposer (proposer.py).
"""

from dataclasses import dataclass

from safekeeper.consensus.messages import AcceptorGreeting, VoteResponse
from tests.simulation.references.acceptor.histories import is_same, last_term
from tests.simulation.references.proposer.ballots import Refused, Votes, beginning_of_term, can_elect
from tests.simulation.references.proposer.roster import Cluster, ReferenceRoster
from walproxy.proposer.liveness import Timing
from walproxy.proposer.primary import PrimaryIdentity


@dataclass(frozen=True)
class RefusedHost:
    """What an election has refused: the server, the votes, and how long that counts if its bytes were refused."""

    identity: PrimaryIdentity
    cluster: Cluster
    votes: Votes
    wait_s: float
    until: float


class ReferenceRefusals:
    """The last refusal of each host.

    Attributes:
        greeted_at: when the safekeepers were greeted again because of the host that is tried, None if they were not.
    """

    def __init__(self, timing: Timing) -> None:
        self.greeted_at: float | None = None
        self._timing = timing
        self._hosts: dict[str, RefusedHost] = {}

    def forget(self) -> None:
        """SIGHUP."""
        self._hosts = {}

    def remember(self, primary: PrimaryIdentity, cluster: Cluster, votes: Votes, by_bytes: bool, now: float) -> None:
        """An election has refused this server, by 4.4, or by its bytes (4.5 to 4.7)."""
        wait_s = 0.0
        if by_bytes:
            wait_s = self._timing.refused_wait_min_s
            before = self._hosts.get(primary.host)
            is_repeated = (
                before is not None
                and before.wait_s > 0
                and _is_same_server(before.identity, primary)
                and _is_same_cluster(before.cluster, cluster)
                and set(before.votes) == set(votes)
            )
            if before is not None and is_repeated:
                wait_s = min(2 * before.wait_s, self._timing.refused_wait_max_s)
        self._hosts[primary.host] = RefusedHost(primary, cluster, dict(votes), wait_s, now + wait_s)

    def is_to_be_greeted_for(self, primary: PrimaryIdentity, now: float) -> bool:
        """Whether all members are greeted again before this host is decided about."""
        host = self._hosts.get(primary.host)
        if host is None:
            return False
        waits = now < host.until and _is_same_server(host.identity, primary)
        return waits or any(_refuses(vote, primary) for vote in host.votes.values())

    def awaits(self, roster: ReferenceRoster, now: float) -> bool:
        """Whether their greetings are awaited, for the vote timeout at most."""
        silent = any(p.is_connected and p.greeting is None and not p.is_missing for p in roster.peers.values())
        return silent and self.greeted_at is not None and now - self.greeted_at < self._timing.vote_timeout_s

    def refuses(self, primary: PrimaryIdentity, roster: ReferenceRoster, now: float) -> bool:
        """Whether it is refused without a vote."""
        host, cluster = self._hosts.get(primary.host), roster.cluster()
        if host is None or cluster is None or not _is_same_cluster(cluster, host.cluster):
            return False
        greetings = roster.greetings()
        voters = set(roster.voters(host.cluster).values())
        for voter in voters:
            if voter not in host.votes or _log_of(host.votes[voter]) != _log_shown(greetings[voter[0]]):
                return False
        donors = [
            voter
            for voter in voters
            if can_elect(
                host.cluster.membership,
                [other for other in voters if _log_of(host.votes[other])[:2] <= _log_of(host.votes[voter])[:2]],
            )
        ]
        if donors and all(_refuses(host.votes[donor], primary) for donor in donors):
            return True
        waits = now < host.until and _is_same_server(host.identity, primary)
        return waits and voters == set(host.votes)


def _refuses(vote: VoteResponse, primary: PrimaryIdentity) -> bool:
    try:
        beginning_of_term(vote, primary)
    except Refused:
        return True
    return False


def _log_of(vote: VoteResponse) -> tuple[int, int, int]:
    return last_term(vote.history), vote.flush_lsn, vote.wal_begin_lsn


def _log_shown(greeting: AcceptorGreeting) -> tuple[int, int, int]:
    return greeting.last_term, greeting.flush_lsn, greeting.wal_begin_lsn


def _is_same_cluster(one: Cluster, other: Cluster) -> bool:
    return one.id == other.id and is_same(one.membership, other.membership)


def _is_same_server(before: PrimaryIdentity, now: PrimaryIdentity) -> bool:
    facts = [(p.system_id, p.segment_size, p.tli, p.ancestors) for p in (before, now)]
    return facts[0] == facts[1] and before.flush_lsn <= now.flush_lsn
