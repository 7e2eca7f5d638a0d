"""The gaps of a run, and their table."""

from io import StringIO

from rich.console import Console

from walproxy.lab.failover.plan import KILL_AGENT, KILL_HOST, SWITCHOVER
from walproxy.lab.failover.results import RoundResult, RunResult, gap_table


def a_round(kind: str, gap_s: float, *, changes: bool = True, violations: tuple[str, ...] = ()) -> RoundResult:
    return RoundResult(
        number=1,
        kind=kind,
        fault=kind,
        at="2026-11-25T18:52:01.853",
        old="pg1",
        new="pg2",
        old_tli=1,
        new_tli=2 if changes else 1,
        gap_s=gap_s,
        servers_gap_s=gap_s - 0.2,
        resumed_s=0.5,
        well_s=3.0,
        recorded_s=gap_s - 0.25,
        discarded=4,
        compared=1,
        violations=violations,
    )


def run(*rounds: RoundResult, dead_after_s: float = 5.0) -> RunResult:
    return RunResult(
        manager="walproxy agent",
        seed=7,
        dead_after_s=dead_after_s,
        postgres="18.1",
        isolation="in network namespaces",
        load_average=0.5,
        cores=2,
        rounds=list(rounds),
        acknowledged=1234,
        acknowledged_on_lists=56,
        violations=[],
    )


def test_only_lost_primaries_count_for_the_median() -> None:
    result = run(
        a_round(KILL_HOST, 6.5),
        a_round(KILL_HOST, 5.5),
        a_round(KILL_HOST, 5.0),
        a_round(KILL_HOST, 0.1, changes=False),
        a_round(KILL_AGENT, 0.2),
        a_round(SWITCHOVER, 1.5),
    )
    assert result.median_gap_s() == 5.5
    assert result.median_switchover_s() == 1.5
    assert result.missed_goals() == []


def test_a_median_above_its_goal_is_missed() -> None:
    assert run(a_round(KILL_HOST, 6.0)).missed_goals() == ["the median gap of a failover is 6 s, not below 6 s"]
    assert run(a_round(KILL_HOST, 3.1), dead_after_s=1.0).missed_goals() == [
        "the median gap of a failover is 3.1 s, not below 3 s"
    ]
    assert run(a_round(KILL_HOST, 30.0), dead_after_s=7.0).missed_goals() == []
    assert run(a_round(SWITCHOVER, 2.0)).missed_goals() == ["the median gap of a switchover is 2 s, not below 2 s"]
    assert run().missed_goals() == []


def test_the_table_has_a_line_for_each_kind_and_one_for_lost_primaries() -> None:
    output = StringIO()
    table = gap_table(run(a_round(KILL_HOST, 6.5), a_round(KILL_HOST, 5.5), a_round(KILL_AGENT, 0.25, changes=False)))
    Console(file=output, width=180).print(table)
    lines = {line.split("│")[1].strip(): line for line in output.getvalue().splitlines() if "│" in line}
    assert [cell.strip() for cell in lines[KILL_HOST].split("│")[2:12]] == [
        "2",
        "2",
        "6.00 s",
        "6.50 s",
        "5.80 s",
        "",
        "0.50 s",
        "0.25 s",
        "8",
        "2 of 2",
    ]
    assert "0.25 s" in lines[KILL_AGENT]
    assert "lost primaries" in lines
