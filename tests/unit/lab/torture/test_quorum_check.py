"""The check of commits without a quorum, in histories in which one was planted."""

import pytest

from walproxy.lab.torture.plan import CUT_OFF, DEAF, FULL_DISK, KILL, MUTE, PAUSE, POWER_CUT, SLOW_DISK, STOP
from walproxy.lab.torture.quorum_check import check_quorum, times_without_quorum
from walproxy.lab.torture.record import Fault, Operation, Outcome

SAFEKEEPERS = ("safekeeper1", "safekeeper2", "safekeeper3")
# None of the first two is heard from 2.1 s on, when the signals have taken effect, to 5 s.
FAULTS = [Fault(KILL, "safekeeper1", 1.0, 5.0), Fault(PAUSE, "safekeeper2", 2.0, 6.0)]


def commit(begun_s: float, ended_s: float, outcome: Outcome = "ok") -> Operation:
    return Operation(1, "unique", begun_s, ended_s, outcome, "insert 7")


def test_a_commit_that_begins_and_ends_without_a_quorum_is_a_violation() -> None:
    [violation] = check_quorum([commit(2.2, 4.9)], FAULTS, SAFEKEEPERS)
    assert violation.rule == "NoQuorum"
    assert violation.message == (
        "insert 7: begun at 2.200 s and acknowledged at 4.900 s, while from 2.100 to 5.000 s no quorum could be reached"
    )


@pytest.mark.parametrize(("begun_s", "ended_s"), [(0.5, 1.5), (2.05, 3.0), (4.0, 5.1), (0.5, 7.0), (5.1, 5.2)])
def test_a_commit_that_a_quorum_may_have_had_is_fine(begun_s: float, ended_s: float) -> None:
    assert check_quorum([commit(begun_s, ended_s)], FAULTS, SAFEKEEPERS) == []


@pytest.mark.parametrize("outcome", ["fail", "unknown"])
def test_what_was_not_acknowledged_is_fine(outcome: Outcome) -> None:
    assert check_quorum([commit(2.2, 4.9, outcome)], FAULTS, SAFEKEEPERS) == []


@pytest.mark.parametrize("kind", [KILL, STOP, PAUSE, CUT_OFF, DEAF, MUTE, POWER_CUT])
def test_each_of_these_silences_a_safekeeper(kind: str) -> None:
    faults = [Fault(kind, name, 1.0, 2.0) for name in SAFEKEEPERS[:2]]
    assert times_without_quorum(faults, SAFEKEEPERS) == [(1.1, 2.0)]


@pytest.mark.parametrize("kind", [SLOW_DISK, FULL_DISK])
def test_who_is_slow_or_full_still_replies(kind: str) -> None:
    assert times_without_quorum([Fault(kind, name, 1.0, 2.0) for name in SAFEKEEPERS], SAFEKEEPERS) == []


def test_faults_of_others_silence_no_safekeeper() -> None:
    others = [Fault(KILL, name, 1.0, 2.0) for name in ("postgres", "walproxy", "safekeeper1")]
    assert times_without_quorum(others, SAFEKEEPERS) == []


def test_a_fault_that_was_never_undone_lasts_to_the_end() -> None:
    faults = [Fault(KILL, "safekeeper1", 1.0, None), Fault(KILL, "safekeeper2", 2.0, None)]
    assert times_without_quorum(faults, SAFEKEEPERS) == [(2.1, float("inf"))]
    assert len(check_quorum([commit(3.0, 4.0)], faults, SAFEKEEPERS)) == 1


def test_five_safekeepers_still_have_a_quorum_without_two() -> None:
    five = tuple(f"safekeeper{number}" for number in range(1, 6))
    faults = [Fault(KILL, name, 1.0, 2.0) for name in five[:2]]
    assert times_without_quorum(faults, five) == []
    assert times_without_quorum([*faults, Fault(KILL, five[2], 1.5, 1.8)], five) == [(1.6, 1.8)]
