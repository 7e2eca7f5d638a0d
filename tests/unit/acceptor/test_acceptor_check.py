"""What an acceptor checks of itself after each event: everything that cannot be is noticed."""

from collections.abc import Callable

import msgspec
import pytest

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.base.errors import InvariantViolation, RemoteProtocolError
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.messages import AppendRequest, PullWal
from safekeeper.consensus.term_history import HistoryEntry
from tests.unit.acceptor.test_acceptor import BASE, P1, P2, Bench, asks, elected, member


def following() -> Bench:
    """Return a member that follows P1, has promised it, and has committed 40 of its 100 bytes."""
    bench = member()
    bench.greet()
    bench.deliver(asks(P1))
    bench.deliver(elected(P1, (1, BASE, 1)))
    bench.append(BASE, b"x" * 100)
    bench.flush()
    bench.append(BASE + 100, commit_lsn=BASE + 40, truncate_lsn=BASE + 30)
    assert (bench.acceptor.commit_lsn, bench.acceptor.truncate_lsn) == (BASE + 40, BASE + 30)
    return bench


def _flush_above_write(acceptor: Acceptor) -> None:
    acceptor.flush_lsn = acceptor.write_lsn + 1


def _promise_goes_back(acceptor: Acceptor) -> None:
    acceptor.control = msgspec.structs.replace(acceptor.control, promised=LeaderId(0, ""))


def _adopts_above_the_promise(acceptor: Acceptor) -> None:
    history = (*acceptor.control.history, HistoryEntry(2, BASE + 100, 1))
    acceptor.control = msgspec.structs.replace(acceptor.control, history=history)


def _commit_goes_back(acceptor: Acceptor) -> None:
    acceptor.commit_lsn -= 1


def _truncate_goes_back(acceptor: Acceptor) -> None:
    acceptor.truncate_lsn -= 1


def _truncate_above_commit(acceptor: Acceptor) -> None:
    acceptor.truncate_lsn = acceptor.commit_lsn + 1


def _deposed_leader(acceptor: Acceptor) -> None:
    assert acceptor.following is not None
    acceptor.following.leader_id = P2


def _pull_for_another_leader(acceptor: Acceptor) -> None:
    assert acceptor.following is not None
    acceptor.following.pull = PullWal(P2, 1, BASE + 200, 0, ())


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (_flush_above_write, "flush_lsn 0/400065 is above write_lsn 0/400064"),
        (_promise_goes_back, r"the promise has gone back from \(1, run1\) to \(none\)"),
        (_adopts_above_the_promise, r"a term above the promise \(1, run1\) was adopted"),
        (_commit_goes_back, "commit_lsn 0/400027 or truncate_lsn 0/40001E has gone back"),
        (_truncate_goes_back, "truncate_lsn 0/40001D has gone back"),
        (_truncate_above_commit, "truncate_lsn 0/400029 is above commit_lsn 0/400028"),
        (_deposed_leader, r"\(2, run2\) leads, and \(1, run1\) was promised"),
        (_pull_for_another_leader, r"\(1, run1\) leads, and WAL is pulled for \(2, run2\)"),
    ],
)
def test_a_state_that_cannot_be_is_noticed_and_nothing_is_answered(
    harm: Callable[[Acceptor], None], message: str
) -> None:
    bench = following()
    bench.acceptor.check()
    harm(bench.acceptor)
    with pytest.raises(InvariantViolation, match=message):
        bench.acceptor.check()
    bench = following()
    answer = bench.acceptor.flushed(BASE + 100)
    assert answer is not None and answer.flush_lsn == BASE + 100
    _leader_has_sent_no_commit(bench)
    harm(bench.acceptor)
    with pytest.raises(InvariantViolation):
        bench.acceptor.flushed(BASE + 100)


def _leader_has_sent_no_commit(bench: Bench) -> None:
    """Otherwise a commit_lsn that is too low would advance."""
    assert bench.acceptor.following is not None
    bench.acceptor.following.commit_lsn = 0


def test_positions_are_compared_with_those_of_the_last_flush() -> None:
    bench = following()
    bench.acceptor.wrote(AppendRequest(P1, 1, BASE + 100, BASE + 60, BASE + 50, 0, True, b"x"), bench.now)
    assert bench.acceptor.flushed(BASE + 101) is not None
    _leader_has_sent_no_commit(bench)
    for name in ("commit_lsn", "truncate_lsn"):
        position = getattr(bench.acceptor, name)
        setattr(bench.acceptor, name, position - 1)
        with pytest.raises(InvariantViolation, match="has gone back"):
            bench.acceptor.flushed(BASE + 101)
        setattr(bench.acceptor, name, position)


@pytest.mark.parametrize("harm", [_commit_goes_back, _truncate_goes_back])
def test_the_first_check_compares_positions_with_those_on_disk(harm: Callable[[Acceptor], None]) -> None:
    control = msgspec.structs.replace(following().control, commit_lsn=BASE + 40, truncate_lsn=BASE + 30)
    acceptor = Acceptor(control, BASE + 100)
    harm(acceptor)
    with pytest.raises(InvariantViolation, match="has gone back"):
        acceptor.check()


def test_positions_may_go_back_with_the_log_that_replaces_theirs() -> None:
    bench = following()
    bench.greet(2)
    bench.deliver(asks(P2), 2)
    bench.deliver(elected(P2, (1, BASE, 1), (2, BASE + 40, 2)), 2)
    assert (bench.acceptor.commit_lsn, bench.acceptor.truncate_lsn) == (BASE + 40, 0)


def test_an_append_whose_positions_are_not_in_order_breaks_the_protocol_and_changes_nothing() -> None:
    bench = following()
    with pytest.raises(
        RemoteProtocolError, match="truncate_lsn 0/400032 of an append is above its commit_lsn 0/400031"
    ):
        bench.append(BASE + 100, b"x", commit_lsn=BASE + 49, truncate_lsn=BASE + 50)
    assert (bench.acceptor.commit_lsn, bench.acceptor.write_lsn) == (BASE + 40, BASE + 100)
