"""Scenarios from bytes: nothing goes wrong in any of them, and what is planted does."""

from random import Random

import pytest

from tests.fuzz import schedules
from tests.simulation.bugs.planted import BUGS, planted
from tests.simulation.world.world import SimulationFailed


def _input(seed: int) -> bytes:
    rng = Random(seed)
    return rng.randbytes(rng.randint(10, 90))


def test_any_bytes_are_a_scenario_in_which_everything_holds() -> None:
    played = [len(schedules.play(_input(seed))) for seed in range(30)]
    assert sum(played) > 500  # most lines can be carried out


@pytest.mark.parametrize("bug", ["leader_id_compared_as_pair", "ack_before_flush", "readers_ahead_of_commit"])
def test_a_planted_bug_is_found_within_a_few_inputs(bug: str) -> None:
    with planted(BUGS[bug]), pytest.raises(SimulationFailed):
        for seed in range(60):
            schedules.play(_input(seed))


def test_a_changed_byte_changes_only_what_comes_after_it() -> None:
    data = bytes(range(40))
    lines, others = list(schedules.commands(data)), list(schedules.commands(data[:30] + b"\xff" + data[31:]))
    same = next(i for i, (a, b) in enumerate(zip(lines, others, strict=False)) if a != b)
    assert same > 10
