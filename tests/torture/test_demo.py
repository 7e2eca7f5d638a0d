"""The whole demo as its user runs it: three minutes, most of them for the tables."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.integration.lab.test_demo import DEMO, processes_with
from walproxy.lab.demo.steps import STEPS

pytestmark = pytest.mark.on_disk


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_step_of_the_demo_holds(folder: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(folder)}
    answer = subprocess.run(DEMO, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=850)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert answer.stderr == ""
    assert f"All {len(STEPS)} steps held" in answer.stdout
    # Each step's line of the summary.
    for number, step in enumerate(STEPS, 1):
        assert re.search(rf"^ *{number}\. {re.escape(step.title)} +held +\S", answer.stdout, re.MULTILINE), step.title
    takeovers = [float(seconds) for seconds in re.findall(r"held .* (\d+\.\d+) s after the kill", answer.stdout)]
    assert len(takeovers) == 3
    assert re.search(r"promoted \d+\.\d+ s after it, the first commit on TLI 2 came", answer.stdout)
    assert re.search(r"one on the old primary waits; it is refused: the quorum's log left timeline 1", answer.stdout)
    assert re.search(r"left are safekeeper \d, the base backup, and the archive, which lacks the last", answer.stdout)
    # Before the loss, restored after it, and in the new cluster; as the story went, and in its summary.
    found = re.findall(r"all ([\d,]+) acknowledged transfers are there", answer.stdout)
    acknowledged = [int(number.replace(",", "")) for number in found]
    assert len(acknowledged) == 6
    assert 100 < acknowledged[0] < acknowledged[1] < acknowledged[2]
    since = re.findall(r"([\d,]+) transfers committed since the loss, all of them acknowledged", answer.stdout)
    assert int(since[0].replace(",", "")) > 10
    # Only the report stays.
    [report] = folder.iterdir()
    assert f": {report}" in answer.stdout
    assert report.read_text().startswith("<!doctype html>")
    assert processes_with(str(folder)) == []
