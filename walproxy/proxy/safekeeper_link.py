"""A connection to one safekeeper, made again whenever it breaks.

The link sends frames and receives messages, without interpreting them. It connects with a timeout and a growing pause
between attempts, and calls its owner when a connection is open, for each message, and when the connection is closed.
A message that cannot be decoded closes the connection (S11). A problem is logged once, until it changes. All callbacks
run on the event loop.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.logs import ProblemLog
from safekeeper.base.settings import Address
from safekeeper.consensus.messages import AcceptorMessage
from safekeeper.net.safekeeper_connection import Credentials, SafekeeperConnection

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 3.0
PAUSE_MIN_S = 0.05
PAUSE_MAX_S = 1.0


class LinkOwner(Protocol):
    """The owner of the links; called on the event loop."""

    def link_up(self, safekeeper_id: int) -> None:
        """Handle a connection that is open now."""

    def link_down(self, safekeeper_id: int) -> None:
        """Handle the end of a connection that was open."""

    def link_message(self, safekeeper_id: int, message: AcceptorMessage) -> None:
        """Handle a message. RemoteProtocolError from it closes the connection."""


class SafekeeperLink:
    """The link to one safekeeper.

    Attributes:
        safekeeper_id: the safekeeper.
        addresses: where it may listen. Each attempt to connect is at the next one.
        address: that of the last attempt.
        problem: why there is no connection, empty if there is one.
        is_reachable: whether the last attempt to connect succeeded.
        send: sends the buffers of a frame, without a copy; drops them if there is no connection (`link_down` reports
            that).
    """

    def __init__(
        self, safekeeper_id: int, address: Address, owner: LinkOwner, credentials: Credentials | None = None
    ) -> None:
        self.safekeeper_id = safekeeper_id
        self.addresses = [address]
        self.address = address
        self.problem = "not connected yet"
        self._owner = owner
        self._credentials = credentials if credentials is not None else Credentials()
        self._connection: SafekeeperConnection | None = None  # One that can be used.
        self.is_reachable = False
        self.send: Callable[[Sequence[bytes | memoryview]], None] = _drop
        # Of each address: the attempts alternate between them.
        self._problems: dict[Address, ProblemLog] = {}
        self._stops = False
        self._flaps = False  # The last connection was closed as soon as it was open.

    @property
    def is_up(self) -> bool:
        """Whether a connection is open."""
        return self._connection is not None

    async def run(self) -> None:
        """Keep connecting until cancelled."""
        loop = asyncio.get_running_loop()
        pause_s = PAUSE_MIN_S
        attempt = 0
        try:
            while True:
                connection = self._new_connection()
                self.address = self.addresses[attempt % len(self.addresses)]
                attempt += 1
                try:
                    async with asyncio.timeout(CONNECT_TIMEOUT_S):
                        await connection.connect(self.address, self._credentials.tls)
                except (OSError, TimeoutError, RemoteProtocolError) as error:
                    self.is_reachable = False
                    reason = "timeout" if isinstance(error, TimeoutError) else str(error)
                    self._log_problem(
                        f"could not connect to safekeeper {self.safekeeper_id} at {self.address}: {reason}"
                    )
                else:
                    began_at = loop.time()
                    await connection.closed
                    self._flaps = loop.time() - began_at <= PAUSE_MAX_S
                    if not self._flaps:
                        pause_s = PAUSE_MIN_S
                await asyncio.sleep(pause_s * (0.5 + random.random()))
                pause_s = min(pause_s * 2, PAUSE_MAX_S)
        finally:
            self._stops = True
            self.disconnect("the proxy stops")

    def hang_up(self, reason: str) -> None:
        """Close the connection for good, without an event; then cancel `run`."""
        connection, self._connection = self._connection, None
        self.send = _drop
        if connection is not None:
            connection.abort(reason)

    def disconnect(self, reason: str) -> None:
        """Close the connection, if there is one, and reconnect."""
        if self._connection is not None:
            self._connection.abort(reason)

    def _new_connection(self) -> SafekeeperConnection:
        connection = SafekeeperConnection(
            self.safekeeper_id,
            self._credentials,
            opened=lambda: self._came_up(connection),
            received=partial(self._owner.link_message, self.safekeeper_id),
            lost=self._went_down,
        )
        return connection

    def _came_up(self, connection: SafekeeperConnection) -> None:
        self._connection = connection
        self.send = connection.writelines
        self.is_reachable = True
        self.problem = ""
        if self._flaps:
            # The link reconnects each second to a safekeeper that refuses it: logged only when it no longer does.
            asyncio.get_running_loop().call_later(PAUSE_MAX_S, self._stays_up, connection)
        else:
            self._stays_up(connection)
        self._owner.link_up(self.safekeeper_id)

    def _stays_up(self, connection: SafekeeperConnection) -> None:
        if self._connection is connection:
            for problems in self._problems.values():
                problems.over()
            logger.info("connected to safekeeper %d at %s", self.safekeeper_id, self.address)

    def _went_down(self) -> None:
        connection = self._connection
        if connection is not None:
            self._connection = None
            self.send = _drop
            self._log_problem(f"lost safekeeper {self.safekeeper_id} at {self.address}: {connection.reason}")
            self._owner.link_down(self.safekeeper_id)

    def _log_problem(self, text: str) -> None:
        self.problem = text
        problems = self._problems.setdefault(self.address, ProblemLog(logger))
        problems.note(text, "%s", text, level=logging.INFO if self._stops else logging.WARNING)


def _drop(buffers: Sequence[bytes | memoryview]) -> None:
    """Send nothing."""
