"""Primaries that an election has refused: how long each waits for the next election."""

import msgspec
import pytest

from walproxy.proposer.primary import Ancestor, PrimaryIdentity
from walproxy.proposer.refusals import Refusals

PRIMARY = PrimaryIdentity(system_id=7, tli=1, flush_lsn=1 << 24, segment_size=1 << 24, server_version=150018, host="a")
PROMOTED = msgspec.structs.replace(PRIMARY, tli=2, ancestors=(Ancestor(1, 1 << 24),))


def refused(*times: float, primary: PrimaryIdentity = PRIMARY) -> Refusals:
    refusals = Refusals(10.0, 300.0)
    for now in times:
        refusals.remember(primary, "why", now)
    return refusals


@pytest.mark.parametrize(
    ("times", "wait_s"),
    [
        ((0.0,), 10.0),
        ((0.0, 10.0), 20.0),
        ((0.0, 500.0), 20.0),
        ((0.0,) * 5, 160.0),
        ((0.0,) * 6, 300.0),
        ((0.0,) * 9, 300.0),
    ],
)
def test_a_primary_waits_twice_as_long_each_time(times: tuple[float, ...], wait_s: float) -> None:
    refusals = refused(*times)
    assert refusals.reason(PRIMARY, times[-1] + wait_s - 0.1) == "why"
    assert refusals.reason(PRIMARY, times[-1] + wait_s) == ""


@pytest.mark.parametrize(
    ("changes", "waits"),
    [
        ({}, True),
        ({"flush_lsn": (1 << 24) + 1}, True),
        ({"server_version": 150019}, True),
        ({"host": "b"}, False),
        ({"flush_lsn": (1 << 24) - 1}, False),
        ({"system_id": 8}, False),
        ({"segment_size": 1 << 20}, False),
        ({"tli": 2}, False),
        ({"ancestors": (Ancestor(1, 1 << 24),)}, False),
    ],
)
def test_only_a_server_that_may_be_the_same_waits(changes: dict[str, object], waits: bool) -> None:
    refusals, now = refused(0.0), msgspec.structs.replace(PRIMARY, **changes)
    assert bool(refusals.reason(now, 9.0)) is waits
    # Another server under that name begins with the shortest wait.
    refusals.remember(now, "why", 9.0)
    assert bool(refusals.reason(now, 20.0)) is waits


def test_a_server_that_returns_begins_with_the_shortest_wait() -> None:
    refusals = refused(0.0, 0.0, 0.0)
    refusals.remember(PROMOTED, "another", 50.0)
    assert refusals.reason(PRIMARY, 51.0) == ""
    refusals.remember(PRIMARY, "why", 60.0)
    assert refusals.reason(PRIMARY, 69.9) == "why" and refusals.reason(PRIMARY, 70.1) == ""


def test_nothing_waits_once_all_is_forgotten() -> None:
    refusals = refused(0.0, 0.0)
    refusals.forget()
    assert refusals.reason(PRIMARY, 1.0) == ""
    refusals.remember(PRIMARY, "why", 1.0)
    assert refusals.reason(PRIMARY, 10.9) == "why" and refusals.reason(PRIMARY, 11.0) == ""
