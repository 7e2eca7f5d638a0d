"""A failing seed becomes a short schedule that fails in the same way, and is written so that it can be replayed."""

import re
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from tests.simulation.__main__ import main
from tests.simulation.seeds.runner import Task, build, plan, run_phases, stage
from tests.simulation.seeds.schedule import ScheduleUnreadable, parse, read
from tests.simulation.seeds.shrink import replay, shrink
from tests.simulation.world.faults import Faults

SEEDS = 150
# No limit of time: a slow machine must find as much.
TRIALS = 220


# The first seed is the one that is found; if the simulator changes, a later one.
@pytest.mark.parametrize(("bug", "first"), [("wiped_member_votes", 1), ("primary_unchecked", 21)])
def test_a_failing_seed_becomes_short_and_fails_in_the_same_way(bug: str, first: int) -> None:
    tried = (replay(plan(Task(seed, bug=bug))) for seed in range(first, first + SEEDS))
    failing = next(failing for failing in tried if failing is not None and failing.faults > 6)
    shrunk = shrink(Task(failing.schedule.seed, bug=bug), inf, trials_max=TRIALS)
    assert shrunk is not None
    before, best = shrunk.before, shrunk.best
    assert before == failing
    assert best.invariant == failing.invariant
    assert best.faults <= before.faults // 2
    assert best.cost < before.cost
    # Written down and read again, it is the same run, word for word.
    assert replay(parse(str(best.schedule))) == best
    # What it shows is the bug.
    assert replay(replace(best.schedule, bug="")) is None


def test_a_run_and_its_schedule_are_the_same() -> None:
    for seed in range(6):
        drawn = plan(Task(seed))
        world, again = stage(drawn), build(Task(seed))
        faults = Faults(world)
        run_phases(world, faults, drawn.ends_at_s, heals=True)
        written = parse(str(drawn.with_faults(faults.done)))
        replayed = Faults(again, written.faults)
        run_phases(again, replayed, written.ends_at_s, written.heals)
        assert replayed.done == faults.done != []
        assert again.trace() == world.trace()
        assert again.clock.steps == world.clock.steps


def test_a_fault_that_lacks_what_it_was_about_is_about_something_else() -> None:
    text = str(replace(plan(Task(0)), safekeepers=1, faults=())) + "at 0.5 crash_safekeeper S7 0.1 0.9 5\n"
    schedule = parse(text)
    world = stage(schedule)
    faults = Faults(world, schedule.faults)
    run_phases(world, faults, schedule.ends_at_s, heals=False)
    (done,) = faults.done
    assert done.words == ("S1", "0.1", "0.9", "5")


def test_a_seed_that_holds_is_not_shrunk() -> None:
    assert shrink(Task(0), inf) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("seed 1\nat 0.5 sneeze S1\n", r"line 2 .*'at 0\.5 sneeze S1' \(no such kind of fault\)"),
        ("seed one\n", "line 1 is not understood: 'seed one'"),
        ("seed 1\nheals perhaps\n", "line 2 is not understood: 'heals perhaps'"),
        ("# nothing\n", "it names no seed"),
    ],
)
def test_what_is_no_schedule_is_refused_with_one_line(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "schedule.txt"
    path.write_text(text)
    with pytest.raises(ScheduleUnreadable, match=why) as refused:
        read(path)
    assert "\n" not in str(refused.value)


def test_a_failing_seed_prints_a_file_and_how_to_replay_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--seeds", "20", "--bug", "ack_before_flush", "--shrink-s", "0.5"]) == 1
    printed = capsys.readouterr().out
    (path,) = re.findall(r"(\S+): replay it with python -m tests\.simulation --play \1", printed)
    assert main(["--play", path]) == 1
    assert "CommittedNotOverwritten does not hold" in capsys.readouterr().out
    Path(path).write_text(Path(path).read_text().replace("bug ack_before_flush", "bug"))
    assert main(["--play", path]) == 0
    with pytest.raises(SystemExit):
        main(["--play", "nowhere.txt"])
    assert "could not read nowhere.txt" in capsys.readouterr().err
