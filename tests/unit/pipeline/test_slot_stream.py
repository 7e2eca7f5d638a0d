"""Ranges out of one session: cut anywhere they have each transaction once, whatever arrives together."""

import random
import threading
import time
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit import pgoutput_bytes as built
from walproxy.pipeline.cdc.changes import Change, RowsByRelation
from walproxy.pipeline.cdc.server import SourceUnavailable
from walproxy.pipeline.cdc.slot_stream import SlotStream, Stopped
from walproxy.postgres.logical_replication import Item

TABLE = built.relation(1, "t", [("id", 23)], key=["id"])
END_BYTES = 40
"""Length of a commit record."""


class ScriptedFeed:
    """A server that sends what the script says; asked for its position it reports the end of what it has sent.

    Attributes:
        asked: how often it was.
    """

    def __init__(self, *arrivals: list[Item]) -> None:
        self.arrivals = list(arrivals)
        self.asked = 0

    def take(self, timeout_s: float) -> list[Item]:
        assert self.arrivals, "more is waited for than the server sends"
        return self.arrivals.pop(0)

    def ask(self) -> None:
        self.asked += 1


class Quorum:
    def wait_for(self, lsn: int) -> None:
        """All is on it."""

    def wait_for_flushed(self) -> None:
        """All is on it."""


def transaction(commit_lsn: int, *values: str, described: bool = False) -> list[Item]:
    relations = [TABLE] if described else []
    changes = [built.insert(1, value) for value in values]
    sent = [built.begin(commit_lsn, 7), *relations, *changes, built.commit(commit_lsn, commit_lsn + END_BYTES)]
    return [(0, data) for data in sent]


def position(lsn: int) -> Item:
    return (lsn, b"")


def stream_of(
    feed: ScriptedFeed, begin_lsn: int = 0, stop: threading.Event | None = None, is_held_back: bool = False
) -> SlotStream:
    return SlotStream(
        feed,
        Quorum(),
        begin_lsn,
        version=4,
        held_bytes_max=100,
        is_held_back=lambda: is_held_back,
        stop=stop or threading.Event(),
    )


def values(found: Sequence[Change | RowsByRelation]) -> list[str]:
    changes: list[Change] = []
    for each in found:
        changes += [each] if isinstance(each, Change) else (change for part in each.parts for change in part.changes())
    return [
        str(each.after[0], "ascii") for each in changes if each.after is not None and isinstance(each.after[0], bytes)
    ]


def read(stream: SlotStream, end_lsn: int) -> list[str]:
    return values(list(stream.read(end_lsn, lambda: None)))


def test_a_range_ends_before_a_transaction_that_begins_beyond_it_which_is_the_first_of_the_next() -> None:
    feed = ScriptedFeed(transaction(100, "a", described=True) + transaction(200, "b") + transaction(300, "c"))
    stream = stream_of(feed)
    assert read(stream, 150) == ["a"]
    assert read(stream, 200) == []
    assert read(stream, 201) == ["b"]  # its commit record begins in the range, and ends beyond it


def test_a_range_without_changes_ends_with_the_position_of_the_server() -> None:
    feed = ScriptedFeed([position(90)], [], [position(120)])
    stream = stream_of(feed)
    assert read(stream, 120) == []
    assert feed.asked == 2  # at first, and when nothing came
    assert read(stream, 110) == [] and feed.asked == 2


def test_the_server_flushes_only_if_it_must_send_more() -> None:
    feed = ScriptedFeed([*transaction(100, "a", described=True), position(140)])
    stream = stream_of(feed)
    flushes: list[int] = []
    list(stream.read(140, lambda: flushes.append(140)))
    list(stream.read(140, lambda: flushes.append(141)))
    assert flushes == [140]
    assert stream.has(140) and not stream.has(141)


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Callable[[ScriptedFeed], None]:
    """Let each wait for a feed take as long as it may."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def pass_in(feed: ScriptedFeed) -> None:
        take = feed.take

        def slowly(timeout_s: float) -> list[Item]:
            now[0] += timeout_s
            return take(timeout_s)

        feed.take = slowly  # type: ignore[method-assign]

    return pass_in


def test_a_server_that_holds_changes_back_is_not_waited_for_endlessly(seconds: Callable[[ScriptedFeed], None]) -> None:
    silence: list[list[Item]] = [[position(90)], [*transaction(100, "a", described=True)], *[[], [position(140)]] * 200]
    feed = ScriptedFeed(*silence)
    seconds(feed)
    with pytest.raises(SourceUnavailable, match="synchronized_standby_slots"):
        read(stream_of(feed, is_held_back=True), 150)
    assert 200 < len(silence) - len(feed.arrivals) < 400  # it is on time


def test_a_server_that_decodes_for_long_is_waited_for(seconds: Callable[[ScriptedFeed], None]) -> None:
    feed = ScriptedFeed(*[[position(90)]] * 1000, transaction(100, "a", described=True), [position(150)])
    seconds(feed)
    assert read(stream_of(feed), 150) == ["a"]


def test_what_arrives_or_moves_ends_the_time_of_waiting(seconds: Callable[[ScriptedFeed], None]) -> None:
    arrivals: list[list[Item]] = []
    for number in range(20):
        lsn = 100 * (number + 1)
        news = [position(lsn)] if number % 2 else transaction(lsn, "a", described=number == 0)
        arrivals += [[]] * 200 + [news]
    feed = ScriptedFeed(*arrivals)
    seconds(feed)
    assert read(stream_of(feed, is_held_back=True), 2000) == ["a"] * 10


def test_a_job_that_is_to_stop_does_not_wait_for_a_silent_server() -> None:
    stop = threading.Event()
    stop.set()
    first = [built.begin(100, 7), TABLE, built.insert(1, "a")]
    feed = ScriptedFeed([(0, data) for data in first], [position(100)])
    with pytest.raises(Stopped):
        read(stream_of(feed, stop=stop), 150)
    feed = ScriptedFeed([*transaction(100, "a", described=True)], [position(150)])
    assert read(stream_of(feed, stop=stop), 150) == ["a"]  # what does arrive is taken to the end of the range


def test_what_is_sent_again_is_passed_over() -> None:
    feed = ScriptedFeed(transaction(100, "a", described=True) + transaction(200, "b") + [position(240)])
    assert read(stream_of(feed, begin_lsn=150), 240) == ["b"]


def test_a_range_that_was_left_early_is_not_continued() -> None:
    stream = stream_of(ScriptedFeed(transaction(100, "a", "b", described=True)))
    left = stream.read(150, lambda: None)
    next(left)
    left.close()
    with pytest.raises(AssertionError, match="left early"):
        next(stream.read(200, lambda: None))


@given(st.integers(0, 1 << 32))
def test_ranges_cut_anywhere_have_each_transaction_once(seed: int) -> None:
    chance = random.Random(seed)
    sent: list[Item] = []
    expected: list[tuple[int, str]] = []
    lsn = 100
    for number in range(chance.randrange(12)):
        lsn += chance.randrange(60)
        if chance.random() < 0.4:
            sent.append(position(lsn))
        count = chance.randrange(8)
        sent += transaction(lsn, *(f"{number}.{each}" for each in range(count)), described=not expected)
        expected += [(lsn, f"{number}.{each}") for each in range(count)]
        lsn += END_BYTES
    sent.append(position(lsn))
    feed = ScriptedFeed()
    while sent:
        size = chance.randrange(1, 9)
        feed.arrivals.append(sent[:size])
        sent = sent[size:]
    stream = stream_of(feed)
    cuts = sorted(chance.randrange(100, lsn + 1) for _ in range(chance.randrange(6)))
    begin_lsn = 0
    for cut_lsn in [*cuts, lsn]:
        assert read(stream, cut_lsn) == [value for commit, value in expected if begin_lsn <= commit < cut_lsn]
        begin_lsn = cut_lsn
