"""Branches are watched where they are: what seeds reach of them, and what they leave behind."""

import importlib.util
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.simulation import __main__ as command
from tests.simulation.seeds.runner import Outcome, Task, attempt
from tests.simulation.seeds.situations import Situation
from tests.simulation.seeds.sometimes import WATCHED, Points, report, take, watched_points
from walproxy.proposer.proposer import Proposer

SOURCE = '''
class InvariantViolation(Exception):
    pass


class Gate:
    @property
    def is_open(self) -> bool:
        return self.height > 3 and not self.locked

    def __init__(self, height, locked):
        self.height, self.locked = height, locked

    def passes(self, word):
        """Whether it passes."""
        if self.height < 0:
            raise InvariantViolation("a hole")
        match word:
            case "please" if self.is_open:
                return [n for n in range(4) if n % 2 or n == 5]
            case _:
                try:
                    return int(word)
                except ValueError:
                    return "low" if self.height < 2 else None

    def is_high(self) -> bool:
        return self.height > 9 or (self.height > 5 and not self.locked) or (self.height > 5 and self.width > 5)
'''


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[tuple[ModuleType, Points]]:
    """A module that was imported, and its points."""
    path = tmp_path / "gate.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("gate", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gate"] = module
    spec.loader.exec_module(module)
    yield module, Points([path], tmp_path)
    del sys.modules["gate"]


def reached(points: Points) -> set[str]:
    return {f"{points.points[index].function}: {points.points[index].what}" for index in points.take()}


def test_each_part_of_a_condition_is_a_point(gate: tuple[ModuleType, Points]) -> None:
    module, points = gate
    with points.watching():
        assert module.Gate(4, locked=True).is_open is False
        assert reached(points) == {
            "Gate.__init__: entered",
            "Gate.is_open: entered",
            "Gate.is_open: self.height > 3 is true",
            "Gate.is_open: self.locked is true",
        }
        assert module.Gate(3, locked=True).is_open is False
        assert "Gate.is_open: self.locked is true" not in reached(points)
        assert module.Gate(4, locked=False).passes("please") == [1, 3]
        assert reached(points) > {
            "Gate.passes: case 'please'",
            "Gate.passes: self.is_open is true",
            "Gate.passes: n % 2 is true",
            "Gate.passes: n == 5 is false",
            "Gate.is_open: self.locked is false",
        }
        assert module.Gate(1, locked=False).passes("now") == "low"
        assert reached(points) > {"Gate.passes: case _", "Gate.passes: except ValueError"}
    assert module.Gate(1, locked=False).passes("7") == 7
    assert take() == points.take() == ()


def test_what_must_never_happen_is_no_point(gate: tuple[ModuleType, Points]) -> None:
    _, points = gate
    assert not any("self.height < 0" in point.what for point in points.points)
    assert len(points.points) == len({(point.function, point.what) for point in points.points}) == 29


def test_a_point_that_was_not_reached_is_listed_and_the_rarest_of_the_others(gate: tuple[ModuleType, Points]) -> None:
    module, points = gate
    with points.watching():
        module.Gate(4, locked=False).passes("please")
        seeds = Counter(take())
    lines = report(points.points, seeds, 1).splitlines()
    assert "  never: gate.py:24 Gate.passes: except ValueError" in lines
    assert "  in 1 seeds: gate.py:8 Gate.is_open: entered" in lines
    assert f"1 seeds reached {len(seeds)} of {len(points.points)} points" in lines
    assert sum(line.startswith("  never: ") for line in lines) == len(points.points) - len(seeds)


def test_a_condition_that_a_function_has_again_is_another_point(gate: tuple[ModuleType, Points]) -> None:
    module, points = gate
    with points.watching():
        assert module.Gate(6, locked=False).is_high() is True
        assert reached(points) >= {"Gate.is_high: self.height > 5 is true", "Gate.is_high: self.height > 9 is false"}
        assert module.Gate(4, locked=False).is_high() is False
        assert reached(points) >= {
            "Gate.is_high: self.height > 5 is false",
            "Gate.is_high: self.height > 5 (2) is false",
        }
    second = [each.what for each in points.points if "(2)" in each.what]
    assert second == ["self.height > 5 (2) is true", "self.height > 5 (2) is false"]


def test_a_situation_is_a_point_of_the_calls_in_which_it_holds(gate: tuple[ModuleType, Points]) -> None:
    module, _ = gate
    passes = module.Gate.passes
    low = Situation("a word of a low gate", module.Gate, "passes", lambda gate, _: gate.height < 2)
    points = Points([], situations=[low])
    with points.watching():
        module.Gate(2, locked=True).passes("now")
        assert points.take() == ()
        assert module.Gate(1, locked=True).passes("now") == "low"
        assert reached(points) == {"Gate.passes: a word of a low gate"}
    assert module.Gate.passes is passes


def test_a_few_seeds_reach_a_part_and_change_nothing() -> None:
    points = watched_points()
    code = Proposer.__init__.__code__
    alone = attempt(Task(3, digested=True))
    with points.watching():
        assert Proposer.__init__.__code__ is not code
        watched = attempt(Task(3, digested=True))
    assert Proposer.__init__.__code__ is code
    assert isinstance(alone, Outcome) and isinstance(watched, Outcome)
    assert watched.digest == alone.digest
    assert alone.reached == ()
    assert len(points.points) // 4 < len(watched.reached) < len(points.points)
    folders = {Path(points.points[index].path).parent.as_posix() for index in watched.reached}
    assert folders >= {"safekeeper/acceptor", "safekeeper/consensus", "walproxy/proposer"}


def test_each_point_has_a_name_of_its_own_without_its_line() -> None:
    points = watched_points().points
    assert len({point[:3] for point in points}) == len(points)
    assert all(point.path.startswith(("situations", *WATCHED)) for point in points)


def test_the_command_prints_what_was_not_reached(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--seeds", "1", "--first", "3", "--sometimes"]) == 0
    printed = capsys.readouterr().out
    assert "\n  never: safekeeper/acceptor/" in printed
    assert "\n1 seeds reached " in printed
