"""Failovers under load, a few rounds of them in a minute: tests/torture/test_agents.py plays many."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.scratch import on_disk
from walproxy.lab.failover.plan import CUT_OFF, KILL_HOST, SWITCHOVER
from walproxy.lab.failover.results import RunResult


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_lost_primaries_and_a_switchover_lose_nothing(folder: Path) -> None:
    results = folder / "results.json"
    command = [sys.executable, "-m", "walproxy.lab.failover", "--dir", str(folder), "--results", str(results)]
    command += ["--safekeeper-dir", str(on_disk(folder))]
    command += ["--rounds", "2", "--seed", "2", "--dead-after", "1", "--switchover-every", "2"]
    ended = subprocess.run(
        [*command, "--kinds", f"{KILL_HOST},{CUT_OFF}"], capture_output=True, text=True, check=False, timeout=230
    )
    assert ended.returncode == 0, ended.stderr
    result = msgspec.json.decode(results.read_bytes(), type=RunResult)
    assert result.violations == []
    expected = {KILL_HOST, SWITCHOVER} | (set() if "no partitions" in result.isolation else {CUT_OFF})
    assert {each.kind for each in result.rounds} == expected
    assert result.acknowledged > 100
    assert result.acknowledged_on_lists > 50
    assert KILL_HOST in ended.stdout
