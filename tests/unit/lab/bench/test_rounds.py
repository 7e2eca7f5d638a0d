"""Turns in rounds, and the medians of ratios within rounds."""

import random

import pytest

from walproxy.lab.bench.rounds import Ratio, median, ratio, shuffled_rounds

CELLS = ["a", "b", "c", "d", "e", "f", "g", "h"]


def test_every_cell_has_its_turn_once_in_every_round() -> None:
    turns = list(shuffled_rounds(CELLS, 3))
    for number in range(3):
        assert sorted(cell for each, cell in turns if each == number) == CELLS
    assert [number for number, _ in turns] == sorted(number for number, _ in turns)


def test_the_order_changes_from_round_to_round() -> None:
    random.seed(1)
    turns = list(shuffled_rounds(CELLS, 3))
    orders = {tuple(cell for each, cell in turns if each == number) for number in range(3)}
    assert len(orders) == 3


def test_a_machine_that_drifts_does_not_change_the_ratio() -> None:
    # Each round is ten times slower than the one before it, and `b` takes half of what `a` takes.
    figures = {(number, cell): share / 10**number for number in range(3) for cell, share in (("a", 100.0), ("b", 50.0))}
    assert ratio(figures, "b", "a") == Ratio(*[pytest.approx(0.5)] * 3)


def test_one_bad_round_does_not_change_the_median_but_the_range() -> None:
    figures = {(0, "a"): 10.0, (0, "b"): 8.0, (1, "a"): 10.0, (1, "b"): 0.1, (2, "a"): 10.0, (2, "b"): 9.0}
    assert ratio(figures, "b", "a") == Ratio(pytest.approx(0.8), pytest.approx(0.01), pytest.approx(0.9))
    assert median(figures, "b") == 8.0


def test_rounds_without_the_base_do_not_count_and_without_any_there_is_no_ratio() -> None:
    figures = {(0, "a"): 10.0, (0, "b"): 5.0, (1, "b"): 100.0}
    assert ratio(figures, "b", "a") == Ratio(0.5, 0.5, 0.5)
    assert ratio(figures, "b", "nobody") is None
