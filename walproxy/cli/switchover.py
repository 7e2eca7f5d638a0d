"""`walproxy switchover`: move the primary to a standby while everything works."""

import click

from walproxy.cli.configuration import connected_to_servers
from walproxy.cli.failover import print_report, run_to_end
from walproxy.cli.failover_progress import FailoverProgress
from walproxy.failover.failover import Failover
from walproxy.failover.switchover import switch_over
from walproxy.postgres.hosts import primary_hosts
from walproxy.proxy.config import ConnectionConfig
from walproxy.proxy.credentials import read_peer_credentials


@click.command()
@click.option("--to", "wanted", required=True, metavar="HOST", help="The standby to promote.")
@click.option(
    "--stop-command",
    default="",
    metavar="COMMAND",
    help="Shell command that stops the old primary (fast mode); without it all sessions are ended over SQL.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@connected_to_servers
def switchover(connection: ConnectionConfig, wanted: str, stop_command: str, as_json: bool) -> None:
    """Move the primary to a standby while everything works, with a short time without commits.

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
          --primary 'host=pg1,pg2,pg3 user=walproxy' --safekeepers 1=sk1:5454,2=sk2:5454,3=sk3:5454
      walproxy switchover --to pg2
    """
    hosts = primary_hosts(connection.primary, "the servers'")
    progress = FailoverProgress()

    def make() -> Failover:
        return Failover(connection.safekeepers, hosts, read_peer_credentials(connection), progress)

    report = run_to_end(
        progress, make, lambda run: switch_over(run, hosts, wanted, progress, stop_command=stop_command)
    )
    print_report(report, as_json)
