"""Which source a pull reads from."""

from safekeeper.acceptor.pull_sources import SLOW_AFTER_S, SLOW_BYTES_PER_S, PullSources
from safekeeper.consensus.messages import PullSource

A, B, C = (PullSource(number, f"host:{number}") for number in (1, 2, 3))


def test_sources_are_read_in_the_leaders_order_until_each_has_failed() -> None:
    sources = PullSources((B, A), 0)
    assert sources.next() == B
    sources.failed(B)
    assert sources.next() == A
    sources.failed(A)
    assert sources.next() is None


def test_a_source_is_slow_only_if_the_pull_has_waited_for_it() -> None:
    sources = PullSources((A, B), 0)
    assert not sources.is_to_be_left(A, 0, SLOW_AFTER_S - 0.1)
    assert sources.is_to_be_left(A, 0, SLOW_AFTER_S)
    assert not sources.is_to_be_left(A, int(SLOW_BYTES_PER_S * 4), 4.0)
    assert sources.is_to_be_left(A, int(SLOW_BYTES_PER_S * 4) - 1, 4.0)
    # With a low rate, a source is quick enough sooner.
    assert not PullSources((A, B), 1000).is_to_be_left(A, 2000, 4.0)
    assert PullSources((A, B), 1000).is_to_be_left(A, 1999, 4.0)


def test_a_slow_source_is_left_for_each_that_was_not_tried_then_the_fastest_stays() -> None:
    sources = PullSources((A, B, C), 0)
    assert sources.is_to_be_left(A, 4000, 4.0)
    assert sources.next() == B
    assert sources.is_to_be_left(B, 12000, 4.0)
    assert sources.next() == C
    # The others are not twice as fast.
    assert not sources.is_to_be_left(C, 6000, 4.0)
    assert sources.is_to_be_left(C, 5000, 4.0)
    assert sources.next() == B
    assert not sources.is_to_be_left(B, 4000, 4.0)
    sources.failed(B)
    assert sources.next() == C


def test_the_only_source_is_never_left() -> None:
    assert not PullSources((A,), 0).is_to_be_left(A, 0, 100.0)
