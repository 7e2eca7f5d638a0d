"""A stress or a soak in a few figures, for a terminal and as JSON."""

from typing import Any

import msgspec
from rich.table import Table

from walproxy.lab.load.history import Outcome
from walproxy.lab.load.percentiles import percentile
from walproxy.lab.torture.growth import Growth, growth_of
from walproxy.lab.torture.record import Run, Violation
from walproxy.lab.torture.report_figures import figures_of, sums_of
from walproxy.lab.torture.run import Stressed
from walproxy.lab.torture.soak import is_judged


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


class SoakSummary(msgspec.Struct, frozen=True):
    """The output of `--soak --json`.

    Attributes:
        commits, not_ok: how many were acknowledged, and how many were not.
        commit_ms: what half of the acknowledged ones, and 99 of 100, did not exceed, and the longest; none without any.
        processes: what each process had early and late.
    """

    seconds: float
    engine: str
    postgres: str
    safekeepers: int
    commits: int
    not_ok: int
    commit_ms: dict[str, float]
    processes: list[Growth]
    violations: list[Violation]


def summarise_soak(run: Run) -> SoakSummary:
    """Return a soak's figures."""
    sums = sums_of(run.operations)
    times_s = {"p50": sums.p50_s, "p99": sums.p99_s, "max": sums.max_s}
    return SoakSummary(
        run.seconds,
        run.engine,
        run.postgres,
        run.safekeepers,
        sums.counts["ok"],
        len(run.operations) - sums.counts["ok"],
        {name: round(1000 * each_s, 2) for name, each_s in times_s.items() if each_s is not None},
        growth_of(run.samples, run.seconds, is_judged),
        run.violations,
    )


def soak_as_json(summary: SoakSummary) -> bytes:
    """Return it as JSON, the growth of each process beside its terms."""
    content: dict[str, Any] = msgspec.to_builtins(summary)
    for row, growth in zip(content["processes"], summary.processes, strict=True):
        row["percent"] = round(growth.percent, 2)
    return msgspec.json.encode(content)


def growth_table(summary: SoakSummary) -> Table:
    """Return the processes as a table."""
    table = Table(title=f"{summary.seconds / 60:.1f} minutes, {summary.commits:,} commits")
    for column in ("process", "RAM early, MiB", "late", "peak", "growth", "descriptors early", "late", "may grow"):
        table.add_column(column, justify="left" if column == "process" else "right")
    for each in summary.processes:
        mib = [f"{size / (1 << 20):.1f}" for size in (each.early_bytes, each.late_bytes, each.peak_bytes)]
        descriptors = [f"{number:g}" for number in (each.early_descriptors, each.late_descriptors)]
        table.add_row(each.process, *mib, f"{each.percent:+.1f} %", *descriptors, "no" if each.is_judged else "yes")
    return table
