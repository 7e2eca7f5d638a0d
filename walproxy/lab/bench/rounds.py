"""Turns in rounds: every cell of an experiment once a round, in an order that is drawn for each round.

Machines drift while they are measured. So figures of different moments are never compared: each is divided by the
base's figure of the same round, and the median over the rounds is what is reported. The order is shuffled, so that no
cell always runs after the same other one.
"""

import random
import statistics
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

_Cell = TypeVar("_Cell", bound=Hashable)


class Ratio(NamedTuple):
    """The ratio of a cell's figures to those of its base: the median over the rounds, the lowest, the highest."""

    median: float
    low: float
    high: float


def shuffled_rounds(cells: Sequence[_Cell], rounds: int) -> Iterator[tuple[int, _Cell]]:
    """Yield (number of the round, cell), each cell once in every round."""
    for number in range(rounds):
        order = list(cells)
        random.shuffle(order)
        for cell in order:
            yield number, cell


def ratio(figures: Mapping[tuple[int, _Cell], float], cell: _Cell, base: _Cell) -> Ratio | None:
    """Return how `cell` relates to `base` in the rounds that have both, None if there is none.

    Args:
        figures: by number of the round and cell.
    """
    pairs = [(figures[place], figures.get((place[0], base))) for place in figures if place[1] == cell]
    ratios = [mine / other for mine, other in pairs if other is not None]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios)) if ratios else None


def median(figures: Mapping[tuple[int, _Cell], float], cell: _Cell) -> float:
    """Return the median of the cell's own figures."""
    return statistics.median(figure for (_, each), figure in figures.items() if each == cell)
