"""Failovers by agents under load, with faults by a seed: nothing acknowledged is lost, and the gaps are short.

ROUNDS, SEED and DEAD_AFTER of the environment change the run:

    ROUNDS=100 SEED=7 DEAD_AFTER=1 .venv/bin/pytest -v -s tests/torture/test_agents.py
"""

import os
from pathlib import Path

import pytest

from tests.torture.rounds import run_rounds
from walproxy.lab.failover.plan import CUT_OFF, KILL_HOST

ROUNDS = int(os.environ.get("ROUNDS", "20"))
SEED = int(os.environ.get("SEED", "1"))
DEAD_AFTER_S = float(os.environ.get("DEAD_AFTER", "5"))
HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.on_disk
@pytest.mark.timeout(300 + 120 * ROUNDS)
def test_rounds_of_faults_lose_nothing_and_commits_resume_soon(folder: Path) -> None:
    code, result = run_rounds(
        folder, "--rounds", str(ROUNDS), "--seed", str(SEED), "--dead-after", str(DEAD_AFTER_S), "--goals"
    )
    assert result.violations == []
    assert code == 0
    assert len(result.rounds) >= ROUNDS
    assert result.losses()
    assert sum(each.not_compared for each in result.rounds) <= ROUNDS // 10
    assert result.acknowledged_on_lists > 10 * ROUNDS
    assert sum(each.discarded for each in result.rounds) > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_agents_whose_commits_wait_for_no_quorum_are_found(folder: Path) -> None:
    careless = str(HERE / "careless_agent.py")
    options = ("--rounds", "3", "--seed", "3", "--dead-after", "1", "--switchover-every", "0")
    kinds = f"{KILL_HOST},{CUT_OFF}"
    code, result = run_rounds(folder, *options, "--kinds", kinds, "--agent-program", careless)
    assert code == 1
    found = "; ".join(result.violations)
    assert "acknowledged rows are missing" in found
    assert "were acknowledged, and are after the fork" in found
    assert "lists: " in found
    assert "that began after timeline" in found or "no partitions" in result.isolation
