"""What a soak says of commits, and how it is summed up."""

import msgspec
import pytest

from walproxy.lab.torture.record import Operation, Outcome, Run, Sample, Violation
from walproxy.lab.torture.soak import commit_violations, is_judged
from walproxy.lab.torture.summaries import soak_as_json, summarise_soak


def operations(seconds: float, per_s: float, outcome: Outcome = "ok") -> list[Operation]:
    """Commits of 10 ms each, evenly spread."""
    return [
        Operation(1, "steady", n / per_s, n / per_s + 0.01, outcome, f"row {n}") for n in range(int(seconds * per_s))
    ]


def rules(found: list[Operation], seconds: float = 100.0, per_s: float = 10.0) -> list[str]:
    return [violation.rule for violation in commit_violations(found, seconds, per_s, "")]


def test_commits_at_their_rate_that_are_all_answered_are_fine() -> None:
    assert rules(operations(100, 10)) == []


@pytest.mark.parametrize("outcome", ["fail", "unknown"])
def test_one_commit_that_is_not_acknowledged_is_too_many(outcome: Outcome) -> None:
    bad = Operation(1, "steady", 50.0, None if outcome == "unknown" else 51.0, outcome, "row 7")
    [violation] = commit_violations([*operations(100, 10), bad], 100.0, 10.0, "terminating connection")
    assert violation == Violation(
        "CommitsFailed", "1 commits failed, the first 50.0 s in; a client's last error: terminating connection"
    )


@pytest.mark.parametrize(("begin_s", "end_s"), [(0, 31), (40, 71), (69, 100)])
def test_half_a_minute_without_a_commit_is_too_long_wherever_it_lies(begin_s: float, end_s: float) -> None:
    found = [each for each in operations(100, 10) if not begin_s <= each.begun_s < end_s]
    assert "NoProgress" in rules(found)
    assert "NoProgress" not in rules([each for each in operations(100, 10) if not begin_s + 2 <= each.begun_s < end_s])


@pytest.mark.parametrize(("per_s", "expected"), [(8.0, []), (7.9, ["LoadTooSmall"])])
def test_a_load_far_below_what_was_asked_for_is_reported(per_s: float, expected: list[str]) -> None:
    assert rules(operations(100, per_s)) == expected


@pytest.mark.parametrize(
    ("process", "expected"),
    [("walproxy", True), ("walproxy2", True), ("safekeeper7", True), ("postgres", False), ("standby1", False)],
)
def test_proxies_and_safekeepers_are_judged_and_no_postgresql(process: str, expected: bool) -> None:
    assert is_judged(process) == expected


def test_the_figures_as_json_have_no_operations_and_each_growth() -> None:
    run = Run(
        0,
        100.0,
        "processes",
        "18.1",
        3,
        [*operations(100, 10), Operation(1, "steady", 5.0, None, "unknown", "row 0")],
        [],
        [Sample(float(at_s), "walproxy", 100 + (at_s >= 80), 20) for at_s in range(100)],
        [Violation("Interrupted", "by hand")],
    )
    content = msgspec.json.decode(soak_as_json(summarise_soak(run)))
    assert (content["commits"], content["not_ok"], content["commit_ms"]["p50"]) == (1000, 1, 10.0)
    assert [(row["process"], row["percent"]) for row in content["processes"]] == [("walproxy", 1.0)]
    assert content["violations"] == [{"rule": "Interrupted", "message": "by hand"}]
    assert "operations" not in content
