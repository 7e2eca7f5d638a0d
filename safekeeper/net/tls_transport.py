"""TLS between a socket's transport and a protocol that reads into its own buffer.

asyncio has the same, and so has uvloop, and both hide what an operator must be told: that plaintext came, whose
certificate was refused and why, that the connection ended before the handshake. Here the protocol above hears of it
(`tls_failed`), and it is told of the connection as soon as there is one, so that it can count it and time it out.

What was received and not decrypted yet is bounded by one read of the socket (S14): as long as the protocol above has
paused reading, nothing is decrypted, and nothing is read.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol, cast

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.net.tls import TlsChannel

_RECEIVE_BYTES = 64 << 10


class SecuredProtocol(Protocol):
    """What stands above: an asyncio.BufferedProtocol that also hears of TLS."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """There is a connection. Nothing can be sent before `secured`."""

    def secured(self) -> None:
        """The handshake is done."""

    def tls_failed(self, reason: str) -> None:
        """TLS has failed; nothing more comes. The connection is to be closed."""

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where plaintext goes."""

    def buffer_updated(self, nbytes: int) -> None:
        """Plaintext is there."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""

    def pause_writing(self) -> None:
        """Too much waits to be sent."""

    def resume_writing(self) -> None:
        """That is no longer so."""


class TlsTransport(asyncio.BufferedProtocol):
    """The protocol of a socket's transport, and the transport of the protocol above.

    Attributes:
        channel: the TLS of this connection.
    """

    def __init__(self, channel: TlsChannel, above: SecuredProtocol, *, client: bool = False) -> None:
        self.channel = channel
        self._above = above
        self._client = client
        self._transport: asyncio.Transport
        self._received = memoryview(bytearray(_RECEIVE_BYTES))
        self._paused = False
        self._delivering = False
        self._over = False

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._above.connection_made(cast(asyncio.BaseTransport, self))
        if self._client:
            self.channel.begin()
            self._flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        if self._over:
            return
        try:
            self.channel.feed(self._received[:nbytes])
        except RemoteProtocolError as error:
            self._fail(error)
        else:
            self._deliver()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        self._above.connection_lost(exc)
        # The two hold each other, and buffers and keys with it: a scanner's would wait for the garbage collector.
        del self._above

    def pause_writing(self) -> None:
        self._above.pause_writing()

    def resume_writing(self) -> None:
        self._above.resume_writing()

    # What the protocol above calls: the part of asyncio.Transport that it uses.

    def write(self, data: bytes | memoryview) -> None:
        """See asyncio.Transport."""
        self.writelines((data,))

    def writelines(self, buffers: Iterable[bytes | memoryview]) -> None:
        """See asyncio.Transport. What is written before the handshake is done is dropped, as on a closed transport."""
        if self.channel.established and not self._over:
            self.channel.send(*buffers)
            self._flush()

    def pause_reading(self) -> None:
        """See asyncio.Transport."""
        self._paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """See asyncio.Transport."""
        self._paused = False
        self._transport.resume_reading()
        if not self._delivering:
            # What waits, encrypted, is not announced by the socket again.
            asyncio.get_running_loop().call_soon(self._deliver)

    def close(self) -> None:
        """See asyncio.Transport."""
        if not self._over:
            self._over = True
            self.channel.close()
            self._flush()
        self._transport.close()

    def abort(self) -> None:
        """See asyncio.Transport."""
        self._over = True
        self._transport.abort()

    def is_closing(self) -> bool:
        """See asyncio.Transport."""
        return self._over or self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See asyncio.Transport."""
        return self._transport.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        """See asyncio.Transport."""
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """See asyncio.Transport."""
        return self._transport.get_write_buffer_size()

    def _deliver(self) -> None:
        """Decrypt what was received, as far as the protocol above takes it."""
        if self._delivering or self._over:
            return
        self._delivering = True
        above, channel = self._above, self.channel
        try:
            while not (self._paused or self._over):
                secured = channel.established
                size = channel.read_into(above.get_buffer(-1))
                if channel.established and not secured:
                    self._flush()
                    above.secured()
                if not size:
                    break
                if not self._over:
                    above.buffer_updated(size)
        except RemoteProtocolError as error:
            self._fail(error)
        finally:
            self._delivering = False
        self._flush()
        if channel.ended and not self._over:
            self.close()

    def _fail(self, error: RemoteProtocolError) -> None:
        # The alert that says so goes out before the protocol above closes.
        self._flush()
        self._over = True
        self._above.tls_failed(str(error))

    def _flush(self) -> None:
        outgoing = self.channel.take_outgoing()
        if outgoing:
            self._transport.write(outgoing)
