"""The figures of a report on a run: by moment, the longest times without a commit, sums. Pure.

A run has any number of operations, a page has room for some hundred points. So operations are summed up in bins of time
of one handy width, by when they ended: a slow operation shows where it succeeded.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from walproxy.html_page.charts import bin_width_us
from walproxy.lab.load.history import Outcome
from walproxy.lab.load.percentiles import percentile
from walproxy.lab.torture.plan import POWER_CUT
from walproxy.lab.torture.record import Fault, Operation, Run

BINS_MAX: Final = 300
OUTCOMES: Final[tuple[Outcome, ...]] = ("ok", "fail", "unknown")
_GAPS_MAX: Final = 10


class TimeBin(msgspec.Struct, frozen=True):
    """The operations that ended within one bin of time.

    Attributes:
        begin_s: where it begins.
        counts: how many operations, by outcome.
        p50_s, p99_s, max_s: of the ok ones' durations; None without any.
        other_max_s: the longest of those that failed, or of which nothing is known.
    """

    begin_s: float
    counts: dict[Outcome, int]
    p50_s: float | None
    p99_s: float | None
    max_s: float | None
    other_max_s: dict[Outcome, float]


class OutcomeSums(msgspec.Struct, frozen=True):
    """The outcomes of some operations; the times are of the ok ones, None without any."""

    counts: dict[Outcome, int]
    p50_s: float | None
    p99_s: float | None
    max_s: float | None


class Gap(msgspec.Struct, frozen=True):
    """A time without a commit, and the faults that were there meanwhile."""

    begin_s: float
    end_s: float
    faults: list[str]

    @property
    def seconds(self) -> float:
        """Its duration."""
        return self.end_s - self.begin_s


class FaultSums(msgspec.Struct, frozen=True):
    """The faults of one kind.

    Attributes:
        count: how many there were; a power cut is one, however many processes it kills.
        seconds: how long they lasted, of all targets together.
    """

    kind: str
    count: int
    seconds: float
    targets: list[str]


class Figures(msgspec.Struct, frozen=True):
    """Everything that is shown of a run in numbers."""

    width_s: float
    bins: list[TimeBin]
    all: OutcomeSums
    workloads: dict[str, OutcomeSums]
    gaps: list[Gap]
    faults: list[FaultSums]

    @property
    def fault_count(self) -> int:
        """The number of faults of all kinds."""
        return sum(row.count for row in self.faults)


def figures_of(run: Run) -> Figures:
    """Return the figures of a run."""
    width_us = bin_width_us(0, _us(run.seconds), BINS_MAX)
    by_workload: dict[str, list[Operation]] = {}
    for operation in run.operations:
        by_workload.setdefault(operation.workload, []).append(operation)
    return Figures(
        width_us / 1e6,
        _bins(run, width_us),
        sums_of(run.operations),
        {workload: sums_of(operations) for workload, operations in sorted(by_workload.items())},
        _gaps(run),
        _fault_sums(run),
    )


def duration_s(operation: Operation, run_s: float) -> float:
    """Return how long an operation took; one that never ended took the rest of the run."""
    return (run_s if operation.ended_s is None else operation.ended_s) - operation.begun_s


def _bins(run: Run, width_us: int) -> list[TimeBin]:
    number = _us(run.seconds) // width_us + 1
    contents: list[list[Operation]] = [[] for _ in range(number)]
    for operation in run.operations:
        end_s = run.seconds if operation.ended_s is None else operation.ended_s
        # What clients finish after the end of the run belongs to its last moment.
        contents[min(_us(end_s) // width_us, number - 1)].append(operation)
    return [_bin(index * width_us / 1e6, operations, run.seconds) for index, operations in enumerate(contents)]


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


def _bin(begin_s: float, operations: Sequence[Operation], run_s: float) -> TimeBin:
    sums = sums_of(operations)
    others: dict[Outcome, float] = {}
    for operation in operations:
        if operation.outcome != "ok":
            others[operation.outcome] = max(others.get(operation.outcome, 0.0), duration_s(operation, run_s))
    return TimeBin(begin_s, sums.counts, sums.p50_s, sums.p99_s, sums.max_s, others)


def sums_of(operations: Iterable[Operation]) -> OutcomeSums:
    """Return the outcomes and times of some operations."""
    counts: Counter[Outcome] = Counter()
    times_s = []
    for operation in operations:
        counts[operation.outcome] += 1
        if operation.outcome == "ok" and operation.ended_s is not None:
            times_s.append(operation.ended_s - operation.begun_s)
    all_counts = {outcome: counts[outcome] for outcome in OUTCOMES}
    if not times_s:
        return OutcomeSums(all_counts, None, None, None)
    times_s.sort()
    return OutcomeSums(all_counts, percentile(times_s, 50), percentile(times_s, 99), times_s[-1])


def pauses_of(operations: Iterable[Operation], run_s: float) -> list[tuple[float, float]]:
    """Return the times (begin, end) without an acknowledged commit, the longest first."""
    ends_s = sorted(each.ended_s for each in operations if each.outcome == "ok" and each.ended_s is not None)
    moments_s = [0.0, *(end_s for end_s in ends_s if end_s < run_s), run_s]
    return sorted(pairwise(moments_s), key=lambda pair: pair[0] - pair[1])


def _gaps(run: Run) -> list[Gap]:
    longest = pauses_of(run.operations, run.seconds)[:_GAPS_MAX]
    return [Gap(begin_s, end_s, _faults_within(run, begin_s, end_s)) for begin_s, end_s in longest if end_s > begin_s]


def _faults_within(run: Run, begin_s: float, end_s: float) -> list[str]:
    return [
        f"{fault.kind} {fault.target}"
        for fault in sorted(run.faults, key=lambda fault: fault.begun_s)
        if fault.begun_s < end_s and fault_end_s(fault, run.seconds) > begin_s
    ]


def fault_end_s(fault: Fault, run_s: float) -> float:
    """Return when a fault was undone; one that never was lasted to the end of the run."""
    return run_s if fault.ended_s is None else fault.ended_s


def _fault_sums(run: Run) -> list[FaultSums]:
    by_kind: dict[str, list[Fault]] = {}
    for fault in run.faults:
        by_kind.setdefault(fault.kind, []).append(fault)
    rows = [
        FaultSums(
            kind,
            _count(kind, faults),
            sum(fault_end_s(fault, run.seconds) - fault.begun_s for fault in faults),
            sorted({fault.target for fault in faults}),
        )
        for kind, faults in by_kind.items()
    ]
    return sorted(rows, key=lambda row: (-row.count, row.kind))


def _count(kind: str, faults: Sequence[Fault]) -> int:
    """Of a power cut each victim has a fault, and some are victims of each."""
    return max(Counter(fault.target for fault in faults).values()) if kind == POWER_CUT else len(faults)
