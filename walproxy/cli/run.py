"""`walproxy run`: the proxy as a process, with its HTTP door and its signals."""

import asyncio
import logging
import os
import signal
from pathlib import Path
from typing import Any

import click
import uvloop

from safekeeper import logs, settings
from safekeeper.errors import WalproxyError
from safekeeper.http import serve_http
from walproxy.config import ENVIRONMENT_PREFIX, ProxyConfig
from walproxy.http import proxy_routes
from walproxy.proxy import Proxy

logger = logging.getLogger(__name__)


@click.command()
@settings.click_options(ProxyConfig, ENVIRONMENT_PREFIX)
def run(config: Path | None, **command_line: Any) -> None:
    """Stream a PostgreSQL's WAL to a quorum of safekeepers, and let commits wait for it.

    \b
    Example:
      walproxy run --primary 'host=db1 user=walproxy' \\
          --safekeepers 1=sk1:5454,2=sk2:5454,3=sk3:5454
    A second proxy with the same options waits as a spare and takes over when the first is gone.
    """

    def read() -> ProxyConfig:
        return settings.load(
            ProxyConfig, ENVIRONMENT_PREFIX, command_line=command_line, environment=os.environ, file=config
        )

    loaded = read()
    proxy = Proxy(loaded)
    logs.configure(lambda: _who(proxy), loaded.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        error = runner.run(_serve(proxy, loaded, read))
    if error is not None:
        raise error


def _who(proxy: Proxy) -> str:
    term = proxy.proposer.term
    return f"walproxy term {term}" if term else "walproxy"


async def _serve(proxy: Proxy, config: ProxyConfig, read: Any) -> WalproxyError | None:
    """Run the proxy until a signal or an error ends it."""
    loop = asyncio.get_running_loop()
    stopping: list[asyncio.Task[None]] = []

    def stop() -> None:
        if not stopping:
            logger.info("stopping: waiting for the quorum to have what was received")
            stopping.append(loop.create_task(proxy.stop()))

    def reload() -> None:
        try:
            new = read()
        except WalproxyError as error:
            logger.error("could not reload: %s", error)
            return
        _, fixed = settings.changed_options(config, new)
        logs.set_level(new.log_level)
        logger.info("reloaded%s", f"; takes effect at a restart: {', '.join(fixed)}" if fixed else "")

    http = await serve_http(proxy_routes(proxy), config.http)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, reload)
    logger.info("starts as run %s, HTTP on %s", proxy.proposer.config.run[:8], http.address)
    try:
        return await proxy.run()
    finally:
        await http.close()
        for task in stopping:
            await task
