"""What a page shows: charts, and durations and sizes in readable units. Pure.

A `Chart` is Plotly's JSON; its colours are slots, which the page fills in, for light or dark. A `BarChart` has stacked
bars, as paths of SVG. Its plot is stretched to the width of the page, so it has no text in it: titles, legends and the
labels of its axes are HTML around it, and stay readable on a telephone. One path for each layer keeps a page of many
bars small.
"""

from collections.abc import Sequence
from html import escape
from typing import Any, Final, NamedTuple

import msgspec

SLOTS: Final = 8
"""Slots with numbers, from 0, as a trace's `slot`."""
OTHER_SLOT: Final = "other"
HEIGHT: Final = 1000
"""Of a plot of bars, in units of its view box; each bar is one unit wide."""

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_LABEL_CHARS_MAX: Final = 48
_SECOND_US: Final = 1_000_000
_DAY_US: Final = 86_400 * _SECOND_US
# Widths of bins: 1 ms to 500 ms, then seconds, minutes, hours, days.
_WIDTHS_US: Final = (
    *(number * 1000 for number in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *(number * _SECOND_US for number in (1, 2, 5, 10, 15, 30)),
    *(number * 60 * _SECOND_US for number in (1, 2, 5, 10, 15, 30)),
    *(number * 3600 * _SECOND_US for number in (1, 2, 3, 6, 12)),
)


class Chart(msgspec.Struct, kw_only=True):
    """A chart.

    Attributes:
        id: of its element.
        title: above it.
        summary: a description for screen readers.
        traces, layout: Plotly's; a trace's `slot` is its colour.
        empty: why there is nothing to draw, empty if there is.
    """

    id: str
    title: str
    summary: str
    traces: list[dict[str, Any]] = []
    layout: dict[str, Any] = {}
    empty: str = ""


def scale_of(largest: float) -> tuple[str, float]:
    """Return the unit for sizes up to `largest`, and its bytes."""
    scale, number = 1.0, 0
    while largest / scale >= 1024 and number < len(_UNITS) - 1:
        scale *= 1024
        number += 1
    return _UNITS[number], scale


def rounded(value: float) -> float:
    """Return a value with the digits that a chart shows: the page would be twice as large with all of them."""
    return float(f"{value:.5g}")


def label_of(name: str) -> str:
    """Return a name for a legend, which Plotly reads as if it were HTML."""
    short = name if len(name) <= _LABEL_CHARS_MAX else f"{name[: _LABEL_CHARS_MAX - 1]}…"
    return escape(short, quote=False)


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


def bin_width_us(first_us: int, last_us: int, bins_max: int) -> int:
    """Return the smallest width with which at most `bins_max` aligned bins contain both times."""
    days = 1
    for width in _WIDTHS_US:
        if last_us // width - first_us // width < bins_max:
            return width
    while last_us // (days * _DAY_US) - first_us // (days * _DAY_US) >= bins_max:
        days += 1
    return days * _DAY_US


def duration_text(duration_us: float) -> str:
    """Return a duration in the unit that suits it: `350 ms`, `12.5 s`, `5 min`, `3 h`."""
    for unit, unit_us in (("d", _DAY_US), ("h", 3600 * _SECOND_US), ("min", 60 * _SECOND_US), ("s", _SECOND_US)):
        if duration_us >= unit_us:
            return f"{duration_us / unit_us:.3g} {unit}"
    return f"{duration_us / 1000:.3g} ms"


def size_text(size: float) -> str:
    """Return a number of bytes in the unit that suits it: `512 B`, `16 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"
