"""The common part of all listeners: accepts connections, keeps as many as the budgets allow, and limits log lines.

A connection from a network that is not allowed is closed before anything is read. safekeeper/net/admission.py decides
which of the others are kept: unproven connections have a separate budget, in which the newest displace the oldest, so
that they cannot displace a proven one. Their work is done by `Turns` (safekeeper/net/turns.py), within a share of the
event loop's time, so that they cannot delay the commits that this loop decides. Log lines about connections that are
refused or evicted are rate-limited, and so are those about known clients that are refused repeatedly. The subclass and
its connection implement the protocol.
"""

import asyncio
import logging
import socket
from abc import ABC, abstractmethod
from typing import ClassVar, Generic, Protocol, TypeVar

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.logs import RateLimit
from safekeeper.base.networks import Networks
from safekeeper.base.settings import Address
from safekeeper.net.accepting import ListeningSockets
from safekeeper.net.admission import Admission, Budget
from safekeeper.net.turns import Turns

# A peer whose host is unreachable is detected after idle + count * interval seconds, also when nothing is sent.
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


class Visitor(Protocol):
    """A connection: its number, 0 until it is admitted, and its peer's address, for the log."""

    number: int
    peer: str


_Connection = TypeVar("_Connection", bound=Visitor)


class Listener(ABC, Generic[_Connection]):
    """A listening socket and its connections.

    Args:
        budget: the maximum numbers of connections.
        networks: the networks from which clients are accepted, None for all.

    Attributes:
        CANNOT_LISTEN: the error if it cannot listen: filled with the address and the reason.
        FOREIGN: the line for a client outside the networks: filled with the peer's address.
        UNPROVEN: what its unproven connections are called in the log.
        EVICTED: the line for a connection closed for a newer one: filled with its address and the number of unproven
            ones.
        admission: the connections that are kept; for metrics.
        turns: the work for unproven connections.
        networks: as above, for connections from now on.
        address: its address, known after `open`.
        now: returns the event loop's time.
    """

    # Whole lines, so that a search for a logged line finds it in the source.
    CANNOT_LISTEN: ClassVar[str]
    FOREIGN: ClassVar[str]
    EVICTED: ClassVar[str]
    UNPROVEN: ClassVar[str]

    def __init__(self, *, budget: Budget, networks: Networks | None) -> None:
        self.networks = networks
        self.address = Address("", 0)
        self.admission = Admission(budget)
        self.turns = Turns(self.UNPROVEN)
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self._connections: dict[int, _Connection] = {}
        self._last_number = 0
        self._listening: ListeningSockets | None = None
        self._watch_handle: asyncio.TimerHandle | None = None
        self._log = logging.getLogger(type(self).__module__)
        self._strangers = RateLimit(lines=10, interval_s=60)
        self._familiar = RateLimit(lines=30, interval_s=60)

    @abstractmethod
    def new_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol for a new connection."""

    @abstractmethod
    def watch(self) -> float:
        """Check the connections' timeouts; return the seconds until the next check."""

    @abstractmethod
    def evict(self, connection: _Connection, reason: str) -> None:
        """Close a connection at once: another one replaces it."""

    @property
    def accept_shortages(self) -> int:
        """How often a connection could not be accepted for want of a file descriptor or memory."""
        return self._listening.shortages if self._listening is not None else 0

    @property
    def connection_count(self) -> int:
        """The number of connections."""
        return len(self._connections)

    async def open(self, address: Address) -> None:
        """Listen at `address`.

        Raises:
            ConfigurationError: it cannot listen there.
        """
        try:
            self._listening = await ListeningSockets.open(address, self._protocol_for, self.turns)
        except OSError as error:
            raise ConfigurationError(self.CANNOT_LISTEN % (address, error.strerror or error)) from error
        self.address = Address(address.host, self._listening.port)
        self._watch_again()

    def stop_accepting(self) -> None:
        """Stop accepting connections; existing ones stay open."""
        if self._listening is not None:
            self._listening.close()

    def stop_watching(self) -> None:
        """Stop checking the connections, and drop the work that waits for unproven ones."""
        self.turns.stop()
        if self._watch_handle is not None:
            self._watch_handle.cancel()

    def admit(self, connection: _Connection, host: str) -> None:
        """Number a new connection and count it as unproven; another one may be closed for it."""
        self._last_number += 1
        connection.number = self._last_number
        unproven = self.admission.unproven
        evicted = self.admission.arrive(connection.number, host, self.now())
        self._connections[connection.number] = connection
        if evicted:
            old = self._connections[evicted]
            self._warn(self.EVICTED % (old.peer, unproven))
            self.evict(old, "a newer connection has replaced it")

    def forget(self, number: int) -> _Connection | None:
        """Stop counting a connection; return it if it was counted."""
        self.admission.leave(number)
        return self._connections.pop(number, None)

    def _protocol_for(self, host: str, port: int) -> asyncio.BaseProtocol | None:
        if self.networks is not None and not self.networks.admits(host):
            self._warn(self.FOREIGN % peer_name(host, port))
            return None
        return self.new_protocol()

    def _watch_again(self) -> None:
        self._watch_handle = self._loop.call_later(self.watch(), self._watch_again)

    def _warn(self, line: str) -> None:
        """Log a line about an unproven client, rate-limited."""
        more = self._strangers.admit()
        if more is not None:
            self._log.warning("%s%s", line, more)

    def _report(self, line: str) -> None:
        """Log a line about a known client, rate-limited."""
        more = self._familiar.admit()
        if more is not None:
            self._log.info("%s%s", line, more)


def peer_name(host: str, port: int) -> str:
    """Return a peer's name for the log."""
    return f"{host}:{port}"


def prepare_socket(sock: socket.socket) -> None:
    """Send small messages at once, and detect a peer that is unreachable."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
