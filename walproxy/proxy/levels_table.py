"""Format the levels of synchronous_commit: tables for a terminal, or one line each."""

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from walproxy.proxy.levels import LevelRow, Slowest
from walproxy.proxy.status_table import format_bytes, format_seconds

_STYLE = {"ok": "green", "blocked": "red", "not gated": "red", "unknown": "yellow"}


def render_levels(rows: list[LevelRow]) -> Group:
    """Return the levels as two tables: what they wait for, and what each loss costs."""
    waits = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("level", "state", "p50", "p99", "waits for", "slowest"):
        waits.add_column(
            name, justify="right" if name in ("p50", "p99") else "left", no_wrap=name[0] in "lp", overflow="fold"
        )
    losses = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_lines=True)
    for name in ("level", "lost with the primary", "with the primary and a minority", "with a quorum's disks"):
        losses.add_column(name, no_wrap=name == "level", overflow="fold")
    problems = []
    for row in rows:
        waits.add_row(
            row.level,
            Text(row.state, style=_STYLE[row.state]),
            format_seconds(row.p50_s),
            format_seconds(row.p99_s),
            row.waits_for,
            Text(_slowest(row.slowest)),
        )
        losses.add_row(row.level, row.losses.primary, row.losses.primary_and_minority, row.losses.quorum_disks)
        if row.problem:
            problems.append(Text(f"{row.level} is {row.state}: {row.problem}", style=_STYLE[row.state]))
    return Group(*problems, waits, losses)


def level_line(row: LevelRow) -> str:
    """Return a level as one line, for a log."""
    problem = f" ({row.problem})" if row.problem else ""
    slowest = f", slowest {_slowest(row.slowest)}" if row.slowest is not None else ""
    return (
        f"{row.level} {row.state}{problem}: p50 {format_seconds(row.p50_s)}, p99 {format_seconds(row.p99_s)}, "
        f"waits for {row.waits_for}{slowest}; lost with the primary: {row.losses.primary}; with the primary and a "
        f"minority: {row.losses.primary_and_minority}; with a quorum's disks: {row.losses.quorum_disks}"
    )


def _slowest(slowest: Slowest | None) -> str:
    if slowest is None:
        return "-"
    if slowest.problem:
        # The link's problems already contain the name.
        what = slowest.problem if slowest.name in slowest.problem else f"{slowest.name}: {slowest.problem}"
    elif slowest.p50_s is not None:
        what = f"{slowest.name}: {format_seconds(slowest.p50_s)}, p99 {format_seconds(slowest.p99_s)}"
    elif slowest.lag_bytes is not None:
        what = f"{slowest.name}: lag {format_bytes(slowest.lag_bytes)}"
    else:
        what = slowest.name
    return what if slowest.is_needed else f"{what} (a commit does not need it)"
