"""The torture on real processes, for a few seconds: it breaks things, commits go on, and nothing is lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TORTURE = [sys.executable, "-m", "walproxy", "torture", "--engine", "processes"]


@pytest.mark.nightly
@pytest.mark.slow
def test_a_short_run_breaks_things_and_loses_nothing(folder: Path) -> None:
    answer = subprocess.run(
        [*TORTURE, "--seed", "7", "--minutes", "0.05", "--json"],
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert answer.returncode == 0, answer.stderr
    summary = json.loads(answer.stdout)
    assert summary["violations"] == []
    assert summary["faults"]["power cut"] == 1
    assert summary["fault_count"] >= 3
    assert all(summary["operations"][workload]["ok"] > 10 for workload in ("bank", "lists", "unique"))
    assert list(folder.iterdir()) == [], "a run that went well leaves nothing behind"
