"""Command line of the simulator: `python -m tests.simulation --seeds 1000 --first 0`."""

import argparse
import hashlib
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.simulation.bugs.planted import BUGS
from tests.simulation.seeds import sometimes
from tests.simulation.seeds.counts import RUNS_THAT_REACH_ALL, Counts, never_reached, table
from tests.simulation.seeds.hunt import hunt_all
from tests.simulation.seeds.runner import Failure, Outcome, Task, attempt_all
from tests.simulation.seeds.schedule import ScheduleUnreadable, read
from tests.simulation.seeds.shrink import Failing, Shrunk, replay, shrink
from tests.simulation.world.profiles import PROFILES, SWARM

PLAIN_EVERY = 500
SHRINK_S = 30.0
SHRINKING_EVERY_S = 2.0
SHORT_TRACE_LINES = 20
SCHEDULES = Path("build")


@dataclass
class Held:
    """What the runs that held were about, all together: of a hundred thousand not each can be kept."""

    seeds: int = 0
    steps: int = 0
    failed_over: int = 0
    failed_over_amid_faults: int = 0
    cpu_s: float = 0.0
    counts: Counts = field(default_factory=Counts)
    digest: Any = field(default_factory=hashlib.sha256)
    reached: Counter[int] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        """Count one more."""
        self.seeds += 1
        self.steps += outcome.steps
        self.cpu_s += outcome.cpu_s
        self.counts.update(outcome.counts)
        self.failed_over += outcome.counts["failovers completed"] > 0
        self.failed_over_amid_faults += outcome.counts["failovers completed amid faults"] > 0
        self.digest.update(outcome.digest.encode())
        self.reached.update(outcome.reached)


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=_positive, default=300, help="how many seeds (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument(
        "--processes", type=_positive, metavar="COUNT", help="how many to run at once (default: one on each core)"
    )
    parser.add_argument("--profile", choices=PROFILES, help="run all under one profile; otherwise they take turns")
    parser.add_argument(
        "--fault-seconds",
        type=float,
        metavar="SECONDS",
        help="how long faults happen in a run, in virtual seconds (default: that of the profile)",
    )
    parser.add_argument("--bug", choices=BUGS, help="plant a bug, which must be found: exit code 1 if it was")
    parser.add_argument("--bugs", action="store_true", help="plant each bug; exit code 1 if any is not found")
    parser.add_argument(
        "--shrink-s",
        type=float,
        default=SHRINK_S,
        metavar="SECONDS",
        help="how long a failing seed may take to be made short, 0 to leave it as it is (default: %(default)g)",
    )
    parser.add_argument(
        "--digest",
        action="store_true",
        help="print a digest of all that happened in all seeds: a change that changes no behaviour leaves it as it is",
    )
    parser.add_argument(
        "--sometimes",
        action="store_true",
        help="watch every branch of proposer, acceptor, consensus and storage, and list those that no seed has taken",
    )
    parser.add_argument("--play", type=Path, metavar="FILE", help="replay a schedule: exit code 1 if it fails")
    options = parser.parse_args(arguments)
    if options.play is not None:
        try:
            return _play(options.play)
        except ScheduleUnreadable as error:
            parser.error(str(error))
    if options.bugs:
        return hunt_all(options.first)
    seeds = range(options.first, options.first + options.seeds)
    tasks = [Task(seed, options.profile, options.bug, options.fault_seconds, options.digest) for seed in seeds]
    print(
        f"seeds {options.first}..{options.first + options.seeds - 1}, "
        f"profile {options.profile or 'all alternately'}, bug {options.bug or 'none'}",
        flush=True,
    )
    for name, task in {task.profile_name: task for task in tasks}.items():
        drawn = f"{len(SWARM.weights)} kinds of faults, of which each seed draws some, with the rest of its profile"
        print(f"{name}: {drawn if task.is_of_swarm else task.faults().describe()}")
    began_at = time.monotonic()
    held, failure = Held(), None
    points = sometimes.watched_points() if options.sometimes else None
    watching = points.watching() if points is not None else nullcontext()
    with watching, closing(attempt_all(tasks, options.processes)) as outcomes:
        for outcome in _with_progress(outcomes, len(tasks)):
            if isinstance(outcome, Failure):
                failure = outcome
                break
            held.add(outcome)
    if failure is not None:
        print_failure(failure)
        if options.shrink_s > 0:
            print_shrunk(failure, options.shrink_s)
        return 1
    _print_reached(held, time.monotonic() - began_at, is_all_profiles=options.profile is None)
    if options.digest:
        print(f"digest of all that happened: {held.digest.hexdigest()}")
    if points is not None:
        print(sometimes.report(points.points, held.reached, held.seeds))
    return 0


def _print_reached(held: Held, took_s: float, is_all_profiles: bool) -> None:
    """Print what the runs were about, and what none of them got to."""
    print(table(held.counts))
    if is_all_profiles and held.seeds >= RUNS_THAT_REACH_ALL:
        for name in never_reached(held.counts):
            print(f"warning: {held.seeds} seeds never reached: {name}")
    if held.counts["failovers begun"]:
        print(
            f"failovers completed in {100 * held.failed_over / held.seeds:.0f} % of seeds, amid faults in "
            f"{100 * held.failed_over_amid_faults / held.seeds:.0f} %: {held.counts['failovers completed']} in "
            f"{held.seeds} seeds"
        )
    print(
        f"all {held.seeds} held in {took_s:.1f} s ({held.seeds / held.cpu_s:.1f} seeds per second of a core, "
        f"{held.steps // held.seeds} events a seed): {held.counts['commits released']} acknowledgements compared byte "
        "by byte"
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _with_progress(outcomes: Iterator[Outcome | Failure], total: int) -> Iterator[Outcome | Failure]:
    """Pass the outcomes on, with a bar on a terminal and a line now and then elsewhere."""
    if sys.stdout.isatty():
        columns = (TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(), transient=True) as progress:
            yield from progress.track(outcomes, total=total)
        return
    for done, outcome in enumerate(outcomes, 1):
        if done % PLAIN_EVERY == 0 and done < total:
            print(f"{done} of {total}", flush=True)
        yield outcome


def print_failure(failure: Failure) -> None:
    """Print a seed that did not hold: its faults, its trace, and how to run it again."""
    task = failure.task
    print(f"\nseed {task.seed}, profile {task.profile_name}: {failure.invariant} does not hold\n")
    if task.is_of_swarm:
        print(f"drawn: {task.faults().describe()}\n")
    print("\n".join(failure.trace))
    print(f"\n{failure.text}\n\nTo run only this again, paste it into a test:\n\n{task.as_test()}")


def print_shrunk(failure: Failure, within_s: float) -> None:
    """Make the failing run short, and print where it is and how to replay it."""
    task = failure.task
    with Console().status("making it short") as status:
        began_at = printed_at = time.monotonic()

        def report(shrunk: Shrunk) -> None:
            nonlocal printed_at
            text = f"making it short: {_size(shrunk.best)} left after {shrunk.trials} trials"
            status.update(text)
            if not sys.stdout.isatty() and time.monotonic() > printed_at + SHRINKING_EVERY_S:
                printed_at = time.monotonic()
                print(text, flush=True)

        shrunk = shrink(task, within_s, report)
    if shrunk is None:
        print(f"\nseed {task.seed} holds when only its faults are replayed: run it by its seed")
        return
    best, took_s = shrunk.best, time.monotonic() - began_at
    SCHEDULES.mkdir(exist_ok=True)
    path = SCHEDULES / f"seed-{task.seed}-{best.invariant}.txt"
    command = f"python -m tests.simulation --play {path}"
    path.write_text(f"# {command}\n# {best.text}\n{best.schedule}")
    print(f"\nShort: {_size(shrunk.before)} became {_size(best)} ({shrunk.trials} trials in {took_s:.1f} s)\n")
    print("\n".join([*map(str, best.schedule.faults or ()), "", *best.trace[-SHORT_TRACE_LINES:]]))
    print(f"\n{best.text}\n\n{path}: replay it with {command}")


def _size(failing: Failing) -> str:
    return f"{failing.faults} fault{'s' * (failing.faults != 1)} and {failing.events} events"


def _play(path: Path) -> int:
    """Replay a schedule; return the exit code."""
    schedule = read(path)
    if schedule.bug not in ("", *BUGS):
        raise ScheduleUnreadable(f"{path} names a bug that there is not: {schedule.bug!r}")
    failing = replay(schedule)
    if failing is None:
        print(f"{path} holds")
        return 0
    print("\n".join(failing.trace))
    print(f"\n{failing.text}\n\n{path}: {failing.invariant} does not hold ({_size(failing)})")
    return 1


if __name__ == "__main__":
    sys.exit(main())
