"""`walproxy agent`: high availability of the PostgreSQL beside it, as a process (walproxy/agent/agent.py)."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import click
import uvloop

from safekeeper.base import logs, settings
from safekeeper.base.cluster_file import find_cluster_file
from safekeeper.base.errors import EXIT_FINE, EXIT_UNEXPECTED, WalproxyError
from safekeeper.base.event_log import EventRecorder
from safekeeper.base.signals import reload_settings, take_signals
from safekeeper.net.admission import Wish
from safekeeper.net.http_server import HTTP_BUDGET, serve_http
from safekeeper.net.listener import Listener
from safekeeper.process.credential_files import http_access, https
from safekeeper.process.open_files import listener_budgets
from walproxy.agent.agent import Agent
from walproxy.agent.config import AgentConfig
from walproxy.agent.rest import agent_routes
from walproxy.agent.rest_answers import HEALTH_CHECKS
from walproxy.cli.configuration import load_agent
from walproxy.proxy.config import ENVIRONMENT_PREFIX
from walproxy.proxy.credentials import read_peer_credentials, reload_credentials
from walproxy.proxy.event_sender import LAST_EVENTS_TIMEOUT_S, EventSender

logger = logging.getLogger(__name__)


@click.command()
@settings.click_options(AgentConfig, ENVIRONMENT_PREFIX)
def agent(config: Path | None, **command_line: Any) -> NoReturn:
    """Run a PostgreSQL with automatic failover: one agent beside each server of a cluster.

    The agent starts the server, runs walproxy run where it is the primary, promotes it when the primary is lost, and
    makes an old primary a standby again. The agents find each other through the safekeepers. When the agent stops, the
    server goes on, and the proxy stops.

    \b
    Examples:
      walproxy agent
      walproxy agent --config walproxy.toml --name pg2
      walproxy agent --name pg2 -c no_failover=true
    """

    def read() -> AgentConfig:
        return load_agent(command_line, config)

    loaded = read()
    who = f"agent {loaded.name}"
    events = EventRecorder(who)
    logs.configure(lambda: who, loaded.log_level, log_format=loaded.log_format, events=events)
    one = Agent(loaded, read_peer_credentials(loaded), find_cluster_file(config))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(_serve(one, loaded, read, events)))


async def _serve(one: Agent, config: AgentConfig, read: Callable[[], AgentConfig], events: EventRecorder) -> int:
    http_tls = https(config.http_tls, config.tls_cert, config.tls_key)
    listeners: dict[str, Listener[Any]] = {}
    http = await serve_http(
        agent_routes(one.state, listeners),
        config.http_listen,
        tls=http_tls,
        networks=config.http_allow,
        access=http_access(config.http_hosts, config.http_password_file, HEALTH_CHECKS),
        budget=listener_budgets({"http": Wish(HTTP_BUDGET)})["http"],
    )
    listeners["http"] = http

    def reload() -> None:
        new = reload_settings(config, read)
        if new is not None:
            reload_credentials(one.credentials, http_tls, http.access.password)
            http.networks = new.http_allow
            http.access = http.access._replace(hosts=new.http_hosts)

    sender = EventSender(events, lambda: dict(config.safekeepers), one.credentials)
    sending = asyncio.create_task(sender.run())
    exit_code, text = EXIT_FINE, "stopped"
    try:
        take_signals(stop=one.stop, reload=reload)
        logs.log_event(logger, "agent-started", {}, "starts, REST on %s; process %d", http.address, os.getpid())
        await one.run()
    except WalproxyError as error:
        exit_code, text = error.exit_code, str(error)
    except Exception as bug:
        exit_code, text = EXIT_UNEXPECTED, logs.describe_bug(bug)
    finally:
        sending.cancel()
        await http.close()
    level = logging.ERROR if exit_code else logging.INFO
    logs.log_event(logger, "agent-stopped", {"exit_code": exit_code}, "%s", text, level=level)
    await sender.flush(LAST_EVENTS_TIMEOUT_S)
    return exit_code
