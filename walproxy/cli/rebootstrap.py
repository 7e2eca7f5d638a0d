"""`walproxy rebootstrap`: begin a new cluster on safekeepers that may hold WAL, or undo that."""

import asyncio
from pathlib import Path

import click

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import Lsn, parse_lsn
from walproxy.cli.configuration import load_connection, server_options
from walproxy.proxy.config import ConnectionConfig, MembersConfig
from walproxy.proxy.rebootstrap import Consent, execute, survey
from walproxy.proxy.rebootstrap_undo import execute_undo, survey_undo


@click.command()
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--replace-system-id",
    "system_ids",
    type=int,
    multiple=True,
    metavar="ID",
    help="Give up the commits of this PostgreSQL system, whose WAL safekeepers hold, since the primary is another one.",
)
@click.option(
    "--discard-wal-above",
    metavar="LSN",
    help="Give up the commits above this LSN that safekeepers hold and the primary does not have; with --undo, those "
    "that the new cluster holds.",
)
@click.option("--undo", is_flag=True, help="Restore the cluster that the last rebootstrap replaced.")
@server_options
def rebootstrap(
    config: Path | None,
    yes: bool,
    system_ids: tuple[int, ...],
    discard_wal_above: str | None,
    undo: bool,
    **command_line: str | None,
) -> None:
    """Begin a new cluster on the safekeepers, after the loss of most of their data folders.

    Prints what each safekeeper and the primary have, and what may be lost. Every safekeeper must be reachable; the WAL
    that they hold is set aside in their data folders. WAL that the primary does not have is given up only if it is
    named with --replace-system-id or --discard-wal-above; the command prints the values to use. Stop the proxies first,
    and start one afterwards. If the safekeepers archive, let the new cluster write into the archive: walproxy archive
    adopt.

    With --undo the replaced cluster is restored, with its WAL: as long as no proxy has written to the new one, nothing
    is lost. The primary is not contacted.

    \b
    Examples:
      walproxy rebootstrap
      walproxy rebootstrap --primary 'host=db1 user=walproxy'
      walproxy rebootstrap --undo
    """
    discard_above_lsn = parse_lsn(discard_wal_above) if discard_wal_above is not None else None
    if undo:
        if system_ids:
            raise ConfigurationError("--replace-system-id cannot be combined with --undo")
        _undo(load_connection(MembersConfig, command_line, config), yes, discard_above_lsn)
        return
    loaded = load_connection(ConnectionConfig, command_line, config)
    found = asyncio.run(survey(loaded))
    for line in found.lines():
        click.echo(line)
    found.check_consent(Consent(system_ids, discard_above_lsn))
    if not _agreed(yes, "Begin a new cluster on these safekeepers?"):
        return
    cluster_id = asyncio.run(execute(loaded, found))
    click.echo(f"cluster {cluster_id} has begun: start walproxy run")
    click.echo(f"if the safekeepers archive: walproxy archive adopt --archive URL --cluster-id {cluster_id}")
    click.echo("to undo this before a proxy has written to the new cluster: walproxy rebootstrap --undo")


def _undo(config: MembersConfig, yes: bool, discard_above_lsn: Lsn | None) -> None:
    found = asyncio.run(survey_undo(config))
    for line in found.lines():
        click.echo(line)
    found.check_consent(discard_above_lsn)
    if not _agreed(yes, "Restore this cluster?"):
        return
    asyncio.run(execute_undo(config, found))
    click.echo(f"cluster {found.target.cluster_id} is restored: start walproxy run")


def _agreed(yes: bool, question: str) -> bool:
    if yes or click.confirm(question, default=False):
        return True
    click.echo("nothing was changed")
    return False
