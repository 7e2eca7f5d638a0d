"""One connection to a safekeeper: TLS and the shared secret first, where they are configured, then messages.

The connection calls its owner when it can be used (`opened`), with each message, and at its end. `reason` is why it was
closed, or why it could never be used: one line, which names the option to correct if the configuration is wrong.
"""

import asyncio
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from safekeeper.base.errors import ConfigurationError, RemoteProtocolError
from safekeeper.base.networks import is_loopback
from safekeeper.base.settings import Address
from safekeeper.consensus.messages import AcceptorMessage
from safekeeper.net.tls import ClientTls
from safekeeper.net.tls_transport import TlsTransport
from safekeeper.peers.codec import ACCEPTOR_AUTHENTICATION, ACCEPTOR_DIALECT, DeliveringDecoder, encode_authentication
from safekeeper.peers.peer_auth import NONCE_BYTES, AuthenticationMessage, ProposerSide
from safekeeper.peers.shared_secret import PeerSecret


@dataclass(frozen=True)
class Credentials:
    """The credentials of new connections to safekeepers, as they were read last.

    Attributes:
        tls: the CAs to trust and the certificate to present, None for connections in plaintext.
        secret: the secret that both sides prove to have, None for none.
        local_secret: the same where the safekeeper's address is loopback and there is no `secret`.
    """

    tls: ClientTls | None = None
    secret: PeerSecret | None = None
    local_secret: PeerSecret | None = None

    def secret_for(self, host: str) -> PeerSecret | None:
        """Return the secret to prove to a safekeeper at the numeric address `host`."""
        return self.secret or (self.local_secret if is_loopback(host) else None)


class SafekeeperConnection(asyncio.BufferedProtocol):
    """A connection, from before the TCP handshake to its end.

    Args:
        safekeeper_id: the safekeeper that must be at the other end.
        credentials: what to prove, and what to require.
        opened: called when it can be used, at most once.
        received: called with each message; RemoteProtocolError from it closes the connection.
        lost: called when it can no longer be used, once, and only after `opened`.

    Attributes:
        ready: done when it can be used, or is closed.
        closed: done when it is closed.
        is_open: it can be used.
        writelines: sends buffers, while it can be used.
        reason: why it is closed, or will be closed.
    """

    def __init__(
        self,
        safekeeper_id: int,
        credentials: Credentials,
        *,
        opened: Callable[[], None],
        received: Callable[[AcceptorMessage], None],
        lost: Callable[[], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.reason = "the safekeeper closed the connection"
        self.ready: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.is_open = False
        self._safekeeper_id = safekeeper_id
        self._credentials = credentials
        self._opened = opened
        self._received = received
        self._lost = lost
        # The messages of the authentication, then those of the safekeeper.
        self._decoder: DeliveringDecoder[Any] = DeliveringDecoder(ACCEPTOR_DIALECT, received, self._malformed)
        # The event loop calls the decoder, and the decoder the owner, without a call in between. There is always a
        # `room`, so getattr's default, the size hint, is not used.
        self.get_buffer = partial(getattr, self._decoder, "room")  # type: ignore[method-assign]
        self.buffer_updated = self._decoder.received  # type: ignore[method-assign]
        self._was_open = False
        self._given_up = False
        self._transport: asyncio.Transport | None = None
        self.writelines: Callable[[Sequence[bytes | memoryview]], None]

    async def connect(self, address: Address, tls: ClientTls | None) -> None:
        """Connect, and return when the connection can be used.

        Raises:
            OSError: the connection failed.
            RemoteProtocolError: it was closed before it could be used; the message is `reason`.
            ConfigurationError: the host cannot be in a certificate.
        """
        protocol: asyncio.BaseProtocol = self
        if tls is not None:
            protocol = TlsTransport(tls.channel(address.host), self, client=True)
        try:
            await asyncio.get_running_loop().create_connection(lambda: protocol, *address)
            await self.ready
        except BaseException:
            self.abort("the attempt to connect was cancelled")
            raise
        if not self._was_open:
            raise RemoteProtocolError(self.reason)

    def abort(self, reason: str) -> None:
        """Close it at once; ignore whatever is received after this."""
        self._give_up(reason)
        if self._transport is not None:
            self._transport.abort()
        elif not self.closed.done():
            self.closed.set_result(None)

    # Called by asyncio or TlsTransport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's; create_connection makes no other kind.
        self._transport = made = cast(asyncio.Transport, transport)
        if self._given_up:
            made.abort()
            return
        self.writelines = made.writelines
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if isinstance(transport, TlsTransport):
            self.reason = "it closed the connection during the TLS handshake: check its tls_cert and tls_key"
        else:
            self.secured()

    def secured(self) -> None:
        """Start the authentication: TLS is established, or not configured."""
        transport = self._transport
        assert transport is not None  # connection_made was called
        peer = transport.get_extra_info("peername")
        secret = self._credentials.secret_for(peer[0] if peer else "")
        if secret is None:
            self._open()
            return
        try:
            key = secret.value
        except ConfigurationError as error:
            self.abort(str(error))
            return
        self._decoder.use(ACCEPTOR_AUTHENTICATION)
        self.reason = "the safekeeper closed the connection before it proved the shared secret: see its log"
        certificate_der = transport.channel.server_certificate_der if isinstance(transport, TlsTransport) else b""
        authentication = ProposerSide(
            key, self._safekeeper_id, secrets.token_bytes(NONCE_BYTES), certificate_der, secret.origin
        )
        self._decoder.deliver = partial(self._authenticate, authentication)
        transport.write(encode_authentication(authentication.begin()))

    def tls_failed(self, reason: str) -> None:
        """Close the connection: TLS has failed."""
        self._give_up(reason)
        if self._transport is not None:
            self._transport.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.room

    def connection_lost(self, exc: Exception | None) -> None:
        # Before it could be used, a reset may be a refusal whose reason was not received.
        self._give_up(str(exc) if exc is not None and self._was_open else self.reason)
        for waited in (self.closed, self.ready):
            if not waited.done():
                waited.set_result(None)

    def pause_writing(self) -> None:
        """Do nothing: the owner limits what it sends by what is acknowledged."""

    def resume_writing(self) -> None:
        """See pause_writing."""

    def _authenticate(self, authentication: ProposerSide, message: AuthenticationMessage) -> None:
        answer = authentication.receive(message)
        if answer is not None and self._transport is not None:
            self._transport.write(encode_authentication(answer))
        if authentication.done:
            self._decoder.deliver = self._received
            self._decoder.use(ACCEPTOR_DIALECT)
            self._open()

    def _open(self) -> None:
        self.is_open = self._was_open = True
        self.reason = "the safekeeper closed the connection"
        self.ready.set_result(None)
        self._opened()

    def _malformed(self, error: RemoteProtocolError) -> None:
        self.abort(str(error))

    def _give_up(self, reason: str) -> None:
        if self._given_up:
            return
        self._given_up = True
        self._decoder.deliver = _ignore
        self.reason = reason
        if self.is_open:
            self.is_open = False
            self._lost()


def _ignore(message: object) -> None:
    """Ignore a message that is received after a disconnect."""
