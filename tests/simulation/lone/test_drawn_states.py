"""What the lone acceptor and the lone proposer compare besides messages finds errors that are planted there."""

import random
from copy import copy
from dataclasses import replace
from typing import Any

import pytest

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.acceptor.readable import NothingToSend
from tests.simulation.lone import acceptor as lone_acceptor
from tests.simulation.lone import drawn_quorum_sizes
from tests.simulation.lone import proposer as lone_proposer
from tests.simulation.lone.acceptor import LoneAcceptor
from tests.simulation.lone.corrupted_states import check_acceptor, check_proposer
from tests.simulation.lone.proposer import LoneProposer
from tests.simulation.model.bends import Bends
from tests.simulation.references.acceptor import readers as reference_readers
from tests.simulation.world.world import SimulationFailed, small_frames
from walproxy.proposer.leadership import Leadership
from walproxy.proposer.phase import Phase
from walproxy.proposer.progress import Progress
from walproxy.proposer.proposer import Proposer

SEEDS = 150


def _nothing(*arguments: Any) -> None:
    """Check nothing."""


def _only_positions(proposer: Proposer) -> None:
    if proposer.leadership is not None:
        proposer.leadership.check()
    elif proposer.phase is Phase.LEADING:
        raise AssertionError("it leads nothing")


@pytest.mark.parametrize(
    ("drive", "holder", "name", "wrong", "found"),
    [
        (lone_acceptor.drive, Acceptor, "check", _nothing, "Checked"),
        (lone_acceptor.drive, reference_readers, "next_step", lambda *arguments: NothingToSend(), "next step"),
        (lone_acceptor.drive, reference_readers, "refusal_of_start", _nothing, "a start is refused"),
        (lone_acceptor.drive, reference_readers, "lineage_of", lambda control, tli: (), "lineage"),
        (lone_proposer.drive, Leadership, "check", _nothing, "Checked"),
        (lone_proposer.drive, Progress, "check", _nothing, "Checked"),
        (lone_proposer.drive, Proposer, "check", _only_positions, "Checked"),
        (lone_proposer.drive, drawn_quorum_sizes, "problem_of_sizes", lambda *sizes: "", "are refused: True"),
        (lone_proposer.drive, drawn_quorum_sizes, "size_of", lambda text, members: members, "means"),
    ],
)
def test_a_planted_error_is_found(
    drive: Any, holder: Any, name: str, wrong: Any, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holder, name, wrong)
    with pytest.raises(SimulationFailed, match=found):
        for seed in range(SEEDS):
            drive(seed)


def test_states_are_as_before_when_they_were_corrupted() -> None:
    rng = random.Random(1)
    with small_frames(10_000, Bends()):
        lone = LoneAcceptor(0, 10_000)
        lone.run(30)
        acceptor = lone._acceptor
        before = vars(acceptor) | {"following": copy(acceptor.following)}
        for _ in range(100):
            check_acceptor(rng, acceptor)
        assert vars(acceptor) == before
        proposer = next(each for seed in range(50) if (each := _led(seed)).leadership is not None)
        leadership = proposer.leadership
        assert leadership is not None
        led = dict(vars(leadership)), [replace(member) for member in leadership.members.values()]
        for _ in range(100):
            check_proposer(rng, proposer)
        assert led == (vars(leadership), list(leadership.members.values()))


def _led(seed: int) -> Proposer:
    lone = LoneProposer(seed)
    lone.run(60)
    proposer: Proposer = lone._proposer
    return proposer
