"""What the benchmark of row changes makes of its turns."""

import pytest

from walproxy.lab.bench.row_changes import ChangesTurn, compare_changes


def test_changes_a_second_are_compared_with_those_of_pg_recvlogical_in_the_same_round() -> None:
    # The second round runs on a machine that is ten times slower.
    turns = [
        ChangesTurn(number, "updates", reader, 1000, seconds * slower, 0.02 * slower)
        for number, slower in ((0, 1.0), (1, 10.0), (2, 1.0))
        for reader, seconds in (("apply", 0.1), ("pg_recvlogical", 0.08))
    ]
    base, apply = compare_changes(turns)
    assert (base.workload, base.reader, base.to_recvlogical) == ("updates", "pg_recvlogical", 1.0)
    assert (apply.reader, apply.to_recvlogical) == ("apply", pytest.approx(0.8))
    assert (apply.changes_s, apply.low, apply.high) == (
        pytest.approx(10_000),
        pytest.approx(1000),
        pytest.approx(10_000),
    )
    assert apply.changes_cpu_s == pytest.approx(50_000)
    assert compare_changes(turns[:1])[0].to_recvlogical is None
