"""`walproxy bench`: what durability costs on this machine, side by side."""

import random
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
@click.option("--levels", is_flag=True, help="Compare the levels of synchronous_commit.")
@click.option("--members", is_flag=True, help="Measure what a slow or stopped safekeeper costs committing sessions.")
@click.option(
    "--crashes",
    is_flag=True,
    help="Measure how long commits wait when a process starts or crashes, and memory while a safekeeper is down.",
)
@click.option("--clients", callback=_numbers, help="Numbers of clients. Default: 1,8,32; with another experiment 1,4.")
@click.option(
    "--rounds", default=5, show_default=True, type=click.IntRange(1), help="Number of measurements of each arm."
)
@click.option("--seconds", default=5, show_default=True, type=click.IntRange(1), help="Length of a measurement.")
@click.option(
    "--scale",
    default=20,
    show_default=True,
    type=click.IntRange(1),
    help="pgbench's scale factor; with --crashes, times 50 MB of rows.",
)
@click.option("--seed", type=int, help="Seed of the order of measurements; by default a random one, which is printed.")
@postgres_option
@click.option(
    "--arm", "names", multiple=True, type=click.Choice(list(ARMS | SIZES)), help="Only these arms; repeatable."
)
@click.option(
    "--delay",
    type=DURATION,
    help="Network delay to receivers and safekeepers, in each direction.",
)
@click.option(
    "--dir",
    "parent",
    type=click.Path(path_type=Path, exists=True, file_okay=False, writable=True),
    help="Folder for the data; by default a temporary folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: every measurement and the medians.")
def bench(
    levels: bool,
    members: bool,
    crashes: bool,
    clients: list[int],
    rounds: int,
    seconds: int,
    scale: int,
    seed: int | None,
    major: int | None,
    names: tuple[str, ...],
    delay: float | None,
    parent: Path | None,
    as_json: bool,
) -> None:
    """Measure what a commit costs: alone, with PostgreSQL's own quorum, and through walproxy.

    Runs pgbench -N on temporary servers on this machine. The measurements are interleaved in rounds; only ratios within
    one round are compared, because the speed of the machine changes.

    \b
    Examples:
      walproxy bench
      walproxy bench --clients 8 --rounds 10 --json > bench.json
      walproxy bench --delay 1ms --clients 1,32
      walproxy bench --arm walproxy --arm walproxy-5 --arm walproxy-7
      walproxy bench --levels
      walproxy bench --members
      walproxy bench --crashes --rounds 3
    """
    flags = {"levels": levels, "members": members, "crashes": crashes}
    chosen = [name for name, is_chosen in flags.items() if is_chosen]
    if len(chosen) > 1:
        raise click.UsageError(f"--{chosen[0]} cannot be combined with --{chosen[1]}")
    if names and chosen:
        raise click.UsageError(f"--arm cannot be combined with --{chosen[0]}")
    if delay is not None and chosen:
        raise click.UsageError(f"--delay cannot be combined with --{chosen[0]}")
    kind = chosen[0] if chosen else "arms"
    binaries = choose_server(major)
    seed = random.randrange(1 << 16) if seed is None else seed
    click.echo(f"seed {seed}", err=True)
    with (
        StepsBar(Console(stderr=True)) as bar,
        tempfile.TemporaryDirectory(prefix="walproxy-bench-", dir=parent) as folder,
    ):
        directory = Path(folder)
        directory.chmod(0o755)
        work = Work(
            binaries,
            directory,
            clients or _DEFAULT_CLIENTS.get(kind, []),
            rounds,
            seconds,
            scale,
            seed,
            names,
            1000 * (delay or 0.0),
            bar,
        )
        found = EXPERIMENTS[kind](work)
    if as_json:
        content = {
            "postgres": binaries.version,
            "scale": scale,
            "seconds": seconds,
            "seed": seed,
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
