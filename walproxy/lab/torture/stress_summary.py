"""A stress in a few figures, for a terminal and as JSON."""

import msgspec
from rich.table import Table

from walproxy.lab.load.history import Outcome
from walproxy.lab.load.percentiles import percentile
from walproxy.lab.torture.record import Violation
from walproxy.lab.torture.report_figures import figures_of
from walproxy.lab.torture.run import Stressed


class StressSummary(msgspec.Struct, frozen=True):
    """The output of `--json`.

    Attributes:
        operations: by workload, how many had which outcome.
        faults: by kind, how many there were; a power cut of everybody is one.
        fault_count: of all kinds.
        recovery_s: from the end of a bout of faults until the first commit that began after it: the median and the
            longest; none without any.
    """

    seed: int
    seconds: float
    engine: str
    postgres: str
    safekeepers: int
    operations: dict[str, dict[Outcome, int]]
    faults: dict[str, int]
    fault_count: int
    recovery_s: dict[str, float]
    violations: list[Violation]


def summarise_stress(stressed: Stressed) -> StressSummary:
    """Return a run's figures."""
    run, recoveries_s = stressed
    figures = figures_of(run)
    ordered = sorted(recoveries_s)
    recovery_s = {"p50": round(percentile(ordered, 50), 2), "max": round(ordered[-1], 2)} if ordered else {}
    return StressSummary(
        run.seed,
        round(run.seconds, 1),
        run.engine,
        run.postgres,
        run.safekeepers,
        {workload: sums.counts for workload, sums in figures.workloads.items()},
        dict(sorted((row.kind, row.count) for row in figures.faults)),
        figures.fault_count,
        recovery_s,
        run.violations,
    )


def stress_table(summary: StressSummary) -> Table:
    """Return the figures as a table."""
    title = (
        f"seed {summary.seed}: {summary.seconds:.0f} s, PostgreSQL {summary.postgres}, "
        f"{summary.safekeepers} safekeepers in {summary.engine}"
    )
    table = Table(title=title, show_header=False)
    for workload, outcomes in summary.operations.items():
        table.add_row(workload, f"{outcomes['ok']:,} ok, {outcomes['fail']:,} failed, {outcomes['unknown']:,} unknown")
    kinds = ", ".join(f"{kind} {count}" for kind, count in summary.faults.items())
    table.add_row("faults", f"{summary.fault_count}: {kinds}" if summary.faults else "none")
    if summary.recovery_s:
        longest_s, median_s = summary.recovery_s["max"], summary.recovery_s["p50"]
        table.add_row("commits resumed after faults", f"after {median_s:.1f} s (median), {longest_s:.1f} s (longest)")
    table.add_row("violations", f"{len(summary.violations)}")
    return table
