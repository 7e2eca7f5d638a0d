"""`walproxy torture`: stress-test a cluster, or run a steady load for a long time, and check its guarantees."""

import random
import signal
import sys
from pathlib import Path

import click
import msgspec
from rich.console import Console

from safekeeper.base.errors import EXIT_FINE, EXIT_UNEXPECTED
from walproxy.cli.parameters import postgres_option
from walproxy.cli.torture_report import check_report, write_report
from walproxy.cli.torture_soak import soak_and_show
from walproxy.cli.torture_stress import stress_and_keep
from walproxy.lab.testing import EngineName
from walproxy.lab.torture.run import RunOptions
from walproxy.lab.torture.soak import Load
from walproxy.lab.torture.soak_summary import Summary, as_json, growth_table, summarise
from walproxy.lab.torture.stress_summary import StressSummary, stress_table, summarise_stress

_SOAK_LOAD = Load()
_PLAIN_WIDTH = 140  # Of lines that no terminal breaks.


@click.command()
@click.option("--soak", "is_soak", is_flag=True, help="No faults: a steady load, and a check that no process grows.")
@click.option(
    "--minutes", default=10.0, show_default=True, type=click.FloatRange(0, min_open=True), help="Length of the test."
)
@click.option("--seed", type=int, help="Seed of the faults and the clients; by default a random one, which is printed.")
@click.option("--clients", type=click.IntRange(1, 50), help="Concurrent clients. Default: 8; with --soak 4.")
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    help="Commits per second of all clients together. Default: 200; with --soak 40.",
)
@click.option(
    "--engine",
    type=click.Choice(["auto", "containers", "processes"]),
    default="auto",
    show_default=True,
    help="Use containers or processes; by default containers if the images exist, with --soak processes.",
)
@click.option("--safekeepers", default=3, show_default=True, type=click.IntRange(1, 7), help="Number of safekeepers.")
@postgres_option
@click.option(
    "--report", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="The HTML page to write."
)
@click.option("--json", "wants_json", is_flag=True, help="Print JSON.")
def torture(
    is_soak: bool,
    minutes: float,
    seed: int | None,
    clients: int | None,
    rate: float | None,
    engine: EngineName,
    safekeepers: int,
    major: int | None,
    report: Path | None,
    wants_json: bool,
) -> None:
    """Stress-test a temporary cluster, and check that it keeps its guarantees.

    Clients transfer money, append to lists and insert rows, and record the replies. Meanwhile processes are killed,
    stopped and paused, safekeepers lose their network, their disks are slow or full, PostgreSQL crashes, and all
    machines lose power at once. In the end all data is compared. The exit code is 0 only if every guarantee was kept;
    otherwise the cluster's folder is kept, and the last line contains its path.

    With --soak there are no faults: a steady load, and a check that no process grows.

    \b
    Examples:
      walproxy torture --minutes 10 --seed 7
      walproxy torture --minutes 1 --engine processes --report torture.html
      walproxy torture --soak --minutes 60 --report soak.html
    """
    if is_soak and seed is not None:
        raise click.UsageError("--seed cannot be combined with --soak")
    if report is not None:
        check_report(report)
    # SIGTERM ends it as Ctrl-C does: everything is cleaned up, and the results up to then are printed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seconds = 60 * minutes
    console = Console(stderr=True, highlight=False)
    folder: Path | None = None
    if is_soak:
        load = Load(clients or _SOAK_LOAD.clients, rate or _SOAK_LOAD.commits_per_s)
        run = soak_and_show(seconds, load, safekeepers, major, engine, console)
        _show(summarise(run), wants_json)
    else:
        seed = random.randrange(1 << 16) if seed is None else seed
        click.echo(f"seed {seed}", err=True)
        postgres = None if major is None else str(major)
        options = (clients or 8, rate or 200.0, safekeepers, postgres, engine)
        stressed, folder = stress_and_keep(lambda directory: RunOptions(seed, seconds, directory, *options), console)
        run = stressed.run
        _show(summarise_stress(stressed), wants_json)
    for violation in run.violations:
        click.echo(f"VIOLATION {violation.rule}: {violation.message}", err=True)
    if report is not None:
        write_report(run, report)
    if folder is not None:
        click.echo(f"seed {run.seed}: data, logs and run.json are in {folder}", err=True)
    sys.exit(EXIT_UNEXPECTED if run.violations else EXIT_FINE)


def _show(summary: Summary | StressSummary, wants_json: bool) -> None:
    if wants_json:
        click.echo((as_json(summary) if isinstance(summary, Summary) else msgspec.json.encode(summary)).decode())
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    console.print(growth_table(summary) if isinstance(summary, Summary) else stress_table(summary))
