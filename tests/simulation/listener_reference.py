"""What the listener for proposers must do, stated once more: see node_reference.py.

Frames arrive whole here, in the order in which they were sent. A connection is read unless its peer does not read, or a
message of it waits for the node; then nothing more is read from it. Before the first message of the protocol there is
the authentication, if a secret is required. What cannot be known of a peer is drawn elsewhere: `Broken` stands for
bytes that are not a frame.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from safekeeper.base.lsn import Lsn
from safekeeper.consensus.control_state import ControlState
from safekeeper.consensus.messages import (
    PROTOCOL_VERSION,
    AcceptorMessage,
    AppendRequest,
    ProposerGreeting,
)
from safekeeper.net.admission import Admission, Budget
from safekeeper.node.node import Node
from safekeeper.node.proposer_listener import WATCH_INTERVAL_S, ProposerListener
from safekeeper.peers.peer_auth import Challenge, Proof, Refused
from tests.simulation.disk import ModelDisk
from tests.simulation.lone_node_process import Process, log_state
from tests.simulation.lone_node_socket import LoneSocket
from tests.simulation.node_reference import WAL, NodeReference
from tests.simulation.trace import shown


class Broken(NamedTuple):
    """Bytes that are no frame of the protocol."""


class Authentication(NamedTuple):
    """A message of the authentication: the peer's first one, or its proof."""

    is_first: bool
    is_right: bool


@dataclass
class Peer:
    """A connection.

    Attributes:
        authenticated: how many messages of the authentication were right; 2 if none is required.
        inbox: messages that have arrived and were not handled.
        is_paused: the peer does not read.
    """

    number: int
    authenticated: int
    heard_at: float
    is_proven: bool = False
    is_read: bool = True
    is_paused: bool = False
    inbox: deque[Any] = field(default_factory=deque)


class ListenerReference(NodeReference):
    """The node, and the listener's connections.

    Attributes:
        peers: the open ones, by number.
        aborted: the numbers of those that were closed at once.
    """

    def __init__(
        self,
        process: Process,
        control: ControlState,
        flush_lsn: Lsn,
        disk: ModelDisk,
        budget: Budget,
        timeouts_s: tuple[float, float],
    ) -> None:
        super().__init__(process, control, flush_lsn, disk)
        self.peers: dict[int, Peer] = {}
        self.aborted: set[int] = set()
        self._waiting: dict[int, Peer] = {}
        self._admission = Admission(budget)
        self._greeting_timeout_s, self._idle_timeout_s = timeouts_s
        self._is_watching = True

    # ------------------------------------------------------------------ for the node

    def sent(self, connection: int, message: AcceptorMessage | type) -> None:
        """See NodeReference."""
        peer = self.peers.get(connection)
        if peer is None:
            return
        self._take("send", connection)
        sent = self._last[2]
        if sent != message and not (isinstance(message, type) and type(sent) is message):
            self.violate(f"the node sends {shown(sent)} on connection {connection}, not {shown(message)}")
        self._note_pause(peer)

    def _note_pause(self, peer: Peer) -> None:
        if self._next_is("paused", peer.number):
            self._take("paused", peer.number)
            peer.is_paused = True

    def close(self, connection: int, *, is_aborted: bool = False) -> None:
        """See NodeReference."""
        if self._disconnect(connection) and is_aborted:
            self.aborted.add(connection)

    def resume(self) -> None:
        """See NodeReference."""
        while self._waiting and self.ready:
            self._pump(self._waiting.pop(next(iter(self._waiting))))

    # ------------------------------------------------------------------ connections

    def connected(self, number: int, host: str, *, authenticates: bool) -> None:
        """A connection was accepted."""
        now = self._process.loop.now
        evicted = self._admission.arrive(number, host, now)
        self.peers[number] = Peer(number, 0 if authenticates else 2, now)
        if evicted:
            self.close(evicted, is_aborted=True)

    def received(self, number: int, messages: list[Any]) -> None:
        """Bytes have arrived, and with them so many messages are complete."""
        peer = self.peers.get(number)
        if peer is not None:
            peer.heard_at = self._process.loop.now
            peer.inbox.extend(messages)
            if not peer.is_proven or peer.is_paused or not self._is_all_usual(peer):
                self._pump(peer)
            else:
                self.idle()

    def _is_all_usual(self, peer: Peer) -> bool:
        """Handle the appends that the acceptor accepts at once, also if the peer stops to read; return if that is all.

        What is no frame is noticed when it arrives, even if no message can be handled.
        """
        while peer.inbox and self.ready and isinstance(append := peer.inbox[0], AppendRequest):
            if not self.acceptor.accepts(peer.number, append):
                return False
            self.handle(peer.number, peer.inbox.popleft())
        if peer.inbox and isinstance(peer.inbox[0], Broken):
            self.close(peer.number)
            return True
        return not peer.inbox

    def writable(self, number: int) -> None:
        """A peer reads again."""
        peer = self.peers.get(number)
        if peer is not None:
            peer.is_paused = False
            self._pump(peer)
        else:
            self.idle()

    def lost(self, number: int) -> None:
        """The peer has closed, or the connection broke."""
        self._disconnect(number)

    def closes_all(self) -> None:
        """The process ends: it closes all connections."""
        self._is_watching = False
        self.timers = [timer for timer in self.timers if timer[2] != "watch"]
        for number in list(self.peers):
            self.lost(number)

    def watch(self) -> None:
        """Close the connections that have sent nothing for too long; do so again soon."""
        now = self._process.loop.now
        for number in self._admission.overdue(now - self._greeting_timeout_s):
            self.close(number)
        for peer in list(self.peers.values()):
            if peer.number not in self._waiting and now - peer.heard_at > self._idle_timeout_s:
                self.close(peer.number)
        self.set_timer(min(WATCH_INTERVAL_S, self._greeting_timeout_s / 4), "watch")

    def expire(self) -> str:
        """See NodeReference."""
        kind = super().expire()
        if kind == "watch":
            self.watch()
        return kind

    def _disconnect(self, number: int) -> bool:
        self._waiting.pop(number, None)
        self._admission.leave(number)
        if self.peers.pop(number, None) is None:
            return False
        self.disconnected(number)
        return True

    def _pump(self, peer: Peer) -> None:
        """Handle the messages of a connection."""
        while peer.number in self.peers:
            if peer.is_paused or (peer.is_proven and not self.ready):
                peer.is_read = False
                if not peer.is_paused:
                    self._waiting.setdefault(peer.number, peer)
                self.idle()
                return
            if not peer.inbox:
                break
            message = peer.inbox.popleft()
            if isinstance(message, Broken):
                self.close(peer.number)
            elif isinstance(message, Authentication) or peer.authenticated < 2:
                self._authenticate(peer, message)
            else:
                if not peer.is_proven and self._is_valid_greeting(message):
                    self._prove(peer)
                if self.ready:
                    self.handle(peer.number, message)
                elif not peer.is_proven:
                    self.close(peer.number)
                else:
                    peer.inbox.appendleft(message)
        if peer.number in self.peers:
            peer.is_read = True
        self.idle()

    def _authenticate(self, peer: Peer, message: Any) -> None:
        is_right = isinstance(message, Authentication) and message.is_right
        if not is_right or message.is_first != (peer.authenticated == 0):
            if isinstance(message, Authentication) and peer.authenticated == 1 and not message.is_first:
                self._take("handshake", peer.number, Refused)
                self._note_pause(peer)
            self.close(peer.number)
            return
        self._take("handshake", peer.number, Challenge if message.is_first else Proof)
        self._note_pause(peer)
        peer.authenticated += 1
        if peer.authenticated == 2:
            self._prove(peer)

    def _prove(self, peer: Peer) -> None:
        peer.is_proven = True
        evicted = self._admission.prove(peer.number, lambda number: self.peers[number].heard_at).evicted
        if evicted:
            self.close(evicted)

    def _is_valid_greeting(self, message: Any) -> bool:
        return (
            isinstance(message, ProposerGreeting)
            and message.protocol_version == PROTOCOL_VERSION
            and message.safekeeper_id == self.acceptor.control.safekeeper_id
        )

    # ------------------------------------------------------------------ what shows afterwards

    def compare(self, node: Node, listener: ProposerListener, sockets: dict[int, LoneSocket]) -> None:
        """Compare all that shows of the node and the listener with what must be."""
        if self._seen:
            self.violate(f"the node does {shown(self._seen[0])}, which is not due")
        peers = self.peers
        for number, socket in sockets.items():
            peer = peers.get(number)
            is_read = socket.is_read if peer is None or self.has_failed else peer.is_read
            found = socket.is_closed, socket.is_aborted, socket.is_read
            wanted = peer is None, number in self.aborted, is_read
            if found != wanted:
                self.violate(f"connection {number} is closed, aborted, read: {found}, not {wanted}")
        self._equal(
            ("open", "waiting", "unproven", "proven", "timers", "ready", "failed", "between events"),
            (
                list(listener._connections),
                list(listener.waiting) if not self.has_failed else [],
                listener.admission.unproven,
                listener.admission.proven,
                self._process.loop.pending(),
                node.ready,
                node.failed.done(),
                node.is_between_events,
            ),
            (
                list(peers),
                list(self._waiting) if not self.has_failed else [],
                self._admission.unproven,
                self._admission.proven,
                sorted([timer[0] for timer in self.timers]),
                self.ready,
                self.has_failed,
                self.is_between_events,
            ),
        )
        if not self.has_failed:
            self._compare_node(node)

    def _compare_node(self, node: Node) -> None:
        space, answers = node.disk_space, node.answers
        acceptor, own = node.acceptor, self.acceptor
        self._equal(
            (
                *("lacking", "end of WAL", "granted", "refused", "refusals", "flushes", "appends", "served"),
                *("shortages", "control state", "log", "pull"),
            ),
            (
                set(space.lacking),
                space.wal_ends_at_lsn if WAL in self.lacking else 0,
                answers.granted,
                answers.refused,
                sum(answers.refusals.values()),
                node.flush_times.counts,
                node.append_sizes.counts,
                node.peer_reads.served_bytes,
                space.shortages,
                acceptor.control,
                log_state(acceptor),
                acceptor.pull,
            ),
            (
                self.lacking,
                self.wal_ends_at if WAL in self.lacking else 0,
                self.granted,
                self.refused,
                self.refusals,
                self.flushes.counts,
                self.appends.counts,
                self.served_bytes,
                self.shortages,
                own.control,
                log_state(own),
                own.pull,
            ),
        )
        if self._effects is None:
            storage = node.folder.storage
            positions = (storage.write_lsn, storage.flush_lsn) if storage is not None else (0, 0)
            removals = len(storage._removals) if storage is not None and not self._process.is_at_work("remover") else 0
            self._equal(
                ("positions", "what readers know", "removals"),
                (positions, self._process.published, removals),
                ((self.disk.write_lsn, self.disk.durable_lsn), log_state(own), 0),
            )

    def _equal(self, names: tuple[str, ...], found: tuple[Any, ...], wanted: tuple[Any, ...]) -> None:
        if found != wanted:
            both = zip(names, found, wanted, strict=True)
            wrong = [f"{name}: {one}, not {other}" for name, one, other in both if one != other]
            self.violate("; ".join(wrong))
