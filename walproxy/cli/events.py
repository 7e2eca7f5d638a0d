"""`walproxy events`: what changed in a cluster, and when, from all safekeepers: a table, lines or JSON."""

import asyncio
import json
import sys
import time
from collections.abc import Iterable
from typing import Final

import click
from rich.text import Text

from safekeeper.base.event_catalogue import KINDS
from safekeeper.base.events import Event, merge
from safekeeper.net.events_page import event_as_json, format_time
from walproxy.cli.configuration import connected
from walproxy.cli.parameters import DURATION, INSTANT, Parameter
from walproxy.proxy.config import MembersConfig
from walproxy.proxy.credentials import read_peer_credentials
from walproxy.proxy.event_reader import EventReader
from walproxy.terminal import Fit, FittedTable, TableColumn, output_console

_FOLLOW_INTERVAL_S = 1.0
_COLUMNS: Final = (
    TableColumn("time"),
    TableColumn("source", leaves=1),
    TableColumn("event", leaves=2),
    TableColumn("text", fit=Fit.WRAP),
)
_STYLES = {"error": "bold red", "warning": "yellow", "info": ""}


class _Since(tuple[int, int]):
    """From which time in milliseconds since 1970, and from which number on, events are shown."""


def _since(text: str) -> _Since:
    if text.isascii() and text.isdecimal():
        return _Since((0, int(text)))
    if text[:1].isdigit() and text[-1:] in "smhd":
        return _Since((int((time.time() - DURATION.convert(text, None, None)) * 1000), 0))
    return _Since((int(INSTANT.convert(text, None, None).timestamp() * 1000), 0))


@click.command()
@click.option(
    "--since",
    type=Parameter("TIME|NUMBER", _since),
    default=_Since((0, 0)),
    help="Only events since then: 2h, 2026-11-21T14:00+01:00, or the number of an event on one safekeeper.",
)
@click.option("--follow", is_flag=True, help="Go on until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print each event as a JSON object on a line of its own.")
@connected
def events(since: _Since, follow: bool, as_json: bool, connection: MembersConfig) -> None:
    """Show what changed in the cluster, and when: terms, members, quorum, primary, standbys, archive.

    The safekeepers keep the newest events, their own and those of proxies and agents. Those of all safekeepers that
    reply are merged, ordered by time. The documentation explains each kind of event.

    \b
    Examples:
      walproxy events
      walproxy events --since 2h
      walproxy events --follow --json | jq .text
    """
    from_ms, from_number = since
    reader = EventReader(connection.safekeepers, read_peer_credentials(connection), from_number)
    try:
        asyncio.run(_show(reader, from_ms, follow=follow, as_json=as_json))
    except KeyboardInterrupt:
        return  # The user has stopped it.


async def _show(reader: EventReader, from_ms: int, *, follow: bool, as_json: bool) -> None:
    console = output_console()
    shown: set[str] = set()
    problems: dict[int, str] = {}
    while True:
        found = await reader.read()
        for safekeeper_id, problem in reader.problems.items():
            if problems.get(safekeeper_id) != problem:
                click.echo(f"no events from safekeeper {safekeeper_id}: {problem}", err=True)
        problems = dict(reader.problems)
        merged = merge([kept.event for kept in kept_events] for kept_events in found.values())
        new = [event for event in merged if event.at_ms >= from_ms and event.id not in shown]
        if as_json:
            _print_lines(json.dumps(event_as_json(event)) for event in new)
        elif follow or not console.is_terminal:
            _print_lines(f"{format_time(event.at_ms)} {event.source} {event.kind}: {event.text}" for event in new)
        else:
            console.print(_table(new))
        if not follow:
            return
        shown.update(event.id for event in new)
        await asyncio.sleep(_FOLLOW_INTERVAL_S)


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)
    sys.stdout.flush()


def _table(events: list[Event]) -> FittedTable:
    table = FittedTable(_COLUMNS)
    for event in events:
        kind = KINDS.get(event.kind)
        style = _STYLES[kind.severity] if kind is not None else ""
        table.add_row(format_time(event.at_ms), event.source, Text(event.kind, style), event.text)
    return table
