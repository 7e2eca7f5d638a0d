"""The door for PostgreSQL's own replication clients: standbys' walreceivers and pg_receivewal.

It listens, admits so many connections as it is told, and looks after them once in a while; what is said on one is
safekeeper/replication_connection.py's, who is sent what and when safekeeper/learners.py's. It is not open unless an
address is given.

A scanner can fill neither the connections, which are limited and must be let in within a few seconds, nor the log.
"""

import asyncio
import logging
import secrets
from typing import Any

from safekeeper.errors import ConfigurationError
from safekeeper.learners import LearnerHub
from safekeeper.logs import RateLimit
from safekeeper.lsn import format_lsn
from safekeeper.networks import Networks
from safekeeper.node import Node
from safekeeper.replication_connection import ReplicationConnection
from safekeeper.settings import Address
from safekeeper.slots import Slots
from safekeeper.tls import ServerTls
from safekeeper.users import Users

# How long a shutdown waits for readers to take what there is for them.
GOODBYE_S = 2.0
_WATCH_INTERVAL_S = 1.0

_log = logging.getLogger(__name__)


class ReplicationDoor:
    """Listens for replication clients.

    Attributes:
        node, hub, slots: whom it serves WAL from, who serves it, what is held for whom.
        tls, users, networks: for connections from now on: TLS or plaintext; who must prove a password, None nobody;
            where clients may come from, None anywhere.
        mock_salt: see pgwire.Session.
        address: where it listens, known after `open`.
    """

    def __init__(
        self,
        node: Node,
        hub: LearnerHub,
        slots: Slots,
        *,
        connections_max: int,
        greeting_timeout_s: float,
        timeout_s: float,
        tls: ServerTls | None = None,
        users: Users | None = None,
        networks: Networks | None = None,
    ) -> None:
        self.node = node
        self.hub = hub
        self.slots = slots
        self.tls = tls
        self.users = users
        self.networks = networks
        self.greeting_timeout_s = greeting_timeout_s
        self.timeout_s = timeout_s
        self.mock_salt = secrets.token_bytes(16)
        self.address = Address("", 0)
        self._connections_max = connections_max
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self._connections: dict[int, ReplicationConnection] = {}
        self._last_number = 0
        self._server: asyncio.Server | None = None
        self._strangers = RateLimit(lines=10, interval_s=60)
        self._clients = RateLimit(lines=30, interval_s=60)
        self._watch_handle: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None

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
            self._server = await self._loop.create_server(
                lambda: ReplicationConnection(self), address.host, address.port, backlog=64
            )
        except OSError as error:
            raise ConfigurationError(
                f"could not listen for replication clients at {address}: {error.strerror or error}: correct --pg-listen"
            ) from error
        self.address = Address(address.host, self._server.sockets[0].getsockname()[1])
        self._watch()

    def stop_accepting(self) -> None:
        """Take no more connections; the ones that there are stay."""
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        """Give the readers what is readable, as far as they take it soon, and close all connections."""
        self.stop_accepting()
        try:
            async with asyncio.timeout(GOODBYE_S):
                await self.hub.become_quiet()
        except TimeoutError:
            _log.info("some readers have not been sent all WAL that is here")
        if self._watch_handle is not None:
            self._watch_handle.cancel()
        for connection in list(self._connections.values()):
            connection.say_goodbye()
        if self._connections:
            self._emptied = self._loop.create_future()
            await asyncio.wait((self._emptied,), timeout=GOODBYE_S)
        self.abort()

    def abort(self) -> None:
        """Close everything at once."""
        self.stop_accepting()
        if self._watch_handle is not None:
            self._watch_handle.cancel()
        for connection in list(self._connections.values()):
            connection.abort()
        self.hub.close()

    # What /status shows.

    def describe_readers(self) -> list[dict[str, Any]]:
        """Return the clients that stream; LSNs as PostgreSQL prints them."""
        now, described = self.now(), []
        for connection in self._connections.values():
            reader = connection.reader
            if reader is None:
                continue
            described.append(
                {
                    "connection": connection.number,
                    "application_name": connection.name,
                    "address": connection.peer,
                    "user": connection.user,
                    "slot": reader.slot.name if reader.slot is not None else None,
                    "state": reader.state,
                    "tli": reader.tli,
                    "sent_lsn": format_lsn(reader.position_lsn),
                    "write_lsn": format_lsn(reader.write_lsn),
                    "flush_lsn": format_lsn(reader.flush_lsn),
                    "apply_lsn": format_lsn(reader.apply_lsn),
                    "lag_bytes": max(0, self.hub.readable_end(reader) - reader.position_lsn),
                    "last_reply_s": round(now - connection.heard_at, 3),
                }
            )
        return described

    # The connections.

    def admit(self, connection: ReplicationConnection, host: str) -> bool:
        """Number a new connection, unless it comes from elsewhere or there are too many."""
        if self.networks is not None and not self.networks.admits(host):
            self._warn(
                f"refused a replication client from {connection.peer}: it lies in none of the networks of --pg-allow"
            )
            return False
        if len(self._connections) >= self._connections_max:
            self._warn(
                f"refused a replication client from {connection.peer}: {self._connections_max} are connected already"
            )
            return False
        self._last_number += 1
        connection.number = self._last_number
        self._connections[connection.number] = connection
        _log.debug("%s", connection)
        return True

    def close_connection(self, connection: ReplicationConnection, reason: str, *, stranger: bool = False) -> None:
        """Close a connection after what was sent on it. `reason`: for the log, empty if it was logged or is usual."""
        if reason and stranger:
            self._warn(f"closed {connection}: {reason}")
        elif reason:
            self._tell(f"closed {connection}: {reason}")
        connection.close()

    def note_refusal(self, line: str) -> None:
        """Log that a command was refused. A standby tries again for ever, so there is a limit."""
        self._tell(line)

    def lost(self, connection: ReplicationConnection) -> None:
        """Forget a connection that is closed."""
        self.slots.connection_lost(connection.number)
        if self._connections.pop(connection.number, None) is not None:
            _log.debug("%s is gone", connection)
        if self._emptied is not None and not self._connections and not self._emptied.done():
            self._emptied.set_result(None)

    def _watch(self) -> None:
        now = self.now()
        for connection in list(self._connections.values()):
            connection.watch(now)
        interval_s = min(_WATCH_INTERVAL_S, self.timeout_s / 4, self.greeting_timeout_s / 4)
        self._watch_handle = self._loop.call_later(interval_s, self._watch)

    def _tell(self, line: str) -> None:
        more = self._clients.admit()
        if more is not None:
            _log.info("%s%s", line, more)

    def _warn(self, line: str) -> None:
        more = self._strangers.admit()
        if more is not None:
            _log.warning("%s%s", line, more)
