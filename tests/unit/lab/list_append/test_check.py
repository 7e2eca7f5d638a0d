"""The check of histories: it accepts what a serial order explains and nothing else, and names what it finds."""

from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from walproxy.lab.list_append.check import find_anomalies
from walproxy.lab.list_append.transactions import Append, ListTransaction, Read
from walproxy.lab.load.history import Outcome

LISTS = 3


def transaction(
    name: str, begun_at: float, ended_at: float, *steps: Append | Read, outcome: Outcome = "ok"
) -> ListTransaction:
    return ListTransaction(name, begun_at, ended_at, outcome, steps)


def r(key: int, *items: int) -> Read:
    return Read(key, items)


def kinds(*history: ListTransaction) -> list[str]:
    return [anomaly.kind for anomaly in find_anomalies(history)]


def serial_history(chance: Random, count: int) -> list[ListTransaction]:
    """Return a history that is strictly serializable: each transaction takes effect between its begin and its end.

    Those in doubt take effect or not, possibly after their clients have hung up. The last one reads everything.
    """
    lists: dict[int, list[int]] = {key: [] for key in range(LISTS)}
    history, value = [], 0
    for number in range(count + 1):
        is_last = number == count
        outcome: Outcome = "ok" if is_last else chance.choice(["ok", "ok", "ok", "unknown", "fail"])
        applied = outcome == "ok" or (outcome == "unknown" and chance.random() < 0.5)
        state = {key: [*items] for key, items in lists.items()}
        steps: list[Append | Read] = []
        if is_last:
            steps = [Read(key, tuple(items)) for key, items in lists.items()]
        for _ in range(0 if is_last else chance.randint(1, 4)):
            key = chance.randrange(LISTS)
            if chance.random() < 0.5:
                value += 1
                state[key].append(value)
                steps.append(Append(key, value))
            else:
                steps.append(Read(key, tuple(state[key])))
        lists = state if applied else lists
        begun_at = number - chance.random() * 3 if not is_last else number + 4
        ended_at = number + chance.random() * 3 * (1 if outcome == "ok" else 0) if not is_last else number + 5
        history.append(ListTransaction(f"T{number}", begun_at, ended_at, outcome, tuple(steps)))
    return history


def explains(order: tuple[ListTransaction, ...]) -> bool:
    """Return whether each read of a serial order has what was appended before, and real time agrees."""
    lists: dict[int, tuple[int, ...]] = {}
    latest_begin = float("-inf")
    for each in order:
        if each.outcome == "ok" and each.ended_at < latest_begin:
            return False
        latest_begin = max(latest_begin, each.begun_at)
        for step in each.steps:
            items = lists.get(step.key, ())
            if isinstance(step, Append):
                lists[step.key] = (*items, step.value)
            elif step.items != items:
                return False
    return True


def is_strictly_serializable(history: list[ListTransaction]) -> bool:
    """Return whether any order of the acknowledged transactions, with any of those in doubt, explains all reads."""
    certain = [each for each in history if each.outcome == "ok"]
    doubtful = [each for each in history if each.outcome == "unknown"]
    chosen = [
        [*certain, *(each for place, each in enumerate(doubtful) if mask >> place & 1)]
        for mask in range(1 << len(doubtful))
    ]
    return any(explains(order) for some in chosen for order in permutations(some))


def disturbed(history: list[ListTransaction], chance: Random) -> list[ListTransaction]:
    """Return a history with one thing changed: a read, an outcome, a time, or a transaction's place."""
    index = chance.randrange(len(history))
    each = history[index]
    steps, begun_at, ended_at, outcome = list(each.steps), each.begun_at, each.ended_at, each.outcome
    reads = [place for place, step in enumerate(steps) if isinstance(step, Read)]
    change = chance.choice(["read", "read", "read", "outcome", "earlier", "later"])
    if change == "read" and reads:
        place = chance.choice(reads)
        read = steps[place]
        assert isinstance(read, Read)
        items = list(read.items)
        how = chance.choice(["shorter", "shorter", "shuffle", "drop", "add"])
        if how == "shorter":
            items = items[: chance.randint(0, len(items))]
        elif how == "shuffle":
            chance.shuffle(items)
        elif how == "drop" and items:
            items.pop(chance.randrange(len(items)))
        else:
            items.insert(chance.randint(0, len(items)), chance.randint(1, 9))
        steps[place] = Read(read.key, tuple(items))
    elif change == "outcome":
        outcome = chance.choice(["ok", "fail", "unknown"])
    elif change == "earlier":
        begun_at, ended_at = begun_at - 4, ended_at - 4
    else:
        begun_at, ended_at = begun_at + 4, ended_at + 4
    changed = ListTransaction(each.name, begun_at, ended_at, outcome, tuple(steps))
    return [*history[:index], changed, *history[index + 1 :]]


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 32), count=st.integers(0, 60))
def test_a_strictly_serializable_history_has_no_anomaly(seed: int, count: int) -> None:
    chance = Random(seed)
    history = serial_history(chance, count)
    chance.shuffle(history)
    assert find_anomalies(history) == []


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 1 << 32), count=st.integers(1, 4), changes=st.integers(1, 2))
def test_an_anomaly_is_found_exactly_if_no_order_explains_the_history(seed: int, count: int, changes: int) -> None:
    chance = Random(seed)
    history = serial_history(chance, count)
    for _ in range(changes):
        history = disturbed(history, chance)
    assert (find_anomalies(history) == []) == is_strictly_serializable(history)


def test_an_acknowledged_append_that_a_failover_has_lost_is_found() -> None:
    old = transaction("old", 0, 1, Append(1, 1), Append(1, 2))
    new = transaction("new", 5, 6, r(1), Append(1, 3))
    after = transaction("after", 7, 8, r(1, 3))
    assert kinds(old, new, after) == ["Lost"]
    [anomaly] = find_anomalies([old, new, after])
    assert anomaly.message == (
        "[1, 2], appended to list 1 by old and acknowledged, is missing in what after has read later: [3]"
    )


def test_a_stale_read_on_an_old_primary_is_found() -> None:
    new = transaction("new", 1, 2, Append(1, 1))
    stale = transaction("stale", 3, 4, r(1))
    after = transaction("after", 5, 6, r(1, 1))
    assert kinds(new, stale, after) == ["G-single-realtime"]
    [anomaly] = find_anomalies([new, stale, after])
    assert "stale did not read in list 1 what new appended" in anomaly.message
    assert "stale began after new was acknowledged" in anomaly.message
    # Not acknowledged, so its reads promise nothing.
    assert kinds(new, transaction("stale", 3, 4, r(1), Append(2, 2), outcome="unknown"), after) == []
    # It began before.
    assert kinds(new, transaction("stale", 1.5, 4, r(1)), after) == []


def test_a_read_of_a_tail_that_was_discarded_is_found() -> None:
    tail = transaction("tail", 0, 1, Append(1, 1), outcome="unknown")
    dirty = transaction("dirty", 2, 3, r(1, 1), Append(2, 2))
    after = transaction("after", 5, 6, r(1), r(2, 2))
    assert kinds(tail, dirty, after) == ["G-single"]
    # Others have appended to the list since.
    assert kinds(tail, dirty, transaction("new", 5, 6, Append(1, 3)), transaction("after", 7, 8, r(1, 3))) == [
        "Incompatible"
    ]


def test_reads_of_a_transaction_in_doubt_count_once_its_append_was_read() -> None:
    new = transaction("new", 0, 1, Append(1, 1))
    doubtful = transaction("doubtful", 2, 3, r(1), Append(2, 2), outcome="unknown")
    assert kinds(new, doubtful, transaction("after", 4, 5, r(1, 1), r(2))) == []
    assert kinds(new, doubtful, transaction("after", 4, 5, r(1, 1), r(2, 2))) == ["G-single-realtime"]


def test_a_transaction_in_doubt_may_take_effect_long_after_its_client_has_hung_up() -> None:
    doubtful = transaction("doubtful", 0, 1, Append(1, 1), outcome="unknown")
    assert kinds(doubtful, transaction("before", 2, 3, r(1)), transaction("after", 4, 5, r(1, 1))) == []


@pytest.mark.parametrize(
    ("history", "kind"),
    [
        ([transaction("a", 0, 1, Append(1, 1), outcome="fail"), transaction("b", 2, 3, r(1, 1))], "G1a"),
        ([transaction("a", 0, 9, Append(1, 1), Append(1, 2)), transaction("b", 0, 9, r(1, 1))], "G1b"),
        ([transaction("a", 0, 9, r(1, 4))], "Stranger"),
        ([transaction("a", 0, 9, Append(2, 4)), transaction("b", 0, 9, r(1, 4))], "Stranger"),
        ([transaction("a", 0, 9, Append(1, 1)), transaction("b", 0, 9, r(1, 1, 1))], "Duplicate"),
        ([transaction("a", 0, 9, Append(1, 1), r(1))], "Internal"),
        ([transaction("a", 0, 9, r(1, 1), Append(1, 1))], "Internal"),
        ([transaction("a", 0, 9, Append(1, 1)), transaction("b", 0, 9, r(1), r(1, 1))], "Internal"),
        (
            [
                transaction("a", 0, 9, Append(1, 1)),
                transaction("b", 0, 9, Append(1, 2)),
                transaction("c", 0, 9, r(1, 1)),
                transaction("d", 0, 9, r(1, 2, 1)),
            ],
            "Incompatible",
        ),
        (
            [
                transaction("a", 0, 9, Append(1, 1), Append(1, 2)),
                transaction("b", 0, 9, Append(1, 3)),
                transaction("c", 0, 9, r(1, 1, 3, 2)),
            ],
            "Torn",
        ),
        (
            [
                transaction("a", 0, 9, Append(1, 1), Append(2, 3)),
                transaction("b", 0, 9, Append(1, 2), Append(2, 4)),
                transaction("c", 0, 9, r(1, 1, 2), r(2, 4, 3)),
            ],
            "G0",
        ),
        (
            [
                transaction("a", 0, 9, Append(1, 1), r(2, 2)),
                transaction("b", 0, 9, Append(2, 2), r(1, 1)),
            ],
            "G1c",
        ),
        (
            [
                transaction("a", 0, 9, Append(1, 1), Append(2, 2)),
                transaction("b", 0, 9, r(1, 1), r(2)),
                transaction("c", 0, 9, r(2, 2)),
            ],
            "G-single",
        ),
        (
            [
                transaction("a", 0, 9, r(1), Append(2, 2)),
                transaction("b", 0, 9, r(2), Append(1, 1)),
                transaction("c", 0, 9, r(1, 1), r(2, 2)),
            ],
            "G2",
        ),
        (
            [
                transaction("a", 0, 1, Append(1, 1)),
                transaction("b", 2, 3, Append(1, 2)),
                transaction("c", 2, 9, r(1, 2, 1)),
            ],
            "G0-realtime",
        ),
    ],
)
def test_each_kind_is_named(history: list[ListTransaction], kind: str) -> None:
    assert kinds(*history)[:1] == [kind]


def test_two_appends_of_one_value_cannot_be_checked() -> None:
    with pytest.raises(ValueError, match="b and a append 1"):
        find_anomalies([transaction("a", 0, 1, Append(1, 1)), transaction("b", 0, 1, Append(2, 1))])


def test_an_anomaly_in_a_long_history_is_the_only_one_found() -> None:
    history = serial_history(Random(1), 300)
    late = transaction("late", 400, 401, *(r(key) for key in range(LISTS)))
    *_, last = history
    found = find_anomalies([*history, late])
    assert [each.kind for each in found] == ["G-single-realtime"]
    assert f"late began after {last.name} was acknowledged" in found[0].message
