"""`walproxy demo`: the whole story on a PostgreSQL of its own."""

import signal
import sys
from pathlib import Path

import click
from rich.console import Console

from safekeeper.base.errors import EXIT_FINE, EXIT_UNEXPECTED, ConfigurationError
from walproxy.cli.pipeline import check_pipeline
from walproxy.lab.demo.steps import QUICK_STEPS, STEPS
from walproxy.lab.demo.story import tell
from walproxy.postgres.binaries import choose_server

_PLAIN_WIDTH = 200  # Of lines that no terminal breaks.


@click.command()
@click.option("--clients", type=click.IntRange(1, 50), default=8, show_default=True, help="Concurrent clients.")
@click.option(
    "--postgres", "major", type=int, metavar="MAJOR", help="Which PostgreSQL, e.g. 15; by default the newest installed."
)
@click.option("--keep", type=click.Path(path_type=Path), metavar="DIR", help="Work in DIR, leave everything running.")
@click.option("--quick", is_flag=True, help="End before the loss of everything and before the tables.")
def demo(clients: int, major: int | None, keep: Path | None, quick: bool) -> None:
    """Show what walproxy promises, on a PostgreSQL of its own.

    Starts PostgreSQL, three safekeepers, a proxy and a load of bank transfers; kills each of them with kill -9 and
    counts what the clients see; compares the safekeepers' WAL with PostgreSQL's, byte for byte; then deletes all but
    one safekeeper, a base backup and the archive, and restores it all; at last the WAL becomes tables and a report, for
    which Java must be there. Takes one or two minutes. The exit code is 0 only if every step held. Nothing is left
    behind but the report, unless a step failed; then the logs stay, and the last line says where.

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
            raise ConfigurationError(f"{error}; or leave the tables out: walproxy demo --quick") from None
    held = tell(choose_server(major), clients, keep, console, QUICK_STEPS if quick else STEPS)
    sys.exit(EXIT_FINE if held else EXIT_UNEXPECTED)
