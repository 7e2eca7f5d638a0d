"""The listener for PostgreSQL's own replication clients: standbys' walreceivers and pg_receivewal.

It accepts connections up to the configured limit and checks their timeouts periodically. The protocol of a connection
is in safekeeper/serving/replication_connection.py; safekeeper/serving/readers.py decides what is sent to which reader,
and when. The listener is open only if an address is given.

A connection is proven (safekeeper/net/admission.py) once its client has logged in. Until then its time is limited to a
few seconds, and a newer connection may displace it. A client that has logged in is refused above the limit.
"""

import asyncio
import logging
import secrets

from safekeeper.base.logs import RateLimit
from safekeeper.base.lsn import format_lsn
from safekeeper.base.networks import Networks
from safekeeper.base.status_fields import ReaderStatus
from safekeeper.net.admission import Budget
from safekeeper.net.listener import Listener
from safekeeper.net.tls import ServerTls
from safekeeper.node.node import Node
from safekeeper.serving.readers import ReaderHub
from safekeeper.serving.replication_connection import ReplicationClient
from safekeeper.serving.slots import Slots
from safekeeper.serving.users import KnownUsers

# How long a shutdown waits for readers to receive the WAL that is readable.
GOODBYE_S = 2.0
# The limit of lines about what clients that have logged in do: streams and slots that begin and end.
CAUSED_LINES_A_MINUTE = 60
_WATCH_INTERVAL_S = 1.0

_log = logging.getLogger(__name__)


class ReplicationListener(Listener[ReplicationClient]):
    """Listens for replication clients.

    Attributes:
        node, hub, slots: the source of the WAL, the hub of its readers, the replication slots.
        tls, users: for new connections: TLS, None for plaintext; the users that need a password, None if no user does.
        mock_salt: see pgwire.Session.
    """

    CANNOT_LISTEN = "could not listen for replication clients at %s: %s: correct --pg-listen"
    FOREIGN = "refused a replication client from %s: its address is in none of the networks of pg_allow"
    UNPROVEN = "replication clients that are not logged in"
    EVICTED = "closed the replication client from %s, the oldest of %d that are not logged in, for a newer one"

    def __init__(
        self,
        node: Node,
        hub: ReaderHub,
        slots: Slots,
        *,
        budget: Budget,
        greeting_timeout_s: float,
        timeout_s: float,
        tls: ServerTls | None = None,
        users: KnownUsers | None = None,
        networks: Networks | None = None,
    ) -> None:
        super().__init__(budget=budget, networks=networks)
        self.node = node
        self.hub = hub
        self.slots = slots
        self.tls = tls
        self.users = users
        self.greeting_timeout_s = greeting_timeout_s
        self.timeout_s = timeout_s
        self.mock_salt = secrets.token_bytes(16)
        self._emptied: asyncio.Future[None] | None = None
        self._caused = RateLimit(lines=CAUSED_LINES_A_MINUTE, interval_s=60)

    def new_protocol(self) -> asyncio.BaseProtocol:
        """See Listener."""
        return ReplicationClient(self)

    async def close(self) -> None:
        """Send the readers the readable WAL, for at most GOODBYE_S, and close all connections."""
        self.stop_accepting()
        try:
            async with asyncio.timeout(GOODBYE_S):
                await self.hub.become_quiet()
        except TimeoutError:
            _log.info("some readers have not received all WAL")
        self.stop_watching()
        for connection in list(self._connections.values()):
            connection.say_goodbye()
        if self._connections:
            self._emptied = self._loop.create_future()
            await asyncio.wait((self._emptied,), timeout=GOODBYE_S)
        self.abort()

    def abort(self) -> None:
        """Close everything at once."""
        self.stop_accepting()
        self.stop_watching()
        for connection in list(self._connections.values()):
            connection.abort()
        self.hub.close()

    # For /status.

    def describe_readers(self) -> list[ReaderStatus]:
        """Return the clients that stream."""
        now = self.now()
        return [
            ReaderStatus(
                connection=connection.number,
                application_name=connection.name,
                address=connection.peer,
                user=connection.user,
                slot=reader.slot.name if reader.slot is not None else None,
                state=reader.state,
                tli=reader.tli,
                sent_lsn=format_lsn(reader.position_lsn),
                write_lsn=format_lsn(reader.write_lsn),
                flush_lsn=format_lsn(reader.flush_lsn),
                apply_lsn=format_lsn(reader.apply_lsn),
                lag_bytes=max(0, self.hub.readable_end(reader) - reader.position_lsn),
                last_reply_s=round(now - connection.received_at, 3),
            )
            for connection in self._connections.values()
            if (reader := connection.reader) is not None
        ]

    # The connections.

    def admit(self, connection: ReplicationClient, host: str) -> None:
        """See Listener."""
        super().admit(connection, host)
        _log.debug("%s", connection)

    def evict(self, connection: ReplicationClient, reason: str) -> None:
        """See Listener."""
        self.forget(connection.number)
        connection.abort()

    def logged_in(self, connection: ReplicationClient) -> bool:
        """Count a connection as proven; return whether the limit allows it."""
        if self.admission.prove(connection.number).admitted:
            return True
        limit = self.admission.budget.proven_max
        self._warn(f"refused {connection}: {limit} are already connected (pg_connections_max)")
        return False

    def close_connection(self, connection: ReplicationClient, reason: str, *, stranger: bool = False) -> None:
        """Close a connection once everything written is sent. `reason`: for the log, empty to log nothing."""
        if reason and stranger:
            self._warn(f"closed {connection}: {reason}")
        elif reason:
            self._report(f"closed {connection}: {reason}")
        connection.close()

    def note_refusal(self, line: str) -> None:
        """Log that a command was refused; rate-limited, because a standby retries indefinitely."""
        self._report(line)

    def note(self, line: str, *, level: int = logging.INFO) -> None:
        """Log what a client has caused, rate-limited."""
        more = self._caused.admit()
        if more is not None:
            _log.log(level, "%s%s", line, more)

    def lost(self, connection: ReplicationClient) -> None:
        """Forget a connection that is closed."""
        self.slots.connection_lost(connection.number)
        if self.forget(connection.number) is not None:
            _log.debug("%s disconnected", connection)
        if self._emptied is not None and not self._connections and not self._emptied.done():
            self._emptied.set_result(None)

    def watch(self) -> float:
        """See Listener."""
        now = self.now()
        for connection in list(self._connections.values()):
            connection.watch(now)
        return min(_WATCH_INTERVAL_S, self.timeout_s / 4, self.greeting_timeout_s / 4)
