"""The levels of synchronous_commit: which are measured, and what becomes of the figures."""

import pytest

from walproxy.lab.bench.levels import (
    ALONE,
    LEVELS,
    STOCK,
    WALPROXY,
    LevelTurn,
    SingleClient,
    cells,
    compare_levels,
    published_ratio,
    single_client,
)

TPS = {"off": 200.0, "local": 100.0, "remote_write": 80.0, "on": 70.0, "remote_apply": 50.0}


def turns(clients: int = 1, rounds: int = 3) -> list[LevelTurn]:
    """One server of each arm on a machine that gets slower; walproxy has half of the stock standby's throughput."""
    found = []
    for cell in cells([clients]):
        share = {ALONE: 2.0, STOCK: 1.0, WALPROXY: 0.5}[cell.arm]
        for number in range(rounds):
            tps = TPS[cell.level] * share / (number + 1)
            if clients > 1 and cell.level == "remote_apply":
                tps /= 10
            found.append(LevelTurn(number, *cell, tps, 1100 / tps, 1000 / tps))
    return found


def test_every_level_is_measured_with_both_standbys_and_the_base_without_one() -> None:
    measured = cells([1, 4])
    assert len(set(measured)) == len(measured) == 2 * (2 * len(LEVELS) + 1)
    assert [cell.level for cell in measured if cell.arm == ALONE] == ["on", "on"]


def test_ratios_are_to_local_of_the_same_arm_and_to_on_without_a_standby() -> None:
    results = {(each.arm, each.level): each for each in compare_levels(turns())}
    assert len(results) == 2 * len(LEVELS) + 1
    applied = results[WALPROXY, "remote_apply"]
    assert applied.to_local == pytest.approx(0.5)
    assert applied.to_alone == pytest.approx(25 / 140)
    assert applied.tps == pytest.approx(12.5)
    assert applied.median_ms == pytest.approx(80)
    assert results[STOCK, "on"].to_alone == pytest.approx(0.5)
    assert results[ALONE, "on"].to_local is None
    assert results[ALONE, "on"].to_alone == 1.0


def test_published_ratios_are_those_of_the_seed() -> None:
    ratios = {level: published_ratio(level) for level in LEVELS}
    assert ratios.pop("local") is None
    assert ratios == {
        "off": pytest.approx(1.46, abs=0.005),
        "remote_write": pytest.approx(0.874, abs=0.0005),
        "on": pytest.approx(0.782, abs=0.0005),
        "remote_apply": pytest.approx(0.718, abs=0.0005),
    }
    shown = {(each.arm, each.level): each.published for each in compare_levels(turns())}
    assert shown[STOCK, "on"] == shown[WALPROXY, "on"] == ratios["on"]
    assert shown[ALONE, "on"] is None


def test_a_single_client_s_wait_is_compared_by_its_median_and_only_where_it_was_measured() -> None:
    [stock, walproxy] = single_client([*turns(1), *turns(4)])
    assert stock == SingleClient(STOCK, pytest.approx(2000 / 70), pytest.approx(2000 / 50), pytest.approx(1.4))
    assert walproxy.arm == WALPROXY
    assert walproxy.ratio == pytest.approx(1.4)
    assert single_client(turns(4)) == []
