"""TLS between a socket's transport and a protocol that reads into its own buffer.

asyncio has the same, and so has uvloop, but both hide facts that the log must contain: that plaintext was received,
which certificate was refused and why, that the connection ended before the handshake. Here these are passed to the
protocol above (`tls_failed`), and it receives the connection at once, so that it can count it and time it out.

Data of a connection that is not proven is decrypted by the listener's `Turns` (safekeeper/net/turns.py), and its
handshake is done there; nothing more is read meanwhile.

Data received and not decrypted yet is limited to one read of the socket (S14): while the protocol above has paused
reading, nothing is decrypted and nothing is read.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol, cast

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.net.tls import TlsChannel
from safekeeper.net.turns import Turns

_RECEIVE_BYTES = 64 << 10


class SecuredProtocol(Protocol):
    """The protocol above: an asyncio.BufferedProtocol with events of TLS."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection. Nothing can be sent before `secured`."""

    def secured(self) -> None:
        """Continue after the handshake."""

    def tls_failed(self, reason: str) -> None:
        """Close the connection: TLS has failed, and nothing more will be received."""

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for plaintext."""

    def buffer_updated(self, nbytes: int) -> None:
        """Handle `nbytes` of plaintext in the buffer."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up: the connection is closed."""

    def pause_writing(self) -> None:
        """Stop writing: too much waits to be sent."""

    def resume_writing(self) -> None:
        """Write again."""


class TlsTransport(asyncio.BufferedProtocol):
    """The protocol of a socket's transport, and the transport of the protocol above.

    Args:
        turns: when its data is decrypted until it is proven, None for at once.

    Attributes:
        channel: the TLS of this connection.
    """

    def __init__(
        self, channel: TlsChannel, above: SecuredProtocol, *, client: bool = False, turns: Turns | None = None
    ) -> None:
        self.channel = channel
        self._above = above
        self._client = client
        self._turns = turns
        self._host = ""
        self._waits_for_turn = False
        self._transport: asyncio.Transport
        self._received = memoryview(bytearray(_RECEIVE_BYTES))
        self._paused = False
        self._delivering = False
        self._over = False

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._turns is not None:
            self._host = (transport.get_extra_info("peername") or ("",))[0]
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
            if self._turns is None:
                self._deliver()
            else:
                self._ask_for_turn(self._turns)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        if self._waits_for_turn and self._turns is not None:
            self._turns.withdraw(self._host, self._take_turn)
        self._above.connection_lost(exc)
        # The two reference each other and hold buffers and keys: without this they would wait for garbage collection.
        del self._above

    def pause_writing(self) -> None:
        self._above.pause_writing()

    def resume_writing(self) -> None:
        self._above.resume_writing()

    # Called by the protocol above: the part of asyncio.Transport that it uses.

    def write(self, data: bytes | memoryview) -> None:
        """See asyncio.Transport."""
        self.writelines((data,))

    def writelines(self, buffers: Iterable[bytes | memoryview]) -> None:
        """See asyncio.Transport. Data written before the handshake is done is dropped, as on a closed transport."""
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
        if self._turns is None:
            self._transport.resume_reading()
        if self._delivering:
            return
        # The socket does not report data again that was received and is waiting, encrypted.
        if self._turns is None:
            asyncio.get_running_loop().call_soon(self._deliver)
        else:
            self._ask_for_turn(self._turns)

    def proven(self) -> None:
        """Decrypt data at once from now on."""
        self._turns = None

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

    def _ask_for_turn(self, turns: Turns) -> None:
        if not (self._waits_for_turn or self.is_closing()):
            self._transport.pause_reading()
            self._waits_for_turn = True
            turns.ask(self._host, self._take_turn)

    def _take_turn(self) -> None:
        self._waits_for_turn = False
        self._deliver()
        if not (self._paused or self._waits_for_turn or self.is_closing()):
            self._transport.resume_reading()

    def _deliver(self) -> None:
        """Decrypt received data, as far as the protocol above accepts it."""
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
        # The alert is sent before the protocol above closes the connection.
        self._flush()
        self._over = True
        self._above.tls_failed(str(error))

    def _flush(self) -> None:
        outgoing = self.channel.take_outgoing()
        if outgoing:
            self._transport.write(outgoing)
