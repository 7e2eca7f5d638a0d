"""What a history answers about acknowledgements."""

import math
import threading
import time

import pytest

from walproxy.lab.load.history import History, HistoryOperation, Outcome
from walproxy.lab.load.transactions import SingleStatement

INSERT = SingleStatement("INSERT")
Inserts = History[SingleStatement]


def ended(client: int, begun_at: float, ended_at: float, outcome: Outcome = "ok") -> HistoryOperation[SingleStatement]:
    return HistoryOperation(client, INSERT, begun_at, ended_at, outcome)


def history_of(*times: tuple[float, float]) -> Inserts:
    history = Inserts()
    for number, (begun_at, ended_at) in enumerate(times):
        history.add(ended(number, begun_at, ended_at))
    return history


@pytest.fixture
def history() -> Inserts:
    """Four transactions, (begun, ended): one that was under way for long ended third."""
    return history_of((1.0, 1.1), (1.2, 1.5), (1.15, 3.0), (3.1, 3.2))


@pytest.fixture
def steady() -> Inserts:
    """One client: one commit waited from 2 to 5, between quick ones."""
    return history_of((0.0, 1.0), (1.0, 2.0), (2.0, 5.0), (5.0, 5.5))


def test_acknowledgements_are_counted_in_a_half_open_range(history: Inserts) -> None:
    assert history.acknowledged_between(1.1, 3.0) == 2
    assert history.acknowledged_between(1.1, 3.01) == 3
    assert history.acknowledged_between(4.0, 5.0) == 0


def test_the_first_transaction_begun_since_a_moment_is_not_the_first_that_ended_after_it(history: Inserts) -> None:
    first = history.first_begun_since(2.0)
    assert first is not None
    assert first.client == 3
    assert history.first_begun_since(3.15) is None


@pytest.mark.parametrize(("since", "expected"), [(-1.0, 0), (1.0, 1), (1.5, 2), (2.5, 3), (5.0, 3), (5.1, None)])
def test_a_commit_that_was_under_way_is_not_the_next_one(steady: Inserts, since: float, expected: int | None) -> None:
    assert steady.first_begun_since(since) == (None if expected is None else steady.acknowledged[expected])


@pytest.mark.parametrize(("since", "expected_s"), [(0.0, 3.0), (4.0, 3.0), (5.0, 0.5), (5.5, 0.0)])
def test_the_longest_commit_since_then_may_have_been_under_way(
    steady: Inserts, since: float, expected_s: float
) -> None:
    assert steady.longest_since(since) == expected_s


def test_the_longest_pause_counts_from_the_begin_and_to_the_end(history: Inserts) -> None:
    assert history.longest_pause_s(1.0, 3.3) == pytest.approx(1.5)
    assert history.longest_pause_s(3.1, 10.0) == pytest.approx(6.8)
    assert history.longest_pause_s(5.0, 7.0) == pytest.approx(2.0)
    assert history.longest_pause_s(5.0, 7.0, [6.5, 5.5, 4.0, 9.0]) == pytest.approx(1.0)


def test_the_first_acknowledgement_after_a_moment_may_not_exist(history: Inserts) -> None:
    assert [history.first_after(moment) for moment in (0.0, 1.1, 1.6)] == [1.1, 1.1, 3.0]
    assert history.first_after(3.3) == math.inf


def test_what_failed_is_neither_acknowledged_nor_in_doubt(history: Inserts) -> None:
    history.add(ended(8, 4.0, 4.1, "unknown"))
    history.add(ended(9, 4.2, 4.3, "fail"))
    assert [operation.client for operation in history.operations] == [0, 1, 2, 3, 8, 9]
    assert [operation.client for operation in history.acknowledged] == [0, 1, 2, 3]
    assert [operation.client for operation in history.in_doubt] == [8]
    assert history.last_begun_at == 3.1


def test_who_waits_for_a_condition_wakes_at_each_entry_and_gives_up_in_time(history: Inserts) -> None:
    threading.Timer(0.01, history.add, [ended(7, 5.0, 6.0)]).start()
    began_at = time.monotonic()
    assert history.wait_for(lambda: history.first_begun_since(5.0), 20.0)
    assert time.monotonic() - began_at < 10
    assert not history.wait_for(lambda: history.first_begun_since(7.0), 0.01)
