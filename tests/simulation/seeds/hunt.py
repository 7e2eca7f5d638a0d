"""Planted bugs are hunted: how many seeds it takes until chance finds each of them."""

import statistics
import time
from dataclasses import dataclass

from tests.simulation.bugs.planted import BUGS, planted
from tests.simulation.scenarios.scenario import SCENARIOS, ScenarioFailed, play
from tests.simulation.seeds.runner import Failure, Task, attempt_all
from tests.simulation.world.world import SimulationFailed

SEEDS_TO_FIND_A_BUG = 2000
# Each bug is hunted so often, from first seeds that are so far apart: one lucky seed shows little.
HUNTS = 5
HUNTS_APART = 100_000
# What the code raises when the planted bug no longer fits it: then the bug finds nothing but itself.
MISFITS = ("TypeError", "AttributeError", "NameError")


class BugMisfit(Exception):
    """A planted bug that is out of date: its signature or its names are not those of what it stands for."""

    def __init__(self, bug: str, text: str) -> None:
        super().__init__(f"the planted bug {bug} does not fit the code: {text}")


@dataclass(frozen=True)
class Hunt:
    """What came of hunting one bug.

    Attributes:
        seeds: by hunt, how many seeds it took, the one that found it included.
        failure: what the first hunt has found.
        took_s: seconds, all hunts together.
    """

    seeds: tuple[int, ...]
    failure: Failure
    took_s: float

    def __str__(self) -> str:
        return (
            f"seed {self.failure.task.seed} {self.failure.invariant}; "
            f"{statistics.median(self.seeds):g} seeds ({min(self.seeds)} to {max(self.seeds)}), "
            f"{self.took_s / len(self.seeds):.1f} s"
        )


def find(bug: str, first: int, seeds: int, processes: int | None = None) -> Failure | None:
    """Return the first failure that a planted bug causes, None if none of the seeds does.

    Args:
        processes: the number of seeds to run at once, None for as many as there are cores.

    Raises:
        BugMisfit: it fails by itself.
    """
    outcomes = attempt_all([Task(seed, None, bug) for seed in range(first, first + seeds)], processes)
    failure = next((outcome for outcome in outcomes if isinstance(outcome, Failure)), None)
    if failure is not None and failure.invariant in MISFITS:
        raise BugMisfit(bug, failure.text)
    return failure


def hunt(bug: str, first: int) -> Hunt | None:
    """Hunt a bug from several seeds on; return None if one of the hunts ends without it."""
    began_at = time.monotonic()
    failures = []
    for start in range(first, first + HUNTS * HUNTS_APART, HUNTS_APART):
        failure = find(bug, start, SEEDS_TO_FIND_A_BUG)
        if failure is None:
            return None
        failures.append((failure.task.seed - start + 1, failure))
    return Hunt(tuple(seeds for seeds, _ in failures), failures[0][1], time.monotonic() - began_at)


def hunt_all(first: int) -> int:
    """Plant each bug until seeds find it, or its scenario does; return the exit code."""
    print(
        f"{len(BUGS)} bugs from {HUNTS} first seeds, {first} and every {HUNTS_APART} on, at most "
        f"{SEEDS_TO_FIND_A_BUG} seeds each: the first find; median (least to most) of the seeds; seconds a hunt",
        flush=True,
    )
    missed = 0
    width = max(map(len, BUGS))
    for name, bug in BUGS.items():
        found = _failure_of_scenario(name) if bug.scenario else hunt(name, first)
        missed += found is None
        print(f"{bug.rule:>6} {name:<{width}} {bug.faults}: {found or 'NOT FOUND'}", flush=True)
    return 1 if missed else 0


def _failure_of_scenario(name: str) -> str | None:
    scenario = BUGS[name].scenario
    failure = failure_in(scenario, name)
    return f"scenario {scenario}, {failure}" if failure else None


def failure_in(scenario: str, bug: str) -> str:
    """Return why a scenario fails with a planted bug, in a line; empty if it does not.

    Raises:
        BugMisfit: the bug fails by itself.
    """
    with planted(BUGS[bug]):
        try:
            play(SCENARIOS / f"{scenario}.txt")
        except (ScenarioFailed, SimulationFailed) as failed:
            if isinstance(failed, SimulationFailed) and failed.invariant in MISFITS:
                raise BugMisfit(bug, str(failed)) from failed
            return str(failed).splitlines()[0]
    return ""
