"""What the benchmark of the pipeline makes of its turns."""

import pytest

from walproxy.lab.bench.wal_growth import GrowthTurn, compare_growth
from walproxy.lab.bench.wal_tables import TableTurn, compare_tables

MB = 1_000_000


def test_speeds_are_compared_within_each_round() -> None:
    # The second round runs on a machine that is ten times slower.
    turns = [
        TableTurn(number, case, seconds * slower, 100 * MB)
        for number, slower in ((0, 1.0), (1, 10.0), (2, 1.0))
        for case, seconds in (("waldump-stats", 0.1), ("waldump-text", 1.0), ("decode", 0.125), ("next-query", 0.4))
    ]
    stats, text, decode, query = compare_tables(turns)
    assert (stats.case, stats.to_stats) == ("waldump-stats", pytest.approx(1.0))
    assert text.to_stats == pytest.approx(0.1)
    assert (decode.mb_s, decode.low, decode.high) == (pytest.approx(800), pytest.approx(80), pytest.approx(800))
    assert (decode.to_stats, decode.to_text) == (pytest.approx(0.8), pytest.approx(8.0))
    assert (query.seconds, query.mb_s, query.to_text) == (pytest.approx(0.4), None, None)


def test_growth_is_the_time_for_a_gigabyte_over_that_of_the_smallest_amount() -> None:
    def turn(number: int, factor: int, seconds: float) -> GrowthTurn:
        return GrowthTurn(number, factor, factor * 500 * MB, seconds, 1000 + factor, 5000)

    turns = [turn(0, 1, 2.0), turn(0, 2, 2.2), turn(0, 4, 2.0), turn(1, 1, 4.0), turn(1, 2, 4.0), turn(1, 4, 4.4)]
    one, two, four = compare_growth(turns)
    assert (one.wal_gb, one.seconds_gb, one.to_smallest) == (0.5, pytest.approx(3.0), 1.0)
    assert (two.to_smallest, two.low, two.high) == (pytest.approx(1.05), pytest.approx(1.0), pytest.approx(1.1))
    assert (four.wal_gb, four.to_smallest, four.driver_bytes) == (2.0, pytest.approx(1.05), 1004)
    assert [each.wal_gb for each in compare_growth(turns[:2])] == [0.5, 1.0]
