"""Mistakes of operators and peers of other versions: what the simulator does of them."""

from dataclasses import replace

from tests.simulation.seeds.counts import Counts
from tests.simulation.seeds.runner import Task, plan, run_world, stage


def run(seed: int, kind: str, *, real_shells: bool = False) -> Counts:
    """Run a seed in which this kind of fault happens besides those of `balanced`."""
    schedule = plan(Task(seed, "balanced"))
    rates = replace(schedule.rates, weights={**schedule.rates.weights, kind: 60})
    return run_world(
        stage(replace(schedule, real_storage=False, real_shells=real_shells, real_proxies=False, rates=rates))
    ).counts


def test_proxies_of_other_versions_are_refused_and_lead_nothing() -> None:
    counts = [run(seed, "start_other_version") for seed in range(3)]
    assert sum(each["proxies of other versions refused"] for each in counts) > 3


def test_a_list_that_lacks_safekeepers_loses_nothing_and_members_are_dialled() -> None:
    counts = [run(seed, "shorten_list") for seed in range(6)]
    assert sum(each["fault shorten_list"] for each in counts) > 6
    assert sum(each["members dialled that are not listed"] for each in counts) > 3


def test_real_safekeepers_start_on_no_copy_of_the_folder_of_another_one() -> None:
    assert run(5, "copy_folder", real_shells=True)["copied folders noticed"] > 0


def test_clusters_of_real_safekeepers_are_begun_again_and_brought_back() -> None:
    total = Counts()
    for seed in range(4):
        schedule = plan(Task(seed, "members"))
        rates = replace(schedule.rates, weights={**schedule.rates.weights, "rebootstrap": 40}, archive=0.0)
        total.update(run_world(stage(replace(schedule, real_storage=False, real_shells=True, rates=rates))).counts)
    assert total["rebootstraps"] > 3
    assert total["rebootstraps undone"] > 0
