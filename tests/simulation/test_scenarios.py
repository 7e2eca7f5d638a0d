"""Every scenario file, replayed. Some of them again with the rule dropped that they are about: then they must fail."""

from pathlib import Path

import pytest

from tests.simulation.bugs import BUGS, planted
from tests.simulation.scenario import SCENARIOS, ScenarioFailed, Stage, perform, play
from tests.simulation.world import SimulationFailed


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.txt")), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    play(path)


def test_a_scenario_says_which_line_it_does_not_understand(tmp_path: Path) -> None:
    path = tmp_path / "some.txt"
    path.write_text("P1 starts on A\n\nP1 dances\n")
    with pytest.raises(ScenarioFailed, match=r"some\.txt:3: no such command: 'P1 dances'"):
        play(path)


def test_a_scenario_fails_where_its_expectation_does_not_hold() -> None:
    stage = Stage()
    perform(stage, "P1 starts on A")
    perform(stage, "until P1 leads")
    with pytest.raises(ScenarioFailed, match="does not hold: P1 is refused"):
        perform(stage, "expect P1 is refused")
