"""Commands that show a page of a proxy: once, or repeatedly until Ctrl-C; as a table, as lines, or as JSON."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from safekeeper.base.errors import ConfigurationError, WalproxyError
from walproxy.cli.proxy_pages import proxy_options
from walproxy.terminal import output_console

_INTERVAL_S_MIN = 0.1
_Command = TypeVar("_Command", bound=Callable[..., Any])


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
    fetch: Callable[[], dict[str, Any]], render: Callable[[dict[str, Any]], RenderableType], *, as_json: bool
) -> None:
    """Show the page once. Raises what `fetch` raises."""
    if as_json:
        click.echo(json.dumps(fetch()))
    else:
        output_console().print(render(fetch()))


def watch(
    fetch: Callable[[], dict[str, Any]],
    render: Callable[[dict[str, Any]], RenderableType],
    summarise: Callable[[dict[str, Any]], str],
    *,
    as_json: bool,
    interval_s: float,
) -> None:
    """Show the page until Ctrl-C. If a proxy does not reply, show that, and retry.

    Args:
        render: returns the table for a terminal.
        summarise: returns the line for other outputs.

    Raises:
        ConfigurationError: the page cannot be requested at all.
    """
    console = output_console()
    try:
        if as_json or not console.is_terminal:
            for content in _repeatedly(fetch, interval_s):
                if isinstance(content, WalproxyError):
                    click.echo(str(content), err=as_json)
                else:
                    click.echo(json.dumps(content) if as_json else summarise(content))
        with Live(console=console, refresh_per_second=4) as live:
            for content in _repeatedly(fetch, interval_s):
                live.update(Text(str(content), style="red") if isinstance(content, WalproxyError) else render(content))
    except KeyboardInterrupt:
        return  # The user has stopped it.


def _repeatedly(fetch: Callable[[], dict[str, Any]], interval_s: float) -> Iterator[dict[str, Any] | WalproxyError]:
    while True:
        try:
            yield fetch()
        except ConfigurationError:
            raise
        except WalproxyError as error:
            yield error
        time.sleep(interval_s)
