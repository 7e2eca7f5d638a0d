"""The product's own safekeepers and proxies under the simulator."""

import hashlib
from dataclasses import replace

import pytest

from tests.simulation.bugs.planted import BUGS
from tests.simulation.seeds.counts import added
from tests.simulation.seeds.runner import Outcome, Task, plan, run_world, stage


def run_with(seed: int, profile: str, *, safekeepers: bool, proxies: bool) -> Outcome:
    """Run a seed with real safekeepers, real proxies, or both."""
    world = stage(replace(plan(Task(seed, profile)), real_shells=safekeepers, real_proxies=proxies))
    world.digest = hashlib.sha256()
    return run_world(world)


@pytest.mark.parametrize(("profile", "proxies"), [("crashy", False), ("switches", True)])
def test_a_seed_decides_all_that_real_shells_do(profile: str, proxies: bool) -> None:
    first, second = (run_with(7, profile, safekeepers=True, proxies=proxies) for _ in range(2))
    assert first.digest == second.digest
    assert first.digest != run_with(8, profile, safekeepers=True, proxies=proxies).digest
    assert first.acks


def test_a_quarter_of_the_seeds_has_real_safekeepers_a_quarter_real_proxies_and_some_have_both() -> None:
    plans = [plan(Task(seed)) for seed in range(1000)]
    assert 200 < sum(each.real_shells for each in plans) < 300
    assert 200 < sum(each.real_proxies for each in plans) < 300
    assert 40 < sum(each.real_proxies and each.real_shells for each in plans) < 90


def test_bugs_are_hunted_where_they_are() -> None:
    for name, bug in BUGS.items():
        planned = plan(Task(1, None, name))
        assert (planned.real_shells, planned.real_proxies) == (bug.in_shells, bug.in_proxies)


def test_real_proxies_get_signals_connections_that_are_half_open_and_sockets_that_are_full() -> None:
    reached = added(run_with(seed, "tails", safekeepers=False, proxies=True).counts for seed in range(4))
    for what in ("proxies that drained", "primaries' connections half-open", "primaries that did not read"):
        assert reached[what], what
