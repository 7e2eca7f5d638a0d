"""An HTTP server of a few pages that are JSON, for both programs. What the pages say is their owner's.

Whoever comes from a network that is not allowed is hung up on before a byte of a request is read.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import msgspec
from aiohttp import web

from safekeeper.errors import ConfigurationError
from safekeeper.logs import RateLimit
from safekeeper.networks import Networks
from safekeeper.settings import Address
from safekeeper.tls import ServerTls

Answer = tuple[int, Any]
Route = Callable[[], Answer]

_log = logging.getLogger(__name__)


class HttpDoor:
    """A small HTTP server. Made by `serve_http`; `close` ends it.

    Attributes:
        address: where it listens, known after `open`.
        networks: whence readers may come, None for anywhere.
    """

    def __init__(self, runner: web.AppRunner, networks: Networks | None) -> None:
        self.address = Address("", 0)
        self.networks = networks
        self._runner = runner
        self._strangers = RateLimit(lines=10, interval_s=60)
        self._server: asyncio.Server | None = None

    async def open(self, address: Address, tls: ServerTls | None) -> None:
        """Listen at `address`.

        Raises:
            OSError: that is not possible.
        """
        context = tls.lasting_context() if tls is not None else None
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Doorkeeper(self), address.host, address.port, ssl=context, backlog=64
        )
        self.address = Address(address.host, self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and close all connections."""
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()

    def admit(self, peer: tuple[Any, ...] | None) -> asyncio.BaseProtocol | None:
        """Return who serves a new connection from `peer`, None if nobody does."""
        if self.networks is not None and not (peer and self.networks.admits(peer[0])):
            more = self._strangers.admit()
            if more is not None:
                who = f"{peer[0]}:{peer[1]}" if peer else "an unknown peer"
                _log.warning("refused HTTP to %s: it lies in none of the networks of --http-allow%s", who, more)
            return None
        server = self._runner.server
        # Between the end of the server and that of its listening socket there is nobody.
        return server() if server is not None else None


class _Doorkeeper(asyncio.Protocol):
    """Looks where a connection comes from, and hands it on."""

    def __init__(self, door: HttpDoor) -> None:
        self._door = door

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        connection = cast(asyncio.Transport, transport)
        server = self._door.admit(connection.get_extra_info("peername"))
        if server is None:
            connection.abort()
        else:
            connection.set_protocol(server)
            server.connection_made(connection)


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
    runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    door = HttpDoor(runner, networks)
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
