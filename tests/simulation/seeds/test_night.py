"""Nights continue each other, and write what failed into the ledger."""

from pathlib import Path

import pytest

from tests.simulation import night
from tests.simulation.bugs.planted import BUGS, planted


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(night, "SEEDS_PER_BLOCK", 2)
    monkeypatch.setattr(night, "NICENESS", 0)
    monkeypatch.setattr(night, "SHRINK_S", 1.0)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "ledger"


def run_block(ledger: Path, first: int = 0) -> int:
    """Run one block."""
    return night.main(["--hours", "0", "--ledger", str(ledger), "--first", str(first), "--processes", "1"])


def test_a_night_begins_where_the_last_one_ended(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_block(ledger, first=40) == 0
    assert run_block(ledger, first=40) == 0
    blocks = list(night.read(ledger))
    assert [(block.first, block.seeds, block.failed) for block in blocks] == [(40, 2, ()), (42, 2, ())]
    assert [block.watched for block in blocks] == [True, False]
    assert blocks[0].reached and not blocks[1].reached
    assert all(block.acks and block.cpu_s for block in blocks)
    capsys.readouterr()
    assert night.main(["--ledger", str(ledger), "--report"]) == 0
    printed = capsys.readouterr().out
    assert "4 seeds, 0 failed" in printed
    assert f"2 seeds reached {len(blocks[0].reached)} of " in printed


def test_a_seed_that_fails_is_in_the_ledger_and_the_report(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with planted(BUGS["ack_before_flush"]):
        assert run_block(ledger, first=7) == 1
    (block,) = night.read(ledger)
    assert {seed.seed for seed in block.failed} <= {7, 8}
    invariant = block.failed[0].invariant
    assert "To run only this again" in capsys.readouterr().out
    assert night.main(["--ledger", str(ledger), "--report"]) == 1
    printed = capsys.readouterr().out
    assert f"--seeds 1 --first {block.failed[0].seed} --profile {block.failed[0].profile}: {invariant}" in printed


def test_two_nights_cannot_write_one_ledger(ledger: Path) -> None:
    with ledger.open("ab") as held:
        night.fcntl.flock(held, night.fcntl.LOCK_EX)
        with pytest.raises(SystemExit) as refused:
            run_block(ledger)
    assert "in use by another night" in str(refused.value)
