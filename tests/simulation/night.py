"""Seeds by the hour, in pieces: `make night HOURS=8`, or `python -m tests.simulation.night --hours 8`.

A million seeds take longer than a machine is free. So a night runs blocks of seeds, all profiles alternately, and
appends a JSON line for each block to its ledger: the commit, the seeds, and what failed. The next night begins above
the highest seed of the ledger. A seed that fails does not end the night: its schedule is made short and written, as
`make sim` does, after the other seeds of its block.

In one block of four the branches of the decisions are watched (sometimes.py). A point is identified by its names, so
that the nights of different commits add up: `--report` prints how many seeds were run on which commits, which of them
failed, and which points no block has reached.
"""

import argparse
import fcntl
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path

import msgspec

from tests.simulation.__main__ import print_failure, print_shrunk
from tests.simulation.seeds import sometimes
from tests.simulation.seeds.runner import Failure, Task, attempt_all
from tests.simulation.world.profiles import PROFILES

LEDGER = Path("build/night.jsonl")
SEEDS_PER_BLOCK = 200
WATCHED_ONE_IN = 4
SHRINK_S = 60.0
# Other work on the machine goes first: its tests have time limits, and the seeds have none.
NICENESS = 10


class FailedSeed(msgspec.Struct, frozen=True):
    """A seed that did not hold."""

    seed: int
    profile: str
    invariant: str
    text: str


class Block(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the ledger: a block of seeds that were run.

    Attributes:
        at: when it ended, in seconds since 1970.
        commit: the commit, with + if files of the product or of the simulator differed from it.
        profile: of all its seeds; empty if the profiles took turns.
        first, seeds: the seeds are `first` to `first + seeds - 1`.
        cpu_s: the time of a core that the seeds which held took.
        acks: acknowledgements that were compared byte by byte.
        failed: the seeds that did not hold.
        watched: whether the branches were watched.
        reached: the points that it reached and no block before it.
    """

    at: int
    commit: str
    profile: str
    first: int
    seeds: int
    cpu_s: float
    acks: int
    failed: tuple[FailedSeed, ...] = ()
    watched: bool = False
    reached: tuple[str, ...] = ()


def main(arguments: list[str] | None = None) -> int:
    """Run blocks until the time is over, and print the ledger's report; exit code 1 if a seed of it has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.night", description=__doc__.splitlines()[0])
    parser.add_argument("--hours", type=float, default=8.0, help="then no other block begins (default: %(default)g)")
    parser.add_argument("--ledger", type=Path, default=LEDGER, help="the file to append to (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first seed if the ledger has none (default: 0)")
    parser.add_argument("--profile", choices=PROFILES, help="run all under one profile; otherwise they take turns")
    parser.add_argument(
        "--processes", type=int, metavar="COUNT", help="how many to run at once (default: each core one)"
    )
    parser.add_argument("--report", action="store_true", help="only print the ledger's report")
    options = parser.parse_args(arguments)
    blocks = list(read(options.ledger))
    if not options.report:
        blocks = [*blocks, *_run_blocks(options, blocks)]
    print(report(blocks, sometimes.watched_points().points))
    return int(any(block.failed for block in blocks))


def _run_blocks(options: argparse.Namespace, before: list[Block]) -> Iterator[Block]:
    """Run blocks and append them to the ledger, until the time is over; yield each."""
    os.nice(NICENESS)
    ends_at = time.monotonic() + options.hours * 3600
    first = max((block.first + block.seeds for block in before), default=options.first)
    reached = {name for block in before for name in block.reached}
    number = len(before)
    options.ledger.parent.mkdir(exist_ok=True)
    with options.ledger.open("ab", buffering=0) as ledger:
        try:
            fcntl.flock(ledger, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"{options.ledger} is in use by another night: give --ledger and --first")
        while number == len(before) or time.monotonic() < ends_at:
            watched = number % WATCHED_ONE_IN == 0
            block = run(first, options.profile, reached if watched else None, options.processes)
            ledger.write(msgspec.json.encode(block) + b"\n")
            held = f"{block.seeds - len(block.failed)} of {block.seeds} held"
            print(f"seeds {first}..{first + block.seeds - 1}: {held}, {block.cpu_s:.0f} s of a core", flush=True)
            yield block
            first += block.seeds
            number += 1


def run(first: int, profile: str | None, reached: set[str] | None, processes: int | None) -> Block:
    """Run a block; print and shorten what fails.

    Args:
        reached: the points that were reached before; those of this block are added. None: the branches are not watched.
    """
    points = sometimes.watched_points() if reached is not None else None
    indexes: set[int] = set()
    failures: list[Failure] = []
    cpu_s, acks = 0.0, 0
    commit = _commit()
    tasks = [Task(seed, profile) for seed in range(first, first + SEEDS_PER_BLOCK)]
    with points.watching() if points else nullcontext(), closing(attempt_all(tasks, processes)) as outcomes:
        for outcome in outcomes:
            if isinstance(outcome, Failure):
                failures.append(outcome)
                continue
            cpu_s += outcome.cpu_s
            acks += outcome.acks
            indexes.update(outcome.reached)
    for failure in failures:
        print_failure(failure)
        print_shrunk(failure, SHRINK_S)
    new: set[str] = set()
    if points is not None and reached is not None:
        new = {_name(points.points[index]) for index in indexes} - reached
        reached |= new
    return Block(
        at=int(time.time()),
        commit=commit,
        profile=profile or "",
        first=first,
        seeds=SEEDS_PER_BLOCK,
        cpu_s=round(cpu_s, 1),
        acks=acks,
        failed=tuple(FailedSeed(f.task.seed, f.task.profile_name, f.invariant, f.text[:1000]) for f in failures),
        watched=points is not None,
        reached=tuple(sorted(new)),
    )


def read(ledger: Path) -> Iterator[Block]:
    """Yield the blocks of a ledger, none if there is no file."""
    if ledger.exists():
        yield from (msgspec.json.decode(line, type=Block) for line in ledger.read_bytes().splitlines())


def report(blocks: list[Block], points: list[sometimes.Point]) -> str:
    """Return the ledger's report, as lines: seeds by commit, the failed ones, and the points that none reached."""
    lines = [f"{'commit':14} {'profile':12} {'seeds':>8} {'failed':>7} {'acknowledged':>13} {'core hours':>11}"]
    for commit, profile in dict.fromkeys((block.commit, block.profile) for block in blocks):
        these = [block for block in blocks if (block.commit, block.profile) == (commit, profile)]
        lines.append(
            f"{commit:14} {profile or 'alternately':12} {sum(b.seeds for b in these):8} "
            f"{sum(len(b.failed) for b in these):7} {sum(b.acks for b in these):13} "
            f"{sum(b.cpu_s for b in these) / 3600:11.2f}"
        )
    failed = [(block, seed) for block in blocks for seed in block.failed]
    lines.append(f"{sum(block.seeds for block in blocks)} seeds, {len(failed)} failed")
    lines += [
        f"  {block.commit}: --seeds 1 --first {seed.seed} --profile {seed.profile}: {seed.invariant}"
        for block, seed in failed
    ]
    names = {name for block in blocks for name in block.reached}
    reached = Counter({index: int(_name(point) in names) for index, point in enumerate(points)})
    watched = sum(block.seeds for block in blocks if block.watched)
    lines.append(sometimes.report(points, reached, watched, rarest=0))
    return "\n".join(lines)


def _name(point: sometimes.Point) -> str:
    return f"{point.path} {point.function} {point.what}"


def _commit() -> str:
    """Return the commit that is tested; with + if files of the product or of the simulator differ from it."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(sometimes.ROOT), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--", "safekeeper", "walproxy", "tests/simulation")
    return git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")


if __name__ == "__main__":
    sys.exit(main())
