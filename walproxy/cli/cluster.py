"""`walproxy cluster`: show the agents' cluster, pause its agents, and have a server rebuilt."""

import datetime
import json
from typing import Final

import click

from safekeeper.base.lsn import format_lsn
from walproxy.agent.operator_client import Operator
from walproxy.agent.orders import REINIT, check_quorum, check_reinit
from walproxy.agent.report import PrimaryChange
from walproxy.agent.state import change_content, cluster_content
from walproxy.cli.configuration import connected
from walproxy.cli.orders import OrderOfCommand, carry_out, print_view, timeout_option, with_operator, yes_option
from walproxy.proxy.config import MembersConfig
from walproxy.terminal import FittedTable, TableColumn, output_console

_PAUSE_TIMEOUT_S = 15.0
_CHANGES: Final = (
    TableColumn("when"),
    TableColumn("what", leaves=4),
    TableColumn("new primary"),
    TableColumn("TL", leaves=3, is_right=True),
    TableColumn("term", leaves=1, is_right=True),
    TableColumn("fork", leaves=2),
    TableColumn("without a leader", is_right=True),
)

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def cluster() -> None:
    """Show the servers with agents, pause the agents, or rebuild a server.

    The commands work through the safekeepers, and need the same safekeepers, certificates and secret as walproxy run.
    walproxy switchover and walproxy failover move the primary.
    """


@cluster.command()
@_json
@connected
def show(connection: MembersConfig, as_json: bool) -> None:
    """Show the agents, their servers and roles.

    \b
    Example:
      walproxy cluster show
    """
    view = with_operator(connection, lambda operator: operator.look())
    if as_json:
        click.echo(json.dumps(cluster_content(view)))
    else:
        print_view(view)


@cluster.command()
@click.argument("agent")
@yes_option
@timeout_option
@_json
@connected
def reinit(connection: MembersConfig, agent: str, yes: bool, timeout_s: float, as_json: bool) -> None:
    """Rebuild the data folder of a standby by a base backup of the primary.

    --timeout is the limit until the agent has begun; the base backup then takes the time that it takes.

    \b
    Example:
      walproxy cluster reinit db3
    """

    order = OrderOfCommand(
        REINIT,
        agent,
        lambda view: check_reinit(view, agent).name,
        lambda leader: f"Replace the data folder of {agent} by a base backup of {leader}?",
    )
    carry_out(order, connection, yes, timeout_s, as_json)


@cluster.command()
@click.option("--wait", is_flag=True, help="Wait until all agents have received it.")
@_json
@connected
def pause(connection: MembersConfig, wait: bool, as_json: bool) -> None:
    """Stop what the agents do by themselves: no failover, no start or stop of a server, no rejoin.

    For maintenance. The agents go on to watch and to report; commits go on while the primary and its walproxy run work.

    \b
    Example:
      walproxy cluster pause --wait
    """
    _set_paused(True, wait, as_json, connection)


@cluster.command()
@click.option("--wait", is_flag=True, help="Wait until all agents have received it.")
@_json
@connected
def resume(connection: MembersConfig, wait: bool, as_json: bool) -> None:
    """Undo walproxy cluster pause.

    \b
    Example:
      walproxy cluster resume
    """
    _set_paused(False, wait, as_json, connection)


@cluster.command()
@_json
@connected
def history(connection: MembersConfig, as_json: bool) -> None:
    """Show the changes of the primary that agents have made: the last 50.

    \b
    Example:
      walproxy cluster history
    """
    view = with_operator(connection, lambda operator: operator.look())
    if as_json:
        click.echo(json.dumps([change_content(change) for change in view.settings.changes]))
    else:
        _print_changes(view.settings.changes)


def _set_paused(is_paused: bool, wait: bool, as_json: bool, config: MembersConfig) -> None:
    async def run(operator: Operator) -> tuple[bool, list[str]]:
        view = await operator.look()
        check_quorum(view)
        is_new = view.settings.is_paused != is_paused
        if is_new:
            await operator.pause(is_paused)
        return is_new, await operator.wait_for_pause(is_paused, _PAUSE_TIMEOUT_S) if wait else []

    is_new, missing = with_operator(config, run)
    if as_json:
        click.echo(json.dumps({"paused": is_paused, "changed": is_new, "missing": missing}))
    else:
        state = "paused" if is_paused else "not paused"
        click.echo(f"the agents are {state}" if is_new else f"nothing is to be done: the agents are {state}")
    if missing:
        click.echo(f"not received by {', '.join(missing)} within {_PAUSE_TIMEOUT_S:g} s", err=True)
        raise SystemExit(1)


def _print_changes(changes: tuple[PrimaryChange, ...]) -> None:
    if not changes:
        click.echo("no agent has changed the primary yet")
        return
    table = FittedTable(_CHANGES)
    for change in changes:
        when = datetime.datetime.fromtimestamp(change.at, datetime.UTC).isoformat(timespec="seconds")
        fork, gap = format_lsn(change.fork_lsn), f"{change.seconds:.2f} s"
        table.add_row(when, change.kind, change.agent, str(change.tli), str(change.term), fork, gap)
    output_console().print(table)
