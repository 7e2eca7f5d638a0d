"""Listening sockets that accept a few connections at a time, and continue after a shortage of file descriptors.

asyncio's own servers accept all waiting connections before the event loop does anything else, and they differ when
accept() fails: asyncio pauses for a second, libuv closes all waiting connections. Here:

    a flood      accepting is a piece of work in the listener's turns (safekeeper/net/turns.py): at most
                 ACCEPTS_AT_ONCE connections are accepted, including refused ones, before the event loop runs its other
                 callbacks, and above the share of time for clients, the next ones wait in the kernel. While that share
                 is short, one at a time: not more than the turns of their address can serve
    EMFILE etc.  accepting pauses, for longer each time up to a second; the connections wait in the kernel
    a refusal    is decided before anything is allocated for the connection
    in transit   at most ACCEPTS_AT_ONCE connections are accepted and not yet counted by `connection_made`
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

from safekeeper.base.logs import RateLimit
from safekeeper.base.settings import Address
from safekeeper.net.turns import Turns

ACCEPTS_AT_ONCE = 8
# The connections that wait in the kernel: above it a new one is tried again by its client's kernel after a second, then
# after three. Linux limits it to net.core.somaxconn, usually 4096.
BACKLOG = 2048
# The time for a connection's transport, its first and its last event, and its closing, outside of turns.
CONNECTION_S = 150e-6
PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 1.0
_SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})

_log = logging.getLogger(__name__)


class ListeningSockets:
    """The sockets of one address; a host name may have several. Created by `open`.

    Attributes:
        port: the port on which they listen.
        shortages: how often a connection could not be accepted for want of a descriptor or memory.

    Args:
        new_protocol: returns the protocol for a connection from a host and port, None to close it at once.
        turns: when connections are accepted.
    """

    def __init__(
        self,
        sockets: list[socket.socket],
        new_protocol: Callable[[str, int], asyncio.BaseProtocol | None],
        turns: Turns,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sockets = sockets
        self._new_protocol = new_protocol
        self._turns = turns
        self._accepted: set[asyncio.Task[None]] = set()  # Those whose transports are being created.
        self._resume: asyncio.TimerHandle | None = None
        self._pause_s = PAUSE_S_MIN
        self._lines = RateLimit(lines=3, interval_s=60)
        self.port: int = sockets[0].getsockname()[1]
        self.shortages = 0
        self._read()

    @classmethod
    async def open(
        cls, address: Address, new_protocol: Callable[[str, int], asyncio.BaseProtocol | None], turns: Turns
    ) -> "ListeningSockets":
        """Listen at `address`.

        Raises:
            OSError: it cannot listen there.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sockets: list[socket.socket] = []
        failure: OSError | None = None
        for family, kind, protocol, _, where in dict.fromkeys(found):
            try:
                sockets.append(_listen(family, kind, protocol, where))
            except OSError as error:
                # A name may resolve to an address of a family that this machine does not support.
                failure = error
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    break
        else:
            if sockets:
                return cls(sockets, new_protocol, turns)
        for each in sockets:
            each.close()
        raise failure if failure is not None else OSError(f"{address.host} has no address")

    def close(self) -> None:
        """Stop accepting connections. Closing twice is harmless."""
        self._stop_reading()
        for each in self._sockets:
            each.close()
        self._sockets = []

    def _read(self) -> None:
        self._resume = None
        for each in self._sockets:
            self._loop.add_reader(each.fileno(), self._ask_for_turn)

    def _stop_reading(self) -> None:
        for each in self._sockets:
            self._loop.remove_reader(each.fileno())
        if self._resume is not None:
            self._resume.cancel()

    def _ask_for_turn(self) -> None:
        self._stop_reading()
        self._turns.ask("", self._take_turn)

    def _take_turn(self) -> None:
        room = min(ACCEPTS_AT_ONCE - len(self._accepted), 1 if self._turns.is_short else ACCEPTS_AT_ONCE)
        count = len(self._sockets)  # 0 once they are closed.
        try:
            for _ in range(count):
                if not room:
                    break
                # The next turn begins with the next socket.
                listening = self._sockets.pop(0)
                self._sockets.append(listening)
                room -= self._accept(listening, min(room, max(1, ACCEPTS_AT_ONCE // count)))
        except OSError as error:
            self._pause(error)
        else:
            self._read()

    def _accept(self, listening: socket.socket, limit: int) -> int:
        """Accept at most `limit` connections, including refused ones; return their number.

        Raises:
            OSError: no file descriptor or memory is free.
        """
        for number in range(limit):
            try:
                connection, peer = listening.accept()
            except (BlockingIOError, InterruptedError):
                return number
            except OSError as error:
                if error.errno in _SHORT:
                    raise
                continue  # The peer disconnected before it was accepted.
            self._pause_s = PAUSE_S_MIN
            protocol = self._new_protocol(peer[0], peer[1])
            if protocol is None:
                connection.close()
                continue
            self._turns.charge(peer[0], CONNECTION_S)
            connection.setblocking(False)
            task = self._loop.create_task(self._connect(connection, protocol))
            self._accepted.add(task)
            task.add_done_callback(self._accepted.discard)
        return limit

    async def _connect(self, connection: socket.socket, protocol: asyncio.BaseProtocol) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, connection)
        except OSError:
            connection.close()  # The peer disconnected.

    def _pause(self, error: OSError) -> None:
        self.shortages += 1
        more = self._lines.admit()
        if more is not None:
            _log.warning("could not accept a connection: %s: retrying%s", error.strerror, more)
        self._stop_reading()
        self._resume = self._loop.call_later(self._pause_s, self._read)
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)


def _listen(family: int, kind: int, protocol: int, where: tuple[object, ...]) -> socket.socket:
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.setblocking(False)
        listening.bind(where)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening
