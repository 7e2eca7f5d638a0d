"""Each seed of `swarm` draws a profile, which can be written down, replayed and made short."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from safekeeper.consensus.membership import Member
from safekeeper.consensus.quorum_expression import MEMBERS_MAX, size_of
from tests.simulation.__main__ import main
from tests.simulation.checks import quorums
from tests.simulation.checks.violation import Violation
from tests.simulation.model.bends import BEND_NAMES, Bends
from tests.simulation.model.primary import Stranger
from tests.simulation.seeds.runner import APPLY_RULES, Task, plan
from tests.simulation.seeds.schedule import parse
from tests.simulation.world.profiles import SWARM, Profile
from tests.simulation.world.swarm import FAILING_DISKS, drawn
from tests.simulation.world.world import World, spelled_otherwise
from walproxy.proposer import replication
from walproxy.proposer.apply_rule import parse_apply_rule

SEEDS = range(400)


def test_a_seed_always_draws_the_same_profile_and_each_another_one() -> None:
    assert drawn(7) == drawn(7) == Task(7, "swarm").faults()
    assert len({drawn(seed).describe() for seed in SEEDS}) == len(SEEDS)


def test_every_kind_of_fault_is_drawn_by_some_seeds_and_left_out_by_others() -> None:
    profiles = [drawn(seed) for seed in SEEDS]
    for kind in SWARM.weights:
        drawn_by = sum(kind in profile.weights for profile in profiles)
        assert len(SEEDS) // 4 < drawn_by < len(SEEDS) // 2, kind


def test_every_choice_is_bent_by_some_seeds_and_none_by_some() -> None:
    bent = [drawn(seed).bends.bent() for seed in SEEDS]
    assert {name for each in bent for name in each} == BEND_NAMES
    assert sum(not each for each in bent) > len(SEEDS) // 10


def test_what_was_added_later_is_drawn_by_some_seeds() -> None:
    profiles = [drawn(seed) for seed in SEEDS]
    for name in ("other_spellings", "both_changes", "archive_ids", "strangers"):
        assert len(SEEDS) // 4 < sum(getattr(profile, name) > 0 for profile in profiles) < len(SEEDS) * 3 // 4, name
    assert any(profile.weights.get("fail_disk") == FAILING_DISKS for profile in profiles)


def test_other_spellings_have_the_same_meaning() -> None:
    for rule in {each for rules in APPLY_RULES for each in rules}:
        written, other = parse_apply_rule(rule), parse_apply_rule(spelled_otherwise(rule))
        assert (other.count, other.names) == (written.count, written.names)
    assert spelled_otherwise("ANY 1 (R1, r2)") == 'any 1 ("R1", "r2")'
    for sizes in (*quorums.CHOICES, *quorums.OTHER_SPELLINGS):
        for count in range(1, MEMBERS_MAX + 1):
            members = tuple(Member(number, f"folder-{number}") for number in range(count))
            assert quorums.commit_size(members, sizes) == size_of(sizes.commit, count)
            assert quorums.elect_size(members, sizes) == size_of(sizes.elect, count)


def test_a_stranger_is_named_once_there_is_a_cluster_and_must_be_refused() -> None:
    world = World(1, Profile(strangers=1.0))
    proxy = world.add_proxy()
    for _ in range(50):
        world.point(proxy, world.current)
    assert proxy.hosts == (world.current,)
    world.checker.won[1] = SimpleNamespace()  # type: ignore[assignment]
    named = []
    for _ in range(50):
        world.point(proxy, world.current)
        named += proxy.hosts
    strangers = {host for host in named if isinstance(host, Stranger)}
    (stranger,) = strangers
    assert stranger.identity().system_id != world.current.identity().system_id
    with pytest.raises(Violation, match="another PostgreSQL cluster"):
        stranger.on_report(1, 1)


def test_the_cluster_has_a_shape_of_its_own() -> None:
    plans = [plan(Task(seed, "swarm")) for seed in SEEDS]
    assert {each.safekeepers for each in plans} == set(range(1, 8))
    assert any(each.real_shells for each in plans) and any(each.real_storage for each in plans)
    assert not any(each.real_shells and each.real_storage for each in plans)


def test_a_bent_constant_is_one_that_the_product_has() -> None:
    for module, name, value in Bends().settings():
        assert type(value) is type(getattr(module, name)), name
    assert (replication, "APPEND_BYTES_MAX", 7) in Bends(append_bytes=7.9).settings()


def test_a_schedule_has_the_choices_that_are_bent() -> None:
    schedule = plan(Task(next(seed for seed in SEEDS if drawn(seed).bends.bent()), "swarm"))
    text = str(schedule.with_faults(()))
    assert parse(text).rates.bends == schedule.rates.bends != Bends()
    assert not set(re.findall(r"^\w+", str(plan(Task(3, "calm")).with_faults(())), re.M)) & BEND_NAMES


def test_a_failing_seed_prints_what_it_has_drawn_and_becomes_a_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["--profile", "swarm", "--bug", "ack_before_flush", "--processes", "1", "--shrink-s", "1"]
    assert main([*arguments, "--seeds", "60"]) == 1
    printed = capsys.readouterr().out
    (seed,) = re.findall(r"^seed (\d+), profile swarm: ", printed, re.M)
    assert f"\ndrawn: {drawn(int(seed)).describe()}\n" in printed
    assert f'run_seed({seed}, "swarm", bug="ack_before_flush")' in printed
    (path,) = re.findall(r"(\S+): replay it with python -m tests\.simulation --play \1", printed)
    assert main(["--play", path]) == 1
