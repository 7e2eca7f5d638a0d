"""The rounds of a seed."""

from walproxy.lab.failover.plan import (
    FAULTS,
    FLAP,
    KILL_AGENT,
    KILL_BOTH,
    KILL_HOST,
    KILL_POSTGRES,
    LOSE_QUORUM,
    POWER_LOSS,
    SWITCHOVER,
    PlannedRound,
    plan_rounds,
)


def test_a_seed_gives_the_same_rounds_again_and_another_seed_gives_others() -> None:
    assert plan_rounds(7, 30, 5.0) == plan_rounds(7, 30, 5.0)
    assert plan_rounds(7, 30, 5.0) != plan_rounds(8, 30, 5.0)


def test_the_first_rounds_have_each_fault_once_and_a_switchover_follows_after_every_few() -> None:
    planned = plan_rounds(3, 40, 5.0, switchover_every=4)
    faults = [each for each in planned if each.kind != SWITCHOVER]
    assert len(faults) == 40
    assert {each.kind for each in faults[: len(FAULTS)]} == set(FAULTS)
    assert len(planned) == 50
    assert planned[4].kind == planned[9].kind == SWITCHOVER
    assert [each.number for each in planned] == list(range(1, 51))
    assert {each.other for each in planned if each.kind == SWITCHOVER} <= {0, 1}


def test_a_quorum_is_lost_in_the_middle_of_a_failover() -> None:
    planned = plan_rounds(3, 20, 5.0, kinds=(LOSE_QUORUM,), switchover_every=0)
    assert all(5.0 <= each.then_after_s <= 7.0 for each in planned)
    assert all(each.lasts_s - each.then_after_s >= 1.9 for each in planned)


def test_a_network_flaps_for_several_times_dead_after() -> None:
    planned = plan_rounds(3, 50, 5.0, kinds=(FLAP,), switchover_every=0)
    assert all(10.0 <= each.lasts_s <= 30.0 for each in planned)
    assert {each.is_variant for each in planned} == {False, True}


def test_only_the_requested_faults_are_drawn() -> None:
    planned = plan_rounds(3, 20, 1.0, kinds=(KILL_HOST, POWER_LOSS), switchover_every=0)
    assert {each.kind for each in planned} == {KILL_HOST, POWER_LOSS}


def test_the_safekeepers_are_cut_off_before_the_primary_is_lost_only() -> None:
    planned = plan_rounds(5, 300, 5.0)
    for each in planned:
        if each.kind in (KILL_AGENT, POWER_LOSS, SWITCHOVER):
            assert each.cut_ms == 0
        if each.kind in (KILL_POSTGRES, KILL_BOTH):
            assert each.lasts_s == 0.0
    assert any(each.cut_ms > 50 for each in planned)
    # In the middle of a failover, before one, and after one.
    lasts = [each.lasts_s for each in planned if each.kind == KILL_HOST]
    assert any(0 < seconds < 5 for seconds in lasts)
    assert any(5 <= seconds < 7 for seconds in lasts)
    assert any(seconds > 7 for seconds in lasts)


def test_a_round_is_described_in_one_line() -> None:
    (planned,) = plan_rounds(1, 1, 5.0, kinds=(KILL_HOST,))
    assert str(planned).startswith("kill host after ")
    assert f"for {planned.lasts_s:.1f} s" in str(planned)


def test_a_primary_that_is_away_for_long_must_be_replaced() -> None:
    assert PlannedRound(1, KILL_HOST, lasts_s=10.1).takes_away(5.0)
    assert not PlannedRound(1, KILL_HOST, lasts_s=9.9).takes_away(5.0)
    assert not PlannedRound(1, KILL_BOTH).takes_away(5.0)
    assert not PlannedRound(1, POWER_LOSS, lasts_s=60.0).takes_away(5.0)
