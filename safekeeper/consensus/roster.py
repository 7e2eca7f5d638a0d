"""The configured safekeepers as one proposer knows them, and what follows from their greetings alone.

Which cluster are they, who of them votes, may they be bootstrapped, is one of them a stranger? Each question is a
function of the peers; the proposer acts on the answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from safekeeper.consensus.membership import Member, Membership, bootstrap_cluster_id
from safekeeper.consensus.messages import AcceptorGreeting, Bootstrap, RefusalCode
from safekeeper.consensus.primary import PrimaryIdentity


@dataclass(slots=True)
class Peer:
    """What is known of a safekeeper, whatever the term.

    Attributes:
        greeting: its greeting on the present connection, None before.
        waiting_since: when it was asked something that it has not answered, None if it has: a connection may be dead
            without anybody having said so.
        refused: why it counts as missing, empty if it does not.
        told: the last reason that the log was told, so that a reconnect does not tell it again.
    """

    connected: bool = False
    waiting_since: float | None = None
    greeting: AcceptorGreeting | None = None
    refused: str = ""
    refused_code: RefusalCode | None = None
    told: str = ""


Peers = Mapping[int, Peer]


class Cluster(NamedTuple):
    """A cluster with a quorum of its members present."""

    id: str
    membership: Membership


def greetings_of(peers: Peers) -> dict[int, AcceptorGreeting]:
    """Return the greetings of those that have greeted and are not refused."""
    return {i: peer.greeting for i, peer in peers.items() if peer.greeting is not None and not peer.refused}


def find_cluster(peers: Peers) -> Cluster | None:
    """Return the cluster of the highest generation that has a quorum among the greeted, None if there is none."""
    found: Cluster | None = None
    for greeting in greetings_of(peers).values():
        membership = greeting.membership
        if membership is None or (found is not None and membership.generation <= found.membership.generation):
            continue
        cluster = Cluster(greeting.cluster_id, membership)
        if membership.has_quorum(voters_of(peers, cluster)):
            found = cluster
    return found


def voters_of(peers: Peers, cluster: Cluster) -> set[int]:
    """Return the ids of the greeted voters of a cluster; one that has not heard of it yet counts too."""
    return {
        safekeeper_id
        for safekeeper_id, greeting in greetings_of(peers).items()
        if greeting.cluster_id in ("", cluster.id) and cluster.membership.is_voter(safekeeper_id, greeting.incarnation)
    }


def highest_promise(peers: Peers) -> int:
    """Return the highest term that any greeted safekeeper has promised, 0 if none has."""
    return max((p.greeting.promised.term for p in peers.values() if p.greeting is not None), default=0)


def twin_of(peers: Peers, safekeeper_id: int, incarnation: str) -> int | None:
    """Return another safekeeper with the same data folder, None if there is none: copies must not both count (S8)."""
    for other_id, peer in peers.items():
        if other_id != safekeeper_id and peer.greeting is not None and peer.greeting.incarnation == incarnation:
            return other_id
    return None


def foreign_reason(greeting: AcceptorGreeting, primary: PrimaryIdentity) -> str:
    """Return why this WAL is another PostgreSQL's, empty if it is not (S10's identity part)."""
    if not greeting.system_id:
        return ""
    for name, theirs, ours in (
        ("system identifier", greeting.system_id, primary.system_id),
        ("segment size", greeting.segment_size, primary.segment_size),
    ):
        if theirs != ours:
            return f"its WAL has {name} {theirs}, the primary has {ours}: it is another PostgreSQL"
    return ""


def plan_bootstrap(peers: Peers, primary: PrimaryIdentity) -> Bootstrap | None:
    """Return the first membership of the cluster (step 0), None if somebody is missing or not empty.

    The same bootstrap, half done by another run, counts as empty: its cluster id is a digest of the same members.
    """
    greetings = greetings_of(peers)
    if len(greetings) < len(peers):
        return None
    members = tuple(Member(i, greeting.incarnation) for i, greeting in sorted(greetings.items()))
    cluster_id = bootstrap_cluster_id(primary.system_id, members)
    if any(not g.is_empty or g.cluster_id not in ("", cluster_id) for g in greetings.values()):
        return None
    return bootstrap_of(Cluster(cluster_id, Membership(1, members)), primary)


def bootstrap_of(cluster: Cluster, primary: PrimaryIdentity) -> Bootstrap:
    """Return the message that makes a safekeeper a member of `cluster`."""
    return Bootstrap(cluster.id, primary.system_id, primary.segment_size, primary.server_version, cluster.membership)


def stuck_reason(peers: Peers) -> str:
    """Return why only an operator can help, empty as long as somebody has not greeted.

    For peers that are neither a cluster with a quorum nor all empty.
    """
    greetings = greetings_of(peers)
    if len(greetings) < len(peers):
        return ""
    empty = sorted(i for i, greeting in greetings.items() if greeting.is_empty)
    holding = sorted(i for i, greeting in greetings.items() if not greeting.is_empty)
    return (
        f"safekeepers {holding} hold WAL or votes, {empty or 'none'} are empty, and no cluster has a quorum among "
        "them: data folders were lost; nothing starts by itself (see walproxy rebootstrap)"
    )


def other_cluster_reason(greeting: AcceptorGreeting) -> str:
    """Return what an operator must do about a member of another cluster."""
    return f"it holds WAL of cluster {greeting.cluster_id[:8]}: wipe its data folder to let it join this one"
