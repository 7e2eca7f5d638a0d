"""What the turns of the benchmark's arms add up to, and what is read out of pgbench."""

import pytest

from walproxy.lab.bench.measure import ArmCell, PgbenchRun, compare
from walproxy.lab.bench.pgbench import parse_log


def test_arms_are_compared_with_the_baseline_and_with_postgresql_s_own_quorum() -> None:
    shares = {"local": 1000.0, "native-quorum": 500.0, "walproxy": 400.0}
    turns = [
        PgbenchRun(number, arm, 8, tps / (number + 1), 1.0, cpu_s=tps / 1000, seconds=5.0, resident_bytes={})
        for number in range(3)
        for arm, tps in shares.items()
    ]
    found = {each.arm: each for each in compare(turns, [ArmCell(arm, 8) for arm in shares])}
    assert found["walproxy"].to_local == pytest.approx(0.4)
    assert found["walproxy"].to_native == pytest.approx(0.8)
    assert found["walproxy"].spread == (pytest.approx(0.8), pytest.approx(0.8))
    assert found["walproxy"].cpu_us == pytest.approx(400.0)
    assert found["local"].to_native == pytest.approx(2.0)


def test_without_the_native_quorum_the_range_is_that_of_the_ratio_to_local() -> None:
    turns = [PgbenchRun(0, "local", 1, 100.0, 1.0, 0.0, 1.0, {}), PgbenchRun(0, "walproxy", 1, 25.0, 1.0, 0.0, 1.0, {})]
    [local, walproxy] = compare(turns, [ArmCell("local", 1), ArmCell("walproxy", 1)])
    assert (local.to_native, walproxy.to_native) == (None, None)
    assert walproxy.spread == (0.25, 0.25)


def test_more_safekeepers_are_compared_with_three_whichever_had_its_turn_first() -> None:
    turns = [
        PgbenchRun(0, "walproxy-5", 8, 80.0, 1.0, 0.0, 1.0, {}),
        PgbenchRun(0, "walproxy", 8, 100.0, 1.0, 0.0, 1.0, {}),
    ]
    [three, five] = compare(turns, [ArmCell("walproxy", 8), ArmCell("walproxy-5", 8)])
    assert (three.to_three, five.to_three, five.spread) == (1.0, 0.8, (0.8, 0.8))


def test_the_memory_of_each_process_is_the_median_of_what_it_had_in_the_rounds() -> None:
    turns = [
        PgbenchRun(number, "walproxy", 1, 100.0, 1.0, 0.0, 1.0, {"walproxy": memory_bytes, "safekeeper 1": 7})
        for number, memory_bytes in enumerate([50, 10, 30])
    ]
    [result] = compare(turns, [ArmCell("walproxy", 1)])
    assert result.resident_bytes == {"walproxy": 30, "safekeeper 1": 7}


def test_the_time_of_a_transaction_is_the_third_word_of_its_line_in_microseconds() -> None:
    assert parse_log(["0 199 2241 0 1175850568 995598", "1 4 507 0 1175850568 1000"]) == [2.241, 0.507]
