"""A client's socket, its session, and TLS if the session starts it.

PostgreSQL's protocol begins in plaintext and changes to TLS on the same connection, once the client has requested it
and the server has agreed. Therefore TLS is here, between the socket and the session, and not below both. A subclass
handles the session's events and the end of the connection.

Until the client has logged in, what it sends is handled by the listener's `Turns` (safekeeper/net/turns.py), and
nothing more is read meanwhile.
"""

import asyncio
from abc import ABC, abstractmethod
from typing import cast

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.net.listener import prepare_socket
from safekeeper.net.tls import ServerTls, TlsChannel
from safekeeper.net.turns import Turns
from safekeeper.pgwire.events import Event
from safekeeper.pgwire.session import Session

WRITE_HIGH_WATER_BYTES = 1 << 20
WRITE_LOW_WATER_BYTES = 256 << 10


class PgTransport(asyncio.Protocol, ABC):
    """The byte stream of one client's connection.

    Attributes:
        session: the protocol's state, once the connection is admitted.
        peer: the client's address and port, for the log.
        turns: when received bytes are handled until it has logged in; None for at once.
        is_open: bytes can be sent and received.
        is_full: more than WRITE_HIGH_WATER_BYTES wait to be sent.
    """

    def __init__(self, turns: Turns | None) -> None:
        self.turns = turns
        self._host = ""
        # Received, and not handled yet.
        self._waiting = b""
        self._waits_for_turn = False
        self._transport: asyncio.Transport
        self._channel: TlsChannel | None = None
        self._reading_paused = False
        self.session: Session
        self.peer = ""
        self.is_open = False
        self.is_full = False

    # For the subclass to implement.

    @abstractmethod
    def admit(self, host: str) -> Session:
        """Return the session of a client that connects from `host`."""

    @abstractmethod
    def on_received(self) -> None:
        """Note that bytes were received."""

    @abstractmethod
    def handle(self, event: Event) -> None:
        """Handle an event of the session."""

    @abstractmethod
    def broken(self, reason: str) -> None:
        """Close the connection: the client broke the protocol or was refused, and the session has reported why."""

    @abstractmethod
    def left(self, reason: str) -> None:
        """Close the connection: the client has closed its side."""

    @abstractmethod
    def lost(self) -> None:
        """Clean up: the connection is closed, by either side."""

    @abstractmethod
    def filled(self, full: bool) -> None:
        """React to a change of `is_full`."""

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if peer else "unknown peer"
        self._host = peer[0] if peer else ""
        self.session = self.admit(self._host)
        self.is_open = True
        prepare_socket(transport.get_extra_info("socket"))
        self._transport.set_write_buffer_limits(WRITE_HIGH_WATER_BYTES, WRITE_LOW_WATER_BYTES)

    def data_received(self, data: bytes) -> None:
        if not self.is_open:
            return
        self.on_received()
        if self.turns is None:
            self._handle_bytes(data)
            return
        self._waiting += data
        if not self._waits_for_turn:
            self._waits_for_turn = True
            self._transport.pause_reading()
            self.turns.ask(self._host, self._take_turn)

    def _take_turn(self) -> None:
        self._waits_for_turn = False
        data, self._waiting = self._waiting, b""
        if self.is_open:
            self._handle_bytes(data)
        if self.is_open and not self._reading_paused:
            self._transport.resume_reading()

    def _handle_bytes(self, data: bytes) -> None:
        try:
            self._receive(data)
        except RemoteProtocolError as error:
            self.flush()
            self.broken(str(error))

    def eof_received(self) -> bool:
        if self.is_open:
            self.left(self.session.explain_eof())
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._waits_for_turn and self.turns is not None:
            self.turns.withdraw(self._host, self._take_turn)
        self.lost()

    def pause_writing(self) -> None:
        self.is_full = True
        self.filled(True)

    def resume_writing(self) -> None:
        self.is_full = False
        self.filled(False)

    # Bytes.

    def _receive(self, data: bytes) -> None:
        channel = self._channel
        if channel is not None:
            established = channel.established
            try:
                data = channel.receive(data)
            finally:
                self._transport.write(channel.take_outgoing())
            if channel.established and not established:
                shown = channel.peer_certificate() is not None
                only_user = (channel.peer_common_name or "") if shown else None
                self.session.tls_started(channel.server_certificate_der, only_user)
            if not channel.established:
                return
        for event in self.session.receive(data):
            self.handle(event)
        self.flush()

    def start_tls(self, tls: ServerTls, data: bytes) -> None:
        """Continue over TLS. `data`: the bytes of its handshake that were already received."""
        self.flush()
        self._channel = tls.channel()
        if data:
            self._receive(data)

    def write(self, *buffers: bytes | memoryview) -> None:
        """Send the buffers in order. They must not change afterwards."""
        if not self.is_open:
            return
        if self._channel is None:
            self._transport.writelines(buffers)
            return
        try:
            self._channel.send(*buffers)
        except RemoteProtocolError as error:
            # The caller serves other clients too: an error of this connection must not reach them.
            self.abort()
            self.broken(str(error))
            return
        self._transport.write(self._channel.take_outgoing())

    def flush(self) -> None:
        """Send the session's output."""
        output = self.session.take_output()
        if output and (self._channel is None or self._channel.established):
            self.write(output)

    def pause_reading(self) -> None:
        """Stop reading from the socket."""
        if self.is_open and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading from the socket."""
        if self.is_open and self._reading_paused:
            self._reading_paused = False
            if not self._waits_for_turn:
                self._transport.resume_reading()

    def close(self) -> None:
        """Close once everything written is sent; ignore what is received meanwhile."""
        if self.is_open:
            self.is_open = False
            if self._channel is not None:
                self._channel.close()
                self._transport.write(self._channel.take_outgoing())
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self.is_open = False
        self._transport.abort()
