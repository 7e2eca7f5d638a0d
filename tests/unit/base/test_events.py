"""Lists of events: bounded, each event once, pages, and the merge of several lists."""

import random

from safekeeper.base.events import (
    EVENTS_BYTES_MAX,
    EVENTS_MAX,
    FIELD_BYTES_MAX,
    FIELDS_MAX,
    PAGE_EVENTS_MAX,
    TEXT_BYTES_MAX,
    Event,
    EventList,
    bounded,
    merge,
)


def event(number: int, origin: str = "a", at_ms: int = 0, text: str = "text") -> Event:
    return Event(f"{origin}-{number}", at_ms or number, "term-won", "walproxy", text)


def test_a_list_keeps_the_newest_events_and_each_id_once() -> None:
    events = EventList()
    for number in range(EVENTS_MAX + 10):
        assert events.add(event(number)) is not None
        assert events.add(event(number)) is None
    assert len(events) == EVENTS_MAX
    assert [kept.seq for kept in events.all()] == list(range(11, EVENTS_MAX + 11))
    assert events.next_seq == EVENTS_MAX + 11


def test_a_list_is_bounded_in_bytes() -> None:
    events = EventList()
    text = "x" * TEXT_BYTES_MAX
    for number in range(1500):
        events.add(event(number, text=text))
    assert 0.9 * EVENTS_BYTES_MAX < len(events) * TEXT_BYTES_MAX < EVENTS_BYTES_MAX
    assert events.all()[-1].event.id == "a-1499"


def test_a_page_continues_where_the_last_one_ended() -> None:
    events = EventList()
    assert events.page(0) == ((), 1)
    for number in range(PAGE_EVENTS_MAX + 1):
        events.add(event(number))
    first = events.page(0)
    assert len(first.events) == PAGE_EVENTS_MAX and first.next_seq == PAGE_EVENTS_MAX + 1
    second = events.page(first.next_seq)
    assert [kept.event.id for kept in second.events] == [f"a-{PAGE_EVENTS_MAX}"]
    assert events.page(second.next_seq) == ((), second.next_seq)
    # A reader that remembers the numbers of a list that is gone notices it.
    assert events.page(10_000) == ((), second.next_seq)


def test_numbers_of_before_a_restart_are_kept_and_never_go_back() -> None:
    events = EventList()
    assert [events.add(event(i), seq).seq for i, seq in enumerate((7, 8, 3))] == [7, 8, 9]  # type: ignore[union-attr]
    assert events.next_seq == 10


def test_text_and_fields_are_cut_to_one_short_line() -> None:
    text, fields = bounded(
        "two\nlines " + "ä" * TEXT_BYTES_MAX, {"a": "x" * 999, "b": True, "c": 1.5, "d": 7, "e": None}
    )
    assert text.startswith("two?lines ää") and TEXT_BYTES_MAX - 1 <= len(text.encode()) <= TEXT_BYTES_MAX
    assert fields == {"a": "x" * FIELD_BYTES_MAX, "b": "True", "c": 1.5, "d": 7, "e": "None"}
    assert len(bounded("", {str(i): i for i in range(99)})[1]) == FIELDS_MAX


def test_lists_are_merged_by_time_each_event_once_and_in_the_order_of_its_process() -> None:
    ours = [event(number, "a", at_ms=100) for number in range(9, 12)]
    theirs = [event(1, "b", at_ms=99), event(2, "b", at_ms=101)]
    copies = [*ours, *theirs]
    random.Random(1).shuffle(copies)
    assert merge([ours, copies, theirs]) == [theirs[0], *ours, theirs[1]]
