"""Runs the rounds of failovers as their command."""

import subprocess
import sys
from pathlib import Path

import msgspec

from walproxy.lab.failover.results import RunResult


def run_rounds(folder: Path, *arguments: str) -> tuple[int, RunResult]:
    """Run the command; return its exit code and results. Its lines and its table go to this process's output."""
    results = folder / "results.json"
    command = [sys.executable, "-m", "walproxy.lab.failover", "--dir", str(folder), "--results", str(results)]
    ended = subprocess.run([*command, *arguments], check=False)
    return ended.returncode, msgspec.json.decode(results.read_bytes(), type=RunResult)
