"""What a percentile of measured times is."""

import pytest

from walproxy.lab.load.percentiles import percentile


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([5.0], 50, 5.0), ([3.0, 1.0, 2.0], 50, 2.0), ([4.0, 1.0, 3.0, 2.0], 50, 2.0), ([2.0, 1.0], 0, 1.0)],
)
def test_a_percentile_is_one_of_the_values(values: list[float], percent: float, expected: float) -> None:
    assert percentile(values, percent) == expected


def test_one_commit_of_a_hundred_may_exceed_the_99th_percentile() -> None:
    values = [float(number) for number in range(1, 101)]
    assert percentile(values, 99) == 99.0
    assert percentile(values, 100) == 100.0
