"""Readiness is lost at once and comes back after a while: a quorum that comes and goes is never ready."""

from walproxy.readiness import READY_AFTER_S, Readiness


def test_a_proxy_that_streams_for_the_first_time_is_ready_at_once() -> None:
    readiness = Readiness()
    readiness.observe(False, 1.0)
    readiness.observe(True, 2.0)
    assert readiness.waits_s(2.0) == 0


def test_after_a_loss_it_is_ready_once_it_has_streamed_for_a_while() -> None:
    readiness = Readiness()
    for now, serves in ((1.0, True), (2.0, False), (3.0, True)):
        readiness.observe(serves, now)
    assert readiness.waits_s(3.5) == READY_AFTER_S - 0.5
    assert readiness.waits_s(3.0 + READY_AFTER_S) == 0


def test_a_proxy_that_streams_for_a_moment_each_second_is_never_ready() -> None:
    readiness = Readiness()
    for second in range(1, 60):
        readiness.observe(True, float(second))
        assert second == 1 or readiness.waits_s(second + 0.1) > 0
        readiness.observe(False, second + 0.1)


def test_a_proxy_that_serves_again_is_not_ready_before_that_was_observed() -> None:
    readiness = Readiness()
    assert readiness.waits_s(0.5) == 0
    for now, serves in ((1.0, True), (2.0, False)):
        readiness.observe(serves, now)
    assert readiness.waits_s(2.04) == READY_AFTER_S
