"""`walproxy bench`: what durability costs on this machine, side by side."""

import tempfile
from pathlib import Path

import click
import msgspec
from rich.console import Console

from walproxy.cli.parameters import DURATION, postgres_option
from walproxy.cli.progress import StepsBar
from walproxy.lab.bench.arms import ARMS, SIZES
from walproxy.lab.bench.experiments import EXPERIMENTS, Work
from walproxy.postgres.binaries import choose_server

_DEFAULT_CLIENTS = {"arms": [1, 8, 32], "levels": [1, 4], "members": [1, 4]}
_PLAIN_WIDTH = 140  # Of lines that no terminal breaks.


def _numbers(context: click.Context, parameter: click.Parameter, value: str | None) -> list[int]:
    if value is None:
        return []
    try:
        numbers = [int(part) for part in value.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise click.BadParameter("write whole numbers above 0, separated by commas, for example 1,8,32")
    return numbers


@click.command()
@click.argument("experiment", type=click.Choice(list(EXPERIMENTS)), default="arms")
@click.option("--clients", callback=_numbers, help="Numbers of clients. Default: 1,8,32; of another experiment 1,4.")
@click.option(
    "--rounds", default=5, show_default=True, type=click.IntRange(1), help="Number of measurements of each arm."
)
@click.option("--seconds", default=5, show_default=True, type=click.IntRange(1), help="Length of a measurement.")
@click.option(
    "--scale",
    default=20,
    show_default=True,
    type=click.IntRange(1),
    help="pgbench's scale factor; of crashes, times 50 MB of rows.",
)
@postgres_option
@click.option(
    "--arm", "names", multiple=True, type=click.Choice(list(ARMS | SIZES)), help="Only these arms; repeatable."
)
@click.option(
    "--delay",
    type=DURATION,
    help="Network delay to receivers and safekeepers, in each direction.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: every measurement and the medians.")
def bench(
    experiment: str,
    clients: list[int],
    rounds: int,
    seconds: int,
    scale: int,
    major: int | None,
    names: tuple[str, ...],
    delay: float | None,
    as_json: bool,
) -> None:
    """Measure what a commit costs: alone, with PostgreSQL's own quorum, and through walproxy.

    Runs pgbench -N on temporary servers on this machine. The measurements are interleaved in rounds; only ratios within
    one round are compared, because the speed of the machine changes. Other experiments than arms:

    \b
      levels   compares the levels of synchronous_commit
      members  measures what a slow or stopped safekeeper costs committing sessions
      crashes  measures how long commits wait when a process starts or crashes, and memory while a safekeeper is down

    \b
    Examples:
      walproxy bench
      walproxy bench --clients 8 --rounds 10 --json > bench.json
      walproxy bench --delay 1ms --clients 1,32
      walproxy bench --arm walproxy --arm walproxy-5 --arm walproxy-7
      walproxy bench levels
      walproxy bench members
      walproxy bench crashes --rounds 3
    """
    if experiment != "arms" and (names or delay is not None):
        raise click.UsageError(f"{experiment} has no --arm and no --delay")
    binaries = choose_server(major)
    with (
        StepsBar(Console(stderr=True)) as bar,
        tempfile.TemporaryDirectory(prefix="walproxy-bench-") as folder,
    ):
        directory = Path(folder)
        directory.chmod(0o755)
        work = Work(
            binaries,
            directory,
            clients or _DEFAULT_CLIENTS.get(experiment, []),
            rounds,
            seconds,
            scale,
            names,
            1000 * (delay or 0.0),
            bar,
        )
        found = EXPERIMENTS[experiment](work)
    if as_json:
        content = {
            "postgres": binaries.version,
            "scale": scale,
            "seconds": seconds,
            "turns": found.turns,
            "medians": found.medians,
        }
        click.echo(msgspec.json.encode(content).decode())
    else:
        console = Console(highlight=False)
        if not console.is_terminal:
            console.width = _PLAIN_WIDTH
        for each in found.shown:
            console.print(each)
