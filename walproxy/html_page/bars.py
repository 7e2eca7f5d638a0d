"""Charts of stacked bars, as paths of SVG. Pure.

A chart's plot is stretched to the width of the page, so it has no text in it: titles, legends and the labels of its
axes are HTML around it, and stay readable on a telephone. One path for each layer keeps a page of many bars small.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

HEIGHT: Final = 1000
"""Of a plot, in units of its view box; each bar is one unit wide."""


class Layer(NamedTuple):
    """The values of one name, one for each bar, from 0 to 1: shares of the plot's height.

    Attributes:
        slot: its colour: a number from 0 to 7, `other` or `images`.
        total: of all bars, for the legend; empty for none.
    """

    name: str
    slot: int | str
    values: Sequence[float]
    total: str = ""


class BarChart(NamedTuple):
    """A chart.

    Attributes:
        id: of its element.
        title, summary: above it, and for screen readers.
        layers: from the bottom up; none if there is nothing to draw.
        y_labels: at the top, in the middle and at the bottom.
        x_labels: from left to right, evenly.
        marks: places of dotted lines, from 0, the left edge, to 1.
        empty: why there is nothing to draw.
    """

    id: str
    title: str
    summary: str
    layers: Sequence[Layer] = ()
    y_labels: Sequence[str] = ()
    x_labels: Sequence[str] = ()
    marks: Sequence[float] = ()
    empty: str = ""

    @property
    def view_box(self) -> str:
        """The plot's, for `width` bars."""
        return f"0 0 {self.width} {HEIGHT}"

    @property
    def width(self) -> int:
        """The number of bars."""
        return len(self.layers[0].values) if self.layers else 0

    def paths(self) -> list[tuple[Layer, str]]:
        """Return each layer with its path; one without a visible bar has an empty one."""
        below = [0] * self.width
        found = []
        for layer in self.layers:
            steps = []
            for place, value in enumerate(layer.values):
                height = min(round(value * HEIGHT), HEIGHT - below[place])
                if height > 0:
                    steps.append(f"M{place} {HEIGHT - below[place]}v-{height}h1v{height}z")
                    below[place] += height
            found.append((layer, "".join(steps)))
        return found


def top_of(largest: float) -> float:
    """Return a round number that is not less than the largest value, and not more than 1.5 times that."""
    power = 1.0
    while power < largest:
        power *= 10
    while power / 10 >= largest > 0:
        power /= 10
    return next(
        power * part for part in (0.1, 0.12, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0) if power * part >= largest
    )
