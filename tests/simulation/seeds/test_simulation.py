"""A few seeds of every profile, and what only tests look at. `make test` runs 500 seeds besides; more: `make sim`."""

from collections import Counter

import pytest

from tests.simulation.seeds.counts import added
from tests.simulation.seeds.runner import Failure, Task, attempt, build, has_real_proxies, plan, run_world
from tests.simulation.world.profiles import PROFILES
from walproxy.proposer.actions import Action
from walproxy.proposer.proposer import Proposer

SEEDS_PER_PROFILE = 10


@pytest.mark.parametrize("profile", PROFILES)
def test_everything_holds_and_converges_under(profile: str) -> None:
    first = 10_000 + 1_000 * list(PROFILES).index(profile)
    outcomes = [attempt(Task(seed, profile)) for seed in range(first, first + SEEDS_PER_PROFILE)]
    failures = [f"seed {o.task.seed}: {o.text}" for o in outcomes if isinstance(o, Failure)]
    assert failures == []
    # A run in which nothing was acknowledged, or no leader was elected again, shows nothing.
    assert sum(o.acks for o in outcomes if not isinstance(o, Failure)) > 5 * SEEDS_PER_PROFILE
    # Under `slow`, with real safekeepers in a quarter of the seeds, there are about two terms in a seed.
    assert sum(o.terms for o in outcomes if not isinstance(o, Failure)) > 3 * SEEDS_PER_PROFILE / 2
    if profile == "failovers":
        completed = [o.counts["failovers completed"] for o in outcomes if not isinstance(o, Failure)]
        assert sum(map(bool, completed)) > SEEDS_PER_PROFILE / 2


@pytest.mark.parametrize(
    ("profile", "seeds", "more_than"),
    [
        (
            "archive",
            SEEDS_PER_PROFILE,
            {"old WAL removed": 20, "members that skipped WAL": 1, "archivers named": 10},
        ),
        ("refusals", SEEDS_PER_PROFILE, {"successors lost": 1, "refusals without a term": 0}),
        ("members", 4 * SEEDS_PER_PROFILE, {"rebootstraps": 3, "rebootstraps undone": 1}),
    ],
)
def test_seeds_reach_what_the_profile_is_for(profile: str, seeds: int, more_than: dict[str, int]) -> None:
    outcomes = [attempt(Task(seed, profile)) for seed in range(seeds)]
    held = [outcome for outcome in outcomes if not isinstance(outcome, Failure)]
    assert len(held) == len(outcomes)
    total = added(outcome.counts for outcome in held)
    assert {name: total[name] for name, least in more_than.items() if total[name] <= least} == {}


@pytest.mark.parametrize("runs", [2, pytest.param(12, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("profile", PROFILES)
def test_everyday_events_have_the_same_effects_on_both_paths(
    profile: str, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A real proxy trims its window on one of the paths more often, and draws random numbers when it does.
    tasks = [task for seed in range(3 * runs) if not has_real_proxies(task := Task(seed, profile, digested=True))][
        :runs
    ]
    assert len(tasks) == runs
    take, taken, counts = Proposer._take, Proposer._taken, Counter[str]()

    def count_rare(proposer: Proposer) -> list[Action]:
        counts["rare"] += 1
        return take(proposer)

    def count_all(proposer: Proposer) -> list[Action]:
        counts["all"] += 1
        return taken(proposer)

    monkeypatch.setattr(Proposer, "_take", count_rare)
    monkeypatch.setattr(Proposer, "_taken", count_all)
    steady = [_digest(task) for task in tasks]
    assert counts["all"] - counts["rare"] > 10 * len(tasks)
    monkeypatch.setattr(Proposer, "_find_steady", lambda _: {})
    assert [_digest(task) for task in tasks] == steady


def _digest(task: Task) -> str:
    outcome = attempt(task)
    assert not isinstance(outcome, Failure), outcome.text
    return outcome.digest


@pytest.mark.parametrize("seed", [3, 11, 29])
def test_a_seed_decides_everything(seed: int) -> None:
    first, again = (build(Task(seed)) for _ in range(2))
    assert run_world(first) == run_world(again)
    assert first.trace() == again.trace()
    assert first.checker.committed == again.checker.committed


def test_clusters_have_one_to_seven_safekeepers() -> None:
    assert {len(build(Task(seed)).safekeepers) for seed in range(200)} == {1, 2, 3, 4, 5, 6, 7}


def test_faults_may_happen_for_longer_than_in_the_profile() -> None:
    usual, longer = plan(Task(3)), plan(Task(3, fault_seconds=6))
    assert longer.ends_at_s == usual.ends_at_s - usual.rates.faults_s + 6
    assert "run_seed(3, " in Task(3, fault_seconds=6).as_test()
    assert "fault_seconds=6)" in Task(3, fault_seconds=6).as_test()


def test_the_digest_of_a_run_is_of_all_that_happened_in_it() -> None:
    runs = [attempt(Task(seed, "calm", digested=True)) for seed in (3, 3, 4)]
    first, again, other = (run.digest for run in runs if not isinstance(run, Failure))
    assert len(first) == 64
    assert first == again != other
