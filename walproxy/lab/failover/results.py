"""The results of the rounds, and the table of the gaps. Pure."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

import msgspec
from rich.table import Table

from walproxy.lab.failover.plan import FAULTS, LOSSES, SWITCHOVER

GAP_GOALS_S: Final = {5.0: 6.0, 1.0: 3.0}
"""By --dead-after: what the median gap of a failover must be below."""

SWITCHOVER_GOAL_S: Final = 2.0


class RoundResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """One round.

    Attributes:
        fault: as planned, in words.
        at: the local time at which the fault began, to find it in logs.
        old, new: the primary's host before and after.
        old_tli, new_tli: its timeline before and after.
        gap_s: the longest time without an acknowledgement to a client, around the fault.
        servers_gap_s: the same with the probes, which need not find a server.
        resumed_s: from the end of the fault until the first acknowledgement to a client.
        recorded_s: the time without commits that the manager has recorded of a change of the primary; None without one.
        well_s: from the end of the fault until all servers were well again.
        acknowledged: how many rows were, in this round.
        discarded: transactions that an old primary had and the new one lacks, by its WAL.
        compared: of how many old primaries the discarded report was compared with their WAL.
        not_compared: of how many it was not, because their WAL was overwritten before it was copied.
        violations: what must not be, one line each.
    """

    number: int
    kind: str
    fault: str
    at: str
    old: str
    new: str
    old_tli: int
    new_tli: int
    gap_s: float
    servers_gap_s: float
    resumed_s: float
    well_s: float
    acknowledged: int = 0
    discarded: int = 0
    compared: int = 0
    not_compared: int = 0
    violations: tuple[str, ...] = ()
    recorded_s: float | None = None

    @property
    def has_changed(self) -> bool:
        """Whether another server is the primary, or the same after a promotion."""
        return self.old_tli != self.new_tli


class RunResult(msgspec.Struct, frozen=True):
    """A run.

    Attributes:
        manager: of the servers, e.g. "walproxy agent".
        isolation: "in network namespaces", or why there were none, and so no partitions.
        load_average: of the machine at the end, over 15 minutes: a busy machine has longer gaps.
        cores: of the machine.
        acknowledged: rows in all.
        acknowledged_on_lists: transactions of appends and reads in all.
        violations: of all rounds, and of the comparisons at the end.
    """

    manager: str
    seed: int
    dead_after_s: float
    postgres: str
    isolation: str
    load_average: float
    cores: int
    rounds: list[RoundResult]
    acknowledged: int
    acknowledged_on_lists: int
    violations: list[str]

    def losses(self) -> list[RoundResult]:
        """Return the rounds in which the primary was lost, and another server was promoted."""
        return [each for each in self.rounds if each.kind in LOSSES and each.has_changed]

    def median_gap_s(self) -> float | None:
        """Return the median gap of a failover; None without any."""
        gaps = [each.gap_s for each in self.losses()]
        return round(median(gaps), 2) if gaps else None

    def median_switchover_s(self) -> float | None:
        """Return the median gap of a switchover; None without any."""
        gaps = [each.gap_s for each in self.rounds if each.kind == SWITCHOVER]
        return round(median(gaps), 2) if gaps else None

    def missed_goals(self) -> list[str]:
        """Return the goals that the gaps have missed."""
        missed = []
        gap_s, goal_s = self.median_gap_s(), GAP_GOALS_S.get(self.dead_after_s)
        if gap_s is not None and goal_s is not None and gap_s >= goal_s:
            missed.append(f"the median gap of a failover is {gap_s:g} s, not below {goal_s:g} s")
        switchover_s = self.median_switchover_s()
        if switchover_s is not None and switchover_s >= SWITCHOVER_GOAL_S:
            missed.append(f"the median gap of a switchover is {switchover_s:g} s, not below {SWITCHOVER_GOAL_S:g} s")
        return missed


def gap_table(result: RunResult) -> Table:
    """Return a table of the gaps by the kind of the fault."""
    title = (
        f"{result.manager}, dead after {result.dead_after_s:g} s, seed {result.seed}, PostgreSQL {result.postgres}, "
        f"{result.isolation}, load average {result.load_average:.1f} on {result.cores} cores: {result.acknowledged:,} "
        f"acknowledged rows, {result.acknowledged_on_lists:,} transactions on lists"
    )
    table = Table(title=title)
    table.add_column("fault")
    gaps = "gap: median", "max", "servers: median", "without a change: max"
    for name in (
        "rounds",
        "changes",
        *gaps,
        "after: max",
        "recorded: off",
        "discarded",
        "compared",
        "violations",
    ):
        table.add_column(name, justify="right")
    for kind in (*FAULTS, SWITCHOVER):
        of_kind = [each for each in result.rounds if each.kind == kind]
        if of_kind:
            table.add_row(kind, *_cells(of_kind))
    losses = result.losses()
    if losses:
        table.add_section()
        table.add_row("lost primaries", *_cells(losses))
    return table


def _cells(rounds: Sequence[RoundResult]) -> Sequence[str]:
    changed = [each for each in rounds if each.has_changed]
    gaps_s, servers_s = [each.gap_s for each in changed], [each.servers_gap_s for each in changed]
    unchanged_s = [each.gap_s for each in rounds if not each.has_changed]
    compared = sum(each.compared for each in rounds)
    return (
        str(len(rounds)),
        str(len(changed)),
        _seconds(median, gaps_s),
        _seconds(max, gaps_s),
        _seconds(median, servers_s),
        _seconds(max, unchanged_s),
        _seconds(max, [each.resumed_s for each in rounds]),
        _seconds(median, [abs(each.recorded_s - each.gap_s) for each in changed if each.recorded_s is not None]),
        str(sum(each.discarded for each in rounds)),
        f"{compared} of {compared + sum(each.not_compared for each in rounds)}",
        str(sum(len(each.violations) for each in rounds)),
    )


def _seconds(of: Callable[[list[float]], float], values_s: list[float]) -> str:
    return f"{of(values_s):.2f} s" if values_s else ""
