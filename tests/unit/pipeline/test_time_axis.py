"""Bins of time, and the WAL that each stands for."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walproxy.html_page.charts import bin_width_us, duration_text, size_text
from walproxy.pipeline.jobs.time_axis import Knot, lsn_axis, time_axis

MINUTE_US = 60_000_000


def test_wal_between_two_times_is_spread_over_the_time_between_them() -> None:
    axis = time_axis([Knot(0, 1000), Knot(10 * MINUTE_US, 2000)], MINUTE_US)
    assert [(each.begin_lsn, each.end_lsn) for each in axis.bins[:-1]] == [
        (1000 + n * 100, 1100 + n * 100) for n in range(10)
    ]
    assert axis.bins[-1] == (10 * MINUTE_US, 2000, 2000)
    assert axis.labels()[1] == "1970-01-01T00:01:00.000000Z"


def test_an_idle_time_is_an_empty_bin() -> None:
    axis = time_axis(
        [Knot(0, 1000), Knot(100, 1500), Knot(3 * MINUTE_US, 1500), Knot(3 * MINUTE_US + 5, 1600)], MINUTE_US
    )
    assert [each.end_lsn - each.begin_lsn for each in axis.bins] == [500, 0, 0, 100]


def test_commits_out_of_order_do_not_make_wal_count_twice() -> None:
    axis = time_axis(
        [Knot(0, 1000), Knot(MINUTE_US, 1800), Knot(2 * MINUTE_US, 1700), Knot(3 * MINUTE_US, 2500)], MINUTE_US
    )
    assert all(left.end_lsn == right.begin_lsn for left, right in pairwise(axis.bins))
    assert sum(each.end_lsn - each.begin_lsn for each in axis.bins) == 1500


@given(
    knots=st.lists(st.builds(Knot, st.integers(0, 10**15), st.integers(0, 10**15)), min_size=1, max_size=30),
    bins_max=st.integers(2, 300),
)
def test_bins_cover_all_knots_without_a_hole_and_are_not_too_many(knots: list[Knot], bins_max: int) -> None:
    times = [knot.time_us for knot in knots]
    axis = time_axis(knots, bin_width_us(min(times), max(times), bins_max))
    assert 1 <= len(axis.bins) <= bins_max
    assert axis.bins[0].begin <= min(times)
    assert max(times) < axis.bins[-1].begin + axis.width
    assert all(left.begin + axis.width == right.begin for left, right in pairwise(axis.bins))
    assert all(left.end_lsn == right.begin_lsn for left, right in pairwise(axis.bins))
    assert axis.bins[-1].end_lsn == max(knot.lsn for knot in knots)


@given(begin=st.integers(0, 10**15), size=st.integers(0, 10**13), bins_max=st.integers(2, 300))
def test_bins_of_wal_cover_it_and_are_not_too_many(begin: int, size: int, bins_max: int) -> None:
    axis = lsn_axis(begin, begin + size, bins_max)
    assert 1 <= len(axis.bins) <= bins_max
    assert axis.bins[0].begin_lsn <= begin
    assert axis.bins[-1].end_lsn >= begin + size
    assert all(left.end_lsn == right.begin_lsn for left, right in pairwise(axis.bins))


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (duration_text(350_000), "350 ms"),
        (duration_text(12_500_000), "12.5 s"),
        (duration_text(90 * MINUTE_US), "1.5 h"),
        (size_text(512), "512 B"),
        (size_text(1000), "0.977 KiB"),
        (size_text(400 * 2**30), "400 GiB"),
        (size_text(3 * 2**42), "12 TiB"),
    ],
)
def test_numbers_are_written_for_people(text: str, written: str) -> None:
    assert text == written
