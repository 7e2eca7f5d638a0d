"""An HTTP server of a few JSON pages, for both programs.

Connections are accepted, counted and displaced as at the other listeners (safekeeper/net/listener.py), and TLS is the
same (safekeeper/net/tls_transport.py): a network that is not allowed is refused before the handshake. aiohttp parses
the requests, and stops reading while a few wait for their answers. Between it and the socket, `HttpConnection` limits
what aiohttp does not: the time until a request is complete, the time between two requests, and the bytes of one (S14).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.networks import Networks
from safekeeper.base.settings import Address
from safekeeper.net.admission import Budget
from safekeeper.net.listener import Listener, peer_name, prepare_socket
from safekeeper.net.tls import ServerTls
from safekeeper.net.tls_transport import TlsTransport

# The time limit from the start of a connection, TLS handshake included, until its first request is complete.
FIRST_REQUEST_TIMEOUT_S = 10.0
# The time limit from one answer until it has been read and the next request is complete.
NEXT_REQUEST_TIMEOUT_S = 75.0
# The size limit of a request with its header, and of further bytes received before it was answered.
REQUEST_BYTES_MAX = 64 << 10
_RECEIVE_BYTES = 64 << 10
_WATCH_INTERVAL_S = 1.0
# The size limit of a quotation in aiohttp's error about a request.
_QUOTED_MAX = 100

Answer = tuple[int, Any]
Route = Callable[[], Answer]
HTTP_BUDGET = Budget(proven_max=0)

_log = logging.getLogger(__name__)


class HttpListener(Listener["HttpConnection"]):
    """A small HTTP server. Created by `serve_http`; `close` ends it.

    None of its connections is ever proven: newer ones can displace each of them, first the one whose last request was
    answered the longest ago.
    """

    CANNOT_LISTEN = "could not serve HTTP at %s: %s: correct --http-listen"
    FOREIGN = "refused HTTP to %s: its address is in none of the networks of --http-allow"
    EVICTED = "closed the HTTP connection from %s, the oldest of %d, for a newer one"

    def __init__(
        self, runner: web.AppRunner, *, budget: Budget, tls: ServerTls | None, networks: Networks | None
    ) -> None:
        super().__init__(budget=budget, networks=networks)
        self._runner = runner
        self._tls = tls
        self._by_server: dict[asyncio.Protocol, HttpConnection] = {}

    def new_protocol(self) -> asyncio.BaseProtocol:
        """See Listener."""
        return _PlainConnection(self) if self._tls is None else TlsTransport(self._tls.channel(), _TlsConnection(self))

    async def close(self) -> None:
        """Stop listening and close all connections."""
        self.stop_accepting()
        self.stop_watching()
        for connection in list(self._connections.values()):
            if not connection.is_served:
                connection.abort()
        await self._runner.cleanup()

    def new_server(self, connection: "HttpConnection") -> asyncio.Protocol | None:
        """Return the protocol for a connection, None if the server has ended."""
        make = self._runner.server
        if make is None:
            return None
        server = make()
        self._by_server[server] = connection
        return server

    def answered(self, server: asyncio.Protocol) -> None:
        """Record that a request is complete and its answer is known."""
        connection = self._by_server.get(server)
        if connection is not None:
            connection.unanswered_bytes = 0
            connection.deadline = self.now() + NEXT_REQUEST_TIMEOUT_S
            self.admission.renew(connection.number, self.now())

    def evict(self, connection: "HttpConnection", reason: str) -> None:
        """See Listener."""
        self.forget(connection.number)
        connection.abort()

    def lost(self, connection: "HttpConnection", server: asyncio.Protocol | None) -> None:
        """Forget a connection that is closed."""
        self.forget(connection.number)
        if server is not None:
            self._by_server.pop(server, None)

    def watch(self) -> float:
        """See Listener."""
        now = self.now()
        for connection in list(self._connections.values()):
            if now > connection.deadline:
                if not connection.was_answered:
                    self.refuse(connection.peer, f"no request within {FIRST_REQUEST_TIMEOUT_S:g} s")
                self.evict(connection, "")
        return min(_WATCH_INTERVAL_S, FIRST_REQUEST_TIMEOUT_S / 4)

    def refuse(self, who: object, reason: str) -> None:
        """Log that a connection is refused."""
        self._warn(f"refused HTTP to {who}: {reason}")

    def is_for_the_log(self, record: logging.LogRecord) -> bool:
        """Log aiohttp's errors about invalid requests as a refusal, not as an error of this program."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True
        who = record.args[0] if isinstance(record.args, tuple) and record.args else None
        self.refuse(
            who or "an unknown peer",
            f"its request is invalid: {error.message.partition(chr(10))[0][:_QUOTED_MAX]}",
        )
        return False


class HttpConnection:
    """Counts, times and limits a connection, and passes its bytes on to aiohttp's protocol.

    Attributes:
        number, peer: see Visitor.
        deadline: it is closed at this time of the loop.
        unanswered_bytes: received since the last request was answered.
    """

    def __init__(self, listener: HttpListener) -> None:
        self._listener = listener
        self._transport: asyncio.Transport
        self._server: asyncio.Protocol | None = None
        self.number = 0
        self.peer = "an unknown peer"
        self.deadline = 0.0
        self.unanswered_bytes = 0
        self._first_deadline = 0.0

    @property
    def is_served(self) -> bool:
        """Whether aiohttp has the connection, and will close it."""
        return self._server is not None

    @property
    def was_answered(self) -> bool:
        """Whether one of its requests has been answered."""
        return self.deadline != self._first_deadline

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if peer:
            self.peer = peer_name(peer[0], peer[1])
        self.deadline = self._first_deadline = self._listener.now() + FIRST_REQUEST_TIMEOUT_S
        prepare_socket(transport.get_extra_info("socket"))
        self._listener.admit(self, peer[0] if peer else "")

    def _serve(self) -> None:
        self._server = self._listener.new_server(self)
        if self._server is None:
            self.abort()
        else:
            self._server.connection_made(self._transport)

    def _pass_on(self, data: bytes) -> None:
        if self._server is None:
            return
        self.unanswered_bytes += len(data)
        if self.unanswered_bytes > REQUEST_BYTES_MAX:
            self._listener.refuse(self.peer, f"more than {REQUEST_BYTES_MAX} bytes for one request")
            self._listener.evict(self, "")
            return
        self._server.data_received(data)

    def eof_received(self) -> bool | None:
        return self._server.eof_received() if self._server is not None else None

    def connection_lost(self, exc: Exception | None) -> None:
        server, self._server = self._server, None
        self._listener.lost(self, server)
        if server is not None:
            server.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._server is not None:
            self._server.pause_writing()

    def resume_writing(self) -> None:
        if self._server is not None:
            self._server.resume_writing()


class _PlainConnection(HttpConnection, asyncio.Protocol):
    """A connection over a socket's transport."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._serve()

    def data_received(self, data: bytes) -> None:
        self._pass_on(data)


class _TlsConnection(HttpConnection, asyncio.BufferedProtocol):
    """A connection over TLS. The server receives it once the handshake is done, and reads plaintext."""

    def __init__(self, listener: HttpListener) -> None:
        super().__init__(listener)
        self._received = memoryview(bytearray(_RECEIVE_BYTES))

    def secured(self) -> None:
        self._serve()

    def tls_failed(self, reason: str) -> None:
        self._listener.refuse(self.peer, reason)
        self._transport.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        self._pass_on(bytes(self._received[:nbytes]))


async def serve_http(
    routes: Mapping[str, Route],
    address: Address,
    *,
    application: web.Application | None = None,
    tls: ServerTls | None = None,
    networks: Networks | None = None,
    budget: Budget = HTTP_BUDGET,
) -> HttpListener:
    """Serve `routes` (GET path -> function that returns status code and JSON value) at `address`.

    Args:
        application: an application to extend, which may have routes already, e.g. of another content type.
        tls: serve over TLS.
        networks: the networks from which clients are accepted, None for all.
        budget: the maximum number of connections.

    Raises:
        ConfigurationError: it cannot listen there.
    """
    application = application if application is not None else web.Application()
    for path, route in routes.items():
        application.router.add_get(path, _handler(route))
    log = logging.Logger(f"{__name__}.aiohttp")
    log.parent = logging.getLogger()
    runner = web.AppRunner(
        application,
        access_log=None,
        logger=log,
        handle_signals=False,
        shutdown_timeout=1.0,
        keepalive_timeout=NEXT_REQUEST_TIMEOUT_S,
    )
    listener = HttpListener(runner, budget=budget, tls=tls, networks=networks)

    @web.middleware
    async def note_answer(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            return await handler(request)
        finally:
            listener.answered(request.protocol)

    application.middlewares.append(note_answer)
    log.addFilter(listener.is_for_the_log)
    await runner.setup()
    try:
        await listener.open(address)
    except ConfigurationError:
        await listener.close()
        raise
    return listener


def _handler(route: Route) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        code, value = route()
        body = msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
        return web.Response(status=code, body=body, content_type="application/json")

    return handle
