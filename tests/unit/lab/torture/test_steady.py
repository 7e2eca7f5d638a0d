"""The workload of a soak: what is newest must be there, what is old may be gone."""

import pytest

from walproxy.lab.torture.record import Operation, Outcome
from walproxy.lab.torture.workloads.interface import Try
from walproxy.lab.torture.workloads.steady import KEPT, RowAttempt, Steady


def row(number: int, outcome: Outcome = "ok") -> Try:
    attempt = RowAttempt(number)
    return Try(Operation(1, "steady", number * 0.1, number * 0.1 + 0.05, outcome, str(attempt)), attempt)


HISTORY = [row(number) for number in range(1, KEPT + 11)]


def test_what_is_older_than_the_newest_so_many_may_be_gone_and_nothing_else() -> None:
    kept = set(range(11, KEPT + 11))
    assert Steady().check(kept, HISTORY) == []
    [violation] = Steady().check(kept - {11}, HISTORY)
    assert (violation.rule, violation.message) == ("Lost", "row 11: acknowledged at 1.150 s, and not in the table")


@pytest.mark.parametrize("outcome", ["fail", "unknown"])
def test_what_was_not_acknowledged_need_not_be_there(outcome: Outcome) -> None:
    assert Steady().check({1, 2}, [row(1), row(2), row(3, outcome)]) == []
