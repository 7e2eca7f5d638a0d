"""`walproxy rebootstrap`: begin a new cluster on safekeepers that may hold WAL."""

import asyncio
import os
from pathlib import Path
from typing import Any

import click

from safekeeper import settings
from walproxy.config import ENVIRONMENT_PREFIX, ProxyConfig
from walproxy.rebootstrap import execute, survey


@click.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@settings.click_options(ProxyConfig, ENVIRONMENT_PREFIX)
def rebootstrap(config: Path | None, yes: bool, **command_line: Any) -> None:
    """Begin a new cluster on the safekeepers: the way out when most of their disks are lost.

    Prints what each safekeeper and the primary have, and what may be lost. Every safekeeper must be reachable; the WAL
    that they hold is set aside in their data folders. Stop the proxies first, and start one afterwards. If the
    safekeepers archive, let the new cluster write into the archive: walproxy archive adopt.

    \b
    Example:
      walproxy rebootstrap --primary 'host=db1 user=walproxy' \\
          --safekeepers 1=sk1:5454,2=sk2:5454,3=sk3:5454
    """
    loaded = settings.load(
        ProxyConfig, ENVIRONMENT_PREFIX, command_line=command_line, environment=os.environ, file=config
    )
    found = asyncio.run(survey(loaded))
    for line in found.lines():
        click.echo(line)
    if not yes and not click.confirm("Begin a new cluster on these safekeepers?", default=False):
        click.echo("nothing was changed")
        return
    cluster_id = asyncio.run(execute(loaded, found))
    click.echo(f"cluster {cluster_id} begins: start walproxy run")
    click.echo(f"if the safekeepers archive: walproxy archive adopt --archive URL --cluster-id {cluster_id}")
