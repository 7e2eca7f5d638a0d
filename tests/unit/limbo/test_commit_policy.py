"""What is decided about commits that wait too long."""

import pytest

from walproxy.limbo.commit_policy import ACTIONS, CommitPolicy, is_unconfirmed
from walproxy.limbo.facts import WaitingCommit, WaitingSession


def wait(xid: int, waits_s: float, *, end_lsn: int | None = 100, known: bool = True) -> WaitingCommit:
    return WaitingCommit(xid, end_lsn, waits_s, WaitingSession(xid, xid, "u", "a", "", "COMMIT") if known else None)


@pytest.mark.parametrize("action", ACTIONS)
def test_nothing_is_done_without_a_timeout_or_before_it(action: str) -> None:
    """Tarantool's 10181 is a wait without end: it is listed, and a timeout can be set."""
    never, later = CommitPolicy(0, action), CommitPolicy(10, action)
    never.is_fenced = later.is_fenced = False
    for policy in (never, later):
        decision = policy.decide([wait(1, 9.9)])
        assert (decision.fresh, decision.act_on, decision.fence) == ((), (), None)
    assert never.decide([wait(1, 1e9)]).fresh == ()


@pytest.mark.parametrize("action", ACTIONS)
def test_no_action_is_a_rollback_and_a_transaction_is_counted_once(action: str) -> None:
    """Tarantool's 7486: a rollback by timeout."""
    assert set(ACTIONS) == {"warn", "terminate", "detach", "fence"}
    policy = CommitPolicy(10, action)
    first, second = wait(1, 11), wait(2, 10)
    assert policy.decide([first, second]).fresh == (first, second)
    third = wait(3, 12)
    assert policy.decide([third, first, second]).fresh == (third,)
    assert policy.decide([first]).fresh == ()


def test_warn_acts_on_no_session() -> None:
    decision = CommitPolicy(10, "warn").decide([wait(1, 11)])
    assert (decision.act_on, decision.fence) == ((), None)


@pytest.mark.parametrize("action", ["terminate", "detach"])
def test_only_overdue_waits_with_a_session_are_ended_until_they_are_gone(action: str) -> None:
    policy = CommitPolicy(10, action)
    waits = [wait(1, 11), wait(2, 9), wait(3, 11, known=False)]
    assert policy.decide(waits).act_on == policy.decide(waits).act_on == (waits[0],)


def test_a_confirm_that_races_a_timeout_confirms() -> None:
    waits = [wait(1, 11, end_lsn=100), wait(2, 11, end_lsn=101), wait(3, 11, end_lsn=None)]
    assert [each.xid for each in waits if is_unconfirmed(each, 100)] == [2, 3]
    assert [each.xid for each in waits if is_unconfirmed(each, 101)] == [3]


def test_the_fence_begins_once_and_ends_when_nothing_waits() -> None:
    policy = CommitPolicy(10, "fence")
    policy.is_fenced = False
    assert policy.decide([]).fence is None
    assert policy.decide([wait(1, 11)]).fence is True
    policy.is_fenced = True
    assert policy.decide([wait(1, 12)]).fence is None
    assert policy.decide([wait(2, 0)]).fence is None, "something waits"
    assert policy.decide([]).fence is False


def test_a_fence_that_an_earlier_process_may_have_left_is_looked_for() -> None:
    assert CommitPolicy(10, "fence").decide([]).fence is False
    assert CommitPolicy(10, "detach").decide([]).fence is None


def test_a_changed_rule_still_ends_the_fence() -> None:
    policy = CommitPolicy(10, "fence")
    policy.is_fenced = True
    policy.set_rule(0, "warn")
    assert policy.decide([wait(1, 20)]).fence is None
    assert policy.decide([]).fence is False
