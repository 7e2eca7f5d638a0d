"""`walproxy status`: the proxy's /status as a table, once or live."""

import json
import ssl
import time
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from safekeeper.base.errors import ConfigurationError, WalproxyError
from walproxy.cli.parameters import client_tls, proxy_options
from walproxy.proxy.status_client import fetch_status
from walproxy.proxy.status_table import render, summarise

_INTERVAL_S_MIN = 0.1


@click.command()
@proxy_options
@click.option("--json", "as_json", is_flag=True, help="Print the proxy's /status as JSON.")
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C.")
@click.option(
    "--interval",
    default=1.0,
    show_default=True,
    type=click.FloatRange(_INTERVAL_S_MIN),
    help="Seconds between updates, with --watch.",
)
def status(url: str, tls_ca: Path | None, as_json: bool, watch: bool, interval: float) -> None:
    """Show the state of the proxy, its safekeepers and standbys.

    \b
    Examples:
      walproxy status
      walproxy status --watch
      walproxy status --json | jq .commit_lsn
      walproxy status --url https://10.0.0.9:7667 --tls-ca ca.pem
    """
    tls = client_tls(tls_ca)
    if watch:
        try:
            _watch(url, tls, interval, as_json)
        except KeyboardInterrupt:
            return  # The user has stopped it.
    elif as_json:
        click.echo(json.dumps(fetch_status(url, tls)))
    else:
        Console().print(render(fetch_status(url, tls)))


def _watch(url: str, tls: ssl.SSLContext | None, interval_s: float, as_json: bool) -> None:
    """Show the status until Ctrl-C. If a proxy does not reply, show that, and retry."""
    console = Console()
    if as_json or not console.is_terminal:
        while True:
            try:
                content = fetch_status(url, tls)
            except ConfigurationError:
                raise
            except WalproxyError as error:
                click.echo(str(error), err=as_json)
            else:
                click.echo(json.dumps(content) if as_json else summarise(content))
            time.sleep(interval_s)
    with Live(console=console, refresh_per_second=4) as live:
        while True:
            try:
                live.update(render(fetch_status(url, tls), by_urgency=True))
            except ConfigurationError:
                raise
            except WalproxyError as error:
                live.update(Text(str(error), style="red"))
            time.sleep(interval_s)
