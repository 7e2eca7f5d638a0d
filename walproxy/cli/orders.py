"""Orders to the agents: given by a command, followed to their end, and printed.

`walproxy failover` and `walproxy switchover` give one where agents report, and act by themselves where none does; what
only agents can do is in `walproxy cluster`.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, TypeVar

import click

from safekeeper.base.errors import ConfigurationError, RemoteProtocolError, WalproxyError
from safekeeper.base.lsn import format_lsn
from walproxy.agent.operator_client import Operator
from walproxy.agent.orders import (
    CANCEL,
    FAILOVER,
    NO_AGENTS,
    REINIT,
    SWITCHOVER,
    check_failover,
    check_switchover,
    describe,
    is_pending,
)
from walproxy.agent.report import AgentReport, Order
from walproxy.agent.safekeeper_views import SafekeeperViews
from walproxy.agent.server_look import ServerState
from walproxy.agent.sight import SeenReport
from walproxy.agent.state import ClusterView, is_fresh, lag_bytes, role_of
from walproxy.cli.parameters import DURATION
from walproxy.cli.progress import LiveProgress
from walproxy.proxy.config import MembersConfig
from walproxy.proxy.credentials import read_peer_credentials
from walproxy.proxy.status_table import format_bytes
from walproxy.terminal import Fit, FittedTable, TableColumn, output_console

_Result = TypeVar("_Result")
EXIT_INTERRUPTED = 130
_DEFAULT_PRIORITY = AgentReport("").priority
_AGENTS: Final = (
    TableColumn("agent"),
    TableColumn("address", leaves=2),
    TableColumn("role"),
    TableColumn("state"),
    TableColumn("TL", leaves=3, is_right=True),
    TableColumn("lag", leaves=4, is_right=True),
    TableColumn("tags", leaves=1),
    TableColumn("doing", fit=Fit.WRAP),
)

yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation before agents are given the order.")
timeout_option = click.option(
    "--timeout",
    "timeout_s",
    type=DURATION,
    default="60s",
    show_default=True,
    help="Time limit of the agents; an order that no agent has acted on by then is withdrawn.",
)


def with_operator(config: MembersConfig, use: Callable[[Operator], Coroutine[Any, Any, _Result]]) -> _Result:
    """Return the result of `use` with the connections to the safekeepers, which are closed afterwards."""

    async def run() -> _Result:
        views = SafekeeperViews(config.safekeepers, read_peer_credentials(config))
        try:
            return await use(Operator(views))
        finally:
            await views.close()

    return asyncio.run(run())


class OrderOfCommand(NamedTuple):
    """What a command orders.

    Attributes:
        agent: see Order.
        check: raises a WalproxyError if the order cannot be given now; returns the agent that leads, "" for none.
        question: returns what to ask the operator, from the agent that leads.
        needs_agents: it cannot be executed without agents.
    """

    kind: str
    agent: str
    check: Callable[[ClusterView], str]
    question: Callable[[str], str]
    needs_agents: bool = True


def switchover_order(wanted: str) -> OrderOfCommand:
    """Return the order to move the primary to an agent, "" for the most advanced."""
    return OrderOfCommand(
        SWITCHOVER,
        wanted,
        lambda view: check_switchover(view, wanted).name,
        lambda leader: f"Move the primary from {leader} to {wanted or 'the most advanced standby'}?",
        needs_agents=False,
    )


def failover_order(wanted: str) -> OrderOfCommand:
    """Return the order to promote the standby of an agent, "" for the most advanced."""

    def check(view: ClusterView) -> str:
        check_failover(view, wanted)
        return ""

    question = f"Promote {wanted or 'the most advanced standby'}?"
    return OrderOfCommand(FAILOVER, wanted, check, lambda _: question, needs_agents=False)


def carry_out(order: OrderOfCommand, config: MembersConfig, yes: bool, timeout_s: float, as_json: bool) -> bool:
    """Ask for confirmation, give an order, follow it with its progress on stderr, and print its end.

    Returns:
        False if it needs no agents and none reports: the command acts by itself.

    Raises:
        ConfigurationError: no terminal is there to ask.
    """
    if not yes:
        # Not in an event loop, where an interruption would not end the question.
        view = with_operator(config, lambda operator: _look(operator, order))
        if view is None:
            return False
        if not sys.stdin.isatty():
            raise ConfigurationError("without a terminal this needs --yes")
        leader_name = order.check(view)
        if not _is_done_already(order, leader_name):
            print_view(view, to_stderr=True)
            if not click.confirm(order.question(leader_name), default=False, err=True):
                click.echo("nothing was changed")
                return True
    began_at = time.monotonic()
    try:
        followed = with_operator(config, lambda operator: _give_and_follow(operator, order, timeout_s))
    except KeyboardInterrupt:
        click.echo("interrupted: the agents may go on; walproxy cluster show shows them", err=True)
        raise SystemExit(EXIT_INTERRUPTED) from None
    if followed is None:
        return False
    _print_end(order, *followed, time.monotonic() - began_at, as_json)
    return True


def cancel_agents(config: MembersConfig) -> None:
    """Order the agents, if any report, to leave the lead to the old primary."""
    with_operator(config, _cancel)


async def _cancel(operator: Operator) -> None:
    try:
        view = await operator.look()
    except RemoteProtocolError:
        raise
    except WalproxyError:
        return  # The command finds that again.
    if any(map(is_fresh, view.agents)):
        await operator.give(CANCEL, "")


async def _look(operator: Operator, order: OrderOfCommand) -> ClusterView | None:
    """Return the cluster; None if the order needs no agents, and none reports, or no safekeeper replies."""
    try:
        view = await operator.look()
    except RemoteProtocolError:
        raise
    except WalproxyError:
        if order.needs_agents:
            raise
        return None  # Who acts without agents finds that again.
    return view if order.needs_agents or any(map(is_fresh, view.agents)) else None


def _is_done_already(order: OrderOfCommand, leader_name: str) -> bool:
    return order.kind == SWITCHOVER and order.agent == leader_name


async def _give_and_follow(
    operator: Operator, order: OrderOfCommand, timeout_s: float
) -> tuple[Order | None, ClusterView] | None:
    view = await _look(operator, order)
    if view is None:
        return None
    leader_name = order.check(view)
    if _is_done_already(order, leader_name):
        return None, view
    given = await operator.give(order.kind, order.agent)
    with LiveProgress() as progress:
        return given, await operator.follow(
            given, leader_name, timeout_s, lambda headway: progress.show(headway.what, headway.what)
        )


def _print_end(order: OrderOfCommand, given: Order | None, view: ClusterView, seconds: float, as_json: bool) -> None:
    leader = view.leader
    name, tli = (leader.name, leader.tli) if leader is not None else ("", 0)
    if as_json:
        content: dict[str, Any] = {"order": given.id if given is not None else None}
        if order.kind == REINIT:
            content |= {"leader": name or None, "seconds": round(seconds, 3)}
        else:
            content |= {"primary": name or None, "seconds": {"all": round(seconds, 3)}}
        click.echo(json.dumps({**content, "tli": tli or None, "term": view.log.term}))
    elif given is None:
        click.echo(f"nothing is to be done: {name} leads")
    elif order.kind == REINIT:
        click.echo(f"{order.agent} has been rebuilt ({seconds:.1f} s)")
    else:
        last = view.settings.changes[-1] if view.settings.changes else None
        gap = f"; {last.seconds:.2f} s without a leader" if last is not None and last.tli == tli else ""
        click.echo(f"{name} is the primary on timeline {tli} in term {view.log.term}: commits go on{gap}")


def print_view(view: ClusterView, to_stderr: bool = False) -> None:
    """Print the cluster as a table of its agents."""
    console = output_console(stderr=to_stderr)
    for line in _head(view):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    if not view.agents:
        console.print(NO_AGENTS, highlight=False, soft_wrap=True, markup=False)
        return
    table = FittedTable(_AGENTS)
    for seen in view.agents:
        table.add_row(*_cells(seen, view))
    console.print(table)


def _head(view: ClusterView) -> list[str]:
    """Return the lines above the table."""
    log, order = view.log, view.settings.order
    quorum = "a quorum of safekeepers replies" if view.has_quorum else "NO QUORUM of safekeepers replies"
    lines = [
        f"cluster {view.cluster_id[:8] or 'unknown'}, term {log.term}, timeline {log.tli}, "
        f"commit {format_lsn(log.commit_lsn)}; {quorum}"
    ]
    if view.problem:
        lines.append(view.problem)
    if view.settings.is_paused:
        lines.append("PAUSED: agents change nothing by themselves until walproxy cluster resume")
    if view.agents and view.leader is None:
        lines.append("NO LEADER: no agent reports that commits succeed through its server")
    if order is not None and is_pending(view):
        lines.append(f"ordered, not done: {describe(order)}")
    return lines


def _cells(seen: SeenReport, view: ClusterView) -> list[str]:
    report = seen.report
    state = report.state
    if not is_fresh(seen):
        state = f"no report for {seen.age_s:.0f} s"
    elif state in (ServerState.PRIMARY.value, ServerState.STANDBY.value):
        state = "streaming" if report.is_streaming else "running"
    tags = [] if report.may_lead else ["no-failover"]
    if report.priority != _DEFAULT_PRIORITY:
        tags.append(f"priority {report.priority}")
    if report.is_read_only:
        tags.append("read-only")
    return [
        report.name,
        report.address or "-",
        role_of(report, view.leader) or "-",
        state,
        str(report.tli or "-"),
        format_bytes(lag_bytes(report, view.log)),
        ", ".join(tags),
        "; ".join(part for part in (report.doing, report.problem) if part),
    ]
