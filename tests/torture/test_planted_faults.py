"""The torture finds what it is for: programs that acknowledge what is not safe, planted in the place of ours."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from walproxy.lab.torture.run import RunOptions, Stressed, stress

HERE = Path(__file__).parent
SECONDS_MAX = 240.0


class Silence:
    """Watches and says nothing."""

    def show(self, passed_s: float, what: str) -> None:
        """Nothing."""

    def add_line(self, passed_s: float, line: str) -> None:
        """Nothing."""


def stress_with(
    folder: Path, *, safekeeper_program: Sequence[str] | None = None, proxy_program: Sequence[str] | None = None
) -> Stressed:
    """Beat a cluster of planted programs until something is found, for four minutes at most."""
    plan = RunOptions(
        7,
        SECONDS_MAX,
        folder / "cluster",
        engine="processes",
        safekeeper_program=safekeeper_program,
        proxy_program=proxy_program,
    )
    return stress(plan, Silence())


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_a_safekeeper_that_answers_before_its_disk_has_synced_is_found(folder: Path) -> None:
    stressed = stress_with(folder, safekeeper_program=[str(HERE / "hasty_safekeeper.py")])
    assert stressed.run.seconds < SECONDS_MAX
    assert "Durable" in {violation.rule for violation in stressed.run.violations}, stressed.run.violations


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_a_proxy_that_reports_what_it_has_received_as_flushed_is_found(folder: Path) -> None:
    stressed = stress_with(folder, proxy_program=[str(HERE / "boastful_proxy.py")])
    assert stressed.run.seconds < SECONDS_MAX
    assert "NoQuorum" in {violation.rule for violation in stressed.run.violations}, stressed.run.violations
