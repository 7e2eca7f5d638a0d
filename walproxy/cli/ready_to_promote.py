"""`walproxy ready-to-promote`: for managers that promote by themselves."""

import asyncio
import dataclasses
import json
from pathlib import Path

import click

from safekeeper.base.lsn import format_lsn
from walproxy.agent.ready import ReadyReport, ReadyToPromote
from walproxy.agent.standby_folder import LocalStandbyFolder
from walproxy.cli.configuration import connected
from walproxy.cli.failover_progress import FailoverProgress
from walproxy.postgres.hosts import PrimaryHost, primary_hosts
from walproxy.proxy.config import MembersConfig
from walproxy.proxy.credentials import read_peer_credentials

DEFAULT_TIMEOUT_S = 60.0
_EXIT_INTERRUPTED = 130


@click.command("ready-to-promote")
@click.option(
    "--pgdata",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The standby's data folder, on this machine: WAL that the standby lacks is written to its pg_wal.",
)
@click.option(
    "--conninfo",
    default="",
    metavar="CONNINFO",
    help="How to connect to the standby; with --pgdata only what its postmaster.pid does not contain.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0.0, min_open=True),
    default=DEFAULT_TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for a quorum and for the standby.",
)
@click.option("--old-is-dead", is_flag=True, help="Seal the old primary off although its proxy leads.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@connected
def ready_to_promote(
    connection: MembersConfig,
    pgdata: Path | None,
    conninfo: str,
    timeout_s: float,
    old_is_dead: bool,
    as_json: bool,
) -> None:
    """Make a standby ready for its promotion by another program; exit with 0 only if it may be promoted now.

    For hooks that run before a promotion: Patroni's pre_promote, repmgr's promote_command, scripts. Seals the timeline
    of the old primary on the safekeepers, so that nothing that it writes is acknowledged from then on, and waits until
    the standby has all that may have been acknowledged. With --pgdata the missing WAL is written to the standby's
    pg_wal if neither its walreceiver nor its restore_command delivers it. Promote the standby right after it. Every run
    may be repeated, also for another standby.

    \b
    Examples:
      walproxy ready-to-promote --pgdata /var/lib/postgresql/17/main
      walproxy ready-to-promote --conninfo 'host=pg2 user=walproxy' && \\
          pg_ctl promote -D /var/lib/postgresql/17/main
    """
    if pgdata is None and not conninfo:
        raise click.UsageError("give --pgdata or --conninfo")
    folder, standby = _standby(pgdata, conninfo)
    progress = FailoverProgress()
    run = ReadyToPromote(
        connection.safekeepers,
        standby,
        read_peer_credentials(connection),
        progress,
        folder=folder,
        old_is_dead=old_is_dead,
    )
    try:
        with progress:
            report = asyncio.run(run.run(timeout_s))
    except KeyboardInterrupt:
        click.echo("interrupted: do not promote the standby; repeat the command", err=True)
        raise SystemExit(_EXIT_INTERRUPTED) from None
    _print(report, as_json)


def _standby(pgdata: Path | None, conninfo: str) -> tuple[LocalStandbyFolder | None, PrimaryHost]:
    if pgdata is None:
        hosts = primary_hosts(conninfo, "the standby's")
        if len(hosts) > 1:
            raise click.UsageError(f"--conninfo names {len(hosts)} hosts: give that of the standby only")
        return None, hosts[0]
    folder = LocalStandbyFolder(pgdata)
    return folder, PrimaryHost(str(folder), folder.conninfo(conninfo))


def _print(report: ReadyReport, as_json: bool) -> None:
    if as_json:
        lsns = {"end_lsn": format_lsn(report.end_lsn), "reached_lsn": format_lsn(report.reached_lsn)}
        click.echo(json.dumps({**dataclasses.asdict(report), **lsns}))
        return
    click.echo(
        f"{report.standby} has everything that may have been acknowledged, up to {format_lsn(report.reached_lsn)}: "
        f"promote it now, to timeline {report.promoted_tli}"
    )
