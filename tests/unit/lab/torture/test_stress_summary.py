"""A run of the torture in a few figures."""

from io import StringIO

from rich.console import Console

from walproxy.lab.torture.record import Fault, Operation, Outcome, Run, Violation
from walproxy.lab.torture.run import Stressed
from walproxy.lab.torture.summaries import stress_table, summarise_stress


def operation(workload: str, outcome: Outcome) -> Operation:
    return Operation(1, workload, 1.0, 1.1, outcome, "whatever")


def stressed(*faults: Fault) -> Stressed:
    operations = [operation("bank", "ok"), operation("bank", "unknown"), operation("unique", "fail")]
    violations = [Violation("Lost", "gone")]
    run = Run(7, 60.04, "processes", "18.1", 3, operations, list(faults), [], violations)
    return Stressed(run, [0.1, 2.0, 0.3])


FAULTS = (
    Fault("kill", "postgres", 1.0, 2.0),
    Fault("kill", "safekeeper1", 1.0, 2.0),
    *(Fault("power cut", name, at_s, at_s + 1) for at_s in (5.0, 9.0) for name in ("safekeeper1", "safekeeper2")),
    Fault("power cut", "postgres", 9.0, 10.0),
)


def test_a_summary_counts_operations_faults_and_recoveries() -> None:
    summary = summarise_stress(stressed(*FAULTS))
    assert summary.operations == {
        "unique": {"ok": 0, "fail": 1, "unknown": 0},
        "bank": {"ok": 1, "fail": 0, "unknown": 1},
    }
    assert summary.recovery_s == {"p50": 0.3, "max": 2.0}
    assert summary.violations == [Violation("Lost", "gone")]


def test_a_power_cut_of_everybody_is_one_fault() -> None:
    summary = summarise_stress(stressed(*FAULTS))
    assert summary.faults == {"kill": 2, "power cut": 2}
    assert summary.fault_count == 4


def test_the_table_says_what_matters() -> None:
    out = StringIO()
    Console(file=out, width=120).print(stress_table(summarise_stress(stressed(*FAULTS))))
    shown = out.getvalue()
    assert "seed 7: 60 s, PostgreSQL 18.1, 3 safekeepers in processes" in shown
    assert "4: kill 2, power cut 2" in shown
    assert "after 0.3 s (median), 2.0 s (longest)" in shown


def test_a_run_without_faults_has_a_table_too() -> None:
    out = StringIO()
    Console(file=out, width=120).print(stress_table(summarise_stress(Stressed(stressed().run, []))))
    assert "none" in out.getvalue()
