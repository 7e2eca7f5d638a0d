"""An HTTP server of a few pages that are JSON, for both programs. What the pages say is their owner's."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from safekeeper.errors import ConfigurationError
from safekeeper.settings import Address

Answer = tuple[int, Any]
Route = Callable[[], Answer]


class HttpDoor:
    """A small HTTP server. Made by `serve_http`; `close` ends it."""

    def __init__(self, runner: web.AppRunner, address: Address) -> None:
        self._runner = runner
        self.address = address

    async def close(self) -> None:
        """Stop listening and close all connections."""
        await self._runner.cleanup()


async def serve_http(
    routes: Mapping[str, Route], address: Address, *, application: web.Application | None = None
) -> HttpDoor:
    """Serve `routes` (GET path -> function that returns status code and JSON value) at `address`.

    Args:
        application: one that has other routes already, e.g. of another content type.

    Raises:
        ConfigurationError: it cannot listen there.
    """
    application = application if application is not None else web.Application()
    for path, route in routes.items():
        application.router.add_get(path, _handler(route))
    runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, address.host, address.port)
    try:
        await site.start()
    except OSError as error:
        await runner.cleanup()
        raise ConfigurationError(
            f"could not serve HTTP at {address}: {error.strerror or error}: correct --http"
        ) from error
    return HttpDoor(runner, Address(address.host, runner.addresses[0][1]))


def _handler(route: Route) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        code, value = route()
        body = msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
        return web.Response(status=code, body=body, content_type="application/json")

    return handle
