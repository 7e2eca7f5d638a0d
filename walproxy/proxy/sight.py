"""What was found of the safekeepers at one moment, and the cluster that follows from that. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from safekeeper.base.errors import ConfigurationError, WalproxyError
from safekeeper.base.lsn import Lsn
from safekeeper.consensus.membership import Identity, Membership
from safekeeper.consensus.messages import AcceptorGreeting
from walproxy.proposer.roster import Cluster, latest_of


@dataclass(frozen=True, slots=True)
class Sight:
    """The safekeepers, by their ids.

    Attributes:
        greetings: of those that have replied.
        problems: why others have not, one line each; or what is wrong with one that has.
        addresses: where each was dialled.
    """

    greetings: Mapping[int, AcceptorGreeting] = field(default_factory=dict)
    problems: Mapping[int, str] = field(default_factory=dict)
    addresses: Mapping[int, str] = field(default_factory=dict)

    def present_cluster(self) -> Cluster:
        """Return the newest cluster and membership that a safekeeper has.

        Raises:
            WalproxyError: none replies.
            ConfigurationError: none has one.
        """
        found, problems = latest_cluster(self.greetings, with_quorum=False), self.describe_problems()
        if found is None:
            if not self.greetings:
                raise WalproxyError(f"no safekeeper replies: {problems}")
            raise ConfigurationError(
                f"no safekeeper has a membership: start walproxy run first{f' ({problems})' if problems else ''}"
            )
        return found

    def describe_problems(self) -> str:
        """Return why safekeepers do not reply, as one line; empty if all do."""
        return "; ".join(problem for _, problem in sorted(self.problems.items()))

    def commit_lsn(self, cluster: Cluster) -> Lsn:
        """Return the end of the committed WAL of a cluster, as far as its safekeepers know; 0 if none is of it."""
        known = (each.commit_lsn for each in self.greetings.values() if each.cluster_id == cluster.id)
        return max(known, default=0)

    def member_greetings(self, cluster: Cluster) -> dict[int, AcceptorGreeting]:
        """Return the greetings of the members of a cluster, by id."""
        return {
            i: greeting
            for i, greeting in self.greetings.items()
            if greeting.cluster_id == cluster.id and cluster.membership.is_voter(i, greeting.incarnation)
        }


def latest_cluster(greetings: Mapping[int, AcceptorGreeting], *, with_quorum: bool) -> Cluster | None:
    """Return the latest cluster and membership in these greetings, None if there is none.

    Args:
        with_quorum: only one whose members with these greetings are an elect quorum and a commit quorum.
    """

    def is_enough(cluster: Cluster) -> bool:
        greeted = ((i, each.incarnation) for i, each in greetings.items() if each.cluster_id in ("", cluster.id))
        return not with_quorum or has_quorum(cluster.membership, greeted)

    known = ((each.cluster_id, each.membership) for each in greetings.values() if each.cluster_id)
    clusters = (Cluster(cluster_id, membership) for cluster_id, membership in known if membership is not None)
    return latest_of(filter(is_enough, clusters))


def has_quorum(membership: Membership, identities: Iterable[Identity]) -> bool:
    """Return whether these data folders are an elect quorum and a commit quorum, of each half."""
    present = frozenset(identities)
    return membership.has_elect_quorum(present) and membership.has_commit_quorum(present)
