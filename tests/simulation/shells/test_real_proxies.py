"""The product's own proxies under the simulator."""

import hashlib
from dataclasses import replace

from tests.simulation.seeds.counts import added
from tests.simulation.seeds.runner import Outcome, Task, plan, run_world, stage


def run_with_real_proxies(seed: int, profile: str, *, real_shells: bool) -> Outcome:
    world = stage(replace(plan(Task(seed, profile)), real_proxies=True, real_shells=real_shells))
    world.digest = hashlib.sha256()
    return run_world(world)


def test_a_seed_decides_all_that_real_proxies_do() -> None:
    first, second = (run_with_real_proxies(7, "switches", real_shells=True) for _ in range(2))
    assert first.digest == second.digest
    assert first.digest != run_with_real_proxies(8, "switches", real_shells=True).digest
    assert first.acks


def test_a_quarter_of_the_seeds_has_real_proxies_with_and_without_real_safekeepers() -> None:
    plans = [plan(Task(seed)) for seed in range(1000)]
    assert 200 < sum(each.real_proxies for each in plans) < 300
    assert 40 < sum(each.real_proxies and each.real_shells for each in plans) < 90


def test_real_proxies_get_signals_connections_that_are_half_open_and_sockets_that_are_full() -> None:
    reached = added(run_with_real_proxies(seed, "tails", real_shells=False).counts for seed in range(4))
    for what in ("proxies that drained", "primaries' connections half-open", "primaries that did not read"):
        assert reached[what], what
