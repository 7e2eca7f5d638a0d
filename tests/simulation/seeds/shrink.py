"""A failing run, made as short as it can be: fewer faults, a plainer cluster, an earlier end.

Theory of operation. The run is written down as a schedule (schedule.py). Then whatever is not needed is taken out, by
trial: half of the faults, a quarter of them, single ones; standbys, the real storage, the codec, disks that take their
time; time itself. A trial counts if it fails in the same way, that is, the same invariant does not hold, and if it is
shorter: by faults, else by features of the cluster, else by events. Taking something out changes what chance decides
behind it, so a trial that holds gets a few other seeds before it is believed. It ends when a round has found nothing,
or when its time is over; what it has by then is a schedule that was seen to fail.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any

from tests.simulation.model.bends import Bends
from tests.simulation.seeds.runner import Task, plan, planting, run_phases, stage
from tests.simulation.seeds.schedule import Schedule
from tests.simulation.world.faults import Faults
from tests.simulation.world.profiles import RATE_NAMES, Profile
from tests.simulation.world.world import SimulationFailed

# A round that finds nothing is followed by one in which every trial gets more seeds, and the last one ends it.
OTHER_SEEDS = (3, 12, 48)
# What may happen besides the faults: a run is plainer without. The other rates are times.
_EXTRAS = tuple(name for name in RATE_NAMES if not name.endswith("_s"))
_PLAINER: tuple[dict[str, Any], ...] = (
    {
        "real_storage": False,
        "real_shells": False,
        "real_proxies": False,
        "uses_wire": False,
        "standbys": 0,
        "apply_rule": "",
        "safekeepers": 3,
    },
    {"real_storage": False},
    {"real_shells": False},
    {"real_proxies": False},
    {"uses_wire": False},
    {"standbys": 0, "apply_rule": ""},
    {"apply_rule": ""},
    {"safekeepers": 3},
)


@dataclass(frozen=True)
class Failing:
    """A schedule that was seen to fail: all that was done up to then, how it failed, and what happened last."""

    schedule: Schedule
    invariant: str
    text: str
    trace: list[str]
    events: int
    ended_at_s: float

    @property
    def faults(self) -> int:
        """How many faults it takes."""
        return len(self.schedule.faults or ())

    @property
    def cost(self) -> tuple[int, int, int]:
        """What is to become less: what a reader has to understand comes first."""
        plan = self.schedule
        features = (
            plan.real_storage
            + plan.real_shells
            + plan.real_proxies
            + plan.uses_wire
            + plan.standbys
            + bool(plan.apply_rule)
            + abs(plan.safekeepers - 3)
        )
        rates = sum(getattr(plan.rates, name) > 0 for name in _EXTRAS) + len(plan.rates.bends.bent())
        return self.faults, features + rates, self.events


def replay(schedule: Schedule) -> Failing | None:
    """Run a schedule; return how it failed, None if it held."""
    with planting(schedule.bug):
        world = stage(schedule)
        faults = Faults(world, schedule.faults)
        try:
            run_phases(world, faults, schedule.ends_at_s, schedule.heals)
        except SimulationFailed as failed:
            done = schedule.with_faults(faults.done)
            return Failing(done, failed.invariant, str(failed), failed.trace, world.clock.steps, world.clock.now)
    return None


@dataclass
class Shrunk:
    """What shrinking has come to: the run as it was, and the shortest so far, after so many trials."""

    before: Failing
    best: Failing
    trials: int = 0
    is_done: bool = False


def shrink(
    task: Task, within_s: float, report: Callable[[Shrunk], None] = lambda _: None, *, trials_max: float = inf
) -> Shrunk | None:
    """Make the run of a failing seed short.

    Args:
        task: the seed.
        within_s: how much CPU time it may take, in seconds; a trial that was begun is finished.
        report: is called after every trial.
        trials_max: how many trials it may take.

    Returns:
        None if the seed does not fail.
    """
    first = replay(plan(task))
    if first is None:
        return None
    shrinking = _Shrinking(Shrunk(first, first), time.process_time() + within_s, trials_max, report)
    shrinking.run()
    return shrinking.shrunk


class _Shrinking:
    """One seed's shrinking."""

    def __init__(self, shrunk: Shrunk, ends_at: float, trials_max: float, report: Callable[[Shrunk], None]) -> None:
        self.shrunk = shrunk
        self._ends_at = ends_at
        self._trials_max = trials_max
        self._report = report
        self._seeds = range(0)

    @property
    def _best(self) -> Failing:
        return self.shrunk.best

    @property
    def _time_is_over(self) -> bool:
        return time.process_time() >= self._ends_at or self.shrunk.trials >= self._trials_max

    def run(self) -> None:
        """Take out whatever can be taken out."""
        for count in OTHER_SEEDS:
            self._seeds = range(count)
            before = None
            while self._best.cost != before and not self._time_is_over:
                before = self._best.cost
                self._end_early()
                self._drop_faults()
                self._make_plainer()
                self._drop_time()
                self._try_seeds(self._best.schedule)
        self.shrunk.is_done = not self._time_is_over

    def _end_early(self) -> None:
        """End where it fails, before the second phase if it fails before."""
        plan, ended_at_s = self._best.schedule, ceil(self._best.ended_at_s * 1e4) / 1e4
        if ended_at_s < plan.ends_at_s:
            self._try_one(replace(plan, ends_at_s=ended_at_s, heals=False), may_cost=self._best.cost)

    def _drop_faults(self) -> None:
        """Leave out runs of faults: all, half of them, a quarter, down to single ones."""
        size = self._best.faults
        while size:
            begin = 0
            while begin < self._best.faults:
                faults = self._best.schedule.faults or ()
                if not self._try(faults=faults[:begin] + faults[begin + size :]):
                    begin += size
            size //= 2

    def _make_plainer(self) -> None:
        """Leave out what the cluster has besides safekeepers and a proxy."""
        none: dict[str, Any] = dict.fromkeys(_EXTRAS, 0.0)
        self._try(**_PLAINER[0], rates=replace(self._best.schedule.rates, **none, bends=Bends()))
        for changes in _PLAINER:
            self._try(**changes)
        for name in _EXTRAS:
            self._try(rates=self._with_rate(name, 0.0))
        self._try(rates=replace(self._best.schedule.rates, bends=Bends()))
        for name in self._best.schedule.rates.bends.bent():
            bends: Any = {name: getattr(Bends, name)}
            self._try(rates=replace(self._best.schedule.rates, bends=replace(self._best.schedule.rates.bends, **bends)))

    def _drop_time(self) -> None:
        """Let faults come sooner, and the end; let less be written, and messages arrive at once."""
        for factor in (0.5, 0.8):
            plan = self._best.schedule
            sooner = tuple(f._replace(at_s=round(f.at_s * factor, 4)) for f in plan.faults or ())
            ends_at_s = round(plan.ends_at_s * factor, 4)
            self._try(faults=sooner, ends_at_s=ends_at_s)
            self._try(ends_at_s=ends_at_s)
        for name, factor in (("record_every_s", 3.0), ("delay_s", 0.5), ("flush_delay_s", 0.5)):
            self._try(rates=self._with_rate(name, round(getattr(self._best.schedule.rates, name) * factor, 4)))

    def _with_rate(self, name: str, rate: float) -> Profile:
        changes: dict[str, Any] = {name: rate}
        return replace(self._best.schedule.rates, **changes)

    def _try(self, **changes: Any) -> bool:
        """Try the best one with changes, under a few seeds; take it if it fails in the same way and is shorter."""
        changed = replace(self._best.schedule, **changes)
        return changed != self._best.schedule and self._try_seeds(changed)

    def _try_seeds(self, schedule: Schedule) -> bool:
        return any(self._try_one(replace(schedule, seed=seed)) for seed in (schedule.seed, *self._seeds))

    def _try_one(self, schedule: Schedule, may_cost: tuple[int, int, int] | None = None) -> bool:
        if self._time_is_over:
            return False
        failing, best = replay(schedule), self._best
        is_alike = failing is not None and failing.invariant == best.invariant
        if failing is not None and is_alike and (failing.cost < best.cost or failing.cost == may_cost):
            self.shrunk.best = failing
        self.shrunk.trials += 1
        self._report(self.shrunk)
        return self.shrunk.best is not best
