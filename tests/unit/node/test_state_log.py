"""A safekeeper's log names its promise, its part in a new membership, and its leader."""

import logging
from pathlib import Path

import pytest

from tests.unit.event_loop import on_the_loop
from tests.unit.node.test_node import bench


@on_the_loop
async def test_the_first_membership_and_the_leader_are_logged_with_this_safekeeper_s_part(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(tmp_path / "sk") as sk:
        with caplog.at_level(logging.INFO, "safekeeper.node.state_log"):
            await sk.lead()
    lines = [record.getMessage() for record in caplog.records if record.name == "safekeeper.node.state_log"]
    assert [line.partition(" of cluster ")[2].partition(": ")[2] for line in lines if "membership" in line] == [
        "safekeepers 1; this one is a voter"
    ]
    assert [line.split()[0] for line in lines if "membership" not in line] == ["promised", "follows"]
