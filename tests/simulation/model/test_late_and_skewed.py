"""Clocks that disagree, processes that stand still, words that come late, writes that tear: each is what it says."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulation.model import virtual_disk
from tests.simulation.model.clock import Clock, MachineClock
from tests.simulation.model.virtual_disk import PAGE_BYTES, SECTOR_BYTES, VirtualFileSystem
from tests.simulation.scenarios.scenario import Stage, perform


def test_a_machines_clock_has_a_rate_of_its_own_and_may_leap_ahead() -> None:
    time = Clock()
    clock = MachineClock(time, 2.0)
    time.run(3.0)
    assert clock.now == 6.0
    clock.ahead_s += 10.0
    assert clock.now == 16.0


def test_what_a_proxy_had_sent_when_it_ended_arrives_later() -> None:
    stage = Stage()
    stage.profile = replace(stage.profile, late_messages=1.0)
    perform(stage, "P1 starts on A")
    perform(stage, "A writes a")
    perform(stage, "until a is acknowledged")
    perform(stage, "P1 cannot send to S1 S2 S3")
    perform(stage, "A writes b c")
    perform(stage, "run 0.1 s")
    perform(stage, "P1 stops")
    perform(stage, "P1 and S1 S2 S3 meet again")
    perform(stage, "expect S1 S2 S3 lack b c")
    perform(stage, "run 3.1 s")
    perform(stage, "expect S1 S2 S3 hold b c")
    assert stage.network.late_messages >= 3


def test_a_proxy_that_stood_still_does_then_what_it_would_have_done() -> None:
    stage = Stage()
    perform(stage, "P1 starts on A")
    perform(stage, "until P1 leads")
    stage.proxy("P1").suspend(0.5)
    perform(stage, "A writes a")
    perform(stage, "run 0.4 s")
    perform(stage, "expect a is not acknowledged")
    perform(stage, "until a is acknowledged")


@pytest.mark.parametrize("unit_bytes", [SECTOR_BYTES, PAGE_BYTES])
def test_a_power_cut_tears_writes_at_borders_of_sectors_or_of_pages(
    unit_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(virtual_disk, "_WRITE_BACK_ONE_IN", 1e9)
    path, count = Path("/wal"), 4 * PAGE_BYTES // unit_bytes
    kept_in_any = set()
    for seed in range(50):
        fs = VirtualFileSystem(random.Random(seed))
        fs.torn_by_page = float(unit_bytes == PAGE_BYTES)
        file = fs.create(path)
        file.pwrite(bytes(4 * PAGE_BYTES), 0)
        file.fdatasync()
        fs.fsync_directory(path.parent)
        file.pwrite(b"x" * (4 * PAGE_BYTES - 100), 50)
        fs.crash()
        content = fs.open(path).pread(4 * PAGE_BYTES, 0)
        units = [content[unit_bytes * i : unit_bytes * (i + 1)] for i in range(count)]
        assert all(len(set(unit[50:-50])) == 1 for unit in units)
        kept = tuple(b"x" in unit for unit in units)
        kept_in_any.add(kept)
        assert fs.torn[unit_bytes] == (0 < sum(kept) < count)
    assert len(kept_in_any) > 8
