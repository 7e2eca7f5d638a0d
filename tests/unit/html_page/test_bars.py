"""Stacked bars as paths: heights, order, and what does not fit."""

import re

import pytest

from walproxy.html_page.charts import HEIGHT, BarChart, Layer, top_of


def test_layers_stand_on_each_other() -> None:
    chart = BarChart("id", "title", "summary", [Layer("a", 0, [0.5, 0.0, 1.0]), Layer("b", 1, [0.25, 0.75, 0.0])])
    (_, first), (_, second) = chart.paths()
    assert first == f"M0 {HEIGHT}v-500h1v500zM2 {HEIGHT}v-1000h1v1000z"
    assert second == f"M0 500v-250h1v250zM1 {HEIGHT}v-750h1v750z"
    assert chart.view_box == f"0 0 3 {HEIGHT}"


def test_rounding_never_leaves_the_plot() -> None:
    chart = BarChart("id", "title", "summary", [Layer(str(number), 0, [0.1005]) for number in range(10)])
    heights = [int(height) for _, path in chart.paths() for height in re.findall(r"h1v(\d+)z", path)]
    assert sum(heights) <= HEIGHT


def test_a_chart_without_layers_has_no_path() -> None:
    chart = BarChart("id", "title", "summary", empty="No WAL.")
    assert (chart.width, chart.paths()) == (0, [])


@pytest.mark.parametrize(
    ("largest", "top"), [(0.33, 0.4), (640, 800), (1000, 1000), (1001, 1200), (0.7, 0.8), (99, 100), (2, 2)]
)
def test_an_axis_ends_at_a_round_number(largest: float, top: float) -> None:
    assert top_of(largest) == pytest.approx(top)


def test_an_axis_of_zeros_has_a_length() -> None:
    assert top_of(0) > 0
