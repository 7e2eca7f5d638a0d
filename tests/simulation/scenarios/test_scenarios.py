"""Every scenario file, replayed. Some of them again with the rule dropped that they are about: then they must fail."""

import re
from pathlib import Path

import pytest

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.acceptor.effects import Effects
from safekeeper.consensus.messages import Bootstrap, RefusalCode
from tests.simulation.scenarios.scenario import FAILS_WITH, SCENARIOS, ScenarioFailed, Stage, perform, play
from tests.simulation.seeds.hunt import failure_in
from tests.simulation.world.world import SimulationFailed


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.txt")), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    play(path)


@pytest.mark.parametrize("name", FAILS_WITH)
def test_scenario_fails_without_the_rule_that_it_is_about(name: str) -> None:
    assert failure_in(name, FAILS_WITH[name])


def test_a_restored_folder_loses_what_was_acknowledged() -> None:
    path = SCENARIOS / "misuse" / "a_folder_comes_back_from_a_snapshot.txt"
    with pytest.raises(SimulationFailed, match=r"the committed record .* is cut"):
        play(path)


def test_the_same_member_without_the_snapshot_loses_nothing(tmp_path: Path) -> None:
    text = (SCENARIOS / "misuse" / "a_folder_comes_back_from_a_snapshot.txt").read_text()
    path = tmp_path / "some.txt"
    path.write_text(re.sub("S2 comes back .*", "", text).replace("until P2 leads", "until P2 is refused"))
    play(path)


def test_only_what_was_copied_comes_back() -> None:
    with pytest.raises(ScenarioFailed, match="there is no copy of S1"):
        perform(Stage(), "S1 comes back as it was copied")


def test_a_scenario_names_the_line_that_is_no_command(tmp_path: Path) -> None:
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


def test_a_rebootstrap_names_only_data_folders_that_there_are() -> None:
    stage = Stage()
    perform(stage, "S3 loses its disk")
    with pytest.raises(ScenarioFailed, match=r"\['S3'\] have no data folder to name"):
        perform(stage, "operator rebootstraps over S1 S2 S3")


class _RefusesToReplace(Acceptor):
    def _replace_cluster(self, connection: int, message: Bootstrap) -> Effects:
        yield from self._refuse(connection, RefusalCode.NOT_EMPTY, "not over this")


class _StageOfRefusers(Stage):
    acceptor_class = _RefusesToReplace
    has_reference = False


def test_a_rebootstrap_that_is_refused_fails_the_scenario() -> None:
    stage = _StageOfRefusers()
    with pytest.raises(ScenarioFailed, match="the rebootstrap failed: not over this"):
        perform(stage, "operator rebootstraps over S1 S2 S3")
