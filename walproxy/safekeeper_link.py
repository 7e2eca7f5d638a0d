"""A connection to one safekeeper, made again whenever it breaks.

The link only carries: frames out, messages in. It connects with a deadline and a growing pause between attempts, and
tells its owner when a connection is there, what was said on it, and when it is gone. What a peer says that is not
understood breaks the connection (S11). All callbacks run on the event loop.
"""

import asyncio
import logging
import random
import socket
from collections.abc import Sequence
from typing import Protocol, cast

from safekeeper.consensus.messages import AcceptorMessage
from safekeeper.errors import RemoteProtocolError
from safekeeper.settings import Address
from safekeeper.wire import ACCEPTOR_DIALECT, FrameDecoder

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 3.0
PAUSE_MIN_S = 0.05
PAUSE_MAX_S = 1.0


class LinkOwner(Protocol):
    """Whoever owns links; called on the event loop."""

    def link_up(self, safekeeper_id: int) -> None:
        """A connection is open."""

    def link_down(self, safekeeper_id: int) -> None:
        """The connection that was open is closed."""

    def link_message(self, safekeeper_id: int, message: AcceptorMessage) -> None:
        """The safekeeper said something. May raise RemoteProtocolError: the connection is closed."""


class SafekeeperLink:
    """The link to one safekeeper.

    Attributes:
        safekeeper_id, address: whom it connects to.
        problem: why there is no connection, empty if there is one.
    """

    def __init__(self, safekeeper_id: int, address: Address, owner: LinkOwner) -> None:
        self.safekeeper_id = safekeeper_id
        self.address = address
        self.problem = "not connected yet"
        self._owner = owner
        self._protocol: _LinkProtocol | None = None
        self._told = ""
        self._flaps = False  # The last connection was closed as soon as it was open.

    @property
    def is_up(self) -> bool:
        """Whether a connection is open."""
        return self._protocol is not None

    async def run(self) -> None:
        """Keep connecting until cancelled."""
        loop = asyncio.get_running_loop()
        pause_s = PAUSE_MIN_S
        try:
            while True:
                protocol = _LinkProtocol(self)
                try:
                    async with asyncio.timeout(CONNECT_TIMEOUT_S):
                        await loop.create_connection(lambda: protocol, *self.address)  # noqa: B023 - called at once
                except (OSError, TimeoutError) as error:
                    reason = "no answer in time" if isinstance(error, TimeoutError) else str(error)
                    self._say(f"could not connect to safekeeper {self.safekeeper_id} at {self.address}: {reason}")
                else:
                    began_at = loop.time()
                    await protocol.closed
                    self._flaps = loop.time() - began_at <= PAUSE_MAX_S
                    if not self._flaps:
                        pause_s = PAUSE_MIN_S
                await asyncio.sleep(pause_s * (0.5 + random.random()))
                pause_s = min(pause_s * 2, PAUSE_MAX_S)
        finally:
            self.disconnect("the proxy stops")

    def send(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Send a frame; dropped if there is no connection (its owner hears of that by itself)."""
        if self._protocol is not None:
            self._protocol.transport.writelines(buffers)

    def disconnect(self, reason: str) -> None:
        """Close the connection, if there is one; a new one is made."""
        if self._protocol is not None:
            self._protocol.reason = reason
            self._protocol.transport.abort()
            self._went_down()

    def _came_up(self, protocol: "_LinkProtocol") -> None:
        self._protocol = protocol
        self.problem = ""
        if self._flaps:
            # A safekeeper that refuses us is asked again each second: worth a line only when it no longer does.
            asyncio.get_running_loop().call_later(PAUSE_MAX_S, self._stays_up, protocol)
        else:
            self._stays_up(protocol)
        self._owner.link_up(self.safekeeper_id)

    def _stays_up(self, protocol: "_LinkProtocol") -> None:
        if self._protocol is protocol:
            self._told = ""
            logger.info("connected to safekeeper %d at %s", self.safekeeper_id, self.address)

    def _went_down(self) -> None:
        protocol = self._protocol
        if protocol is not None:
            self._protocol = None
            self._say(f"lost safekeeper {self.safekeeper_id} at {self.address}: {protocol.reason}")
            self._owner.link_down(self.safekeeper_id)

    def _say(self, text: str) -> None:
        """Log a problem once, until it changes or is gone."""
        self.problem = text
        if text != self._told:
            self._told = text
            logger.warning("%s", text)


class _LinkProtocol(asyncio.BufferedProtocol):
    """One connection of a link: bytes to messages."""

    def __init__(self, link: SafekeeperLink) -> None:
        self.reason = "the safekeeper closed the connection"
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport
        self._link = link
        self._decoder = FrameDecoder(ACCEPTOR_DIALECT)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's; create_connection makes no other kind.
        self.transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._link._came_up(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        link, decoder = self._link, self._decoder
        decoder.buffer_updated(nbytes)
        try:
            while (message := decoder.next_message()) is not None:
                if link._protocol is not self:
                    return  # What comes after a disconnect belongs to nobody.
                link._owner.link_message(link.safekeeper_id, message)
        except RemoteProtocolError as error:
            self.reason = str(error)
            link.disconnect(self.reason)

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            self.reason = str(error)
        if self._link._protocol is self:
            self._link._went_down()
        if not self.closed.done():
            self.closed.set_result(None)
