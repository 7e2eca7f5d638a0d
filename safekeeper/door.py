"""What the doors of a safekeeper have in common: they listen, let in so many, and tell of strangers in moderation.

Who comes from elsewhere, or when there are too many already, is sent away at once. A scanner can fill neither the
connections, which are limited, nor the log, whose lines about strangers are; those about clients that come again and
again to be refused are limited too. What is said on a connection is the subclass's and the connection's own.
"""

import asyncio
import logging
import socket
from abc import ABC, abstractmethod
from typing import ClassVar, Generic, Protocol, TypeVar

from safekeeper.errors import ConfigurationError
from safekeeper.logs import RateLimit
from safekeeper.networks import Networks
from safekeeper.settings import Address

# A peer whose host has vanished is noticed after idle + count * interval seconds, also when nothing is sent.
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


class Visitor(Protocol):
    """A connection: its number, 0 as long as it is not admitted, and where it comes from, for the log."""

    number: int
    peer: str


_Connection = TypeVar("_Connection", bound=Visitor)


class Door(ABC, Generic[_Connection]):
    """A listening socket and the connections that came through it.

    Args:
        connections_max: so many are let in at a time.
        networks: whence they may come, None for anywhere.

    Attributes:
        CANNOT_LISTEN: why it cannot: filled with the address and the reason.
        FOREIGN: somebody comes from elsewhere: filled with whence.
        CROWDED: there are too many: filled with whence and how many.
        networks: as above, for connections from now on.
        address: where it listens, known after `open`.
        now: returns the event loop's time.
    """

    # Whole lines, so that whoever looks for one that a log has shown finds it in the source.
    CANNOT_LISTEN: ClassVar[str]
    FOREIGN: ClassVar[str]
    CROWDED: ClassVar[str]

    def __init__(self, *, connections_max: int, networks: Networks | None) -> None:
        self.networks = networks
        self.address = Address("", 0)
        self._connections_max = connections_max
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self._connections: dict[int, _Connection] = {}
        self._last_number = 0
        self._server: asyncio.Server | None = None
        self._watch_handle: asyncio.TimerHandle | None = None
        self._log = logging.getLogger(type(self).__module__)
        self._strangers = RateLimit(lines=10, interval_s=60)
        self._familiar = RateLimit(lines=30, interval_s=60)

    @abstractmethod
    def new_protocol(self) -> asyncio.BaseProtocol:
        """Return what handles a new connection."""

    @abstractmethod
    def watch(self) -> float:
        """Look after the connections; return after how many seconds to do so again."""

    @property
    def connection_count(self) -> int:
        """How many connections there are."""
        return len(self._connections)

    async def open(self, address: Address) -> None:
        """Listen at `address`.

        Raises:
            ConfigurationError: that is not possible.
        """
        try:
            self._server = await self._loop.create_server(self.new_protocol, address.host, address.port, backlog=64)
        except OSError as error:
            raise ConfigurationError(self.CANNOT_LISTEN % (address, error.strerror or error)) from error
        self.address = Address(address.host, self._server.sockets[0].getsockname()[1])
        self._watch_again()

    def stop_accepting(self) -> None:
        """Take no more connections; the ones that there are stay."""
        if self._server is not None:
            self._server.close()

    def stop_watching(self) -> None:
        """Look after the connections no more."""
        if self._watch_handle is not None:
            self._watch_handle.cancel()

    def admit(self, connection: _Connection, host: str) -> bool:
        """Number a new connection, unless it comes from elsewhere or there are too many."""
        if self.networks is not None and not self.networks.admits(host):
            self._warn(self.FOREIGN % connection.peer)
            return False
        if len(self._connections) >= self._connections_max:
            self._warn(self.CROWDED % (connection.peer, self._connections_max))
            return False
        self._last_number += 1
        connection.number = self._last_number
        self._connections[connection.number] = connection
        return True

    def _watch_again(self) -> None:
        self._watch_handle = self._loop.call_later(self.watch(), self._watch_again)

    def _warn(self, line: str) -> None:
        """Log what concerns a stranger."""
        more = self._strangers.admit()
        if more is not None:
            self._log.warning("%s%s", line, more)

    def _tell(self, line: str) -> None:
        """Log what concerns somebody who may be here."""
        more = self._familiar.admit()
        if more is not None:
            self._log.info("%s%s", line, more)


def prepare_socket(sock: socket.socket) -> None:
    """Send small messages at once, and notice a peer that has vanished."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
