"""`walproxy rebootstrap`: begin a new cluster on safekeepers that may hold WAL."""

import asyncio
import os
from pathlib import Path
from typing import Any

import click

from safekeeper import settings
from safekeeper.lsn import parse_lsn
from walproxy.config import ENVIRONMENT_PREFIX, ProxyConfig
from walproxy.rebootstrap import Consent, execute, survey


@click.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--replace-system-id",
    "system_ids",
    type=int,
    multiple=True,
    metavar="ID",
    help="Give up the commits of this PostgreSQL system, whose WAL safekeepers hold: the primary is another one.",
)
@click.option(
    "--discard-wal-above",
    metavar="LSN",
    help="Give up the commits above this LSN that safekeepers hold and the primary does not have.",
)
@settings.click_options(ProxyConfig, ENVIRONMENT_PREFIX)
def rebootstrap(
    config: Path | None, yes: bool, system_ids: tuple[int, ...], discard_wal_above: str | None, **command_line: Any
) -> None:
    """Begin a new cluster on the safekeepers: the way out when most of their disks are lost.

    Prints what each safekeeper and the primary have, and what may be lost. Every safekeeper must be reachable; the WAL
    that they hold is set aside in their data folders. WAL that the primary does not have is given up only if it is
    named with --replace-system-id or --discard-wal-above; the command prints what to name. Stop the proxies first, and
    start one afterwards. If the safekeepers archive, let the new cluster write into the archive: walproxy archive
    adopt.

    \b
    Example:
      walproxy rebootstrap --primary 'host=db1 user=walproxy' \\
          --safekeepers 1=sk1:5454,2=sk2:5454,3=sk3:5454
    """
    loaded = settings.load(
        ProxyConfig, ENVIRONMENT_PREFIX, command_line=command_line, environment=os.environ, file=config
    )
    discard_above_lsn = parse_lsn(discard_wal_above) if discard_wal_above is not None else None
    found = asyncio.run(survey(loaded))
    for line in found.lines():
        click.echo(line)
    found.check_consent(Consent(system_ids, discard_above_lsn))
    if not yes and not click.confirm("Begin a new cluster on these safekeepers?", default=False):
        click.echo("nothing was changed")
        return
    cluster_id = asyncio.run(execute(loaded, found))
    click.echo(f"cluster {cluster_id} begins: start walproxy run")
    click.echo(f"if the safekeepers archive: walproxy archive adopt --archive URL --cluster-id {cluster_id}")
