"""`walproxy levels`: what each level of synchronous_commit waits for now, and what each loss would cost."""

import json
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console

from walproxy.cli.proxy_pages import proxy_options, proxy_pages
from walproxy.proxy.levels import levels_of
from walproxy.proxy.levels_table import level_line, render_levels
from walproxy.proxy.status_client import fetch_status


@click.command()
@proxy_options
@click.option("--json", "as_json", is_flag=True, help="Print the levels as JSON.")
def levels(url: str | None, config: Path | None, as_json: bool) -> None:
    """Show what each level of synchronous_commit waits for now, and what would be lost.

    For each level: the expected time, from what the proxy has measured in the last minute, without the primary's own
    flush; the slowest safekeeper or standby; and what would be lost of commits that have returned if the primary, the
    primary and a minority of the safekeepers, or the disks of a quorum were lost now. Without a terminal each level is
    one line.

    \b
    Examples:
      walproxy levels
      walproxy levels --json | jq -r '.levels[] | select(.level == "on").p99_s'
    """
    status = proxy_pages(url, config).fetch(fetch_status)
    rows = levels_of(status)
    console = Console()
    if as_json:
        click.echo(json.dumps({"levels": [asdict(row) for row in rows]}))
    elif console.is_terminal:
        console.print(render_levels(rows))
    else:
        for row in rows:
            click.echo(level_line(row))
