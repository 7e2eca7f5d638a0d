"""Failovers under load, a few rounds of them in a minute: tests/torture/test_agents.py plays many."""

from pathlib import Path

import pytest

from tests.scratch import on_disk
from tests.torture.rounds import run_rounds
from walproxy.lab.failover.plan import CUT_OFF, KILL_HOST, SWITCHOVER


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_lost_primaries_and_a_switchover_lose_nothing(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, result = run_rounds(
        folder,
        *("--safekeeper-dir", str(on_disk(folder)), "--kinds", f"{KILL_HOST},{CUT_OFF}"),
        *("--rounds", "2", "--seed", "2", "--dead-after", "1", "--switchover-every", "2"),
    )
    assert code == 0
    assert result.violations == []
    expected = {KILL_HOST, SWITCHOVER} | (set() if "no partitions" in result.isolation else {CUT_OFF})
    assert {each.kind for each in result.rounds} == expected
    assert result.acknowledged > 100
    assert result.acknowledged_on_lists > 50
    assert KILL_HOST in capfd.readouterr().out
