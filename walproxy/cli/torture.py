"""`walproxy torture`: stress-test a cluster, or run a steady load for a long time, and check its guarantees."""

import importlib.util
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.markup import escape

from safekeeper.base.errors import EXIT_FINE, EXIT_UNEXPECTED, ConfigurationError, WalproxyError
from walproxy.cli.extras import missing_library
from walproxy.cli.parameters import postgres_option
from walproxy.cli.progress import SecondsBar
from walproxy.lab.testing import EngineName
from walproxy.lab.torture.record import Run
from walproxy.lab.torture.run import RunOptions, Stressed, stress
from walproxy.lab.torture.soak import Load, soak
from walproxy.lab.torture.soaked_cluster import soaked_cluster
from walproxy.lab.torture.summaries import (
    SoakSummary,
    StressSummary,
    growth_table,
    soak_as_json,
    stress_table,
    summarise_soak,
    summarise_stress,
)

_REPORT_MODULES: Final = ("jinja2", "plotly")
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
        _show(summarise_soak(run), wants_json)
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
        from walproxy.lab.torture.report import write_page

        write_page(run, report)
    if folder is not None:
        click.echo(f"seed {run.seed}: data, logs and run.json are in {folder}", err=True)
    sys.exit(EXIT_UNEXPECTED if run.violations else EXIT_FINE)


def _show(summary: SoakSummary | StressSummary, wants_json: bool) -> None:
    if wants_json:
        click.echo(
            (soak_as_json(summary) if isinstance(summary, SoakSummary) else msgspec.json.encode(summary)).decode()
        )
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    console.print(growth_table(summary) if isinstance(summary, SoakSummary) else stress_table(summary))


def check_report(path: Path) -> None:
    """Check that the page can be made and written, before the test runs for hours.

    Raises:
        ConfigurationError: a library or the folder is missing.
    """
    for module in _REPORT_MODULES:
        if importlib.util.find_spec(module) is None:
            raise ConfigurationError(missing_library("the report", module, "lab"))
    if not path.absolute().parent.is_dir():
        raise ConfigurationError(f"could not write {path}: the folder does not exist; correct --report")


def soak_and_show(
    seconds: float,
    load: Load,
    safekeepers: int,
    major: int | None,
    engine: EngineName,
    console: Console,
) -> Run:
    """Run a steady load on a cluster, of processes unless containers are chosen; return the record of the run.

    Args:
        console: for the progress.

    Raises:
        WalproxyError: the run could not be completed.
    """
    with tempfile.TemporaryDirectory(prefix="walproxy-soak-") as folder:
        directory = Path(folder)
        directory.chmod(0o755)  # PostgreSQL runs as another user under root.
        chosen = "processes" if engine == "auto" else engine
        with soaked_cluster(directory, safekeepers, major, chosen) as cluster, SecondsBar(console, seconds) as bar:
            return soak(cluster, seconds, load, safekeepers, bar.show)


class StressBar(SecondsBar):
    """A bar on a terminal, and a line for each bout of faults everywhere."""

    def show(self, passed_s: float, what: str) -> None:
        """Show the progress; without a terminal only the lines show it."""
        if self._console.is_terminal:
            super().show(passed_s, escape(what))

    def add_line(self, passed_s: float, line: str) -> None:
        """Print a line with the time of its event."""
        self._console.print(f"{passed_s:7.1f} s  {line}", markup=False, soft_wrap=True)


def stress_and_keep(make_plan: Callable[[Path], RunOptions], console: Console) -> tuple[Stressed, Path | None]:
    """Stress-test a cluster; return the record, and the folder with data, logs and history if a guarantee was violated.

    Args:
        make_plan: returns the plan for a folder.

    Raises:
        ConfigurationError: the test cannot begin.
        WalproxyError: the test could not be completed; the message contains the folder, which is kept.
    """
    directory = Path(tempfile.mkdtemp(prefix="walproxy-torture-"))
    directory.chmod(0o755)  # PostgreSQL runs as another user under root.
    keeps = False
    try:
        plan = make_plan(directory / "cluster")
        with StressBar(console, plan.seconds) as bar:
            stressed = stress(plan, bar)
        if not stressed.run.violations:
            return stressed, None
        keeps = True
        (directory / "run.json").write_bytes(msgspec.json.encode(stressed.run))
        return stressed, directory
    except ConfigurationError:
        raise  # Nothing has begun.
    except WalproxyError as error:
        keeps = True
        raise WalproxyError(f"{error}; the data up to then is in {directory}") from error
    finally:
        if not keeps:
            shutil.rmtree(directory, ignore_errors=True)
