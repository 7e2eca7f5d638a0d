"""`walproxy run`: the proxy as a process, with its HTTP listener and its signals (safekeeper/base/signals.py).

At SIGTERM and SIGINT it stops reading, waits until the quorum has the received WAL, reports that to PostgreSQL, and
exits with 0.
"""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import click
import uvloop

from safekeeper.base import logs, settings
from safekeeper.base.errors import EXIT_FINE, EXIT_UNEXPECTED, WalproxyError
from safekeeper.base.signals import reload_settings, take_signals
from safekeeper.net.admission import Wish
from safekeeper.net.http_server import HTTP_BUDGET, serve_http
from safekeeper.net.listener import Listener
from safekeeper.process.credential_files import http_access, https, report_validity
from safekeeper.process.open_files import listener_budgets
from safekeeper.web.page import with_page
from walproxy.cli.configuration import load_proxy
from walproxy.limbo.page import confirms_per_s
from walproxy.proxy.config import ENVIRONMENT_PREFIX, ProxyConfig
from walproxy.proxy.credentials import read_credentials, reload_credentials
from walproxy.proxy.progress_socket import ProgressSocket, inherited_socket
from walproxy.proxy.proxy import Proxy
from walproxy.proxy.status_pages import limbo_as_seen, progress, proxy_routes

logger = logging.getLogger(__name__)


@click.command()
@settings.click_options(ProxyConfig, ENVIRONMENT_PREFIX)
def run(config: Path | None, **command_line: Any) -> NoReturn:
    """Stream a PostgreSQL's WAL to a quorum of safekeepers, and let commits wait for it.

    Each option can also be set in the environment or in the cluster's file, which has further keys; the command line
    overrides the environment, and the environment overrides the file. SIGHUP reads them again. A second proxy with the
    same options waits as a spare and takes over when the first one stops.

    \b
    Examples:
      walproxy run
      walproxy run --primary 'host=db1 user=walproxy' \\
          --safekeepers 1=sk1:5454,2=sk2:5454,3=sk3:5454
      walproxy run --config walproxy.toml -c commit_timeout=30
    """

    def read() -> ProxyConfig:
        return load_proxy(command_line, config)

    loaded = read()
    agent = inherited_socket(os.environ)
    logs.configure(lambda: "walproxy", loaded.log_level, log_format=loaded.log_format)
    proxy = Proxy(loaded, read_credentials(loaded))
    logs.configure(lambda: _who(proxy), loaded.log_level, log_format=loaded.log_format, events=proxy.events)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(_serve(proxy, loaded, read, agent)))


def _who(proxy: Proxy) -> str:
    term = proxy.proposer.term
    return f"walproxy term {term}" if term else "walproxy"


async def _serve(
    proxy: Proxy, config: ProxyConfig, read: Callable[[], ProxyConfig], agent: socket.socket | None
) -> int:
    """Run the proxy until a signal or an error ends it, which is logged; return the process's exit code.

    Args:
        agent: the socket of the agent that requests its progress, None without an agent.

    Raises:
        ConfigurationError: the HTTP listener cannot be opened.
    """

    def reload() -> None:
        proxy.feed.retry()
        new = reload_settings(config, read)
        if new is not None:
            proxy.reconfigure(new)
            reload_credentials(proxy.credentials, http_tls, http.access.password)
            report_validity(proxy.credentials.tls or http_tls, config.tls_cert)
            http.networks = new.http_allow
            http.access = http.access._replace(hosts=new.http_hosts)

    drains: list[asyncio.Task[None]] = []
    http_tls = https(config.http_tls, config.tls_cert, config.tls_key)
    listeners: dict[str, Listener[Any]] = {}
    http = await serve_http(
        with_page(
            proxy_routes(proxy, listeners, http_tls),
            "proxy",
            {"limbo": lambda: limbo_as_seen(proxy)},
            keeps_history=True,
            confirms_per_s=lambda: confirms_per_s(proxy.limbo),
        ),
        config.http_listen,
        tls=http_tls,
        networks=config.http_allow,
        access=http_access(config.http_hosts, config.http_password_file),
        budget=listener_budgets({"http": Wish(HTTP_BUDGET)})["http"],
    )
    listeners["http"] = http
    reports = ProgressSocket(agent, lambda: progress(proxy)) if agent is not None else None
    try:
        take_signals(
            stop=lambda: drains.append(asyncio.create_task(proxy.stop())),
            reload=reload,
        )
        run = proxy.proposer.config.proposer_id[:8]
        logs.log_event(
            logger, "proxy-started", {}, "starts as run %s, HTTP on %s; process %d", run, http.address, os.getpid()
        )
        report_validity(proxy.credentials.tls or http_tls, config.tls_cert)
        error = await proxy.run()
        for drain in drains:
            await drain
    except WalproxyError as broken:
        error = broken
    except Exception as bug:
        return await _end(proxy, EXIT_UNEXPECTED, logs.describe_bug(bug))
    finally:
        if reports is not None:
            reports.close()
        await http.close()
    if error is not None:
        return await _end(proxy, error.exit_code, str(error))
    return await _end(proxy, EXIT_FINE, "stopped")


async def _end(proxy: Proxy, exit_code: int, text: str) -> int:
    """Log and record how the proxy ends; return its exit code."""
    level = logging.ERROR if exit_code else logging.INFO
    logs.log_event(logger, "proxy-stopped", {"exit_code": exit_code}, "%s", text, level=level)
    await proxy.send_last_events()
    return exit_code
