"""The times of bytes of WAL: bins of time, each with the range of WAL that it stands for.

Only the records that end transactions carry a time. Between two of them it is taken to pass evenly with the bytes, so a
bulk load of an hour spreads over that hour although its one commit comes last. WAL before the first such record
and after the last one has no time.

Where WAL has no two times at all, the bins are of LSNs instead. Pure.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final, NamedTuple

from safekeeper.base.lsn import Lsn, format_lsn

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_WIDTH_BYTES_MIN: Final = 8192


class Knot(NamedTuple):
    """A place in WAL whose time is known, in microseconds since 1970."""

    time_us: int
    lsn: Lsn


class Bin(NamedTuple):
    """A bar of a chart: where it begins on the axis, and the WAL that it stands for (none, if it is empty)."""

    begin: int
    begin_lsn: Lsn
    end_lsn: Lsn


class Axis(NamedTuple):
    """The bins of all charts.

    Attributes:
        has_times: bins begin at times (microseconds since 1970) and not at LSNs.
        width: of each, in microseconds or bytes.
    """

    has_times: bool
    width: int
    bins: list[Bin]

    def label_of(self, lsn: Lsn) -> str | None:
        """Return where an LSN falls on the axis, None if it is outside of all bins."""
        index = bisect_right(self.bins, lsn, key=lambda each: each.begin_lsn) - 1
        if index < 0 or lsn >= self.bins[index].end_lsn:
            return None
        found = self.bins[index]
        passed = self.width * (lsn - found.begin_lsn) // (found.end_lsn - found.begin_lsn)
        return self._label(found.begin + passed)

    def labels(self) -> list[str]:
        """Return where each bin begins, as a time in UTC or as an LSN."""
        return [self._label(each.begin) for each in self.bins]

    def _label(self, place: int) -> str:
        return time_text(place) if self.has_times else format_lsn(place)


def time_axis(knots: Iterable[Knot], width_us: int) -> Axis:
    """Return bins of time, aligned to their width, from the first knot's to the last one's.

    Args:
        knots: at least one; commits are written nearly, not exactly, in the order of their times.
    """
    ordered = sorted(knots)
    times, lsns, highest_lsn = [], [], 0
    for knot in ordered:
        highest_lsn = max(highest_lsn, knot.lsn)
        times.append(knot.time_us)
        lsns.append(highest_lsn)
    begin_us = times[0] // width_us * width_us
    begins = range(begin_us, times[-1] + 1, width_us)
    bounds = _interpolate([*begins, begins[-1] + width_us], times, lsns)
    return Axis(True, width_us, [Bin(begin, *bound) for begin, bound in zip(begins, pairwise(bounds), strict=True)])


def _interpolate(wanted: Sequence[int], times: Sequence[int], lsns: Sequence[Lsn]) -> list[Lsn]:
    """Return the LSN at each of the ascending times, that of the nearest knot outside of all knots."""
    found = []
    right = 0
    for time in wanted:
        while right < len(times) and times[right] < time:
            right += 1
        if right == 0 or right == len(times):
            found.append(lsns[0] if right == 0 else lsns[-1])
            continue
        left = right - 1
        passed = (time - times[left]) / (times[right] - times[left])
        found.append(lsns[left] + int((lsns[right] - lsns[left]) * passed))
    return found


def lsn_axis(begin_lsn: Lsn, end_lsn: Lsn, bins_max: int) -> Axis:
    """Return bins of WAL of one width, a power of two."""
    width = _WIDTH_BYTES_MIN
    while (end_lsn - 1) // width - begin_lsn // width >= bins_max:
        width *= 2
    begins = range(begin_lsn // width * width, max(end_lsn, begin_lsn + 1), width)
    return Axis(False, width, [Bin(begin, begin, begin + width) for begin in begins])


def time_of(time_us: int) -> datetime:
    """Return a time in UTC."""
    return _EPOCH + timedelta(microseconds=time_us)


def time_text(time_us: int) -> str:
    """Return a time as ISO 8601 writes it, in UTC."""
    return time_of(time_us).isoformat(timespec="microseconds").replace("+00:00", "Z")
