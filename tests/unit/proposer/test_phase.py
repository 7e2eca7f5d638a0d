"""The phases of a proposer, and that both tables of transitions are those of docs/design/protocol.md."""

import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

import pytest

from safekeeper.base.errors import InvariantViolation
from walproxy.proposer import phase, progress
from walproxy.proposer.phase import Phase, Stage

PROTOCOL = Path(__file__).parents[3] / "docs" / "design" / "protocol.md"


@pytest.mark.parametrize("now", Phase)
@pytest.mark.parametrize("then", Phase)
def test_a_phase_follows_only_those_that_the_table_lists(now: Phase, then: Phase) -> None:
    stage = Stage()
    stage.phase = now
    if then in phase.TRANSITIONS[now]:
        stage.enter(then)
        assert stage.phase is then
    else:
        with pytest.raises(InvariantViolation, match=f"cannot change from {now.value} to {then.value}"):
            stage.enter(then)
        assert stage.phase is now


@pytest.mark.parametrize(
    ("heading", "transitions"),
    [("Phases of a proposer", phase.TRANSITIONS), ("States of a member", progress.TRANSITIONS)],
)
def test_the_protocol_documents_the_transitions(heading: str, transitions: Mapping[Enum, frozenset[Enum]]) -> None:
    text = PROTOCOL.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    documented = re.findall(r"^\| (\w+) \| (\w+) \| \S", text, re.MULTILINE)[1:]
    assert sorted(documented) == sorted((now.value, then.value) for now in transitions for then in transitions[now])
