"""Detect growth of processes: the verdict of a soak, from its samples. Pure.

A process that leaks grows without end, one that does not has all that it will ever need after a while. So what it has
late in the run, in the last fifth, is compared with what it had early, when it was warm: after the first sixth, ten
minutes at most, during a fifth, ten minutes at most. Of an hour these are the last 12 minutes and the
minutes 10 to 20. Medians, because a single sample may fall into a moment's work.
"""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Final, NamedTuple

import msgspec

from walproxy.lab.torture.record import Sample, Violation

GROWTH_PERCENT_MAX: Final = 5.0
DESCRIPTORS_MAX: Final = 5
_WARM_UP_SHARE: Final = 1 / 6
_WINDOW_SHARE: Final = 1 / 5
_WINDOW_S_MAX: Final = 600.0


class Windows(NamedTuple):
    """The two parts of a run that are compared, in seconds since it began; the late one reaches to its end."""

    early_begin_s: float
    early_end_s: float
    late_begin_s: float


class Growth(msgspec.Struct, frozen=True):
    """The resources of a process early and late.

    Attributes:
        process: its name.
        is_judged: it may not grow; of others this is only shown.
        early_bytes, late_bytes: medians of its resident memory.
        peak_bytes: the most that any sample has.
        early_descriptors, late_descriptors: medians of its open file descriptors.
    """

    process: str
    is_judged: bool
    early_bytes: float
    late_bytes: float
    peak_bytes: int
    early_descriptors: float
    late_descriptors: float

    @property
    def percent(self) -> float:
        """The growth of its memory from early to late."""
        return 100 * (self.late_bytes / self.early_bytes - 1) if self.early_bytes else 0.0


def windows_of(seconds: float) -> Windows:
    """Return the spans that are compared in a run of that length."""
    warm_up_s = min(seconds * _WARM_UP_SHARE, _WINDOW_S_MAX)
    return Windows(warm_up_s, warm_up_s + min(seconds * _WINDOW_SHARE, _WINDOW_S_MAX), seconds * (1 - _WINDOW_SHARE))


def growth_of(samples: Sequence[Sample], seconds: float, is_judged: Callable[[str], bool]) -> list[Growth]:
    """Return the figures of each process that was there early and late, in the order in which they first appear."""
    early_begin_s, early_end_s, late_begin_s = windows_of(seconds)
    found = []
    for process in dict.fromkeys(sample.process for sample in samples):
        mine = [sample for sample in samples if sample.process == process]
        early = [sample for sample in mine if early_begin_s <= sample.at_s < early_end_s]
        late = [sample for sample in mine if sample.at_s >= late_begin_s]
        if not early or not late:
            continue
        found.append(
            Growth(
                process,
                is_judged(process),
                median(sample.resident_bytes for sample in early),
                median(sample.resident_bytes for sample in late),
                max(sample.resident_bytes for sample in mine),
                median(sample.file_descriptors for sample in early),
                median(sample.file_descriptors for sample in late),
            )
        )
    return found


def violations_of(samples: Sequence[Sample], seconds: float, is_judged: Callable[[str], bool]) -> list[Violation]:
    """Return what was not kept: a process that is judged has grown, or ended, or was not there from the beginning."""
    found = []
    figures = {each.process: each for each in growth_of(samples, seconds, is_judged)}
    last_s = max((sample.at_s for sample in samples), default=0.0)
    for process in filter(is_judged, dict.fromkeys(sample.process for sample in samples)):
        end_s = max(sample.at_s for sample in samples if sample.process == process)
        if end_s < last_s:
            found.append(Violation("ProcessEnded", f"{process} was last seen after {end_s:.0f} s of {last_s:.0f}"))
        elif process not in figures:
            found.append(
                Violation("TooFewSamples", f"{process} has no sample early in the run, so its growth is unknown")
            )
        else:
            found += _violations_of_one(figures[process])
    return found


def _violations_of_one(growth: Growth) -> list[Violation]:
    found = []
    if growth.percent > GROWTH_PERCENT_MAX:
        early_mib, late_mib = growth.early_bytes / (1 << 20), growth.late_bytes / (1 << 20)
        found.append(
            Violation(
                "MemoryGrows",
                f"{growth.process} has grown by {growth.percent:.1f} %, from {early_mib:.1f} to {late_mib:.1f} MiB in "
                f"RAM; up to {GROWTH_PERCENT_MAX:g} % is fine",
            )
        )
    if growth.late_descriptors > growth.early_descriptors + DESCRIPTORS_MAX:
        found.append(
            Violation(
                "DescriptorsGrow",
                f"{growth.process} has {growth.late_descriptors:g} file descriptors open, "
                f"{growth.early_descriptors:g} before; up to {DESCRIPTORS_MAX} more are fine",
            )
        )
    return found
