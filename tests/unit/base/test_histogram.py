"""Times in buckets by powers of two: bounds, quantiles, and those of the last minute."""

import pytest

from safekeeper.base.histogram import GREATEST_EXPONENT, LEAST_EXPONENT, Histogram, RecentHistogram, quantile
from safekeeper.base.status_fields import RecentTimes


def filled(*values: float) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    return histogram


def test_a_value_is_in_the_bucket_whose_bound_is_the_next_power_of_two_and_a_power_of_two_in_its_own() -> None:
    for value in (0.26, 0.4999, 0.5):
        below = {float(bound): count for bound, count in filled(value).buckets()}
        assert (below[0.25], below[0.5], below[1.0]) == (0, 1, 1), value


def test_values_out_of_range_are_in_the_first_and_the_last_bucket() -> None:
    histogram = filled(0.0, 1e-9, 2.0**LEAST_EXPONENT, 2.0**GREATEST_EXPONENT, 65.0, 1e9)
    assert histogram.counts[0] == 3
    assert histogram.counts[-2:] == [1, 2]
    assert histogram.count == 6


def test_buckets_are_cumulated_and_the_last_one_has_all_values() -> None:
    histogram = filled(0.001, 0.002, 0.7, 100.0)
    buckets = histogram.buckets()
    assert [count for _, count in buckets] == sorted(count for _, count in buckets)
    assert buckets[-1] == ("+Inf", 4.0)
    assert buckets[0][0] == repr(2.0**LEAST_EXPONENT) and buckets[-2][0] == repr(2.0**GREATEST_EXPONENT)
    assert histogram.total == pytest.approx(100.703)


def test_a_quantile_is_interpolated_within_its_bucket() -> None:
    assert quantile(Histogram().counts, 0.5) is None
    # One hundred values between 0.5 and 1: the half of them counts as below the middle.
    histogram = filled(*[0.75] * 100)
    assert quantile(histogram.counts, 0.5) == pytest.approx(0.75)
    assert quantile(histogram.counts, 1.0) == pytest.approx(1.0)
    histogram = filled(*[0.003] * 98, 0.9, 0.9)
    assert quantile(histogram.counts, 0.5) == pytest.approx(2**-9 * (1 + 50 / 98))
    assert quantile(histogram.counts, 0.99) == pytest.approx(0.75)
    assert quantile(filled(1e9).counts, 0.5) == 2.0**GREATEST_EXPONENT


def test_every_quantile_is_within_a_factor_of_two_of_the_true_one() -> None:
    values = sorted(0.0001 * 1.07**n for n in range(150))
    histogram = filled(*values)
    for share in (0.01, 0.25, 0.5, 0.9, 0.99):
        true = values[int(share * len(values))]
        found = quantile(histogram.counts, share)
        assert found is not None and true / 2 <= found <= true * 2, share


def test_recent_quantiles_forget_what_is_older_than_a_minute() -> None:
    histogram = RecentHistogram()
    for second in range(30):
        histogram.mark(float(second))
        histogram.observe(1.5)
    for second in range(30, 100):
        histogram.mark(float(second))
        histogram.observe(0.003)
    described = histogram.describe()
    assert described.count == 100
    assert 45 <= described.recent_count <= 60
    assert (described.p99_s or 1) < 0.004, "the slow ones are older than a minute"
    assert (quantile(histogram.counts, 0.99) or 0) > 1, "they count since the start"


def test_without_recent_values_the_quantiles_are_those_since_the_start() -> None:
    histogram = RecentHistogram()
    assert histogram.describe() == RecentTimes(count=0, recent_count=0, p50_s=None, p99_s=None)
    histogram.mark(0.0)
    histogram.observe(0.75)
    for second in (20.0, 40.0, 60.0, 80.0):
        histogram.mark(second)
    assert histogram.describe() == RecentTimes(count=1, recent_count=0, p50_s=0.75, p99_s=0.995)
