"""`walproxy cluster`: show the agents' cluster, and give its agents orders."""

import asyncio
import datetime
import json
import os
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click
from rich.console import Console
from rich.text import Text

from safekeeper.base import settings
from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import format_lsn
from walproxy.agent.operator_client import Operator
from walproxy.agent.orders import (
    FAILOVER,
    NO_AGENTS,
    REINIT,
    SWITCHOVER,
    OrderHeadway,
    check_failover,
    check_quorum,
    check_reinit,
    check_switchover,
    describe,
    is_pending,
)
from walproxy.agent.report import AgentReport, Order, PrimaryChange
from walproxy.agent.safekeeper_views import SafekeeperViews
from walproxy.agent.server_look import ServerState
from walproxy.agent.sight import SeenReport
from walproxy.agent.state import (
    ClusterView,
    change_content,
    cluster_content,
    is_fresh,
    lag_bytes,
    role_of,
)
from walproxy.cli.parameters import DURATION
from walproxy.proxy.config import ENVIRONMENT_PREFIX, MembersConfig, ProxyConfig
from walproxy.proxy.credentials import read_peer_credentials
from walproxy.proxy.status_table import format_bytes
from walproxy.terminal import Fit, FittedTable, TableColumn, output_console

_Result = TypeVar("_Result")
EXIT_INTERRUPTED = 130
_LINE_INTERVAL_S = 5.0
_PAUSE_TIMEOUT_S = 15.0
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
_CHANGES: Final = (
    TableColumn("when"),
    TableColumn("what", leaves=4),
    TableColumn("new primary"),
    TableColumn("TL", leaves=3, is_right=True),
    TableColumn("term", leaves=1, is_right=True),
    TableColumn("fork", leaves=2),
    TableColumn("without a leader", is_right=True),
)

_options = settings.click_options(MembersConfig, ENVIRONMENT_PREFIX)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_yes = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
_to = click.option("--to", "wanted", default="", metavar="AGENT", help="The agent of the standby to promote.")
_timeout = click.option(
    "--timeout",
    "timeout_s",
    type=DURATION,
    default="60s",
    show_default=True,
    help="Time limit; an order that no agent has acted on by then is withdrawn.",
)


@click.group()
def cluster() -> None:
    """Show the servers with agents, and move the primary, pause the agents, or rebuild a server.

    The commands work through the safekeepers, and need the same --safekeepers, certificates and secret as walproxy run.
    An order is executed by the agents (walproxy agent); a command waits for the end.
    """


@cluster.command()
@_json
@_options
def show(config: Path | None, as_json: bool, **command_line: Any) -> None:
    """Show the agents, their servers and roles.

    \b
    Example:
      walproxy cluster show --safekeepers 1=sk1:5454,2=sk2:5454,3=sk3:5454
    """
    view = _with_operator(_load(config, command_line), lambda operator: operator.look())
    if as_json:
        click.echo(json.dumps(cluster_content(view)))
    else:
        _print_view(view)


@cluster.command()
@_to
@_yes
@_timeout
@_json
@_options
def switchover(
    config: Path | None, wanted: str, yes: bool, timeout_s: float, as_json: bool, **command_line: Any
) -> None:
    """Move the primary to a standby while everything works: about two seconds without commits.

    The agent of the primary stops its server, and the agent of the standby promotes it when it has everything; without
    --to that is the most advanced standby of the highest priority. The old primary becomes a standby.

    \b
    Examples:
      walproxy cluster switchover --to db2 --config /etc/walproxy.toml
      walproxy cluster switchover --to db2 --yes --safekeepers 1=sk1:5454,2=sk2:5454,3=sk3:5454
    """

    order = _OrderOfCommand(
        SWITCHOVER,
        wanted,
        lambda view: check_switchover(view, wanted).name,
        lambda leader: f"Move the primary from {leader} to {wanted or 'the most advanced standby'}?",
    )
    _carry_out(order, _load(config, command_line), yes, timeout_s, as_json)


@cluster.command()
@_to
@_yes
@_timeout
@_json
@_options
def failover(config: Path | None, wanted: str, yes: bool, timeout_s: float, as_json: bool, **command_line: Any) -> None:
    """Promote a standby of a cluster without a leader, now.

    Agents do that by themselves after --dead-after, unless they are paused. No acknowledged commit is lost: a standby
    is promoted when it has everything. While an agent leads, use walproxy cluster switchover.

    \b
    Examples:
      walproxy cluster failover --config /etc/walproxy.toml
      walproxy cluster failover --to db3 --yes --safekeepers 1=sk1:5454,2=sk2:5454,3=sk3:5454
    """

    def check(view: ClusterView) -> str:
        check_failover(view, wanted)
        return ""

    order = _OrderOfCommand(FAILOVER, wanted, check, lambda _: f"Promote {wanted or 'the most advanced standby'}?")
    _carry_out(order, _load(config, command_line), yes, timeout_s, as_json)


@cluster.command()
@click.argument("agent")
@_yes
@_timeout
@_json
@_options
def reinit(config: Path | None, agent: str, yes: bool, timeout_s: float, as_json: bool, **command_line: Any) -> None:
    """Rebuild the data folder of a standby by a base backup of the primary.

    --timeout is the limit until the agent has begun; the base backup then takes the time that it takes.

    \b
    Example:
      walproxy cluster reinit db3 --safekeepers 1=sk1:5454,2=sk2:5454,3=sk3:5454
    """

    order = _OrderOfCommand(
        REINIT,
        agent,
        lambda view: check_reinit(view, agent).name,
        lambda leader: f"Replace the data folder of {agent} by a base backup of {leader}?",
    )
    _carry_out(order, _load(config, command_line), yes, timeout_s, as_json)


@cluster.command()
@click.option("--wait", is_flag=True, help="Wait until all agents have received it.")
@_json
@_options
def pause(config: Path | None, wait: bool, as_json: bool, **command_line: Any) -> None:
    """Stop what the agents do by themselves: no failover, no start or stop of a server, no rejoin.

    For maintenance. The agents go on to watch and to report; commits go on while the primary and its walproxy run work.

    \b
    Example:
      walproxy cluster pause --wait --safekeepers 1=sk1:5454,2=sk2:5454,3=sk3:5454
    """
    _set_paused(True, wait, as_json, _load(config, command_line))


@cluster.command()
@click.option("--wait", is_flag=True, help="Wait until all agents have received it.")
@_json
@_options
def resume(config: Path | None, wait: bool, as_json: bool, **command_line: Any) -> None:
    """Undo walproxy cluster pause.

    \b
    Example:
      walproxy cluster resume --safekeepers 1=sk1:5454,2=sk2:5454,3=sk3:5454
    """
    _set_paused(False, wait, as_json, _load(config, command_line))


@cluster.command()
@_json
@_options
def history(config: Path | None, as_json: bool, **command_line: Any) -> None:
    """Show the changes of the primary that agents have made: the last 50.

    \b
    Example:
      walproxy cluster history --safekeepers 1=sk1:5454,2=sk2:5454,3=sk3:5454
    """
    view = _with_operator(_load(config, command_line), lambda operator: operator.look())
    if as_json:
        click.echo(json.dumps([change_content(change) for change in view.settings.changes]))
    else:
        _print_changes(view.settings.changes)


def _load(config: Path | None, command_line: dict[str, Any]) -> MembersConfig:
    # The file may be that of walproxy run.
    return settings.load(
        MembersConfig,
        ENVIRONMENT_PREFIX,
        command_line=command_line,
        environment=os.environ,
        file=config,
        file_of=ProxyConfig,
    )


def _with_operator(config: MembersConfig, use: Callable[[Operator], Coroutine[Any, Any, _Result]]) -> _Result:
    """Return the result of `use` with the connections to the safekeepers, which are closed afterwards."""

    async def run() -> _Result:
        views = SafekeeperViews(config.safekeepers, read_peer_credentials(config))
        try:
            return await use(Operator(views))
        finally:
            await views.close()

    return asyncio.run(run())


class _OrderOfCommand(NamedTuple):
    """What a command orders.

    Attributes:
        agent: see Order.
        check: raises a WalproxyError if the order cannot be given now; returns the agent that leads, "" for none.
        question: returns what to ask the operator, from the agent that leads.
    """

    kind: str
    agent: str
    check: Callable[[ClusterView], str]
    question: Callable[[str], str]


def _carry_out(order: _OrderOfCommand, config: MembersConfig, yes: bool, timeout_s: float, as_json: bool) -> None:
    """Ask for confirmation, give an order, follow it with its progress on stderr, and print its end.

    Raises:
        ConfigurationError: no terminal is there to ask.
    """
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigurationError("without a terminal this needs --yes")
        # Not in an event loop, where an interruption would not end the question.
        view = _with_operator(config, lambda operator: operator.look())
        leader_name = order.check(view)
        if not _is_done_already(order, leader_name):
            _print_view(view, to_stderr=True)
            if not click.confirm(order.question(leader_name), default=False, err=True):
                click.echo("nothing was changed")
                return
    began_at = time.monotonic()
    try:
        given, view = _with_operator(config, lambda operator: _give_and_follow(operator, order, timeout_s))
    except KeyboardInterrupt:
        click.echo("interrupted: the agents may go on; walproxy cluster show shows them", err=True)
        raise SystemExit(EXIT_INTERRUPTED) from None
    _print_end(order, given, view, time.monotonic() - began_at, as_json)


def _is_done_already(order: _OrderOfCommand, leader_name: str) -> bool:
    return order.kind == SWITCHOVER and order.agent == leader_name


async def _give_and_follow(
    operator: Operator, order: _OrderOfCommand, timeout_s: float
) -> tuple[Order | None, ClusterView]:
    view = await operator.look()
    leader_name = order.check(view)
    if _is_done_already(order, leader_name):
        return None, view
    given = await operator.give(order.kind, order.agent)
    with _ProgressOfOrder() as progress:
        return given, await operator.follow(given, leader_name, timeout_s, progress.show)


def _print_end(order: _OrderOfCommand, given: Order | None, view: ClusterView, seconds: float, as_json: bool) -> None:
    leader = view.leader
    name, tli = (leader.name, leader.tli) if leader is not None else ("", 0)
    if as_json:
        content = {
            "order": given.id if given is not None else None,
            "leader": name or None,
            "tli": tli or None,
            "term": view.log.term,
            "seconds": round(seconds, 3),
        }
        click.echo(json.dumps(content))
    elif given is None:
        click.echo(f"nothing is to be done: {name} leads")
    elif order.kind == REINIT:
        click.echo(f"{order.agent} has been rebuilt ({seconds:.1f} s)")
    else:
        last = view.settings.changes[-1] if view.settings.changes else None
        gap = f"; {last.seconds:.2f} s without a leader" if last is not None and last.tli == tli else ""
        click.echo(f"{name} is the primary on timeline {tli} in term {view.log.term}: commits go on{gap}")


def _set_paused(is_paused: bool, wait: bool, as_json: bool, config: MembersConfig) -> None:
    async def run(operator: Operator) -> tuple[bool, list[str]]:
        view = await operator.look()
        check_quorum(view)
        is_new = view.settings.is_paused != is_paused
        if is_new:
            await operator.pause(is_paused)
        return is_new, await operator.wait_for_pause(is_paused, _PAUSE_TIMEOUT_S) if wait else []

    is_new, missing = _with_operator(config, run)
    if as_json:
        click.echo(json.dumps({"paused": is_paused, "changed": is_new, "missing": missing}))
    else:
        state = "paused" if is_paused else "not paused"
        click.echo(f"the agents are {state}" if is_new else f"nothing is to be done: the agents are {state}")
    if missing:
        click.echo(f"not received by {', '.join(missing)} within {_PAUSE_TIMEOUT_S:g} s", err=True)
        raise SystemExit(1)


class _ProgressOfOrder:
    """The progress of an order on stderr: a spinner on a terminal, otherwise a line when it changes, and every 5 s."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._status = self._console.status("") if self._console.is_terminal else None
        self._last = ""
        self._line_at = 0.0

    def __enter__(self) -> "_ProgressOfOrder":
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, headway: OrderHeadway) -> None:
        """Show how far it is."""
        if self._status is not None:
            self._status.update(Text(headway.what))
        elif headway.what != self._last or time.monotonic() >= self._line_at:
            self._last, self._line_at = headway.what, time.monotonic() + _LINE_INTERVAL_S
            self._console.print(headway.what, highlight=False, soft_wrap=True, markup=False)


def _print_view(view: ClusterView, to_stderr: bool = False) -> None:
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
