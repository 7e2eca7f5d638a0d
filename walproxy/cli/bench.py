"""`walproxy bench`: synchronous-commit options side by side on this machine."""

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import click
import msgspec
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from walproxy.bench.arms import ARMS
from walproxy.bench.measure import Comparison, Turn, compare, prepare, take_turn
from walproxy.server_binaries import choose_server


def _numbers(context: click.Context, parameter: click.Parameter, value: str) -> list[int]:
    try:
        numbers = [int(part) for part in value.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise click.BadParameter("write whole numbers above 0, separated by commas, for example 1,8,32")
    return numbers


@click.command()
@click.option("--clients", default="1,8,32", show_default=True, callback=_numbers, help="pgbench clients, in turn.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1), help="How often each arm has its turn.")
@click.option("--seconds", default=5, show_default=True, type=click.IntRange(1), help="Length of a turn.")
@click.option("--scale", default=20, show_default=True, type=click.IntRange(1), help="pgbench's scale factor.")
@click.option(
    "--postgres", "major", type=int, metavar="MAJOR", help="Major version to use; the newest found otherwise."
)
@click.option("--arm", "names", multiple=True, type=click.Choice(list(ARMS)), help="Only these arms; repeatable.")
@click.option(
    "--dir", "parent", type=click.Path(path_type=Path), help="Where the data goes; a temporary folder otherwise."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: every turn and the medians.")
def bench(
    clients: list[int],
    rounds: int,
    seconds: int,
    scale: int,
    major: int | None,
    names: tuple[str, ...],
    parent: Path | None,
    as_json: bool,
) -> None:
    """Measure what a commit costs: alone, with PostgreSQL's own quorum, and through walproxy.

    Runs pgbench -N against servers of its own on this machine. The arms take turns; the ratios of the same round are
    what counts, because the machine drifts.

    \b
    Examples:
      walproxy bench
      walproxy bench --clients 8 --rounds 10 --json > bench.json
    """
    binaries = choose_server(major)
    turns: list[Turn] = []
    chosen = names or tuple(ARMS)
    total = len(chosen) * (1 + rounds * len(clients))
    console = Console(stderr=True)
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(_progress(console))
        bar = progress.add_task("starting", total=total)
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="walproxy-bench-", dir=parent)))
        directory.chmod(0o755)
        arms = []
        for name in chosen:
            progress.update(bar, description=f"preparing {name}")
            arm = stack.enter_context(ARMS[name](directory / name, binaries))
            prepare(arm, scale)
            arms.append(arm)
            progress.advance(bar)
        for number in range(rounds):
            for count in clients:
                # The order rotates, so that no arm always runs behind the same other one.
                for place in range(len(arms)):
                    arm = arms[(place + number) % len(arms)]
                    progress.update(bar, description=f"round {number + 1}: {arm.name}, {count} clients")
                    turns.append(take_turn(arm, number, count, seconds))
                    progress.advance(bar)
                    if not console.is_terminal:
                        turn = turns[-1]
                        console.print(f"round {number + 1} {arm.name} clients={count} tps={turn.tps:.0f}")
    comparisons = compare(turns)
    if as_json:
        content: dict[str, Any] = {
            "postgres": binaries.version,
            "scale": scale,
            "seconds": seconds,
            "turns": turns,
            "medians": comparisons,
        }
        click.echo(msgspec.json.encode(content).decode())
    else:
        Console().print(_table(comparisons, binaries.version, rounds, seconds))


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _table(comparisons: list[Comparison], version: str, rounds: int, seconds: int) -> Table:
    table = Table(
        title=f"pgbench -N on PostgreSQL {version}: medians of {rounds} rounds of {seconds} s", box=box.SIMPLE_HEAD
    )
    for name in ("clients", "arm", "tps", "ms", "to local", "to native", "range", "CPU us/tx"):
        table.add_column(name, justify="left" if name == "arm" else "right", no_wrap=True)
    for each in comparisons:
        spread = f"{each.spread[0]:.2f}-{each.spread[1]:.2f}" if each.spread else "-"
        table.add_row(
            str(each.clients),
            each.arm,
            f"{each.tps:.0f}",
            f"{each.latency_ms:.2f}",
            "-" if each.to_local is None else f"{each.to_local:.2f}",
            "-" if each.to_native is None else f"{each.to_native:.2f}",
            spread,
            f"{each.cpu_us:.0f}",
        )
    return table
