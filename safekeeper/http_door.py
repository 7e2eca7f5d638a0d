"""An HTTP server of a few pages that are JSON, for both programs. What the pages say is their owner's.

Whoever comes from a network that is not allowed is hung up on before a byte is read, of a TLS handshake too. TLS is
that of the other doors (safekeeper/tls_transport.py): asyncio's would begin the handshake before anybody has looked.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from safekeeper.errors import ConfigurationError
from safekeeper.logs import RateLimit
from safekeeper.networks import Networks
from safekeeper.settings import Address
from safekeeper.tls import ServerTls
from safekeeper.tls_transport import TlsTransport

# Who does not come to the end of its handshake is hung up on after so long.
HANDSHAKE_TIMEOUT_S = 10.0
_RECEIVE_BYTES = 64 << 10
# Of what aiohttp says about a request, which quotes it.
_QUOTED_MAX = 100

Answer = tuple[int, Any]
Route = Callable[[], Answer]

_log = logging.getLogger(__name__)


class HttpDoor:
    """A small HTTP server. Made by `serve_http`; `close` ends it.

    Attributes:
        address: where it listens, known after `open`.
        networks: whence readers may come, None for anywhere.
        handshaking: the connections whose TLS is not established yet.
    """

    def __init__(self, runner: web.AppRunner, networks: Networks | None) -> None:
        self.address = Address("", 0)
        self.networks = networks
        self.handshaking: set[asyncio.BaseTransport] = set()
        self._runner = runner
        self._strangers = RateLimit(lines=10, interval_s=60)
        self._server: asyncio.Server | None = None

    async def open(self, address: Address, tls: ServerTls | None) -> None:
        """Listen at `address`.

        Raises:
            OSError: that is not possible.
        """

        def new_protocol() -> asyncio.BaseProtocol:
            return _Doorkeeper(self) if tls is None else TlsTransport(tls.channel(), _TlsDoorkeeper(self))

        self._server = await asyncio.get_running_loop().create_server(
            new_protocol, address.host, address.port, backlog=64
        )
        self.address = Address(address.host, self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and close all connections."""
        if self._server is not None:
            self._server.close()
        for transport in list(self.handshaking):
            cast(asyncio.Transport, transport).abort()
        await self._runner.cleanup()

    def admit(self, transport: asyncio.BaseTransport) -> asyncio.Protocol | None:
        """Return who serves a new connection, None if nobody does."""
        peer = transport.get_extra_info("peername")
        if self.networks is not None and not (peer and self.networks.admits(peer[0])):
            self.refuse(_peer_of(transport), "it lies in none of the networks of --http-allow")
            return None
        server = self._runner.server
        # Between the end of the server and that of its listening socket there is nobody.
        return server() if server is not None else None

    def refuse(self, who: object, reason: str) -> None:
        """Log that somebody is not served."""
        more = self._strangers.admit()
        if more is not None:
            _log.warning("refused HTTP to %s: %s%s", who, reason, more)

    def is_for_the_log(self, record: logging.LogRecord) -> bool:
        """Tell what aiohttp tells of requests that it does not understand, as of any stranger: not as an error."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True
        who = record.args[0] if isinstance(record.args, tuple) and record.args else None
        self.refuse(
            who or "an unknown peer",
            f"its request is not understood: {error.message.partition(chr(10))[0][:_QUOTED_MAX]}",
        )
        return False


class _Doorkeeper(asyncio.Protocol):
    """Looks where a connection comes from, and hands it on."""

    def __init__(self, door: HttpDoor) -> None:
        self._door = door

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        connection = cast(asyncio.Transport, transport)
        server = self._door.admit(connection)
        if server is None:
            connection.abort()
        else:
            connection.set_protocol(server)
            server.connection_made(connection)


class _TlsDoorkeeper(asyncio.BufferedProtocol):
    """The same above TLS. The server hears of a connection once it is secured, and gets plaintext."""

    def __init__(self, door: HttpDoor) -> None:
        self._door = door
        self._received = memoryview(bytearray(_RECEIVE_BYTES))
        self._transport: asyncio.Transport
        self._server: asyncio.Protocol | None = None
        self._secured = False
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server = self._door.admit(transport)
        if self._server is None:
            self._transport.abort()
            return
        self._door.handshaking.add(transport)
        self._deadline = asyncio.get_running_loop().call_later(HANDSHAKE_TIMEOUT_S, self._transport.abort)

    def secured(self) -> None:
        assert self._server is not None  # Otherwise nothing more is read.
        self._secured = True
        self._handshake_is_over()
        self._server.connection_made(self._transport)

    def tls_failed(self, reason: str) -> None:
        self._door.refuse(_peer_of(self._transport), reason)
        self._transport.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        if self._server is not None:
            self._server.data_received(bytes(self._received[:nbytes]))

    def connection_lost(self, exc: Exception | None) -> None:
        self._handshake_is_over()
        if self._server is not None and self._secured:
            self._server.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._server is not None and self._secured:
            self._server.pause_writing()

    def resume_writing(self) -> None:
        if self._server is not None and self._secured:
            self._server.resume_writing()

    def _handshake_is_over(self) -> None:
        self._door.handshaking.discard(self._transport)
        if self._deadline is not None:
            self._deadline.cancel()


def _peer_of(transport: asyncio.BaseTransport) -> str:
    peer = transport.get_extra_info("peername")
    return f"{peer[0]}:{peer[1]}" if peer else "an unknown peer"


async def serve_http(
    routes: Mapping[str, Route],
    address: Address,
    *,
    application: web.Application | None = None,
    tls: ServerTls | None = None,
    networks: Networks | None = None,
) -> HttpDoor:
    """Serve `routes` (GET path -> function that returns status code and JSON value) at `address`.

    Args:
        application: one that has other routes already, e.g. of another content type.
        tls: serve it over TLS.
        networks: whence readers may come, None for anywhere.

    Raises:
        ConfigurationError: it cannot listen there.
    """
    application = application if application is not None else web.Application()
    for path, route in routes.items():
        application.router.add_get(path, _handler(route))
    log = logging.Logger(f"{__name__}.aiohttp")
    log.parent = logging.getLogger()
    runner = web.AppRunner(application, access_log=None, logger=log, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    door = HttpDoor(runner, networks)
    log.addFilter(door.is_for_the_log)
    try:
        await door.open(address, tls)
    except OSError as error:
        await door.close()
        raise ConfigurationError(
            f"could not serve HTTP at {address}: {error.strerror or error}: correct --http"
        ) from error
    return door


def _handler(route: Route) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        code, value = route()
        body = msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
        return web.Response(status=code, body=body, content_type="application/json")

    return handle
