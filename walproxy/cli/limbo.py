"""`walproxy limbo`: the transactions that wait for a quorum, as a table, once or live."""

import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from safekeeper.base.errors import ConfigurationError, WalproxyError
from walproxy.cli.parameters import client_tls, proxy_options
from walproxy.limbo.table import render, summarise
from walproxy.proxy.status_client import fetch_page

_INTERVAL_S_MIN = 0.1


@click.command()
@proxy_options
@click.option("--json", "as_json", is_flag=True, help="Print the proxy's /limbo as JSON.")
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C.")
@click.option(
    "--interval",
    default=1.0,
    show_default=True,
    type=click.FloatRange(_INTERVAL_S_MIN),
    help="Seconds between updates, with --watch.",
)
def limbo(url: str, tls_ca: Path | None, as_json: bool, watch: bool, interval: float) -> None:
    """Show the transactions that wait for a quorum, and their sessions.

    \b
    Examples:
      walproxy limbo
      walproxy limbo --watch
      walproxy limbo --json | jq '.transactions[].session.query'
    """
    tls = client_tls(tls_ca)
    if watch:
        try:
            _watch(url, tls, interval, as_json)
        except KeyboardInterrupt:
            return  # The user has stopped it.
    elif as_json:
        click.echo(json.dumps(_fetch(url, tls)))
    else:
        Console().print(render(_fetch(url, tls)))


def _watch(url: str, tls: ssl.SSLContext | None, interval_s: float, as_json: bool) -> None:
    """Show the limbo until Ctrl-C. If a proxy does not reply, show that, and retry."""
    console = Console()
    if as_json or not console.is_terminal:
        for content in _repeatedly(url, tls, interval_s):
            if isinstance(content, WalproxyError):
                click.echo(str(content), err=as_json)
            else:
                click.echo(json.dumps(content) if as_json else summarise(content))
    with Live(console=console, refresh_per_second=4) as live:
        for content in _repeatedly(url, tls, interval_s):
            live.update(Text(str(content), style="red") if isinstance(content, WalproxyError) else render(content))


def _repeatedly(url: str, tls: ssl.SSLContext | None, interval_s: float) -> Iterator[dict[str, Any] | WalproxyError]:
    while True:
        try:
            yield _fetch(url, tls)
        except ConfigurationError:
            raise
        except WalproxyError as error:
            yield error
        time.sleep(interval_s)


def _fetch(url: str, tls: ssl.SSLContext | None) -> dict[str, Any]:
    """Return the proxy's /limbo. Raises WalproxyError."""
    content = fetch_page(url, "/limbo", tls)
    if not isinstance(content.get("transactions"), list):
        raise WalproxyError(f"{url.rstrip('/')}/limbo is not the limbo of a walproxy: correct --url")
    return content
