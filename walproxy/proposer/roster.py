"""The safekeepers of one proposer, and the decisions that follow from their greetings alone.

Which cluster they are, which of them vote, whether they may be bootstrapped, whether one belongs to another cluster:
each is a function of the peers; the proposer acts on the result. `Roster` holds the peers: which are connected, have
greeted, have not answered yet, or count as missing.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

import msgspec

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.log_once import LogOnce
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.folder_state import FolderState, KnownFolders, is_older, learn
from safekeeper.consensus.membership import Identity, Member, Membership, bootstrap_cluster_id
from safekeeper.consensus.messages import (
    PROTOCOL_VERSION,
    AcceptorGreeting,
    Bootstrap,
    FolderStates,
    ProposerGreeting,
    ProposerMessage,
    RefusalCode,
)
from walproxy.proposer.actions import Action, Dial, Disconnect, HangUp, Level, Note, SendMessage
from walproxy.proposer.primary import PrimaryIdentity

# A safekeeper at whose addresses another folder than the member's answers is tried at the next one so often.
REDIRECT_INTERVAL_S = 5.0


# What is known of the data folders of each cluster, by its id. Never changed, only replaced.
KnownOfClusters = Mapping[str, KnownFolders]


@dataclass(slots=True)
class Peer:
    """The state of a safekeeper, independent of the term.

    Attributes:
        greeting: its greeting on the present connection, None before.
        greeted_at: when it was received; it has no meaning without one.
        waiting_since: when a message was sent that it has not answered, None if it has: a connection may be lost
            without an error.
        refused: why it counts as missing, empty if it does not.
        problem: why it counts as missing although its connection stays, empty if it does not.
        log: the last logged reason, so that it is not logged again after a reconnect.
        addresses: where it is dialled, one after the other until its folder answers there.
        redirected_at: when it was last disconnected to be dialled at the next address.
        folder: the state of its data folder, as last reported on the present connection; None before.
        folder_cluster_id: the cluster of which its log is, according to the same report.
        asked_with: of each greeting that is not answered yet, what was known of all data folders when it was sent, and
            how many connections had been made.
        greeted_after: how many connections had been made when its greeting was requested.
        older_than: a state that its data folder had and has no more: it is an older copy (S8e). None if it is not.
    """

    connected: bool = False
    waiting_since: float | None = None
    greeting: AcceptorGreeting | None = None
    greeted_at: float = 0.0
    refused: str = ""
    refused_code: RefusalCode | None = None
    problem: str = ""
    log: LogOnce = field(default_factory=LogOnce)
    addresses: tuple[str, ...] = ()
    redirected_at: float = -inf
    folder: FolderState | None = None
    folder_cluster_id: str = ""
    asked_with: deque[tuple[KnownOfClusters, int]] = field(default_factory=deque)
    greeted_after: int = 0
    older_than: FolderState | None = None


Peers = Mapping[int, Peer]


class Roster:
    """Every safekeeper that is dialled, and the messages to it that do not depend on the term.

    These are the configured ones and, as soon as a membership names them, the members that the configuration lacks.

    Attributes:
        peers: by id.
        known: what is known of data folders, from their safekeepers, from others, and from the terms that are led.
        connections: how many were made so far, to all safekeepers.
    """

    def __init__(
        self, proposer_id: str, safekeeper_ids: tuple[int, ...], addresses: Mapping[int, str], out: list[Action]
    ) -> None:
        self.peers: dict[int, Peer] = {
            i: Peer(addresses=tuple(filter(None, [addresses.get(i)]))) for i in safekeeper_ids
        }
        self.known: KnownOfClusters = {}
        self.connections = 0
        self._configured = frozenset(safekeeper_ids)
        self._proposer_id = proposer_id
        self._out = out

    def connect(self, safekeeper_id: int) -> None:
        """Handle a connection that is open now; keep the reason of a refusal until the safekeeper greets again."""
        known = self.peers[safekeeper_id]
        self.connections += 1
        self.peers[safekeeper_id] = Peer(
            True,
            refused=known.refused,
            refused_code=known.refused_code,
            log=known.log,
            addresses=known.addresses,
            redirected_at=known.redirected_at,
        )

    def dial(self, members: Iterable[Member]) -> None:
        """Dial the members that the configuration lacks, and those that it lists at another address also there."""
        for member in members:
            peer = self.peers.get(member.id)
            if not member.address or (peer is not None and member.address in peer.addresses):
                continue
            if peer is None:
                peer = self.peers[member.id] = Peer()
                difference = "lacks it"
            else:
                difference = f"lists it at {', '.join(peer.addresses)}"
            peer.addresses += (member.address,)
            text = f"connecting to safekeeper {member.id} at {member.address}, and --safekeepers {difference}"
            self._out.append(Note(Level.WARNING, f"{text}: correct --safekeepers"))
            self._out.append(Dial(member.id, member.address))

    def redirect(self, members: Iterable[Member], cluster_id: str, now: float) -> None:
        """Disconnect those that answer at one of several addresses with another folder than the member's.

        The next attempt is at the next address. Where no address has the member's folder, that is tried again after a
        while only: meanwhile the one that answers is a learner. A folder of another cluster is refused in any case.
        """
        for member in members:
            peer = self.peers.get(member.id)
            if peer is None or len(peer.addresses) < 2 or now - peer.redirected_at < REDIRECT_INTERVAL_S:
                continue
            greeting = peer.greeting
            if greeting is None or greeting.cluster_id not in ("", cluster_id):
                continue
            if greeting.incarnation != member.incarnation:
                peer.greeting, peer.redirected_at = None, now
                reason = f"data folder {greeting.incarnation[:8]} answers, and the member is {member.incarnation[:8]}"
                self._out.append(Disconnect(member.id, reason))

    def hang_up(self, safekeeper_id: int) -> None:
        """Close the connection to a safekeeper for good, and forget it."""
        del self.peers[safekeeper_id]
        reason = "it was removed from the members"
        self._out.append(Note(Level.INFO, f"safekeeper {safekeeper_id} is no longer connected to: {reason}"))
        self._out.append(HangUp(safekeeper_id, reason))

    def removed(self, members: frozenset[int]) -> list[int]:
        """Return those that are neither configured nor in `members`."""
        return [i for i in self.peers if i not in members and i not in self._configured]

    def disconnect(self, safekeeper_id: int) -> None:
        """Handle the end of a connection."""
        peer = self.peers[safekeeper_id]
        peer.connected, peer.greeting = False, None

    def ask(self, safekeeper_id: int, message: ProposerMessage, now: float) -> SendMessage:
        """Return the action for a message that must be answered before the timeout."""
        peer = self.peers[safekeeper_id]
        if peer.waiting_since is None:
            peer.waiting_since = now
        return SendMessage(safekeeper_id, message)

    def greet(self, safekeeper_id: int, primary: PrimaryIdentity | None, now: float) -> SendMessage:
        """Return the greeting: the proposer id and PostgreSQL's identity, if known, so that both sides check it."""
        greeting = ProposerGreeting(
            PROTOCOL_VERSION,
            self._proposer_id,
            safekeeper_id,
            primary.system_id if primary else None,
            primary.segment_size if primary else None,
        )
        self.peers[safekeeper_id].asked_with.append((self.known, self.connections))
        return self.ask(safekeeper_id, greeting, now)

    def greet_all(self, primary: PrimaryIdentity | None, now: float) -> None:
        """Greet every connected safekeeper."""
        for safekeeper_id, peer in self.peers.items():
            if peer.connected:
                self._out.append(self.greet(safekeeper_id, primary, now))

    def forget_greetings(self, before: float = inf) -> None:
        """Forget the greetings that were received before that time, by default all: they are out of date."""
        for peer in self.peers.values():
            if peer.greeted_at < before:
                peer.greeting = None

    def on_greeting(self, safekeeper_id: int, greeting: AcceptorGreeting, now: float) -> None:
        """Record a greeting; refuse the safekeeper if another one has the same data folder.

        Raises:
            RemoteProtocolError: another safekeeper has answered.
        """
        if greeting.safekeeper_id != safekeeper_id or greeting.protocol_version != PROTOCOL_VERSION:
            raise RemoteProtocolError(
                f"safekeeper {greeting.safekeeper_id} with protocol {greeting.protocol_version} answered the greeting"
            )
        if greeting.membership is not None and not greeting.cluster_id:
            raise RemoteProtocolError(f"safekeeper {safekeeper_id} has a membership and belongs to no cluster")
        peer = self.peers[safekeeper_id]
        if not peer.asked_with:
            raise RemoteProtocolError(f"safekeeper {safekeeper_id} has sent a greeting that answers none")
        known_of_clusters, peer.greeted_after = peer.asked_with.popleft()
        known = known_of_clusters.get(greeting.cluster_id, {}).get((safekeeper_id, greeting.incarnation))
        peer.greeting, peer.refused, peer.refused_code, peer.problem = greeting, "", None, ""
        peer.greeted_at = now
        peer.waiting_since = None
        # What was learned since may be about what it has done since.
        is_older_copy = peer.folder is not None and is_older(peer.folder, known)
        peer.older_than = known if is_older_copy else None
        twin = twin_of(self.peers, safekeeper_id, greeting.incarnation)
        if twin is not None:
            reason = f"its data folder is a copy of safekeeper {twin}'s: wipe one of the two"
            self.refuse(safekeeper_id, None, reason)

    def are_greeted_together(self) -> bool:
        """Return whether all greetings were requested after the last of the connections was made (step 0)."""
        return all(peer.greeted_after == self.connections for peer in self.peers.values())

    def awaits_greetings(self) -> bool:
        """Return whether a greeting was requested that has not come yet."""
        return any(peer.connected and peer.asked_with for peer in self.peers.values())

    def learn(self, cluster_id: str, folders: Iterable[FolderState]) -> None:
        """Record what is known of data folders of a cluster."""
        self.known = {**self.known, cluster_id: learn(self.known.get(cluster_id, {}), folders)}

    def on_folder_states(self, safekeeper_id: int, message: FolderStates) -> None:
        """Record what a safekeeper knows of data folders: the first one is its own.

        Raises:
            RemoteProtocolError: it is another safekeeper's.
        """
        own = message.folders[0]
        if own.safekeeper_id != safekeeper_id:
            raise RemoteProtocolError(f"safekeeper {own.safekeeper_id} reports its data folder as {safekeeper_id}'s")
        peer = self.peers[safekeeper_id]
        peer.folder, peer.folder_cluster_id = own, message.cluster_id
        self.learn(message.cluster_id, message.folders)

    def is_doubted(self, safekeeper_id: int, cluster_id: str) -> bool:
        """Return whether more is known of its data folder than it has reported: it may be an older copy (S8e).

        Or it is not, and has continued with another leader since: the answer to another greeting shows it.
        """
        peer = self.peers[safekeeper_id]
        if peer.folder is None or peer.folder_cluster_id != cluster_id:
            return False  # It has nothing of this cluster that could be older.
        return is_older(peer.folder, self.known.get(cluster_id, {}).get(peer.folder.identity))

    def refuse(self, safekeeper_id: int, code: RefusalCode | None, reason: str, *, disconnects: bool = True) -> None:
        """Count it as missing until it greets again."""
        peer = self.peers[safekeeper_id]
        if peer.log.is_new(reason):
            self._out.append(Note(Level.ERROR, f"safekeeper {safekeeper_id} counts as missing: {reason}"))
        peer.refused, peer.refused_code, peer.greeting = reason, code, None
        if disconnects:
            self._out.append(Disconnect(safekeeper_id, reason))

    def leave_out(self, safekeeper_id: int, reason: str) -> None:
        """Count it as missing, and keep its greeting: others of the same cluster may become a quorum."""
        peer = self.peers[safekeeper_id]
        peer.problem = reason
        if peer.log.is_new(reason):
            self._out.append(Note(Level.ERROR, f"safekeeper {safekeeper_id} counts as missing: {reason}"))

    def remember_promise(self, safekeeper_id: int, promised: LeaderId) -> None:
        """Record the promise that it has reported."""
        peer = self.peers[safekeeper_id]
        if peer.greeting is not None:
            peer.greeting = msgspec.structs.replace(peer.greeting, promised=promised)

    def give_up_on_silent(self, now: float, timeout_s: float) -> None:
        """Close the connections on which no answer was received before the timeout."""
        for safekeeper_id, peer in self.peers.items():
            waited_s = now - peer.waiting_since if peer.waiting_since is not None else 0.0
            if peer.connected and waited_s > timeout_s:
                peer.waiting_since = None
                self._out.append(Disconnect(safekeeper_id, f"no reply for {waited_s:.1f} s"))

    def refuse_foreigners(self, primary: PrimaryIdentity) -> None:
        """Refuse those that have WAL of another PostgreSQL than this one (S10's identity part)."""
        for safekeeper_id, peer in self.peers.items():
            reason = foreign_reason(peer.greeting, primary) if peer.greeting is not None else ""
            if reason:
                self.refuse(safekeeper_id, RefusalCode.OTHER_SYSTEM, reason)

    def forgive_foreigners(self) -> None:
        """Forget the refusals because of this primary: another one is to be tried."""
        for safekeeper_id, peer in self.peers.items():
            if peer.refused_code is RefusalCode.OTHER_SYSTEM:
                peer.refused, peer.refused_code = "", None
            elif peer.connected and peer.greeting is None:
                # It has not answered yet a greeting that may contain this primary.
                self._out.append(Disconnect(safekeeper_id, "trying another primary"))


class Cluster(NamedTuple):
    """A cluster with an elect quorum of its members among the greeted: it can have a leader."""

    id: str
    membership: Membership

    def is_later_than(self, other: "Cluster") -> bool:
        """Return whether this membership replaces the other one: by a change of members, or by a rebootstrap."""
        if self.id == other.id:
            return self.membership.key > other.membership.key
        return self.membership.generation > other.membership.generation

    def is_same(self, other: "Cluster") -> bool:
        """Return whether both have the same members: each new leader takes the membership over under its own term."""
        return self.id == other.id and self.membership.is_same(other.membership)


def latest_of(clusters: Iterable[Cluster]) -> Cluster | None:
    """Return the cluster and membership that is later than all others, None if there is none."""
    found: Cluster | None = None
    for cluster in clusters:
        if found is None or cluster.is_later_than(found):
            found = cluster
    return found


def greetings_of(peers: Peers) -> dict[int, AcceptorGreeting]:
    """Return the greetings of those that have greeted and are not refused."""
    return {i: peer.greeting for i, peer in peers.items() if peer.greeting is not None and not peer.refused}


def clusters_of(peers: Peers) -> list[Cluster]:
    """Return the cluster and membership of each that has greeted and is not refused, if it has one."""
    greetings = greetings_of(peers).values()
    return [Cluster(each.cluster_id, each.membership) for each in greetings if each.membership is not None]


def find_cluster(peers: Peers) -> Cluster | None:
    """Return the latest cluster and membership that has an elect quorum among the greeted, None if none has."""
    return latest_of(
        cluster
        for cluster in clusters_of(peers)
        if cluster.membership.has_elect_quorum(voters_of(peers, cluster).values())
    )


def voters_of(peers: Peers, cluster: Cluster) -> dict[int, Identity]:
    """Return the greeted voters of a cluster, by id; one that has not received its membership yet counts, too."""
    voters = {}
    for safekeeper_id, peer in peers.items():
        greeting = peer.greeting
        if (
            greeting is not None
            and not peer.refused
            and greeting.cluster_id in ("", cluster.id)
            and cluster.membership.is_voter(safekeeper_id, greeting.incarnation)
        ):
            voters[safekeeper_id] = (safekeeper_id, greeting.incarnation)
    return voters


def has_unknown_tail(peers: Peers, cluster: Cluster) -> bool:
    """Return whether WAL of this cluster may be acknowledged that no member has as committed (step 12)."""
    greetings = [greeting for i in voters_of(peers, cluster) if (greeting := peers[i].greeting) is not None]
    last_terms = {greeting.last_term for greeting in greetings}
    return len(last_terms) > 1 or any(greeting.flush_lsn > greeting.commit_lsn for greeting in greetings)


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
            return f"its WAL has {name} {theirs}, the primary has {ours}: it is another PostgreSQL server"
    return ""


def older_copy_reason(safekeeper_id: int, folder: FolderState | None, known: FolderState) -> str:
    """Return why a data folder that was replaced by an older copy of itself counts as missing (S8e)."""
    return (
        f"its data folder was replaced by an older copy of itself (a restored backup or snapshot): it has {folder}, "
        f"and had {known}; it lacks what it has acknowledged, so it no longer counts as a member: walproxy members "
        f"replace {safekeeper_id} makes it one again, and it needs only the WAL that it lacks"
    )


def majority_against(peers: Peers) -> str:
    """Return why the primary itself must be another PostgreSQL, empty if no majority of the safekeepers refuses it."""
    reasons = [peer.refused for peer in peers.values() if peer.refused_code is RefusalCode.OTHER_SYSTEM]
    if len(reasons) <= len(peers) // 2:
        return ""
    return f"{len(reasons)} of {len(peers)} safekeepers refuse it, e.g.: {reasons[0]}"


def plan_bootstrap(peers: Peers, primary: PrimaryIdentity, addresses: Mapping[int, str]) -> Bootstrap | None:
    """Return the first membership of the cluster (step 0), None if a safekeeper is missing or not empty.

    Members of the same bootstrap, interrupted in another proxy, count as empty: its cluster id is a digest of the
    members.
    """
    greetings = greetings_of(peers)
    if len(greetings) < len(peers):
        return None
    members = tuple(Member(i, g.incarnation, addresses.get(i, "")) for i, g in sorted(greetings.items()))
    cluster_id = bootstrap_cluster_id(primary.system_id, members)
    if any(not g.is_empty or g.cluster_id not in ("", cluster_id) for g in greetings.values()):
        return None
    return bootstrap_of(Cluster(cluster_id, Membership(1, members)), primary)


def bootstrap_of(cluster: Cluster, server: PrimaryIdentity | AcceptorGreeting) -> Bootstrap:
    """Return the message that makes a safekeeper a member of `cluster`, of the PostgreSQL that `server` names."""
    return Bootstrap(cluster.id, server.system_id, server.segment_size, server.server_version, cluster.membership)


def a_member_of(peers: Peers, cluster: Cluster) -> AcceptorGreeting | None:
    """Return the greeting of one that belongs to a cluster, None if none does."""
    greetings = sorted(greetings_of(peers).items())
    return next((each for _, each in greetings if each.cluster_id == cluster.id), None)


def misfit_reason(peers: Peers) -> str:
    """Return why the list of safekeepers does not fit the membership, empty if it does, or if that is not known yet.

    A list that lacks a member does not fit: that member would never receive WAL, and without a quorum in the list no
    term can be won. A listed safekeeper that is not a member does no harm: it is a learner. The membership of another
    cluster does not matter if the list fits a cluster, and without a quorum it matters only once all have greeted.
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
    newest = max(known, key=_age)
    return (
        f"the list of safekeepers ({_listed(peers)}) does not fit the membership (generation {newest.generation}: "
        f"{_listed(newest.ids())}): it lacks {_listed(newest.ids() - peers.keys())}; list all members in --safekeepers"
    )


def newest_cluster(peers: Peers) -> Cluster | None:
    """Return the cluster with the newest membership that any greeted safekeeper has, None if none has one."""
    return max(clusters_of(peers), key=lambda cluster: _age(cluster.membership), default=None)


def newest_membership(peers: Peers) -> Membership | None:
    """Return the newest membership that any greeted safekeeper has, None if none has one."""
    cluster = newest_cluster(peers)
    return cluster.membership if cluster is not None else None


def _age(membership: Membership) -> tuple[int, int]:
    """Return the rank among memberships that may be of several clusters: a rebootstrap raises the generation."""
    return membership.generation, membership.author


def _listed(ids: Iterable[int]) -> str:
    return ", ".join(str(each) for each in sorted(ids))


def repeated_bootstrap_reason(primary: PrimaryIdentity) -> str:
    """Return why empty safekeepers are not the sign of a first start, empty if they are.

    The slot is created when there is a cluster. A bootstrap that was interrupted is not repeated, but finished: the
    membership of one member lists the others (`find_cluster`).
    """
    if not primary.slot:
        return ""
    return (
        f'every safekeeper is empty, but the primary has the replication slot "{primary.slot}" already: data folders '
        "were lost or are mounted elsewhere, or --safekeepers lists another cluster's; nothing starts automatically: "
        "restore the folders, or begin a new cluster with --bootstrap true or walproxy rebootstrap, which give up the "
        "WAL of the lost folders"
    )


def stuck_reason(peers: Peers) -> str:
    """Return why an operator must act, empty as long as a safekeeper has not greeted.

    For peers that are neither a cluster with a quorum nor all empty.
    """
    greetings = greetings_of(peers)
    if len(greetings) < len(peers):
        return ""
    empty = sorted(i for i, greeting in greetings.items() if greeting.is_empty)
    holding = sorted(i for i, greeting in greetings.items() if not greeting.is_empty)
    return (
        f"safekeepers {holding} hold WAL or votes, {empty or 'none'} are empty, and no cluster has a quorum among "
        "them: data folders were lost; nothing starts automatically (see walproxy rebootstrap)"
    )


def later_cluster_reason(greeting: AcceptorGreeting, cluster: Cluster) -> str:
    """Return why a member belongs to a later cluster than this one, empty if it does not.

    Generations are those of one cluster. A rebootstrap, or an undo, that has reached a member and no quorum ends
    no term: it does not change the membership of this cluster.
    """
    membership = greeting.membership
    if greeting.cluster_id in ("", cluster.id) or membership is None:
        return ""
    if membership.generation <= cluster.membership.generation:
        return ""
    return (
        f"a rebootstrap, or the undo of one, has begun with it (cluster {greeting.cluster_id[:8]}, generation "
        f"{membership.generation}) and has not finished: repeat that command, or wipe its data folder so that it joins "
        "this cluster"
    )


def other_cluster_reason(greeting: AcceptorGreeting) -> str:
    """Return the reason that a member of another cluster counts as missing, with what an operator can do."""
    return f"it holds WAL of cluster {greeting.cluster_id[:8]}: wipe its data folder so that it joins this one"
