import pytest

from safekeeper.base.errors import PrimaryRefused
from safekeeper.consensus.messages import DIGEST_PAGE_SIZE
from safekeeper.consensus.term_history import HistoryEntry, TermHistory
from walproxy.proposer.primary import (
    Ancestor,
    LogPlan,
    PrimaryIdentity,
    first_difference,
    first_log_plan,
    plan_log,
)


def primary(tli: int, flush_lsn: int, *ancestors: tuple[int, int]) -> PrimaryIdentity:
    return PrimaryIdentity(
        system_id=7,
        tli=tli,
        flush_lsn=flush_lsn,
        segment_size=1024,
        server_version=150000,
        ancestors=tuple(Ancestor(*ancestor) for ancestor in ancestors),
    )


def history(*entries: tuple[int, int, int]) -> TermHistory:
    return tuple(HistoryEntry(*entry) for entry in entries)


ON_ONE = history((1, 100, 1))
ONE_THEN_TWO = history((1, 100, 1), (2, 300, 2))


def test_the_first_log_begins_at_the_segment_of_the_primary() -> None:
    assert first_log_plan(primary(3, 5000)) == LogPlan(4096, 3, cuts=False)
    assert first_log_plan(primary(3, 5000, (1, 300), (2, 4500))) == LogPlan(4096, 3, cuts=False)


def test_a_primary_may_have_no_byte_of_the_timeline_on_which_the_first_log_began() -> None:
    """Simulator, failovers 123990: a server that was promoted at the same fork was refused for ever."""
    log, promoted = history((1, 4096, 2)), primary(3, 5000, (1, 4500), (2, 4500))
    assert plan_log(log, 4500, promoted) == LogPlan(4500, 3, cuts=False)
    assert plan_log(log, 4300, promoted) == LogPlan(4300, 2, cuts=False)
    assert plan_log(log, 4600, promoted) == LogPlan(4500, 3, cuts=True)
    assert plan_log(log, 4500, primary(4, 5000, (1, 4500), (2, 4500), (3, 4700))) == LogPlan(4500, 3, cuts=False)
    for other in (primary(1, 5200), primary(3, 5000, (1, 4500))):
        with pytest.raises(PrimaryRefused, match="it is another line of descent"):
            plan_log(log, 4300, other)


def test_a_primary_on_the_same_timeline_goes_on_where_the_log_ends() -> None:
    assert plan_log(ON_ONE, 500, primary(1, 900)) == LogPlan(500, 1, cuts=False)
    assert plan_log(ON_ONE, 500, primary(1, 500)) == LogPlan(500, 1, cuts=False)


def test_a_primary_that_is_behind_is_refused() -> None:
    with pytest.raises(PrimaryRefused, match="restored from a backup"):
        plan_log(ON_ONE, 500, primary(1, 499))


def test_a_fork_beyond_the_end_of_the_log_is_reached_on_the_old_timeline_first() -> None:
    assert plan_log(ON_ONE, 500, primary(2, 900, (1, 600))) == LogPlan(500, 1, cuts=False)


def test_a_fork_at_the_end_of_the_log_cuts_nothing() -> None:
    assert plan_log(ON_ONE, 500, primary(2, 900, (1, 500))) == LogPlan(500, 2, cuts=False)


def test_a_fork_below_the_end_of_the_log_cuts() -> None:
    assert plan_log(ON_ONE, 500, primary(2, 900, (1, 400))) == LogPlan(400, 2, cuts=True)


def test_one_timeline_is_taken_at_a_time() -> None:
    assert plan_log(ON_ONE, 500, primary(3, 900, (1, 500), (2, 600))) == LogPlan(500, 2, cuts=False)


def test_an_old_primary_is_refused() -> None:
    with pytest.raises(PrimaryRefused, match="has stayed on it"):
        plan_log(ONE_THEN_TWO, 500, primary(1, 900))


def test_another_line_of_descent_is_refused() -> None:
    with pytest.raises(PrimaryRefused, match="another line of descent"):
        plan_log(history((1, 100, 4)), 500, primary(1, 900))


def test_a_promotion_apart_that_took_the_same_number_is_found_by_its_fork() -> None:
    assert plan_log(ONE_THEN_TWO, 500, primary(2, 900, (1, 250))) == LogPlan(250, 2, cuts=True)
    with pytest.raises(PrimaryRefused, match="promoted independently"):
        plan_log(ONE_THEN_TWO, 500, primary(2, 900, (1, 350)))


def test_a_timeline_that_was_adopted_and_never_streamed_does_not_bind() -> None:
    # Timeline 3 was adopted at 300, nothing came of it; 5 forked off at the same place and was streamed.
    log = history((1, 100, 1), (2, 300, 3), (3, 300, 5))
    assert plan_log(log, 500, primary(5, 900, (1, 300))) == LogPlan(500, 5, cuts=False)
    # The primary itself went through a timeline without writing anything.
    assert plan_log(ON_ONE, 300, primary(4, 900, (1, 300), (3, 300))) == LogPlan(300, 4, cuts=False)
    assert plan_log(ONE_THEN_TWO, 300, primary(1, 900)) == LogPlan(300, 1, cuts=False)


def test_a_log_without_a_byte_may_begin_on_any_line_of_descent() -> None:
    empty = history((1, 300, 2), (2, 300, 5))
    assert plan_log(empty, 300, primary(1, 900)) == LogPlan(300, 1, cuts=False)
    assert plan_log(empty, 300, primary(4, 900, (1, 200), (3, 400))) == LogPlan(300, 3, cuts=False)
    with pytest.raises(PrimaryRefused):
        plan_log(empty, 300, primary(1, 299))


def test_the_first_page_that_differs_is_named() -> None:
    assert first_difference(8192, (1, 2, 3), (1, 2, 3)) is None
    assert first_difference(8192, (1, 2, 3), (1, 9, 3)) == 8192 + DIGEST_PAGE_SIZE
    assert first_difference(8192, (1, 2), (1, 2, 3)) == 8192 + 2 * DIGEST_PAGE_SIZE
