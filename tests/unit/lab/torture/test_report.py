"""The page of a run: its figures, its charts, and that names in it are text."""

from pathlib import Path

import pytest

from safekeeper.base.errors import ConfigurationError
from walproxy.html_page.charts import Chart
from walproxy.lab.torture.record import Fault, Operation, Run, Sample, Violation
from walproxy.lab.torture.report import render, write_page
from walproxy.lab.torture.report_charts import charts_of
from walproxy.lab.torture.report_figures import BINS_MAX, figures_of

EVIL = "</script><b onclick=stop()>"

OPERATIONS = [
    Operation(1, "bank", 0.2, 0.3, "ok", "transfer 1"),
    Operation(2, "unique", 0.1, 0.5, "ok", "insert 2"),
    Operation(1, "bank", 0.4, 8.1, "ok", "transfer 3"),
    Operation(2, "unique", 1.0, 1.5, "fail", "insert 4"),
    Operation(2, "unique", 5.0, None, "unknown", "insert 5"),
    Operation(1, "bank", 9.5, 10.4, "ok", "transfer 6"),  # Finished when the run was over.
]
FAULTS = [
    Fault("pause", "safekeeper2", 4.0, 7.0),
    Fault("kill", "safekeeper1", 2.0, 3.0),
    Fault("kill", "walproxy", 8.5, None),
]


def run(
    operations: list[Operation] = OPERATIONS,
    faults: list[Fault] = FAULTS,
    violations: list[Violation] | None = None,
    seconds: float = 10.0,
) -> Run:
    samples = [Sample(float(at_s), process, 50 << 20, 20) for at_s in range(10) for process in ("walproxy", EVIL)]
    return Run(7, seconds, "processes", "18.1", 3, operations, faults, samples, violations or [])


def charts(of: Run) -> dict[str, Chart]:
    return {chart.id: chart for chart in charts_of(of, figures_of(of))}


def test_operations_count_in_the_bin_in_which_they_ended() -> None:
    figures = figures_of(run())
    assert figures.width_s == 0.05
    found = {round(each.begin_s, 2): each for each in figures.bins if sum(each.counts.values())}
    assert {at_s: each.counts for at_s, each in found.items()} == {
        0.3: {"ok": 1, "fail": 0, "unknown": 0},
        0.5: {"ok": 1, "fail": 0, "unknown": 0},
        1.5: {"ok": 0, "fail": 1, "unknown": 0},
        8.1: {"ok": 1, "fail": 0, "unknown": 0},
        10.0: {"ok": 1, "fail": 0, "unknown": 1},
    }
    assert found[8.1].max_s == pytest.approx(7.7)
    assert found[1.5].p50_s is None
    # What never ended lasted to the end.
    assert found[10.0].other_max_s == {"unknown": 5.0}


@pytest.mark.parametrize("seconds", [0.001, 1.0, 59.9, 600.0, 3600.0, 86400.0 * 3])
def test_a_run_of_any_length_has_a_few_hundred_bins_at_most(seconds: float) -> None:
    figures = figures_of(run(seconds=seconds))
    assert len(figures.bins) <= BINS_MAX
    assert len(figures.bins) * figures.width_s >= seconds
    assert sum(sum(each.counts.values()) for each in figures.bins) == len(OPERATIONS)


def test_the_sums_are_of_all_and_of_each_workload() -> None:
    figures = figures_of(run())
    assert figures.all.counts == {"ok": 4, "fail": 1, "unknown": 1}
    assert figures.all.max_s == pytest.approx(7.7)
    assert {name: sums.counts["ok"] for name, sums in figures.workloads.items()} == {"bank": 3, "unique": 1}


def test_the_longest_time_without_a_commit_comes_first_with_the_faults_of_that_time() -> None:
    gaps = figures_of(run()).gaps
    assert (gaps[0].begin_s, gaps[0].end_s) == (0.5, 8.1)
    assert gaps[0].faults == ["kill safekeeper1", "pause safekeeper2"]
    # Up to the end of the run: what came later does not make it shorter.
    assert (gaps[1].begin_s, gaps[1].end_s, gaps[1].faults) == (8.1, 10.0, ["kill walproxy"])


def test_the_faults_are_summed_up_by_kind() -> None:
    rows = figures_of(run()).faults
    assert [(row.kind, row.count, row.seconds, row.targets) for row in rows] == [
        ("kill", 2, 2.5, ["safekeeper1", "walproxy"]),
        ("pause", 1, 3.0, ["safekeeper2"]),
    ]


def test_a_power_cut_of_everybody_is_one_fault() -> None:
    cuts = [Fault("power cut", name, at_s, at_s + 1) for at_s in (2.0, 5.0) for name in ("safekeeper1", "safekeeper2")]
    of = run(faults=[*FAULTS, *cuts, Fault("power cut", "postgres", 5.0, 6.0)])
    rows = {row.kind: row.count for row in figures_of(of).faults}
    assert rows == {"kill": 2, "pause": 1, "power cut": 2}
    assert "<dt>faults</dt><dd>5</dd>" in render(of)
    assert charts(of)["faults"].summary == "5 faults over time."


def test_the_time_line_has_each_fault_at_its_target() -> None:
    chart = charts(run())["faults"]
    bars = {
        (trace["name"], *bar)
        for trace in chart.traces
        for bar in zip(trace["y"], trace["base"], trace["x"], strict=True)
    }
    assert bars == {
        ("kill", "safekeeper1", 2.0, 1.0),
        ("kill", "walproxy", 8.5, 1.5),
        ("pause", "safekeeper2", 4.0, 3.0),
    }
    assert chart.layout["yaxis"]["categoryarray"] == ["walproxy", "safekeeper2", "safekeeper1"]


def test_a_fault_too_short_to_be_seen_is_drawn_longer_and_reported_as_it_was() -> None:
    chart = charts(run(faults=[Fault("kill", "walproxy", 100.0, 100.25)], seconds=1000.0))["faults"]
    assert chart.layout["xaxis"]["title"]["text"] == "minutes"
    assert chart.traces[0]["x"] == [pytest.approx(2.5 / 60, rel=1e-3)]
    assert chart.traces[0]["customdata"] == ["100.00 s, for 0.25 s"]


def test_failures_and_what_is_unknown_are_marked_where_they_ended() -> None:
    traces = {trace["name"]: trace for trace in charts(run())["latencies"].traces}
    assert (traces["failed"]["x"], traces["failed"]["y"]) == ([1.5], [500.0])
    assert (traces["unknown"]["x"], traces["unknown"]["y"], traces["unknown"]["customdata"]) == ([10.0], [5000.0], [1])


def test_the_rate_is_by_second_whatever_the_width_of_a_bin() -> None:
    [acknowledged] = charts(run([each for each in OPERATIONS if each.outcome == "ok"]))["commits"].traces
    assert max(acknowledged["y"]) == 20.0  # One in 50 ms.


def test_without_operations_faults_and_samples_the_page_says_so() -> None:
    nothing = Run(7, 10.0, "processes", "18.1", 3, [], [], [], [])
    page = render(nothing)
    for chart in charts(nothing).values():
        assert chart.empty in page
    assert "No violations" in page


def test_violations_come_first_and_are_text() -> None:
    page = render(run(faults=[Fault("kill", EVIL, 1.0, 2.0)], violations=[Violation("Lost", f"{EVIL} was lost")]))
    assert "1 violation<" in page
    assert "&lt;/script&gt;&lt;b onclick=stop()&gt; was lost" in page
    assert EVIL not in page
    assert page.index("was lost") < page.index("Faults and their effect")


def test_a_soak_shows_who_has_grown_and_a_torture_does_not() -> None:
    assert "Early and late in the run" in render(run(faults=[]))
    assert "Early and late in the run" not in render(run())


def test_a_page_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"could not write .*: Is a directory; correct --report"):
        write_page(run(), tmp_path)
