"""One seed, one run: faults first, then convergence. Many seeds, on as many cores as there are."""

import gc
import hashlib
import multiprocessing
import random
import time
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import pairwise

from tests.simulation.bugs.planted import BUGS, planted
from tests.simulation.checks.minority import Minority
from tests.simulation.lone import acceptor as lone_acceptor
from tests.simulation.lone import folder as lone_folder
from tests.simulation.lone import proposer as lone_proposer
from tests.simulation.model.disk import StorageDisk
from tests.simulation.model.virtual_disk import PAGE_BYTES, SECTOR_BYTES
from tests.simulation.seeds import sometimes
from tests.simulation.seeds.counts import Counts
from tests.simulation.seeds.schedule import Schedule
from tests.simulation.world import swarm
from tests.simulation.world.faults import STARTS_S, Faults
from tests.simulation.world.profiles import PROFILES, SWARM, Profile
from tests.simulation.world.world import SimulationFailed, World

# The project's storage and its codec take part in some of the seeds; the others go faster without.
STORAGE_ONE_IN = 8
WIRE_ONE_IN = 12
# The product's own safekeepers run in this part of the seeds (real_safekeeper.py).
REAL_SHELLS = 0.25
# And its own proxies in this part (real_proxy.py).
REAL_PROXIES = 0.25
# The reference of the proposer observes the cluster in this part of the seeds: in each it would make seeds
# noticeably slower. It observes a proposer that is alone in each.
WATCHED_PROPOSERS = 0.5
# Four to seven safekeepers, in one seed of seven.
MANY = 4
SEEDS_FOR_ALL_CORES = 100
SEEDS_PER_TASK = 8
OBJECTS_PER_COLLECTION = 100_000
# By the number of standbys, which are called R1 and R2: the rule of remote_apply.
APPLY_RULES = (("",), ("", "R1", "ANY 1"), ("", "r1", "R1, R2", "ANY 1 (R1, R2)", "ANY 2 (*)"))


@dataclass(frozen=True)
class Outcome:
    """What a run that held was about: how much happened in it, a core's time, and the points of `sometimes`."""

    steps: int
    terms: int
    acks: int
    acked_bytes: int
    counts: Counts
    digest: str = ""
    cpu_s: float = field(default=0.0, compare=False)
    reached: tuple[int, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Task:
    """A seed, and how to run it: without a profile they take turns, without a bug none is planted.

    `fault_seconds` is how long faults happen, None for the time of the profile. With `digested` the outcome has a
    digest of all that happened: two versions of the code do the same if they have the same digests.
    """

    seed: int
    profile: str | None = None
    bug: str | None = None
    fault_seconds: float | None = None
    digested: bool = False

    @property
    def profile_name(self) -> str:
        """The profile that it runs under, as a person names it."""
        names = list(PROFILES)
        return self.profile or (f"that of {self.bug}" if self.bug else names[self.seed % len(names)])

    @property
    def is_of_swarm(self) -> bool:
        """Whether the seed has drawn its profile."""
        of_bug = BUGS[self.bug].base if self.bug and not self.profile else ""
        return PROFILES[of_bug or self.profile_name] is SWARM

    def faults(self) -> Profile:
        """The profile itself, as the seed runs it."""
        bug = BUGS[self.bug] if self.bug and not self.profile else None
        base = PROFILES[bug.base if bug else self.profile_name]
        profile = swarm.drawn(self.seed) if base is SWARM else base
        profile = bug.bent(profile) if bug else profile
        return profile if self.fault_seconds is None else replace(profile, faults_s=self.fault_seconds)

    def as_test(self) -> str:
        """Return a test that runs just this."""
        arguments = ", ".join(
            [str(self.seed)]
            + ([f'"{self.profile_name}"'] if self.bug is None or self.profile else [])
            + ([f'bug="{self.bug}"'] if self.bug else [])
            + ([f"fault_seconds={self.fault_seconds:g}"] if self.fault_seconds is not None else [])
        )
        return (
            "from tests.simulation.seeds.runner import run_seed\n\n\n"
            f"def test_seed_{self.seed}_holds() -> None:\n    run_seed({arguments})"
        )


@dataclass(frozen=True)
class Failure:
    """A run that did not hold."""

    task: Task
    invariant: str
    text: str
    trace: list[str]


def run_seed(
    seed: int,
    profile: str | None = None,
    bug: str | None = None,
    fault_seconds: float | None = None,
    *,
    digested: bool = False,
) -> Outcome:
    """Run one seed to its end.

    Raises:
        SimulationFailed: something that must hold did not.
    """
    with planting(bug):
        world = build(Task(seed, profile, bug, fault_seconds))
        if digested:
            world.digest = hashlib.sha256()
        if bug is None:
            world.counts.update(lone_acceptor.drive(seed))
            world.counts.update(lone_folder.drive(seed))
            world.counts.update(lone_proposer.drive(seed))
            world.watches_proposers = _draws_reference(seed)
        return run_world(world)


def _draws_reference(seed: int) -> bool:
    """Return whether the reference of the proposer observes the cluster, too."""
    return random.Random(f"{seed} reference of the proposer").random() < WATCHED_PROPOSERS


def planting(bug: str | None) -> AbstractContextManager[None]:
    """Plant a bug, or none, while the block runs."""
    return planted(BUGS[bug]) if bug else nullcontext()


def plan(task: Task) -> Schedule:
    """Return what a seed decides before anything has happened; its faults are still to be drawn."""
    shape = random.Random(task.seed ^ 0x5EED)
    count = shape.choice((3, 3, 3, 3, MANY, 1, 2))
    real_storage = shape.randrange(STORAGE_ONE_IN) == 0
    uses_wire = shape.randrange(WIRE_ONE_IN) == 0
    standby_count = shape.choice((0, 0, 1, 2))
    if not standby_count and random.Random(f"{task.seed} standbys").random() < task.faults().standby:
        standby_count = 1
    if "lose_data" in task.faults().weights:
        # One that has replayed what was given up would have to be made again.
        standby_count = 0
    apply_rule = shape.choice(APPLY_RULES[standby_count])
    if count == MANY:
        count = shape.choice((4, 5, 6, 7))
    if task.faults().agents:
        # It has standbys of its own, on machines; and each agent talks to each safekeeper all the time.
        count, standby_count, apply_rule = min(count, 3), 0, ""
    schedule = Schedule(
        task.seed,
        task.faults(),
        task.bug or "",
        safekeepers=count,
        standbys=standby_count,
        apply_rule=apply_rule,
        real_storage=real_storage,
        real_shells=has_real_shells(task),
        real_proxies=has_real_proxies(task),
        uses_wire=uses_wire,
        ends_at_s=STARTS_S + task.faults().faults_s,
    )
    return swarm.shaped(schedule) if task.is_of_swarm else schedule


def has_real_shells(task: Task) -> bool:
    """Return whether the product's own shells run: for a planted bug those that it is planted in."""
    if task.bug:
        return BUGS[task.bug].in_shells
    return random.Random(f"{task.seed} shells").random() < REAL_SHELLS


def has_real_proxies(task: Task) -> bool:
    """Return whether the product's own proxies run: with a planted bug, if it is in them."""
    if task.bug:
        return BUGS[task.bug].in_proxies
    return random.Random(f"{task.seed} proxies").random() < REAL_PROXIES


def stage(schedule: Schedule) -> World:
    """Return the cluster of a schedule, before anything has happened in it."""
    world = World(
        schedule.seed,
        schedule.rates,
        schedule.safekeepers,
        schedule.real_storage,
        schedule.standbys,
        schedule.apply_rule,
        schedule.real_shells,
        schedule.real_proxies,
    )
    world.network.uses_wire = schedule.uses_wire
    return world


def build(task: Task) -> World:
    """Return the cluster of a seed, before anything has happened in it."""
    return stage(plan(task))


def run_world(world: World) -> Outcome:
    """Run a cluster through both phases, with the faults that its seed draws."""
    run_phases(world, Faults(world), STARTS_S + world.profile.faults_s, heals=True)
    return _outcome(world)


def run_phases(world: World, faults: Faults, ends_at_s: float, heals: bool) -> None:
    """Let faults happen up to then, and see that everything holds; heal it and see that it converges."""
    with world.replaced():  # once for all parts of the run
        try:
            world.start()
            world.start_workload(world.current)
            if world.agents is not None:
                world.agents.start()
            else:
                world.add_proxy()
                if world.rng.random() < world.profile.spare:
                    world.add_proxy()
            faults.begin(ends_at_s)
            world.run(ends_at_s)
            world.check_all()
            world.counts.count("failovers completed amid faults", world.servers.completed)
            if heals:
                minority = Minority(world)
                world.heal(minority.missing)
                minority.is_not_missed()
                world.converge()
                world.check_all()
        finally:
            world.abandon()


def _outcome(world: World) -> Outcome:
    truths = world.truths.all()
    world.counts.count("runs of real safekeepers", int(world.has_real_shells))
    world.counts.count("runs of real proxies", int(world.has_real_proxies))
    world.counts.count("terms won", sum(len(truth.won) for truth in truths))
    world.counts.count("messages that came late", world.network.late_messages)
    world.counts.count("failovers completed", world.servers.completed)
    for safekeeper in world.safekeepers.values():
        if isinstance(safekeeper.disk, StorageDisk):
            world.counts.count("writes torn by sector", safekeeper.disk.fs.torn[SECTOR_BYTES])
            world.counts.count("writes torn by page", safekeeper.disk.fs.torn[PAGE_BYTES])
    world.counts.count("commits released", sum(truth.acks for truth in truths))
    histories = [[won.history for _, won in sorted(truth.won.items())] for truth in truths]
    pairs = [pair for each in histories for pair in pairwise(each)]
    switches = sum(new[-1].tli > old[-1].tli for old, new in pairs if old and new)
    world.counts.count("timeline switches", switches)
    return Outcome(
        world.clock.steps,
        sum(len(truth.won) for truth in truths),
        sum(truth.acks for truth in truths),
        sum(max(0, truth.acked_lsn - truth.base_lsn) for truth in truths),
        world.counts,
        world.digest.hexdigest() if world.digest is not None else "",
    )


def attempt(task: Task) -> Outcome | Failure:
    """Run one seed; return how it went either way."""
    try:
        sometimes.take()
        began_at_s = time.process_time()
        with _seldom_collected():
            outcome = run_seed(task.seed, task.profile, task.bug, task.fault_seconds, digested=task.digested)
        return replace(outcome, cpu_s=time.process_time() - began_at_s, reached=sometimes.take())
    except SimulationFailed as failed:
        return Failure(task, failed.invariant, str(failed), failed.trace)


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Let the garbage of a seed lie: with Python's own thresholds its collection takes a twentieth of the time."""
    thresholds = gc.get_threshold()
    gc.set_threshold(OBJECTS_PER_COLLECTION, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def attempt_all(tasks: list[Task], processes: int | None = None) -> Generator[Outcome | Failure, None, None]:
    """Run all seeds, on every core if they are many; yield how they went, in their order.

    Args:
        processes: how many to run at once, None for as many as there are cores.
    """
    count = processes or multiprocessing.cpu_count()
    if len(tasks) < SEEDS_FOR_ALL_CORES or count < 2:
        yield from map(attempt, tasks)
        return
    with multiprocessing.Pool(count) as pool:
        yield from pool.imap(attempt, tasks, chunksize=SEEDS_PER_TASK)
