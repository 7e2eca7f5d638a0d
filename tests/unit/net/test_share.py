"""The share of time of a listener's unknown clients."""

import random

import pytest

from safekeeper.net.share import QUANTUM_S, Share


def test_work_within_the_burst_waits_for_nothing() -> None:
    share = Share(100.0, rate=0.1, burst_s=0.05)
    share.charge(0.02, 100.0)
    assert share.wait_s(100.0) == 0 and not share.is_short(100.0)
    share.charge(0.02, 100.0)
    assert share.wait_s(100.0) == 0 and share.is_short(100.0)


def test_a_long_piece_of_work_is_repaid_before_the_next_one() -> None:
    share = Share(100.0, rate=0.1, burst_s=0.05)
    share.charge(0.25, 100.0)
    wait_s = share.wait_s(100.0)
    assert wait_s == pytest.approx((0.2 + QUANTUM_S) / 0.1)
    assert share.wait_s(100.0 + wait_s / 2) > 0
    assert share.wait_s(100.0 + wait_s + 1e-6) == 0


def test_idle_time_is_not_saved_above_the_burst_and_a_clock_that_jumps_back_adds_nothing() -> None:
    share = Share(100.0, rate=0.1, burst_s=0.05)
    share.charge(0.05, 5000.0)
    assert share.wait_s(5000.0) > 0
    assert share.wait_s(10.0) > 0


@pytest.mark.parametrize("seed", range(5))
def test_over_any_time_the_work_is_at_most_the_rate_the_burst_and_one_piece(seed: int) -> None:
    draw = random.Random(seed)
    share, now, worked_s = Share(0.0, rate=0.1, burst_s=0.05), 0.0, 0.0
    while now < 60:
        now += share.wait_s(now) or draw.choice((0.0, 0.0, 0.001, 0.3))
        if share.wait_s(now) == 0:
            piece_s = draw.choice((0.0001, 0.001, 0.02))
            share.charge(piece_s, now)
            now += piece_s
            worked_s += piece_s
        assert worked_s <= 0.1 * now + 0.05 + 0.02
