"""What greetings say, as docs/design/protocol.md states it (steps 0, 1, 11), and what a run keeps.

Part of the reference of the proposer (proposer.py).
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from safekeeper.consensus.folder_state import FolderState
from safekeeper.consensus.membership import Identity, Membership
from safekeeper.consensus.messages import AcceptorGreeting, Bootstrap, RefusalCode
from tests.simulation.references.acceptor.histories import folders_of, key
from tests.simulation.references.proposer.ballots import can_elect, halves
from walproxy.proposer.actions import StartReplication
from walproxy.proposer.primary import PrimaryIdentity
from walproxy.proposer.purpose import Purpose

# What is known of data folders, by cluster and folder (11.3).
Folders = Mapping[str, Mapping[Identity, FolderState]]


class Cluster(NamedTuple):
    """A membership of a cluster."""

    id: str
    membership: Membership

    def under(self, term: int) -> "Cluster":
        """5.3: as the leader of a term takes it over."""
        return Cluster(self.id, msgspec.structs.replace(self.membership, author=term))

    def is_later_than(self, other: "Cluster") -> bool:
        """1.6: the higher key in one cluster, the higher generation of two clusters."""
        if self.id == other.id:
            return key(self.membership) > key(other.membership)
        return self.membership.generation > other.membership.generation

    def is_same(self, other: "Cluster") -> bool:
        """4.10: the same members and quorums, under whichever leader, and at whichever addresses."""
        return self._identifying() == other._identifying()

    def _identifying(self) -> tuple[object, ...]:
        each = self.membership
        return self.id, each.generation, halves(each), each.quorum_sizes, each.new_quorum_sizes

    def bootstrap(self, server: PrimaryIdentity | AcceptorGreeting) -> Bootstrap:
        """0.4, 0.9."""
        return Bootstrap(self.id, server.system_id, server.segment_size, server.server_version, self.membership)


@dataclass
class Known:
    """What a run keeps from one attempt to the next.

    Attributes:
        requested_term: the highest term that it has asked for (3.1).
        held: the term that it held last, and its commit_lsn, at least its start (4.5).
        has_led: whether it has led a term with a primary (2.6, 12.5).
        was_elected: whether a quorum has voted for it once (2.4).
        purpose: for which it wants tail terms, None for none (13.1).
        is_done: whether that purpose is served, or a log has not admitted it.
        served_terms: those that it has led for one.
    """

    requested_term: int = 0
    held: tuple[int, int] = (0, 0)
    has_led: bool = False
    was_elected: bool = False
    purpose: Purpose | None = None
    is_done: bool = False
    served_terms: set[int] = field(default_factory=set)


@dataclass
class Stream:
    """The COPY from the primary.

    Attributes:
        identities_due: how often the primary was to be identified, and was not yet (4.2).
        is_open: whether it was started, and has not ended.
        is_checked: whether its bytes were found to be those of the log.
        compares: whether it begins with bytes to compare.
        awaits_link: 4.7.
        tli: the timeline that it streams.
        received_lsn, window_begin_lsn: what was received, and what the window still holds of it.
        ended_lsn: where its timeline has ended, None while it goes on.
        own_begin_lsn, own_page_crcs: of what was received before this connection; empty if unknown.
    """

    identities_due: int = 0
    is_open: bool = False
    is_checked: bool = False
    compares: bool = False
    awaits_link: bool = False
    tli: int = 0
    received_lsn: int = 0
    window_begin_lsn: int = 0
    ended_lsn: int | None = None
    own_begin_lsn: int = 0
    own_page_crcs: tuple[int, ...] = ()

    def start(self, action: StartReplication) -> None:
        """A COPY for another term."""
        self.is_open, self.tli, self.ended_lsn = True, action.tli, None
        self.received_lsn = self.window_begin_lsn = action.begin_lsn
        self.compares = action.check_begin_lsn < action.begin_lsn


@dataclass
class Peer:
    """A safekeeper.

    Attributes:
        greeting: on the present connection, with the promise that was shown last; None before, or if it is out of date.
        greeted_at: when it has greeted.
        is_missing, code: whether it counts as missing, and by which refusal.
        reported: the state of its data folder that it has reported last on this connection, and the cluster.
        asked_with: what was known of all folders when each greeting was asked for that has not come yet (11.6), and the
            connections that there were.
        connections_then: those that there were when its greeting was asked for.
    """

    is_connected: bool = False
    greeting: AcceptorGreeting | None = None
    greeted_at: float = 0.0
    is_missing: bool = False
    code: RefusalCode | None = None
    reported: tuple[str, FolderState] | None = None
    asked_with: deque[tuple[Folders, frozenset[int]]] = field(default_factory=deque)
    connections_then: frozenset[int] = frozenset()

    @property
    def is_empty(self) -> bool:
        """0.2."""
        greeting = self.greeting
        return greeting is not None and not (greeting.promised.term or greeting.last_term or greeting.flush_lsn)


class ReferenceRoster:
    """All safekeepers that are dialled.

    Attributes:
        peers: by id.
        folders: 11.3.
        connections: all that were made, by number.
    """

    def __init__(self, safekeeper_ids: Iterable[int]) -> None:
        self.peers = {safekeeper_id: Peer() for safekeeper_id in safekeeper_ids}
        self.folders: Folders = {}
        self.connections: frozenset[int] = frozenset()

    @property
    def greeted_of_one_time(self) -> bool:
        """0.2."""
        return {peer.connections_then for peer in self.peers.values()} == {self.connections}

    def greetings(self) -> dict[int, AcceptorGreeting]:
        """Those of the safekeepers that do not count as missing."""
        return {i: peer.greeting for i, peer in self.peers.items() if peer.greeting is not None and not peer.is_missing}

    def clusters(self) -> list[Cluster]:
        """The memberships that they have."""
        return [Cluster(g.cluster_id, g.membership) for g in self.greetings().values() if g.membership is not None]

    def voters(self, cluster: Cluster) -> dict[int, Identity]:
        """The members that have greeted, also those that have missed the end of the bootstrap (0.9)."""
        return {
            safekeeper_id: (safekeeper_id, greeting.incarnation)
            for safekeeper_id, greeting in self.greetings().items()
            if greeting.cluster_id in ("", cluster.id)
            and (safekeeper_id, greeting.incarnation) in folders_of(cluster.membership)
        }

    def cluster(self) -> Cluster | None:
        """10.9: the latest one with a quorum among the greetings."""
        able = [each for each in self.clusters() if can_elect(each.membership, self.voters(each).values())]
        latest: Cluster | None = None
        for cluster in able:
            if latest is None or cluster.is_later_than(latest):
                latest = cluster
        return latest

    def promised_terms(self) -> Iterator[int]:
        """3.1."""
        return (peer.greeting.promised.term for peer in self.peers.values() if peer.greeting is not None)

    def has_unknown_tail(self, cluster: Cluster) -> bool:
        """12.1."""
        greetings = [self.greetings()[i] for i in self.voters(cluster)]
        return len({g.last_term for g in greetings}) > 1 or any(g.flush_lsn > g.commit_lsn for g in greetings)

    def foreigners(self, primary: PrimaryIdentity) -> list[int]:
        """1.5."""
        return [
            safekeeper_id
            for safekeeper_id, peer in self.peers.items()
            if (greeting := peer.greeting) is not None
            and greeting.system_id
            and (greeting.system_id, greeting.segment_size) != (primary.system_id, primary.segment_size)
        ]

    def forget_greetings(self) -> None:
        """They are out of date."""
        for peer in self.peers.values():
            peer.greeting = None

    def miss(self, safekeeper_id: int, code: RefusalCode | None) -> None:
        """Count a safekeeper as missing until it greets again."""
        peer = self.peers[safekeeper_id]
        peer.is_missing, peer.code, peer.greeting = True, code, None

    def learn(self, cluster_id: str, states: Iterable[FolderState]) -> None:
        """11.1, 11.3: the latest states."""
        known = self.folders.get(cluster_id, {})
        news = [state for state in states if is_news(state, known.get((state.safekeeper_id, state.incarnation)))]
        if not news:
            return
        latest = dict(known)
        for state in news:
            folder = state.safekeeper_id, state.incarnation
            latest[folder] = _later(latest.get(folder, state), state)
        self.folders = {**self.folders, cluster_id: latest}

    def is_doubted(self, safekeeper_id: int, cluster_id: str) -> bool:
        """11.5: a later state of its folder is known than it has reported."""
        reported = self.peers[safekeeper_id].reported
        if reported is None or reported[0] != cluster_id:
            return False
        state = reported[1]
        known = self.folders.get(cluster_id, {}).get((state.safekeeper_id, state.incarnation))
        return known is not None and is_older(state, known)


def is_older(state: FolderState, known: FolderState) -> bool:
    """11.1."""
    return state.starts < known.starts or (state.term, state.flush_lsn) < (known.term, known.flush_lsn)


def _later(one: FolderState, other: FolderState) -> FolderState:
    """11.1: the higher starts, and the higher (term, flush_lsn)."""
    acknowledged = max((one.term, one.flush_lsn), (other.term, other.flush_lsn))
    return FolderState(one.safekeeper_id, one.incarnation, max(one.starts, other.starts), *acknowledged)


def is_news(state: FolderState, known: FolderState | None) -> bool:
    """11.1: whether a state is in some way later than the one that is known."""
    return known is None or is_older(known, state)
