"""Since when WAL waits."""

import random

from walproxy.limbo.arrivals import Arrivals


def test_a_position_waits_since_the_batch_that_has_its_last_byte() -> None:
    arrivals = Arrivals()
    for end_lsn, at in ((100, 1.0), (200, 2.0), (300, 3.0)):
        arrivals.note((end_lsn, at))
    assert arrivals.since([50, 100, 101, 200, 300, 301]) == [1.0, 1.0, 2.0, 2.0, 3.0, None]
    assert [arrivals.oldest(lsn) for lsn in (0, 99, 100, 299, 300)] == [1.0, 1.0, 2.0, 3.0, None]


def test_confirmed_batches_are_forgotten() -> None:
    arrivals = Arrivals()
    for end_lsn in range(100, 1000, 100):
        arrivals.note((end_lsn, float(end_lsn)))
    arrivals.trim(450)
    assert arrivals.oldest(0) == 500.0
    arrivals.trim(900)
    assert arrivals.oldest(0) is None


def test_memory_is_bounded_and_no_wait_becomes_shorter() -> None:
    chance = random.Random(1)
    arrivals, exact = Arrivals(64), Arrivals()
    for number in range(1, 2001):
        for each in (arrivals, exact):
            each.note((number * 10, number / 10))
        if chance.random() < 0.1:
            arrivals.trim(0)
    arrivals.trim(0)
    lsns = range(1, 20_001, 7)
    pairs = list(zip(arrivals.since(lsns), exact.since(lsns), strict=True))
    assert all(kept is not None and true is not None and kept <= true for kept, true in pairs)
    assert len(set(arrivals.since(lsns))) <= 65


def test_wal_that_is_received_a_second_time_waits_since_the_first() -> None:
    arrivals = Arrivals()
    for end_lsn in (100, 200, 300):
        arrivals.note((end_lsn, end_lsn / 100))
    arrivals.repeat()
    for end_lsn, at in ((150, 10.0), (350, 11.0), (400, 12.0)):
        arrivals.note((end_lsn, at))
    assert arrivals.since([100, 150, 250, 300, 301, 400]) == [1.0, 2.0, 3.0, 3.0, 11.0, 12.0]
    arrivals.repeat()
    arrivals.note((400, 20.0))
    assert arrivals.since([300, 400]) == [3.0, 12.0]
    arrivals.trim(300)
    assert arrivals.oldest(300) == 11.0
    arrivals.clear()
    assert arrivals.oldest(0) is None
