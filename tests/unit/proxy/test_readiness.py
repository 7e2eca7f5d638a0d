"""Readiness is lost at once and comes back after a while: a quorum that comes and goes is never ready."""

from walproxy.proxy.readiness import READY_AFTER_S, Readiness


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


def test_the_time_without_service_goes_on_until_it_is_ready_and_begins_with_its_own_turn() -> None:
    readiness = Readiness()
    for now in (1.0, 2.0):
        readiness.observe(False, now, is_spare=True)
        assert readiness.not_ready_s(now) is None
    readiness.observe(False, 3.0)
    assert readiness.not_ready_s(5.0) == 2.0
    readiness.observe(True, 5.0)
    assert readiness.not_ready_s(5.0) is None
    for second in range(6, 20):  # It serves for a moment each second.
        readiness.observe(False, float(second))
        readiness.observe(True, second + 0.5)
        assert readiness.not_ready_s(second + 0.9) == second + 0.9 - 6
    readiness.observe(True, 19.5 + READY_AFTER_S)
    assert readiness.not_ready_s(30.0) is None


def test_a_proxy_that_serves_again_is_not_ready_before_that_was_observed() -> None:
    readiness = Readiness()
    assert readiness.waits_s(0.5) == 0
    for now, serves in ((1.0, True), (2.0, False)):
        readiness.observe(serves, now)
    assert readiness.waits_s(2.04) == READY_AFTER_S
