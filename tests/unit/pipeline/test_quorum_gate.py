"""No change leaves the gate before the quorum has the whole commit record (S7a), whatever the transactions are like."""

from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walproxy.pipeline.cdc.messages import Begin, Commit, Insert, Relation, Rows
from walproxy.pipeline.cdc.quorum_gate import on_quorum
from walproxy.pipeline.cdc.transactions import Sent

HELD_BYTES_MAX = 100


class TrackedQuorum:
    """A quorum that gets there whenever it is waited for; the server has flushed what it has sent the beginning of."""

    def __init__(self, known_lsn: int) -> None:
        self.lsn = known_lsn
        self.flushed_lsn = 0
        self.waits = 0

    def wait_for(self, lsn: int) -> None:
        self.lsn = max(self.lsn, lsn)
        self.waits += 1

    def wait_for_flushed(self) -> None:
        self.wait_for(self.flushed_lsn)


def transaction(commit_lsn: int, sizes: Sequence[int]) -> list[Sent]:
    changes = [Sent(commit_lsn - 1, Insert(0, 1, (b"%d" % number,)), size) for number, size in enumerate(sizes)]
    end_lsn = commit_lsn + 40
    return [
        Sent(commit_lsn, Begin(commit_lsn, 0, 7), 21),
        *changes,
        Sent(commit_lsn, Commit(commit_lsn, end_lsn, 0), 26),
    ]


def sent_by(transactions: Sequence[list[Sent]], quorum: TrackedQuorum) -> Iterator[Sent]:
    """Yield what a server sends: what comes of a transaction is on its own disk, wholly."""
    for each in transactions:
        quorum.flushed_lsn = each[0].lsn + 40
        yield from each


def gate(transactions: Sequence[list[Sent]], quorum: TrackedQuorum) -> Iterator[Sent]:
    stream = sent_by(transactions, quorum)
    return on_quorum(stream, quorum, known_lsn=quorum.lsn, held_bytes_max=HELD_BYTES_MAX)


@given(
    st.lists(st.lists(st.integers(1, 2 * HELD_BYTES_MAX), max_size=8), max_size=5),
    st.integers(0, 600),
)
def test_what_passes_is_on_the_quorum_and_comes_as_it_was_sent(sizes: Sequence[Sequence[int]], known_lsn: int) -> None:
    transactions = [transaction(100 * number, each) for number, each in enumerate(sizes, 1)]
    quorum = TrackedQuorum(known_lsn)
    passed = []
    end_lsn = 0
    for sent in gate(transactions, quorum):
        if isinstance(sent.message, Begin):
            end_lsn = sent.lsn + 40
        assert quorum.lsn >= end_lsn
        passed.append(sent)
    assert passed == [sent for each in transactions for sent in each]


def test_of_a_large_transaction_a_part_passes_before_its_commit_came_and_others_wait() -> None:
    quorum = TrackedQuorum(0)
    large = transaction(100, [60, 60, 60, 60])
    arrived: list[Sent] = []

    def counted() -> Iterator[Sent]:
        for sent in sent_by([large], quorum):
            arrived.append(sent)
            yield sent

    next(on_quorum(counted(), quorum, known_lsn=0, held_bytes_max=HELD_BYTES_MAX))
    assert len(arrived) == 4  # more than the limit was held when the third change came
    assert quorum.lsn >= 140


def test_what_is_known_to_be_on_the_quorum_is_not_waited_for() -> None:
    quorum = TrackedQuorum(140)
    assert len(list(gate([transaction(100, [10])], quorum))) == 3
    assert quorum.waits == 0


@pytest.mark.parametrize(("known_lsn", "waits"), [(0, 1), (239, 1), (240, 0)])
def test_whole_transactions_pass_when_the_quorum_has_the_last_commit_record(known_lsn: int, waits: int) -> None:
    quorum = TrackedQuorum(known_lsn)
    rows = Rows([(99, b"I"), (199, b"I")], [Begin(100, 0, 7), Begin(200, 0, 8)], [0, 1], 240)
    passed = on_quorum([Sent(99, rows, 10)], quorum, known_lsn=known_lsn, held_bytes_max=HELD_BYTES_MAX)
    assert next(passed).message == rows
    assert quorum.lsn >= 240 and quorum.waits == waits


def test_what_is_outside_of_transactions_passes_at_once() -> None:
    quorum = TrackedQuorum(0)
    relation = Sent(50, Relation(0, 1, "public", "t", "d", ()), 30)
    assert next(on_quorum([relation], quorum, known_lsn=0, held_bytes_max=HELD_BYTES_MAX)) == relation


class NotReached(Exception):
    """The quorum does not get there."""


@pytest.mark.parametrize("sizes", [[10], [200, 10]], ids=["small", "large"])
def test_nothing_passes_of_a_transaction_that_the_quorum_does_not_get(sizes: Sequence[int]) -> None:
    class Stuck(TrackedQuorum):
        def wait_for(self, lsn: int) -> None:
            raise NotReached

    with pytest.raises(NotReached):
        next(gate([transaction(100, sizes)], Stuck(120)))


def _without_wait(quorum: TrackedQuorum) -> None:
    quorum.wait_for = lambda lsn: None  # type: ignore[method-assign]


def _flushed_before(quorum: TrackedQuorum) -> None:
    """As if the flush position had been read before the Begin arrived."""
    quorum.wait_for_flushed = lambda: quorum.wait_for(quorum.flushed_lsn - 100)  # type: ignore[method-assign]


@pytest.mark.parametrize("bug", [_without_wait, _flushed_before])
def test_a_gate_that_does_not_wait_is_noticed(bug: Callable[[TrackedQuorum], None]) -> None:
    quorum = TrackedQuorum(120)
    bug(quorum)
    passed = [quorum.lsn for _ in gate([transaction(100, [200, 10])], quorum)]
    assert min(passed) < 140
