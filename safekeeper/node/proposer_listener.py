"""The listener for proposers: passes their messages to the node, and the node's replies to them.

Received data stays in the connection's buffer until the node is ready for it. While that buffer is full, or the peer
does not read its replies, nothing more is read from the socket. So a connection uses a bounded amount of memory (S14),
and a slow one delays only itself.

A connection is checked in this order, each check as far as it is configured: the address; TLS with a client certificate
(safekeeper/net/tls_transport.py); the shared secret (safekeeper/peers/peer_auth.py). Only then are its messages passed
to the node.

A connection is proven (safekeeper/net/admission.py) by the shared secret, or, if none is configured, by a greeting that
is valid for this safekeeper: in that case the listener is on loopback, or a certificate or the address has been checked
already. Until then its messages are handled by the listener's `Turns` (safekeeper/net/turns.py). Proving does not wait
for the node, so a busy disk keeps no proxy out. A proven connection is always accepted: above the limit, the one that
is idle for longest is closed.

A connection is closed if it sends an invalid message, is not proven in time, or sends nothing for the idle timeout.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from safekeeper.base.errors import AuthenticationFailed, RemoteProtocolError
from safekeeper.base.lsn import Lsn
from safekeeper.base.networks import Networks
from safekeeper.consensus.control_state import NOBODY
from safekeeper.consensus.messages import (
    PROTOCOL_VERSION,
    AcceptorMessage,
    AppendRequest,
    AppendResponse,
    ProposerGreeting,
    ProposerMessage,
)
from safekeeper.net.admission import Budget
from safekeeper.net.listener import Listener, peer_name, prepare_socket
from safekeeper.net.tls import ServerTls
from safekeeper.net.tls_transport import TlsTransport
from safekeeper.node.node import Node
from safekeeper.peers.codec import (
    PROPOSER_AUTHENTICATION,
    PROPOSER_DIALECT,
    FrameDecoder,
    append_response_packer,
    encode,
    encode_authentication,
)
from safekeeper.peers.peer_auth import NONCE_BYTES, AcceptorSide, AuthenticationMessage, Reason, Refused
from safekeeper.peers.shared_secret import PeerSecret

WRITE_HIGH_WATER_BYTES = 4 << 20
WRITE_LOW_WATER_BYTES = 1 << 20
WATCH_INTERVAL_S = 1.0
# Maximum size of a frame, and of the buffer, of a connection that is not proven.
UNPROVEN_FRAME_BYTES_MAX = 4 << 10

_log = logging.getLogger(__name__)


class Connection(asyncio.BufferedProtocol):
    """One proposer's connection. Bytes are decoded into a message only when the node is ready for it.

    Attributes:
        number: the connection's number, 0 if it was not admitted.
        host: the peer's address.
        peer: the peer's address and port, for the log.
        received_at: when bytes were last received, in the loop's time.
    """

    def __init__(self, listener: "ProposerListener") -> None:
        self._listener = listener
        self._node = listener.node
        # Decodes the proposer's messages, or first those of the authentication.
        self._secret = listener.secret
        self._decoder: FrameDecoder[Any] = FrameDecoder(
            PROPOSER_AUTHENTICATION if self._secret else PROPOSER_DIALECT, frame_bytes_max=UNPROVEN_FRAME_BYTES_MAX
        )
        # The event loop calls `getattr(decoder, "room", sizehint)`, which is no Python function. So each event here
        # makes room for the next one.
        self.get_buffer = partial(getattr, self._decoder, "room")  # type: ignore[method-assign]
        self.write: Callable[[bytes], None]  # The transport's method.
        self._now = listener.now
        self._pending: ProposerMessage | None = None  # One for which the node was not ready yet.
        self._proven = False
        self._is_usual = False  # It is open, proven, read, and the peer reads.
        self._authentication: AcceptorSide | None = None
        self._waits_for_turn = False
        self._transport: asyncio.Transport
        self._reading = True
        self._writing_paused = False
        self._open = False
        self.number = 0
        self.host = ""
        self.peer = ""
        self.received_at = 0.0

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.host = peer[0] if peer else ""
        self.peer = peer_name(peer[0], peer[1]) if peer else "unknown peer"
        prepare_socket(transport.get_extra_info("socket"))
        self.write = self._transport.write
        self._transport.set_write_buffer_limits(WRITE_HIGH_WATER_BYTES, WRITE_LOW_WATER_BYTES)
        self.received_at = self._listener.now()
        self._open = True
        self._listener.admit(self, self.host)
        if self._secret is not None:
            channel = transport.channel if isinstance(transport, TlsTransport) else None
            self._authentication = AcceptorSide(
                self._secret.value,
                self._node.acceptor.control.safekeeper_id,
                secrets.token_bytes(NONCE_BYTES),
                channel.server_certificate_der if channel is not None else b"",
                self._secret.origin,
            )

    def secured(self) -> None:
        """Accept messages: TLS is established."""

    def tls_failed(self, reason: str) -> None:
        """Close the connection: TLS has failed."""
        self._listener.close(self.number, reason, broken=True)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.room

    def buffer_updated(self, nbytes: int) -> None:
        if not self._is_usual:
            if self._open:
                self._decoder.buffer_updated(nbytes)
                self.received_at = self._now()
                if self._proven:
                    self.pump()
                elif not self._waits_for_turn:
                    self._waits_for_turn = True
                    self._reading = False
                    self._transport.pause_reading()
                    self._listener.turns.ask(self.host, self._take_turn)
            return
        # Appends, nearly always.
        decoder, node, number = self._decoder, self._node, self.number
        now = self.received_at = self._now()
        try:
            message: Any = decoder.next_append(nbytes)
            while type(message) is AppendRequest:
                is_last = decoder.begin == decoder.end
                if not node.append(number, message, now, is_last=is_last):
                    break
                if is_last:
                    return
                message = decoder.next_append()
        except RemoteProtocolError as error:
            self._refuse(error)
            message = None
        if message is None:
            node.messages_handled()
        else:
            self._pending = message
            self.pump()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._open = self._is_usual = False
        if self._waits_for_turn:
            self._listener.turns.withdraw(self.host, self._take_turn)
        self._listener.lost(self)

    def pause_writing(self) -> None:
        self._writing_paused = True
        self._is_usual = False

    def resume_writing(self) -> None:
        self._writing_paused = False
        self.pump()

    def _take_turn(self) -> None:
        self._waits_for_turn = False
        if self._open:
            self.pump()

    # Called by the listener.

    def pump(self) -> None:
        """Pass messages to the node until none is left, or the node is not ready, or the peer does not read."""
        node, decoder = self._node, self._decoder
        try:
            while self._open:
                if self._writing_paused or (not node.ready and self._proven):
                    self._stop_reading()
                    decoder.make_room()
                    node.messages_handled()
                    return
                message: Any = self._pending or decoder.next_message()
                self._pending = None
                if message is None:
                    break
                if self._authentication is not None:
                    self._authenticate(self._authentication, message)
                    continue
                if not self._proven and self._is_valid_greeting(message):
                    self._prove()
                if not node.ready:
                    if not self._proven:
                        raise RemoteProtocolError("its first message is not the greeting of a proxy to this safekeeper")
                    self._pending = message
                    continue
                node.receive(self.number, message)
        except RemoteProtocolError as error:
            self._refuse(error)
        if self._open and not self._reading and not self._waits_for_turn:
            self._reading = True
            self._transport.resume_reading()
        self._is_usual = self._open and self._proven
        decoder.make_room()
        node.messages_handled()

    def send(self, message: AcceptorMessage) -> None:
        """Write the message as a frame."""
        buffers = encode(message)
        if len(buffers) == 1:
            self._transport.write(buffers[0])
        else:
            self._transport.writelines(buffers)

    def close(self, *, abort: bool = False) -> None:
        """Close once everything written is sent, or at once; ignore further received data."""
        self._open = self._is_usual = False
        if abort:
            self._transport.abort()
        else:
            self._transport.close()

    def _refuse(self, error: RemoteProtocolError) -> None:
        if isinstance(error, AuthenticationFailed) and error.refusal is not None:
            self._transport.write(encode_authentication(Refused(Reason(error.refusal))))
        self._listener.close(self.number, str(error), broken=True)

    def _authenticate(self, authentication: AcceptorSide, message: AuthenticationMessage) -> None:
        self._transport.write(encode_authentication(authentication.receive(message)))
        if authentication.done:
            self._authentication = None
            self._decoder.use(PROPOSER_DIALECT)
            self._prove()

    def _is_valid_greeting(self, message: ProposerMessage) -> bool:
        return (
            isinstance(message, ProposerGreeting)
            and message.protocol_version == PROTOCOL_VERSION
            and message.safekeeper_id == self._node.acceptor.control.safekeeper_id
        )

    def _prove(self) -> None:
        self._proven = True
        self._decoder.accept_all_frames()
        if isinstance(self._transport, TlsTransport):
            self._transport.proven()
        self._listener.proved(self)

    def _stop_reading(self) -> None:
        self._is_usual = False
        if self._reading:
            self._reading = False
            self._transport.pause_reading()
        if not self._writing_paused:
            self._listener.waiting[self.number] = self


class ProposerListener(Listener[Connection]):
    """Listens for proposers; the node's `Outbox`.

    Attributes:
        node: handles the messages.
        waiting: connections with messages for which the node was not ready, by number.
        secret: the secret that a proxy must prove, None if none is required.
    """

    CANNOT_LISTEN = "could not listen for proxies at %s: %s: correct --proposer-listen"
    FOREIGN = "refused a proxy connection from %s: its address is in none of the networks of allow"
    UNPROVEN = "proxy connections that are not authenticated"
    EVICTED = "closed the proxy connection from %s, the oldest of %d that are not authenticated, for a newer one"

    def __init__(
        self,
        node: Node,
        *,
        budget: Budget,
        greeting_timeout_s: float,
        idle_timeout_s: float,
        tls: ServerTls | None = None,
        secret: PeerSecret | None = None,
        networks: Networks | None = None,
    ) -> None:
        super().__init__(budget=budget, networks=networks)
        self.node = node
        self.secret = secret
        self.waiting: dict[int, Connection] = {}
        self._greeting_timeout_s = greeting_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._tls = tls
        # What packs the answers to the present leader's appends: without a call of Python code.
        self._answered_leader_id = NOBODY
        self._pack_answer: Callable[[Lsn, Lsn, int, bool], bytes]

    def new_protocol(self) -> asyncio.BaseProtocol:
        """See Listener."""
        connection = Connection(self)
        if self._tls is None:
            return connection
        return TlsTransport(self._tls.channel(), connection, turns=self.turns)

    def stop_accepting(self) -> None:
        """See Listener. Idle peers are no longer disconnected, because the node accepts no further message."""
        super().stop_accepting()
        self.stop_watching()

    def close_all(self) -> None:
        """Close all connections once everything written on them is sent."""
        for connection in list(self._connections.values()):
            connection.close()

    # The node's Outbox.

    def send(self, connection: int, message: AcceptorMessage) -> None:
        """See Outbox."""
        there = self._connections.get(connection)
        if there is None:
            return
        if type(message) is not AppendResponse:
            there.send(message)
            return
        if message.leader_id is not self._answered_leader_id:
            self._pack_answer = append_response_packer(message.leader_id)
            self._answered_leader_id = message.leader_id
        there.write(self._pack_answer(message.write_lsn, message.flush_lsn, message.sequence, message.has_readers))

    def close(self, connection: int, reason: str, *, broken: bool) -> None:
        """See Outbox."""
        there = self._disconnect(connection)
        if there is None:
            return
        there.close()
        line = f"closed proxy connection {connection} from {there.peer}: {reason}"
        if broken:
            self._warn(line)
        else:
            self._report(line)

    def resume(self) -> None:
        """See Outbox."""
        while self.waiting and self.node.ready:
            number = next(iter(self.waiting))
            self.waiting.pop(number).pump()

    # The connections.

    def admit(self, connection: Connection, host: str) -> None:
        """See Listener."""
        super().admit(connection, host)
        _log.debug("proxy connection %d from %s", connection.number, connection.peer)

    def evict(self, connection: Connection, reason: str) -> None:
        """See Listener."""
        self._disconnect(connection.number)
        connection.close(abort=True)

    def proved(self, connection: Connection) -> None:
        """Count the connection as proven. Above the limit another one is closed for it."""
        evicted = self.admission.prove(connection.number, lambda number: self._connections[number].received_at).evicted
        if evicted:
            limit = self.admission.budget.proven_max
            self.close(evicted, f"idle for longest of {limit} authenticated ones (connections_max)", broken=False)

    def lost(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        if self._disconnect(connection.number) is not None:
            _log.debug("proxy connection %d from %s disconnected", connection.number, connection.peer)

    def _disconnect(self, number: int) -> Connection | None:
        self.waiting.pop(number, None)
        there = self.forget(number)
        if there is not None:
            self.node.disconnected(number)
        return there

    def watch(self) -> float:
        """Close the connections that have sent nothing for too long."""
        now = self.now()
        for number in self.admission.overdue(now - self._greeting_timeout_s):
            self.close(number, f"no greeting within {self._greeting_timeout_s:g} s", broken=True)
        for number, connection in list(self._connections.items()):
            if number in self.waiting:
                continue  # Its messages are not being read.
            if now - connection.received_at > self._idle_timeout_s:
                self.close(number, f"no data for {self._idle_timeout_s:g} s", broken=False)
        return min(WATCH_INTERVAL_S, self._greeting_timeout_s / 4)
