"""`walproxy switchover`: move the primary to a standby while everything works."""

from pathlib import Path

import click

from walproxy.cli.configuration import load_connection, server_options
from walproxy.cli.failover import print_report, run_to_end
from walproxy.cli.failover_progress import FailoverProgress
from walproxy.cli.orders import carry_out, switchover_order, timeout_option, yes_option
from walproxy.failover.failover import Failover
from walproxy.failover.switchover import switch_over
from walproxy.postgres.hosts import primary_hosts
from walproxy.proxy.config import ConnectionConfig, MembersConfig
from walproxy.proxy.credentials import read_peer_credentials


@click.command()
@click.option("--to", "wanted", default="", metavar="NAME", help="The agent or host to promote; with agents optional.")
@click.option(
    "--stop-command",
    default="",
    metavar="COMMAND",
    help="Shell command that stops the old primary (fast mode); without it all sessions are ended over SQL.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@yes_option
@timeout_option
@server_options
def switchover(
    config: Path | None,
    wanted: str,
    stop_command: str,
    yes: bool,
    timeout_s: float,
    as_json: bool,
    **command_line: str | None,
) -> None:
    """Move the primary to a standby while everything works, with a short time without commits.

    Where agents report (walproxy agent), they are given the order, and the command waits for its end: about two seconds
    without commits. The agent of the primary stops its server, that of the standby promotes it, by default the most
    advanced one of the highest priority, and the old primary becomes a standby. Without agents, and with
    --stop-command, the command acts by itself:

    Brings the old primary to rest: with --stop-command it is stopped, otherwise its sessions are ended and new ones are
    read-only by default. When the standby has everything, the old timeline is sealed and the standby promoted, as
    walproxy failover does. An old primary that was stopped can be started again as a standby without pg_rewind.

    Unless the role is a superuser, it needs the rights that walproxy failover --help lists, and without --stop-command:

    \b
      GRANT pg_signal_backend TO walproxy;
      GRANT EXECUTE ON FUNCTION pg_reload_conf TO walproxy;
      GRANT ALTER SYSTEM ON PARAMETER default_transaction_read_only TO walproxy;  -- PostgreSQL 15 and newer

    \b
    Examples:
      walproxy switchover --to pg2 --stop-command 'ssh pg1 sudo systemctl stop postgresql' \\
          --primary 'host=pg1,pg2,pg3 user=walproxy'
      walproxy switchover --to pg2
    """
    if not stop_command and carry_out(
        switchover_order(wanted), load_connection(MembersConfig, command_line, config), yes, timeout_s, as_json
    ):
        return
    if not wanted:
        raise click.UsageError("give --to: no agent reports that could choose")
    connection = load_connection(ConnectionConfig, command_line, config)
    hosts = primary_hosts(connection.primary, "the servers'")
    progress = FailoverProgress()

    def make() -> Failover:
        return Failover(connection.safekeepers, hosts, read_peer_credentials(connection), progress)

    report = run_to_end(
        progress, make, lambda run: switch_over(run, hosts, wanted, progress, stop_command=stop_command)
    )
    print_report(report, as_json)
