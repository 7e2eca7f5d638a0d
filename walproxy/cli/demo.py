"""`walproxy demo`: commits, crashes and a total loss on a temporary PostgreSQL."""

import signal
import sys
from pathlib import Path

import click
from rich.console import Console

from safekeeper.base.errors import EXIT_FINE, EXIT_UNEXPECTED, ConfigurationError
from walproxy.cli.parameters import postgres_option
from walproxy.cli.pipeline import check_pipeline
from walproxy.lab.demo.steps import QUICK_STEPS, STEPS
from walproxy.lab.demo.story import run_story
from walproxy.postgres.binaries import choose_server

_PLAIN_WIDTH = 200  # Of lines that no terminal breaks.


@click.command()
@click.option("--clients", type=click.IntRange(1, 50), default=8, show_default=True, help="Concurrent clients.")
@postgres_option
@click.option(
    "--keep", type=click.Path(path_type=Path), metavar="DIR", help="Work in DIR, and leave all processes running."
)
@click.option("--quick", is_flag=True, help="End before the total loss and before the tables.")
def demo(clients: int, major: int | None, keep: Path | None, quick: bool) -> None:
    """Demonstrate the guarantees of walproxy on a temporary PostgreSQL.

    Starts PostgreSQL, three safekeepers, a proxy and a load of bank transfers; kills each of them with kill -9 and
    counts the commits that the clients received; compares the safekeepers' WAL with PostgreSQL's, byte for byte; then
    deletes all but one safekeeper, a base backup and the archive, and restores the server; finally it writes the WAL
    into tables and a report, which requires Java. Takes one or two minutes. The exit code is 0 only if every step has
    succeeded. Only the report is kept, unless a step failed; then the logs are kept in the folder of the last line.

    \b
    Examples:
      walproxy demo
      walproxy demo --quick
      walproxy demo --keep /tmp/walproxy-demo
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    # SIGTERM ends it as Ctrl-C does: everything is cleaned up.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not quick:
        try:
            check_pipeline()
        except ConfigurationError as error:
            raise ConfigurationError(f"{error}; or skip the tables: walproxy demo --quick") from None
    held = run_story(choose_server(major), clients, keep, console, QUICK_STEPS if quick else STEPS)
    sys.exit(EXIT_FINE if held else EXIT_UNEXPECTED)
