"""What runs reached is counted, added and printed, and what they never reached is named."""

import re

import pytest

from tests.simulation import __main__ as command
from tests.simulation.seeds.counts import FAULT_KINDS, REACHED, Counts, added, never_reached, table
from tests.simulation.seeds.runner import Task, build, run_world
from tests.simulation.world.profiles import PROFILES


def test_every_kind_of_fault_is_counted() -> None:
    assert set(FAULT_KINDS) == {kind for profile in PROFILES.values() for kind in profile.weights}


def test_what_is_not_in_the_table_cannot_be_counted() -> None:
    with pytest.raises(KeyError, match="dances is not among what is counted"):
        Counts().count("dances")


def test_counts_of_runs_are_added_and_each_is_in_the_table() -> None:
    first, second = Counts(), Counts()
    first.count("truncations", 2)
    second.count("truncations", 40)
    total = added([first, second])
    assert total["truncations"] == 42
    assert "42" in table(total)
    assert all(name in table(total) for name in REACHED)
    assert never_reached(total) == [name for name in REACHED if name != "truncations"]


def test_a_run_counts_what_its_checkers_saw() -> None:
    world = build(Task(0))
    outcome = run_world(world)
    assert outcome.counts["terms won"] == len(world.checker.won) > 0
    assert outcome.counts["commits released"] == outcome.acks > 0
    assert outcome.counts["appends answered"] > 0


def test_a_toothless_run_is_warned_of(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert command.main(["--seeds", "2"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^balanced: crash_safekeeper \d+%, ", printed, re.MULTILINE)
    assert f"crashy: {PROFILES['crashy'].describe()}\n" in printed
    assert "calm:" not in printed
    assert "warning" not in printed
    monkeypatch.setattr(command, "RUNS_THAT_REACH_ALL", 2)
    assert command.main(["--seeds", "2"]) == 0
    assert "warning: 2 seeds never reached: fault stay_away" in capsys.readouterr().out


def test_the_share_of_seeds_with_a_failover_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--seeds", "3", "--first", "0", "--profile", "failovers"]) == 0
    printed = capsys.readouterr().out
    share = re.search(
        r"^failovers completed in (\d+) % of seeds, amid faults in (\d+) %: (\d+) in 3 seeds$", printed, re.M
    )
    assert share is not None
    assert int(share[1]) > 50 and int(share[1]) >= int(share[2]) and int(share[3]) >= 2
    assert command.main(["--seeds", "1", "--profile", "calm"]) == 0
    assert "failovers completed in" not in capsys.readouterr().out
