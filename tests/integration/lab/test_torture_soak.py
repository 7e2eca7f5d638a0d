"""A soak of some seconds: that it sees what it should, not that nothing grows, which takes longer."""

import os
import signal
from pathlib import Path

import pytest

from walproxy.lab.torture.record import Run
from walproxy.lab.torture.soak import Load, soak
from walproxy.lab.torture.soaked_cluster import soaked_cluster

SECONDS = 6.0
PER_S = 20.0
ALL = {"postgres", "standby1", "walproxy", "safekeeper1", "safekeeper2", "safekeeper3"}


@pytest.mark.nightly
def test_a_soak_commits_at_its_rate_watches_every_process_and_misses_one_that_ends(folder: Path) -> None:
    with soaked_cluster(folder, 3, None) as cluster:

        def look_on(passed_s: float, what: str) -> None:
            victim = cluster.process_ids().get("safekeeper3")
            if passed_s > SECONDS / 2 and victim is not None:
                os.kill(victim, signal.SIGKILL)

        run = soak(cluster, SECONDS, Load(4, PER_S), 3, look_on)
    check(run)


def check(run: Run) -> None:
    # A quorum is left, so every commit is acknowledged. The memory of processes that have just begun may grow.
    assert {violation.rule for violation in run.violations} - {"MemoryGrows"} == {"ProcessEnded"}
    assert 0.8 * PER_S * SECONDS < len(run.operations) < 1.2 * PER_S * SECONDS
    assert {operation.outcome for operation in run.operations} == {"ok"}
    late = {sample.process for sample in run.samples if sample.at_s > SECONDS - 2}
    assert {sample.process for sample in run.samples} == ALL
    assert late == ALL - {"safekeeper3"}
    assert all(sample.resident_bytes > 1 << 20 and sample.file_descriptors > 3 for sample in run.samples)
