"""One seed, one run: faults first, then convergence."""

import random
from dataclasses import dataclass

from tests.simulation.faults import Faults
from tests.simulation.profiles import PROFILES
from tests.simulation.world import World

STORAGE_ONE_IN = 8
STARTS_S = 1.0


@dataclass(frozen=True)
class Outcome:
    """What a run that held was about: how much happened in it."""

    steps: int
    terms: int
    acks: int
    acked_bytes: int


def profile_of(seed: int) -> str:
    """Return the profile that a seed runs under when none is asked for: they take turns."""
    names = list(PROFILES)
    return names[seed % len(names)]


def build(seed: int, profile_name: str) -> World:
    """Return the cluster of a seed, before anything has happened in it."""
    shape = random.Random(seed ^ 0x5EED)
    count = shape.choice((3, 3, 3, 3, 5, 1, 2))
    return World(seed, PROFILES[profile_name], count, real_storage=shape.randrange(STORAGE_ONE_IN) == 0)


def run_seed(seed: int, profile_name: str | None = None) -> Outcome:
    """Run one seed to its end.

    Raises:
        SimulationFailed: something that must hold did not.
    """
    world = build(seed, profile_name or profile_of(seed))
    return run_world(world)


def run_world(world: World) -> Outcome:
    """Run a cluster through both phases."""
    profile = world.profile
    world.start()
    world.start_workload(world.current)
    world.add_proxy()
    if world.rng.random() < profile.spare:
        world.add_proxy()
    Faults(world).begin(STARTS_S * world.rng.random(), STARTS_S + profile.faults_s)
    world.run(STARTS_S + profile.faults_s)
    world.check_all()
    world.heal()
    world.converge()
    world.check_all()
    checker = world.checker
    return Outcome(world.clock.steps, len(checker.won), checker.acks, max(0, checker.acked_lsn - checker.base_lsn))
