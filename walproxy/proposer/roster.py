"""The configured safekeepers as one proposer knows them, and what follows from their greetings alone.

Which cluster are they, who of them votes, may they be bootstrapped, is one of them a stranger? Each question is a
function of the peers; the proposer acts on the answers. `Roster` holds the peers: who is connected, has greeted, owes
an answer, or counts as missing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.membership import Member, Membership, bootstrap_cluster_id
from safekeeper.consensus.messages import (
    PROTOCOL_VERSION,
    AcceptorGreeting,
    Bootstrap,
    ProposerGreeting,
    ProposerMessage,
    RefusalCode,
)
from walproxy.proposer.actions import Action, Disconnect, Level, Note, SendMessage
from walproxy.proposer.primary import PrimaryIdentity


@dataclass(slots=True)
class Peer:
    """What is known of a safekeeper, whatever the term.

    Attributes:
        greeting: its greeting on the present connection, None before.
        waiting_since: when it was asked something that it has not answered, None if it has: a connection may be dead
            without anybody having said so.
        refused: why it counts as missing, empty if it does not.
        problem: why it counts as missing although its connection stays, empty if that is not so.
        told: the last reason that the log was told, so that a reconnect does not tell it again.
    """

    connected: bool = False
    waiting_since: float | None = None
    greeting: AcceptorGreeting | None = None
    refused: str = ""
    refused_code: RefusalCode | None = None
    problem: str = ""
    told: str = ""


Peers = Mapping[int, Peer]


class Roster:
    """Every configured safekeeper, and what is said to it whatever the term.

    Attributes:
        peers: by id.
    """

    def __init__(self, proposer_id: str, safekeeper_ids: tuple[int, ...], out: list[Action]) -> None:
        self.peers: dict[int, Peer] = {i: Peer() for i in safekeeper_ids}
        self._proposer_id = proposer_id
        self._out = out

    def connect(self, safekeeper_id: int) -> None:
        """A connection is open; why it was refused stays known until it greets again."""
        known = self.peers[safekeeper_id]
        self.peers[safekeeper_id] = Peer(True, refused=known.refused, refused_code=known.refused_code, told=known.told)

    def disconnect(self, safekeeper_id: int) -> None:
        """A connection is closed."""
        peer = self.peers[safekeeper_id]
        peer.connected, peer.greeting = False, None

    def ask(self, safekeeper_id: int, message: ProposerMessage, now: float) -> SendMessage:
        """Send what must be answered soon."""
        peer = self.peers[safekeeper_id]
        if peer.waiting_since is None:
            peer.waiting_since = now
        return SendMessage(safekeeper_id, message)

    def greet(self, safekeeper_id: int, primary: PrimaryIdentity | None, now: float) -> SendMessage:
        """Say who asks and, if that is known, for which PostgreSQL, so that both sides check it."""
        greeting = ProposerGreeting(
            PROTOCOL_VERSION,
            self._proposer_id,
            safekeeper_id,
            primary.system_id if primary else None,
            primary.segment_size if primary else None,
        )
        return self.ask(safekeeper_id, greeting, now)

    def greet_all(self, primary: PrimaryIdentity | None, now: float) -> None:
        """Greet whoever is connected."""
        for safekeeper_id, peer in self.peers.items():
            if peer.connected:
                self._out.append(self.greet(safekeeper_id, primary, now))

    def forget_greetings(self) -> None:
        """What was greeted is out of date."""
        for peer in self.peers.values():
            peer.greeting = None

    def on_greeting(self, safekeeper_id: int, greeting: AcceptorGreeting) -> None:
        """It has greeted; it is refused if another one has the same data folder.

        Raises:
            RemoteProtocolError: this is not who was greeted.
        """
        if greeting.safekeeper_id != safekeeper_id or greeting.protocol_version != PROTOCOL_VERSION:
            raise RemoteProtocolError(
                f"safekeeper {greeting.safekeeper_id} with protocol {greeting.protocol_version} answered the greeting"
            )
        if greeting.membership is not None and not greeting.cluster_id:
            raise RemoteProtocolError(f"safekeeper {safekeeper_id} has a membership and belongs to no cluster")
        peer = self.peers[safekeeper_id]
        peer.greeting, peer.refused, peer.refused_code, peer.problem = greeting, "", None, ""
        peer.waiting_since = None
        twin = twin_of(self.peers, safekeeper_id, greeting.incarnation)
        if twin is not None:
            reason = f"its data folder is a copy of safekeeper {twin}'s: wipe one of the two"
            self.refuse(safekeeper_id, None, reason)

    def refuse(self, safekeeper_id: int, code: RefusalCode | None, reason: str) -> None:
        """Count it as missing until it greets again."""
        peer = self.peers[safekeeper_id]
        if peer.told != reason:
            peer.told = reason
            self._out.append(Note(Level.ERROR, f"safekeeper {safekeeper_id} counts as missing: {reason}"))
        peer.refused, peer.refused_code, peer.greeting = reason, code, None
        self._out.append(Disconnect(safekeeper_id, reason))

    def leave_out(self, safekeeper_id: int, reason: str) -> None:
        """Count it as missing, and keep its greeting: others that say the same may become a quorum."""
        peer = self.peers[safekeeper_id]
        peer.problem = reason
        if peer.told != reason:
            peer.told = reason
            self._out.append(Note(Level.ERROR, f"safekeeper {safekeeper_id} counts as missing: {reason}"))

    def remember_promise(self, safekeeper_id: int, promised: LeaderId) -> None:
        """It has said whom it follows by now."""
        peer = self.peers[safekeeper_id]
        if peer.greeting is not None:
            peer.greeting = msgspec.structs.replace(peer.greeting, promised=promised)

    def give_up_on_silent(self, now: float, timeout_s: float) -> None:
        """Close the connections on which no answer has come in time."""
        for safekeeper_id, peer in self.peers.items():
            waited_s = now - peer.waiting_since if peer.waiting_since is not None else 0.0
            if peer.connected and waited_s > timeout_s:
                peer.waiting_since = None
                self._out.append(Disconnect(safekeeper_id, f"no answer for {waited_s:.1f} s"))

    def refuse_foreigners(self, primary: PrimaryIdentity) -> None:
        """Refuse those that have WAL of another PostgreSQL than this one (S10's identity part)."""
        for safekeeper_id, peer in self.peers.items():
            reason = foreign_reason(peer.greeting, primary) if peer.greeting is not None else ""
            if reason:
                self.refuse(safekeeper_id, RefusalCode.OTHER_SYSTEM, reason)

    def forgive_foreigners(self) -> None:
        """Another primary is to be tried: what was said of this one must not be held against that one."""
        for safekeeper_id, peer in self.peers.items():
            if peer.refused_code is RefusalCode.OTHER_SYSTEM:
                peer.refused, peer.refused_code = "", None
            elif peer.connected and peer.greeting is None:
                # It has yet to answer a greeting that may name this primary.
                self._out.append(Disconnect(safekeeper_id, "another primary is tried"))


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


def majority_against(peers: Peers) -> str:
    """Return why the primary itself must be the stranger, empty if no majority of the safekeepers refuses it."""
    reasons = [peer.refused for peer in peers.values() if peer.refused_code is RefusalCode.OTHER_SYSTEM]
    if len(reasons) <= len(peers) // 2:
        return ""
    return f"{len(reasons)} of {len(peers)} safekeepers refuse it, e.g.: {reasons[0]}"


def plan_bootstrap(peers: Peers, primary: PrimaryIdentity, addresses: Mapping[int, str]) -> Bootstrap | None:
    """Return the first membership of the cluster (step 0), None if somebody is missing or not empty.

    The same bootstrap, half done by another run, counts as empty: its cluster id is a digest of the same members.
    """
    greetings = greetings_of(peers)
    if len(greetings) < len(peers):
        return None
    members = tuple(Member(i, g.incarnation, addresses.get(i, "")) for i, g in sorted(greetings.items()))
    cluster_id = bootstrap_cluster_id(primary.system_id, members)
    if any(not g.is_empty or g.cluster_id not in ("", cluster_id) for g in greetings.values()):
        return None
    return bootstrap_of(Cluster(cluster_id, Membership(1, members)), primary)


def bootstrap_of(cluster: Cluster, primary: PrimaryIdentity) -> Bootstrap:
    """Return the message that makes a safekeeper a member of `cluster`."""
    return Bootstrap(cluster.id, primary.system_id, primary.segment_size, primary.server_version, cluster.membership)


def misfit_reason(peers: Peers) -> str:
    """Return why the list of safekeepers does not fit the membership, empty if it does, or if that is not known yet.

    A list that lacks a member does not fit: that member would never be fed, and without a quorum in the list no term
    can be won. A listed safekeeper that is not a member does no harm: it is a learner. What members of another cluster
    say is not held against a list that fits a cluster, and without a quorum it counts only once all have greeted.
    """
    greetings = greetings_of(peers)
    cluster = find_cluster(peers)
    if cluster is not None:
        known = [cluster.membership]
    elif len(greetings) == len(peers):
        known = [greeting.membership for greeting in greetings.values() if greeting.membership is not None]
    else:
        return ""
    if not known or any(membership.ids() <= peers.keys() for membership in known):
        return ""
    newest = max(known, key=lambda membership: membership.generation)
    return (
        f"the list of safekeepers ({_listed(peers)}) does not fit the membership (generation {newest.generation}: "
        f"{_listed(newest.ids())}): it lacks {_listed(newest.ids() - peers.keys())}; name all members in --safekeepers"
    )


def _listed(ids: Iterable[int]) -> str:
    return ", ".join(str(each) for each in sorted(ids))


def repeated_bootstrap_reason(primary: PrimaryIdentity) -> str:
    """Return why empty safekeepers are not the sign of a first start, empty if they are.

    The slot is made when there is a cluster. A bootstrap that was interrupted is not repeated, but finished: one member
    that has it names the others (`find_cluster`).
    """
    if not primary.slot:
        return ""
    return (
        f'every safekeeper is empty, but the primary has the replication slot "{primary.slot}" already: data folders '
        "were lost or are mounted elsewhere, or --safekeepers names another cluster's; nothing starts by itself: bring "
        "the folders back, or begin a new cluster with --bootstrap true or walproxy rebootstrap, which give up what "
        "the lost folders had"
    )


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


def later_cluster_reason(greeting: AcceptorGreeting, cluster: Cluster) -> str:
    """Return why a member belongs to a later cluster than this one, empty if it does not.

    Generations are those of one cluster. A rebootstrap, or an undo, that has reached a member and no quorum ends
    nothing: it is no news of this cluster's membership.
    """
    membership = greeting.membership
    if greeting.cluster_id in ("", cluster.id) or membership is None:
        return ""
    if membership.generation <= cluster.membership.generation:
        return ""
    return (
        f"a rebootstrap, or the undo of one, has begun with it (cluster {greeting.cluster_id[:8]}, generation "
        f"{membership.generation}) and has not come to its end: run that command again, or wipe its data folder to let "
        "it join this cluster"
    )


def other_cluster_reason(greeting: AcceptorGreeting) -> str:
    """Return what an operator must do about a member of another cluster."""
    return f"it holds WAL of cluster {greeting.cluster_id[:8]}: wipe its data folder to let it join this one"
