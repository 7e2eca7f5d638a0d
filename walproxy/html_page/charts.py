"""A chart, as Plotly's JSON. Colours are slots, which the page fills in, for light or dark. Pure."""

from html import escape
from typing import Any, Final

import msgspec

SLOTS: Final = 8
"""Slots with numbers, from 0, as a trace's `slot`."""
OTHER_SLOT: Final = "other"

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_LABEL_CHARS_MAX: Final = 48


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
