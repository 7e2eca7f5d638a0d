"""The result: by module and by kind, how many mutations were detected by what, and the score of all."""

from collections.abc import Callable, Sequence

from tests.mutation.edits import Mutation
from tests.mutation.trials import Verdict

# In the order in which they are tried: what the simulator detects is not left to another one.
SUITES = ("simulator", "units", "scenarios")
COLUMNS = ("mutations", *SUITES, "timeouts", "survived", "simulator %", "all %")
Tried = Sequence[tuple[Mutation, Verdict]]


def table(tried: Tried) -> str:
    """Return the table as text. Timeouts are counted in the suite where they happened, too."""
    keys: tuple[Callable[[Mutation], str], ...] = (lambda each: each.module, lambda each: each.kind, lambda each: "all")
    blocks = [[_line("", list(COLUMNS))], *([_row(name, rows) for name, rows in _groups(tried, key)] for key in keys)]
    return "\n\n".join("\n".join(block) for block in blocks)


def _groups(tried: Tried, key: Callable[[Mutation], str]) -> list[tuple[str, Tried]]:
    names = sorted({key(mutation) for mutation, _ in tried})
    return [(name, [each for each in tried if key(each[0]) == name]) for name in names]


def _row(name: str, tried: Tried) -> str:
    verdicts = [verdict for _, verdict in tried]
    count = len(verdicts)
    by = [sum(verdict.killed_by == suite for verdict in verdicts) for suite in SUITES]
    timeouts = sum(verdict.timed_out for verdict in verdicts)
    shares = (f"{100 * detected / count:.1f}" for detected in (by[0], sum(by)))
    return _line(name, [*map(str, (count, *by, timeouts, count - sum(by))), *shares])


def _line(name: str, cells: list[str]) -> str:
    return f"{name:<40}" + "".join(
        f"{cell:>{max(len(column), 5) + 2}}" for cell, column in zip(cells, COLUMNS, strict=True)
    )
