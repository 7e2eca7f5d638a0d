"""Commands that show a page of a proxy: once, or repeatedly until Ctrl-C; as a table, as lines, or as JSON."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click
import msgspec
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from safekeeper.base.errors import ConfigurationError, WalproxyError
from walproxy.cli.proxy_pages import proxy_options
from walproxy.terminal import output_console

_INTERVAL_S_MIN = 0.1
_Command = TypeVar("_Command", bound=Callable[..., Any])
_Content = TypeVar("_Content")


def page_options(path: str) -> Callable[[_Command], _Command]:
    """Return a decorator that adds the options of such a command, for the page `path`."""

    def add(command: _Command) -> _Command:
        for option in (
            click.option(
                "--interval",
                default=1.0,
                show_default=True,
                type=click.FloatRange(_INTERVAL_S_MIN),
                help="Seconds between updates, with --watch.",
            ),
            click.option("--watch", is_flag=True, help="Repeat until Ctrl-C."),
            click.option("--json", "as_json", is_flag=True, help=f"Print the proxy's {path} as JSON."),
            proxy_options,
        ):
            command = option(command)
        return command

    return add


def show(
    fetch: Callable[[], _Content],
    render: Callable[[_Content], RenderableType],
    summarise: Callable[[_Content], str],
    *,
    as_json: bool,
    interval_s: float | None,
) -> None:
    """Show the page once, or until Ctrl-C. If a proxy does not reply meanwhile, show that, and retry.

    Args:
        render: returns the table, for once and for a terminal.
        summarise: returns the line for other outputs that go on.
        interval_s: None for once.

    Raises:
        ConfigurationError: the page cannot be requested at all.
        WalproxyError: it could not be fetched, for once.
    """
    console = output_console()
    if interval_s is None:
        content = fetch()
        if as_json:
            click.echo(_as_json(content))
        else:
            console.print(render(content))
        return
    try:
        if as_json or not console.is_terminal:
            for found in _repeatedly(fetch, interval_s):
                if isinstance(found, WalproxyError):
                    click.echo(str(found), err=as_json)
                else:
                    click.echo(_as_json(found) if as_json else summarise(found))
        with Live(console=console, refresh_per_second=4) as live:
            for found in _repeatedly(fetch, interval_s):
                live.update(Text(str(found), style="red") if isinstance(found, WalproxyError) else render(found))
    except KeyboardInterrupt:
        return  # The user has stopped it.


def _as_json(content: object) -> str:
    return json.dumps(msgspec.to_builtins(content))


def _repeatedly(fetch: Callable[[], _Content], interval_s: float) -> Iterator[_Content | WalproxyError]:
    while True:
        try:
            yield fetch()
        except ConfigurationError:
            raise
        except WalproxyError as error:
            yield error
        time.sleep(interval_s)
