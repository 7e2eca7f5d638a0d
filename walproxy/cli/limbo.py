"""`walproxy limbo`: the transactions that wait for a quorum, as a table, once or live."""

from functools import partial
from pathlib import Path
from typing import Any

import click

from safekeeper.base.errors import WalproxyError
from walproxy.cli import shown_page
from walproxy.cli.proxy_pages import proxy_pages
from walproxy.limbo.table import render, summarise
from walproxy.proxy.status_client import Access, fetch_page, shown_url


@click.command()
@shown_page.page_options("/limbo")
def limbo(url: str | None, config: Path | None, as_json: bool, watch: bool, interval: float) -> None:
    """Show the transactions that wait for a quorum, and their sessions.

    \b
    Examples:
      walproxy limbo
      walproxy limbo --watch
      walproxy limbo --json | jq '.transactions[].session.query'
    """
    fetch = partial(proxy_pages(url, config).fetch, _fetch)
    shown_page.show(fetch, render, summarise, as_json=as_json, interval_s=interval if watch else None)


def _fetch(url: str, access: Access) -> dict[str, Any]:
    """Return the proxy's /limbo. Raises WalproxyError."""
    content = fetch_page(url, "/limbo", access)
    if not isinstance(content.get("transactions"), list):
        raise WalproxyError(f"{shown_url(url)}/limbo is not the limbo of a walproxy: correct --url")
    return content
