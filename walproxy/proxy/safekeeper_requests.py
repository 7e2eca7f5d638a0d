"""Requests of a command to a safekeeper, over the same protected connection as that of a proxy."""

import asyncio
from typing import Any, TypeVar

from safekeeper.base.errors import ConfigurationError, RemoteProtocolError, WalproxyError
from safekeeper.base.settings import Address
from safekeeper.consensus.messages import (
    PROTOCOL_VERSION,
    AcceptorGreeting,
    AcceptorMessage,
    AgentView,
    Bootstrapped,
    EventPage,
    FolderStates,
    MembersAnswer,
    PreVoteResponse,
    ProposerGreeting,
    ProposerMessage,
    ReadResponse,
    Refusal,
    TailResponse,
)
from safekeeper.net.safekeeper_connection import Credentials, SafekeeperConnection
from safekeeper.peers.codec import encode

_TIMEOUT_S = 10.0
_Answer = TypeVar(
    "_Answer",
    AcceptorGreeting,
    PreVoteResponse,
    Bootstrapped,
    ReadResponse,
    TailResponse,
    MembersAnswer,
    AgentView,
    EventPage,
)


class SafekeeperUnreachable(ConfigurationError):
    """No connection to a safekeeper could be opened."""


class RequestRefused(WalproxyError):
    """A safekeeper refuses a request.

    Attributes:
        code, reason: of the refusal.
    """

    def __init__(self, name: str, refusal: Refusal) -> None:
        super().__init__(f"{name} refuses: {refusal.reason}")
        self.code = refusal.code
        self.reason = refusal.reason


class SafekeeperRequests:
    """A connection of a command to one safekeeper: one request at a time, then its reply.

    Attributes:
        name: the safekeeper and its address, for messages.
        greeting: the last one.
    """

    greeting: AcceptorGreeting

    def __init__(self, safekeeper_id: int, address: Address, credentials: Credentials) -> None:
        self.name = f"safekeeper {safekeeper_id} at {address}"
        self._safekeeper_id = safekeeper_id
        self._address = address
        self._credentials = credentials
        self._connection: SafekeeperConnection | None = None
        self._answers: asyncio.Queue[AcceptorMessage] = asyncio.Queue()

    @property
    def is_open(self) -> bool:
        """Whether it is connected."""
        return self._connection is not None and self._connection.is_open

    async def _connect(self) -> None:
        answers: asyncio.Queue[AcceptorMessage] = asyncio.Queue()

        def received(message: AcceptorMessage) -> None:
            if not isinstance(message, FolderStates):  # For proposers: it precedes each answer that they decide by.
                answers.put_nowait(message)

        self._answers = answers
        self._connection = SafekeeperConnection(
            self._safekeeper_id, self._credentials, opened=lambda: None, received=received, lost=lambda: None
        )
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._connection.connect(self._address, self._credentials.tls)
        except RemoteProtocolError as error:
            raise ConfigurationError(f"could not connect to {self.name}: {error}") from None
        except (OSError, TimeoutError) as error:
            reason = str(error) or "timeout"
            raise SafekeeperUnreachable(f"{self.name} cannot be reached ({reason})") from None

    async def greet(self, run: str) -> AcceptorGreeting:
        """Greet the safekeeper as the proposer `run`, and return its present state; connect first if necessary.

        Whatever this raises, the connection is closed.

        Raises:
            SafekeeperUnreachable: no connection could be opened.
            ConfigurationError: the reply is not that of this cluster's safekeeper.
            WalproxyError: see `ask`.
        """
        greeting = ProposerGreeting(PROTOCOL_VERSION, run, self._safekeeper_id, None, None)
        try:
            if not self.is_open:
                await self._connect()
            self.greeting = await self.ask(greeting, AcceptorGreeting)
        except BaseException:
            await self.close()
            raise
        return self.greeting

    async def ask(self, question: ProposerMessage, expected: type[_Answer]) -> _Answer:
        """Send a request, and return the reply.

        Raises:
            WalproxyError: there is none before the timeout, or not one of type `expected`, for example a refusal.
        """
        connection = self._connection
        assert connection is not None  # `greet` was called
        if connection.is_open:
            connection.writelines(encode(question))
        arrived = asyncio.ensure_future(self._answers.get())
        try:
            waited: set[asyncio.Future[Any]] = {arrived, connection.closed}
            await asyncio.wait(waited, timeout=_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
            if not arrived.done():
                if connection.closed.done():
                    raise WalproxyError(f"{self.name}: {connection.reason}; see its log")
                raise WalproxyError(f"{self.name} did not reply within {_TIMEOUT_S:.0f} s; see its log")
        finally:
            arrived.cancel()
        answer = arrived.result()
        if isinstance(answer, Refusal):
            raise RequestRefused(self.name, answer)
        if not isinstance(answer, expected):
            raise WalproxyError(f"{self.name} replied with {type(answer).__name__}")
        return answer

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.abort("the command has ended")
            await self._connection.closed
