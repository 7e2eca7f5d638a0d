"""`walproxy members`: show the safekeepers that are members of the cluster, and change them while commits go on."""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import click

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import format_lsn
from safekeeper.base.settings import Address
from safekeeper.base.settings import address as parse_address
from safekeeper.consensus.membership import Member, QuorumSizes
from safekeeper.consensus.quorum_expression import size_of
from walproxy.cli.configuration import connected
from walproxy.cli.parameters import Parameter
from walproxy.cli.progress import LiveProgress
from walproxy.proposer.member_change import Target, halves_of, list_members
from walproxy.proposer.roster import Cluster
from walproxy.proxy.config import MembersConfig
from walproxy.proxy.credentials import read_peer_credentials
from walproxy.proxy.members import Fleet, change_members
from walproxy.proxy.members_plan import (
    Add,
    Cancel,
    Headway,
    MemberRow,
    Quorum,
    Remove,
    Replace,
    Wish,
    member_rows,
)
from walproxy.proxy.sight import Sight
from walproxy.proxy.status_table import format_bytes
from walproxy.terminal import FittedTable, TableColumn, output_console

_Result = TypeVar("_Result")
EXIT_INTERRUPTED = 130


def _place(text: str) -> tuple[int, Address | None]:
    safekeeper_id, equals, address = text.partition("=")
    if not safekeeper_id.isascii() or not safekeeper_id.isdecimal() or int(safekeeper_id) < 1:
        raise ValueError(f"{text!r} is not ID or ID=HOST:PORT, for example 4=10.0.0.4:5454")
    return int(safekeeper_id), parse_address(address) if equals else None


_PLACE: Final = Parameter("ID[=HOST:PORT]", _place)
_COLUMNS: Final = (
    TableColumn("safekeeper"),
    TableColumn("address", leaves=3),
    TableColumn("role"),
    TableColumn("folder", leaves=1),
    TableColumn("flush", leaves=4),
    TableColumn("lag", leaves=2, is_right=True),
)
_ID: Final = click.IntRange(min=1)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_force = click.option("--force", is_flag=True, help="Change them although commits wait until more of them follow.")


@click.group()
def members() -> None:
    """Show the safekeepers that are members of the cluster, and change them while commits go on.

    One member is changed at a time. A new one receives the WAL first and counts when it has caught up, so no commit
    waits for it. The commands wait for the end of the change and can be repeated after any interruption: they go on
    where the change is. They need the same safekeepers, certificates and secret as walproxy run.
    """


@members.command("list")
@_json
@connected
def list_(connection: MembersConfig, as_json: bool) -> None:
    """Show the members, their data folders and positions.

    \b
    Example:
      walproxy members list
    """

    async def look(fleet: Fleet) -> Sight:
        return await fleet.look()

    sight = _with_fleet(connection, look)
    cluster = sight.present_cluster()
    rows = member_rows(cluster, sight)
    if as_json:
        click.echo(json.dumps({**_cluster_as_json(cluster), "safekeepers": [_row_as_json(row) for row in rows]}))
    else:
        _print_table(cluster, rows)


@members.command()
@click.argument("safekeeper", type=_PLACE)
@_json
@_force
@connected
def add(connection: MembersConfig, safekeeper: tuple[int, Address | None], as_json: bool, force: bool) -> None:
    """Add a safekeeper, whose data folder is empty, to the members.

    Start it first. Then add it to [safekeepers] of the cluster's file; until a proxy has read that, it connects to the
    address given here.

    \b
    Example:
      walproxy members add 4=sk4:5454
    """
    _change(Add(safekeeper[0]), safekeeper, connection, as_json, force)


@members.command()
@click.argument("safekeeper", type=_ID, metavar="ID")
@_json
@_force
@connected
def remove(connection: MembersConfig, safekeeper: int, as_json: bool, force: bool) -> None:
    """Remove a safekeeper from the members, whether it runs or not.

    Remove it from [safekeepers] of the cluster's file afterwards; as long as it is listed, it receives WAL and does not
    count.

    \b
    Example:
      walproxy members remove 3
    """
    _change(Remove(safekeeper), (safekeeper, None), connection, as_json, force)


@members.command()
@click.argument("safekeeper", type=_PLACE)
@click.option("--by", type=_PLACE, help="The safekeeper that replaces it, if that has another id.")
@_json
@_force
@connected
def replace(
    connection: MembersConfig,
    safekeeper: tuple[int, Address | None],
    by: tuple[int, Address | None] | None,
    as_json: bool,
    force: bool,
) -> None:
    """Replace a member's data folder, which is lost or is to be retired, by an empty one.

    Start a safekeeper with an empty data folder under the same id first, at its address or at another one. With --by
    the new one has an id of its own; then a member that still works counts until the new one has caught up.

    \b
    Examples:
      walproxy members replace 3
      walproxy members replace 3=new3:5454
      walproxy members replace 3 --by 4=sk4:5454
    """
    if by is not None and safekeeper[1] is not None:
        raise ConfigurationError("give the new address with --by ID=HOST:PORT, or with ID=HOST:PORT, not both")
    newcomer = safekeeper if by is None else by
    _change(Replace(safekeeper[0], newcomer[0]), newcomer, connection, as_json, force)


@members.command()
@click.option("--commit", metavar="EXPRESSION", help="Number of members that must have WAL on disk for a commit.")
@click.option("--elect", metavar="EXPRESSION", help="Number of members that elect the proxy that leads.")
@_json
@_force
@connected
def quorum(connection: MembersConfig, commit: str | None, elect: str | None, as_json: bool, force: bool) -> None:
    """Change how many of N members a commit and an election need.

    An expression has digits, N, + - * / and parentheses; / drops the remainder. For each N from 1 to 31 both together
    must be more than N, and an election more than half of N. N/2+1 each by default. With the first example, commits of
    five members wait for two disks only, and a new leader needs four of the members: with two disks a commit is lost.

    \b
    Examples:
      walproxy members quorum --commit N/3+1 --elect N-N/3
      walproxy members quorum --commit N/2+1 --elect N/2+1
    """
    if commit is None and elect is None:
        raise click.UsageError("give --commit, --elect or both")
    _change(Quorum(commit, elect), (0, None), connection, as_json, force)


@members.command()
@_json
@connected
def cancel(connection: MembersConfig, as_json: bool) -> None:
    """Cancel the change that is under way: the members are again those before it.

    \b
    Example:
      walproxy members cancel
    """
    _change(Cancel(), (0, None), connection, as_json, force=False)


def _with_fleet(config: MembersConfig, use: Callable[[Fleet], Coroutine[Any, Any, _Result]]) -> _Result:
    """Return the result of `use` with the connections to the safekeepers, which are closed afterwards."""

    async def run() -> _Result:
        fleet = Fleet(config.safekeepers, read_peer_credentials(config))
        try:
            return await use(fleet)
        finally:
            await fleet.close()

    return asyncio.run(run())


def _change(wish: Wish, place: tuple[int, Address | None], config: MembersConfig, as_json: bool, force: bool) -> None:
    """Make a change, with its progress on stderr, and print its end."""
    began_at = time.monotonic()
    safekeeper_id, address = place

    async def run(fleet: Fleet) -> Cluster:
        if address is not None:
            fleet.dial(safekeeper_id, address)
        with _ProgressOfChange() as progress:
            changed = await change_members(fleet, wish, force=force, begun=progress.begin, show=progress.show_headway)
        if not changed.changed and not as_json:
            click.echo("nothing is to be done")
        return changed.cluster

    try:
        cluster = _with_fleet(config, run)
    except KeyboardInterrupt:
        click.echo(
            "interrupted: the change may go on; repeat the command to follow it, or run walproxy members cancel",
            err=True,
        )
        raise SystemExit(EXIT_INTERRUPTED) from None
    if as_json:
        seconds = round(time.monotonic() - began_at, 3)
        click.echo(json.dumps({**_cluster_as_json(cluster), "seconds": seconds}))
    else:
        listed = ", ".join(str(member.id) for member in cluster.membership.members)
        click.echo(f"the members are {listed} ({cluster.membership.label})")


class _ProgressOfChange(LiveProgress):
    """The progress of a change of the members."""

    _begin_lsn: int | None = None

    def begin(self, cluster: Cluster, wanted: Target) -> None:
        """Show what is to change."""
        present, count = halves_of(cluster.membership)[0], len(wanted.members)
        if wanted == present:
            return
        before = list_members(present.members, wanted.members)
        after = list_members(wanted.members, present.members)
        commit, elect = (size_of(size, count) for size in (wanted.sizes.commit, wanted.sizes.elect))
        elections = f", elections {elect}" if elect != commit else ""
        self.print_line(f"members {before} -> {after}: commits need {commit} of {count}{elections}")
        if count % 2 == 0 and wanted.sizes == QuorumSizes():
            self.print_line(
                f"warning: {count} members tolerate the loss of {(count - 1) // 2}, as {count - 1} would: an odd "
                "number is better"
            )

    def show_headway(self, headway: Headway) -> None:
        """Show how far it is."""
        stage = headway.what.partition(":")[0]
        if headway.commit_lsn and headway.flush_lsn:
            if self._begin_lsn is None:
                self._begin_lsn = headway.flush_lsn
            total = max(1, headway.commit_lsn - self._begin_lsn)
            self.show(headway.what, stage, max(0, headway.flush_lsn - self._begin_lsn), total)
        else:
            self.show(headway.what, stage)


def _cluster_as_json(cluster: Cluster) -> dict[str, Any]:
    membership = cluster.membership
    return {
        "cluster_id": cluster.id,
        "generation": membership.generation,
        "author_term": membership.author,
        "members": [_member_as_json(member) for member in membership.members],
        "new_members": [_member_as_json(member) for member in membership.new_members],
        "quorum_sizes": {"commit": membership.quorum_sizes.commit, "elect": membership.quorum_sizes.elect},
    }


def _member_as_json(member: Member) -> dict[str, Any]:
    return {"id": member.id, "incarnation": member.incarnation, "address": member.address or None}


def _row_as_json(row: MemberRow) -> dict[str, Any]:
    return {
        "id": row.safekeeper_id,
        "address": row.address or None,
        "role": row.role,
        "incarnation": row.incarnation or None,
        "flush_lsn": format_lsn(row.flush_lsn) if row.flush_lsn is not None else None,
        "lag_bytes": row.lag_bytes,
        "generation": row.generation,
        "problem": row.problem or None,
    }


def _print_table(cluster: Cluster, rows: list[MemberRow]) -> None:
    console, membership = output_console(), cluster.membership
    commit, elect = membership.commit_sizes()[-1], membership.elect_sizes()[-1]
    elections = f", elections {elect}" if elect != commit else ""
    console.print(
        f"cluster {cluster.id[:8]}, {membership.label}; commits need {commit} members{elections}",
        highlight=False,
        soft_wrap=True,
    )
    if membership.new_members:
        old, new = (", ".join(str(m.id) for m in half) for half in membership.halves())
        console.print(
            f"a change is under way, from {old} to {new}: both need a quorum", highlight=False, soft_wrap=True
        )
    table = FittedTable(_COLUMNS)
    for row in rows:
        flush = format_lsn(row.flush_lsn) if row.flush_lsn is not None else "-"
        folder = row.incarnation[:8] or "-"
        lag = format_bytes(row.lag_bytes)
        table.add_row(str(row.safekeeper_id), row.address or "-", row.role, folder, flush, lag)
    console.print(table)
    for row in rows:
        if row.problem:
            console.print(row.problem, highlight=False, soft_wrap=True, markup=False)
