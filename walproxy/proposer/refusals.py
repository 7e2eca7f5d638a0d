"""The refusals of elections, and which of them an election would repeat.

If there are several hosts, one that was refused is tried repeatedly, and each election uses a term. The result of an
election follows from the votes and the primary. So the votes of the last one are kept, by host, and when that host is
identified again, and the members have greeted again, two questions are answered without a vote:

- Its lineage: would every donor that a quorum of these members can choose refuse it (`plan_term`)? An election would
  decide the same on the same logs: the answer is valid as long as no log has changed.
- Its bytes: they differed, and the present ones are unknown before they are compared. The host waits for its next
  election, longer each time, as long as it and the members appear unchanged.

Anything else is decided by an election. No primary is accepted here.
"""

from dataclasses import dataclass

from safekeeper.base.errors import PrimaryRefused
from safekeeper.base.lsn import Lsn
from safekeeper.consensus.membership import Identity
from safekeeper.consensus.messages import AcceptorGreeting, VoteResponse
from safekeeper.consensus.term_history import last_term
from walproxy.proposer.election import Votes
from walproxy.proposer.primary import PrimaryIdentity
from walproxy.proposer.roster import Cluster, Peers, find_cluster, greetings_of, voters_of
from walproxy.proposer.verification import plan_term


@dataclass(frozen=True, slots=True)
class RefusedPrimary:
    """One primary that an election has refused.

    Attributes:
        identity: the primary's, as it was refused.
        reason: why.
        cluster: the cluster whose members voted.
        votes: their votes, by data folder.
        wait_s: the time until its bytes may be compared again, in seconds; 0 if its lineage was refused.
        retry_at: when that wait ends.
    """

    identity: PrimaryIdentity
    reason: str
    cluster: Cluster
    votes: Votes
    wait_s: float
    retry_at: float


class Refusals:
    """The last refusal of each host by the elections of one proposer.

    Args:
        wait_min_s, wait_max_s: the pause before the next election for a host whose bytes were refused: it doubles
            each time, within these limits.
    """

    def __init__(self, wait_min_s: float, wait_max_s: float) -> None:
        self._wait_min_s = wait_min_s
        self._wait_max_s = wait_max_s
        self._by_host: dict[str, RefusedPrimary] = {}

    def remember(
        self,
        primary: PrimaryIdentity,
        reason: str,
        cluster: Cluster,
        votes: Votes,
        *,
        by_bytes: bool,
        now: float,
    ) -> None:
        """Record that an election has refused this primary.

        Args:
            by_bytes: its bytes were refused; its lineage fits.
        """
        before = self._by_host.get(primary.host)
        wait_s = 0.0
        if by_bytes:
            wait_s = self._wait_min_s
            if (
                before is not None
                and before.wait_s
                and _may_be_same(before.identity, primary)
                and before.cluster.is_same(cluster)
                and before.votes.keys() == votes.keys()
            ):
                wait_s = min(2 * before.wait_s, self._wait_max_s)
        self._by_host[primary.host] = RefusedPrimary(primary, reason, cluster, dict(votes), wait_s, now + wait_s)

    def forget(self) -> None:
        """Forget all refusals: an election decides about every host again."""
        self._by_host.clear()

    def may_be_repeated(self, primary: PrimaryIdentity, now: float) -> bool:
        """Return whether this primary may be refused again, judged without the members."""
        past = self._by_host.get(primary.host)
        if past is None:
            return False
        if now < past.retry_at and _may_be_same(past.identity, primary):
            return True
        return any(_plan_refusal(vote, primary) for vote in past.votes.values())

    def reason(self, primary: PrimaryIdentity, peers: Peers, now: float) -> str:
        """Return why an election would refuse this primary again, empty if one is needed to decide that.

        Args:
            peers: the safekeepers, with the greetings on which the decision is based.
        """
        past, cluster = self._by_host.get(primary.host), find_cluster(peers)
        if past is None or cluster is None or not cluster.is_same(past.cluster):
            return ""
        greetings = greetings_of(peers)
        voters = set(voters_of(peers, past.cluster).values())
        if not all(voter in past.votes and _is_unchanged(past.votes[voter], greetings[voter[0]]) for voter in voters):
            return ""
        reason = _lineage_reason(past, voters, primary)
        is_same = _may_be_same(past.identity, primary)
        if reason:
            # The WAL that it has written meanwhile does not matter.
            return past.reason if is_same and not past.wait_s else reason
        is_waiting = now < past.retry_at and voters == past.votes.keys()
        return past.reason if is_same and is_waiting else ""


def _lineage_reason(past: RefusedPrimary, voters: set[Identity], primary: PrimaryIdentity) -> str:
    """Return why each log that a quorum of these voters can choose refuses this primary, empty if one may not."""
    reason = ""
    for donor in sorted(voters):
        newest = _position(past.votes[donor])
        not_newer = {voter for voter in voters if _position(past.votes[voter]) <= newest}
        if not past.cluster.membership.has_elect_quorum(not_newer):
            continue  # each elect quorum has a voter with a newer log
        refusal = _plan_refusal(past.votes[donor], primary)
        if not refusal:
            return ""
        reason = reason or refusal
    return reason


def _plan_refusal(vote: VoteResponse, primary: PrimaryIdentity) -> str:
    """Return why this donor's log refuses the primary's lineage, empty if it does not."""
    try:
        plan_term(vote, primary)
    except PrimaryRefused as refused:
        return str(refused)
    return ""


def _position(vote: VoteResponse) -> tuple[int, Lsn]:
    """Return the position by which a donor is chosen (step 4)."""
    return last_term(vote.history), vote.flush_lsn


def _is_unchanged(vote: VoteResponse, greeting: AcceptorGreeting) -> bool:
    """Return whether a member's log is still that of its vote: a term is won once, and its log only grows."""
    return (*_position(vote), vote.wal_begin_lsn) == (greeting.last_term, greeting.flush_lsn, greeting.wal_begin_lsn)


def _may_be_same(before: PrimaryIdentity, now: PrimaryIdentity) -> bool:
    """Return whether a server may be the same as before: of the same line of descent, and not gone back."""
    same = (before.system_id, before.segment_size, before.tli, before.ancestors)
    return same == (now.system_id, now.segment_size, now.tli, now.ancestors) and before.flush_lsn <= now.flush_lsn
