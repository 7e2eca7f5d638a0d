"""`walproxy status`: the proxy's /status as a table, once or live."""

from functools import partial
from pathlib import Path

import click

from walproxy.cli import shown_page
from walproxy.cli.proxy_pages import proxy_pages
from walproxy.proxy.status_client import fetch_status
from walproxy.proxy.status_table import render, summarise


@click.command()
@shown_page.page_options("/status")
def status(url: str | None, config: Path | None, as_json: bool, watch: bool, interval: float) -> None:
    """Show the state of the proxy, its safekeepers and standbys.

    \b
    Examples:
      walproxy status
      walproxy status --watch
      walproxy status --json | jq .commit_lsn
      walproxy status --url https://10.0.0.9:7667
    """
    fetch = partial(proxy_pages(url, config).fetch, fetch_status)
    table = partial(render, by_urgency=watch)
    shown_page.show(fetch, table, summarise, as_json=as_json, interval_s=interval if watch else None)
