"""The policy of all listeners: which connections are kept, and how file descriptors are shared."""

import random

import pytest

from safekeeper.net.admission import (
    RESERVED_FILES,
    Admission,
    Budget,
    Proved,
    Wish,
    descriptors_of,
    host_group,
    least_limit,
    share_descriptors,
)

WISHES = {
    "proposers": Wish(Budget(64)),
    "http": Wish(Budget(0)),
    "replication": Wish(Budget(100), files_per_proven=2),
}


def arrive(admission: Admission, *numbers: int, host: str = "192.0.2.1") -> list[int]:
    return [admission.arrive(number, host, float(number)) for number in numbers]


def test_a_newcomer_displaces_the_oldest_of_its_own_host() -> None:
    admission = Admission(Budget(proven_max=2, unproven_max=4))
    assert arrive(admission, 1, 2) == [0, 0]
    assert arrive(admission, 3, host="192.0.2.2") == [0]
    assert arrive(admission, 4, 5) == [1, 2]
    assert (admission.unproven, admission.evictions) == (3, 2)


def test_when_all_places_are_taken_the_host_with_the_most_loses_one() -> None:
    admission = Admission(Budget(proven_max=2, unproven_max=6))
    arrive(admission, 1, host="192.0.2.9")
    arrive(admission, 2, 3, 4, host="192.0.2.1")
    arrive(admission, 5, 6, host="192.0.2.2")
    assert arrive(admission, 7, host="192.0.2.3") == [2], "the oldest of all, which is alone, stays"


def test_no_flood_from_other_hosts_displaces_a_connection_that_is_alone() -> None:
    admission, chance = Admission(Budget(proven_max=1, unproven_max=16)), random.Random(1)
    arrive(admission, 1, host="198.51.100.1")
    for number in range(2, 5000):
        assert admission.arrive(number, f"192.0.2.{chance.randrange(6)}", 0.0) != 1
        assert admission.unproven <= 16
    assert admission.prove(1) == Proved(True)


def test_a_proven_connection_takes_no_unproven_place_and_is_displaced_by_none() -> None:
    admission = Admission(Budget(proven_max=1, unproven_max=2))
    arrive(admission, 1)
    assert admission.prove(1) == Proved(True)
    assert 1 not in arrive(admission, *range(2, 100))
    assert (admission.proven, admission.unproven) == (1, 1)
    assert admission.is_proven(1) and admission.prove(1) == Proved(True)


def test_beyond_the_maximum_a_proven_newcomer_is_refused_or_displaces_the_silent_one() -> None:
    admission = Admission(Budget(proven_max=2, unproven_max=8))
    arrive(admission, 1, 2, 3)
    admission.prove(1), admission.prove(2)
    assert admission.prove(3) == Proved(False) and admission.refusals == 1
    assert admission.prove(3, {1: 20.0, 2: 10.0}.__getitem__) == Proved(True, evicted=2)
    assert (admission.proven, admission.unproven) == (2, 0)


def test_a_connection_that_was_served_is_the_newest_again() -> None:
    admission = Admission(Budget(proven_max=0, unproven_max=4))
    arrive(admission, 1, 2)
    admission.renew(1, 2.5)
    assert admission.overdue(2.2) == [2]
    assert arrive(admission, 3) == [2]


def test_overdue_are_those_that_arrived_too_long_ago_and_are_not_proven() -> None:
    admission = Admission(Budget(proven_max=4))
    arrive(admission, 1, 2, 3, 4)
    admission.prove(2)
    admission.leave(1)
    assert admission.overdue(3.5) == [3]


def test_one_that_left_can_prove_nothing() -> None:
    admission = Admission(Budget(proven_max=4))
    arrive(admission, 1)
    admission.leave(1)
    assert admission.prove(1) == Proved(False)
    assert admission.proven == 0


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8::ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("", "", True),
    ],
)
def test_what_counts_as_one_host(one: str, other: str, same: bool) -> None:
    assert (host_group(one) == host_group(other)) is same


def test_at_every_limit_the_reserve_is_left_and_no_budget_is_above_its_wish() -> None:
    least = least_limit(WISHES)
    for limit in range(least, 2000):
        budgets = share_descriptors(limit, WISHES)
        used = sum(descriptors_of(budgets[name], wish.files_per_proven) for name, wish in WISHES.items())
        assert used + RESERVED_FILES <= limit
        for name, wish in WISHES.items():
            assert all(has <= wished for has, wished in zip(budgets[name], wish.budget, strict=True))
            assert budgets[name].unproven_max >= 4 and budgets[name].proven_max >= min(4, wish.budget.proven_max)


def test_the_usual_limit_is_enough_for_what_is_configured_by_default() -> None:
    assert share_descriptors(1024, WISHES) == {name: wish.budget for name, wish in WISHES.items()}


def test_below_the_least_limit_each_listener_keeps_a_few_places() -> None:
    for budget in share_descriptors(32, WISHES).values():
        assert budget.unproven_max == 4
