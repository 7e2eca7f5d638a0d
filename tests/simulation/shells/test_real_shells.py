"""The product's own safekeepers under the simulator."""

import hashlib
from dataclasses import replace

from tests.simulation.bugs.planted import BUGS
from tests.simulation.seeds.runner import Outcome, Task, plan, run_world, stage


def run_with_real_shells(seed: int, profile: str) -> Outcome:
    world = stage(replace(plan(Task(seed, profile)), real_shells=True))
    world.digest = hashlib.sha256()
    return run_world(world)


def test_a_seed_decides_all_that_real_safekeepers_do() -> None:
    first, second = (run_with_real_shells(7, "crashy") for _ in range(2))
    assert first.digest == second.digest
    assert first.digest != run_with_real_shells(8, "crashy").digest


def test_a_quarter_of_the_seeds_has_real_safekeepers() -> None:
    real = sum(plan(Task(seed)).real_shells for seed in range(1000))
    assert 200 < real < 300


def test_bugs_are_hunted_where_they_are() -> None:
    for name, bug in BUGS.items():
        planned = plan(Task(1, None, name))
        assert (planned.real_shells, planned.real_proxies) == (bug.in_shells, bug.in_proxies)
