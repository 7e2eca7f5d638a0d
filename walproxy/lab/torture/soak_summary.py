"""A soak in a few figures, for a terminal and as JSON."""

from typing import Any

import msgspec
from rich.table import Table

from walproxy.lab.torture.growth import Growth, growth_of
from walproxy.lab.torture.record import Run, Violation
from walproxy.lab.torture.report_figures import sums_of
from walproxy.lab.torture.soak import is_judged


class Summary(msgspec.Struct, frozen=True):
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


def summarise(run: Run) -> Summary:
    """Return a soak's figures."""
    sums = sums_of(run.operations)
    times_s = {"p50": sums.p50_s, "p99": sums.p99_s, "max": sums.max_s}
    return Summary(
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


def as_json(summary: Summary) -> bytes:
    """Return it as JSON, the growth of each process beside its terms."""
    content: dict[str, Any] = msgspec.to_builtins(summary)
    for row, growth in zip(content["processes"], summary.processes, strict=True):
        row["percent"] = round(growth.percent, 2)
    return msgspec.json.encode(content)


def growth_table(summary: Summary) -> Table:
    """Return the processes as a table."""
    table = Table(title=f"{summary.seconds / 60:.1f} minutes, {summary.commits:,} commits")
    for column in ("process", "RAM early, MiB", "late", "peak", "growth", "descriptors early", "late", "may grow"):
        table.add_column(column, justify="left" if column == "process" else "right")
    for each in summary.processes:
        mib = [f"{size / (1 << 20):.1f}" for size in (each.early_bytes, each.late_bytes, each.peak_bytes)]
        descriptors = [f"{number:g}" for number in (each.early_descriptors, each.late_descriptors)]
        table.add_row(each.process, *mib, f"{each.percent:+.1f} %", *descriptors, "no" if each.is_judged else "yes")
    return table
