"""The table at the end: by module and by kind, how many mutations were detected by what."""

from collections.abc import Callable, Sequence

from tests.mutation.edits import Mutation
from tests.mutation.explanations import Explanation
from tests.mutation.trials import Verdict

SUITES = ("units", "scenarios", "simulator")
COLUMNS = ("mutations", *SUITES, "timeouts", "survived", "explained", "detected %")
Tried = Sequence[tuple[Mutation, Verdict]]


def table(tried: Tried, explanations: dict[str, Explanation]) -> str:
    """Return the table as text. Timeouts are counted in the suite where they happened, too."""
    keys: tuple[Callable[[Mutation], str], ...] = (lambda each: each.module, lambda each: each.kind, lambda each: "all")
    blocks = [[_heading()], *([_row(name, rows, explanations) for name, rows in _groups(tried, key)] for key in keys)]
    return "\n\n".join("\n".join(block) for block in blocks)


def _groups(tried: Tried, key: Callable[[Mutation], str]) -> list[tuple[str, Tried]]:
    names = sorted({key(mutation) for mutation, _ in tried})
    return [(name, [each for each in tried if key(each[0]) == name]) for name in names]


def _heading() -> str:
    return _line("", list(COLUMNS))


def _row(name: str, tried: Tried, explanations: dict[str, Explanation]) -> str:
    verdicts = [verdict for _, verdict in tried]
    count = len(verdicts)
    by = [sum(verdict.killed_by == suite for verdict in verdicts) for suite in SUITES]
    survivors = [verdict for verdict in verdicts if verdict.survived]
    explained = sum(verdict.id in explanations for verdict in survivors)
    numbers = [count, *by, sum(verdict.timed_out for verdict in verdicts), len(survivors), explained]
    return _line(name, [*map(str, numbers), f"{100 * (count - len(survivors)) / count:.1f}"])


def _line(name: str, cells: list[str]) -> str:
    return f"{name:<40}" + "".join(
        f"{cell:>{max(len(column), 5) + 2}}" for cell, column in zip(cells, COLUMNS, strict=True)
    )
