"""What the benchmark of slow and dead members makes of its turns."""

import pytest

from walproxy.lab.bench.members import DEAD, SLOW, WELL, MemberTurn, cells, compare_members

P50_MS = {WELL: 4.0, SLOW: 5.0, DEAD: 3.0}


def test_a_bad_member_is_compared_with_all_well_in_the_same_round() -> None:
    turns = [
        # The machine is twice as slow in each round as in the one before.
        MemberTurn(number, *cell, 100.0, P50_MS[cell.case] * 2**number, 10.0)
        for number in range(3)
        for cell in cells([1, 8])
    ]
    results = {(each.case, each.clients): each for each in compare_members(turns)}
    assert len(results) == 6
    slow = results[SLOW, 8]
    assert (slow.p50_ms, slow.to_well, slow.low, slow.high) == pytest.approx((10.0, 1.25, 1.25, 1.25))
    assert slow.p99_to_well == 1.0
    assert results[DEAD, 1].to_well == pytest.approx(0.75)
    assert results[WELL, 1].to_well == 1.0
