"""`walproxy torture`: a cluster that is beaten, or left alone for long, and what it has kept of its promises."""

import signal
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console

from safekeeper.errors import EXIT_FINE, EXIT_UNEXPECTED
from walproxy.cli.progress import SecondsBar
from walproxy.cli.torture_report import check_report, write_report
from walproxy.server_binaries import ServerBinaries, choose_server
from walproxy.torture.local import local_cluster
from walproxy.torture.record import Run
from walproxy.torture.soak import Load, soak
from walproxy.torture.soak_summary import Summary, as_json, growth_table, summarise

_PLAIN_WIDTH = 140  # Of lines that no terminal breaks.


@click.command()
@click.option("--soak", "is_soak", is_flag=True, help="No faults: a steady load, and whether any process grows.")
@click.option(
    "--minutes", default=10.0, show_default=True, type=click.FloatRange(0, min_open=True), help="For how long."
)
@click.option("--clients", default=4, show_default=True, type=click.IntRange(1, 50), help="Concurrent clients.")
@click.option(
    "--rate",
    default=40.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="With --soak: commits a second of all clients together.",
)
@click.option("--safekeepers", default=3, show_default=True, type=click.IntRange(1, 7), help="How many.")
@click.option(
    "--postgres", "major", type=int, metavar="MAJOR", help="Which PostgreSQL, e.g. 15; by default the newest installed."
)
@click.option(
    "--dir", "parent", type=click.Path(path_type=Path), help="Where the data goes; a temporary folder otherwise."
)
@click.option(
    "--report", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="The HTML page to write."
)
@click.option("--json", "wants_json", is_flag=True, help="Print JSON.")
def torture(
    is_soak: bool,
    minutes: float,
    clients: int,
    rate: float,
    safekeepers: int,
    major: int | None,
    parent: Path | None,
    report: Path | None,
    wants_json: bool,
) -> None:
    """Leave a cluster of its own alone under a steady load, and see whether any process grows.

    \b
    Examples:
      walproxy torture --soak --minutes 60 --report soak.html
    """
    if not is_soak:
        raise click.UsageError("say what to do: --soak")
    if report is not None:
        check_report(report)
    # SIGTERM ends it as Ctrl-C does: everything is cleaned up, and what was seen by then is told.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    run = _soak(60 * minutes, Load(clients, rate), safekeepers, choose_server(major), parent)
    _show(summarise(run), wants_json)
    for violation in run.violations:
        click.echo(f"VIOLATION {violation.rule}: {violation.message}", err=True)
    if report is not None:
        write_report(run, report)
    sys.exit(EXIT_UNEXPECTED if run.violations else EXIT_FINE)


def _soak(seconds: float, load: Load, safekeepers: int, binaries: ServerBinaries, parent: Path | None) -> Run:
    """Soak a cluster of our own, showing how far it is."""
    console = Console(stderr=True, highlight=False)
    with tempfile.TemporaryDirectory(prefix="walproxy-soak-", dir=parent) as folder:
        directory = Path(folder)
        directory.chmod(0o755)  # PostgreSQL runs as another user under root.
        with local_cluster(directory, binaries, safekeepers) as cluster, SecondsBar(console, seconds) as bar:
            facts = {"seed": 0, "postgres": binaries.version, "safekeepers": safekeepers}
            return soak(cluster, seconds, load, facts, bar.show)


def _show(summary: Summary, wants_json: bool) -> None:
    if wants_json:
        click.echo(as_json(summary).decode())
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    console.print(growth_table(summary))
