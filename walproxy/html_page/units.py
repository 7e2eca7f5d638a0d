"""Durations, sizes and bins of time in readable units. Pure."""

from typing import Final

_SECOND_US: Final = 1_000_000
_DAY_US: Final = 86_400 * _SECOND_US
# Widths of bins: 1 ms to 500 ms, then seconds, minutes, hours, days.
_WIDTHS_US: Final = (
    *(number * 1000 for number in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *(number * _SECOND_US for number in (1, 2, 5, 10, 15, 30)),
    *(number * 60 * _SECOND_US for number in (1, 2, 5, 10, 15, 30)),
    *(number * 3600 * _SECOND_US for number in (1, 2, 3, 6, 12)),
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
