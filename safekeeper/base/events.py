"""Events: what changed and when, for operators. Pure: the values, and the bounded list that keeps them.

An event has an id of its own, so that copies of it on several safekeepers are one event. Events carry no safety: they
may be lost, and nothing waits for them.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple

import msgspec

EVENTS_MAX = 2000
EVENTS_BYTES_MAX = 1 << 20
TEXT_BYTES_MAX = 1000
FIELDS_MAX = 16
FIELD_BYTES_MAX = 200
PAGE_EVENTS_MAX = 200

Field = str | int | float


class Event(msgspec.Struct, frozen=True, array_like=True):
    """What changed at one moment.

    Attributes:
        id: of this event, ORIGIN-NUMBER: the random id of the process that recorded it, and a number that it counts.
        at_ms: the time by the clock of that process, in milliseconds since 1970 UTC; it never decreases in a process.
        kind: an id of event_catalogue.py.
        source: the process, e.g. `walproxy 5f2a81c0@db1` or `safekeeper 2`.
        text: one line.
        fields: the figures of the text, for programs.
    """

    id: str
    at_ms: int
    kind: str
    source: str
    text: str
    fields: dict[str, Field] = {}


class KeptEvent(msgspec.Struct, frozen=True, array_like=True):
    """An event in a list, with its number there: lists of other processes number it differently."""

    seq: int
    event: Event


class Page(NamedTuple):
    """A part of a list: events in the order of their numbers, and the number from which to continue."""

    events: tuple[KeptEvent, ...]
    next_seq: int


class EventList:
    """The newest events of a process, at most EVENTS_MAX of EVENTS_BYTES_MAX bytes; each id once. Not thread-safe."""

    def __init__(self) -> None:
        self._kept: deque[KeptEvent] = deque()
        self._sizes: deque[int] = deque()
        self._ids: set[str] = set()
        self._bytes = 0
        self.next_seq = 1

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, event: Event, seq: int | None = None) -> KeptEvent | None:
        """Append an event, and drop the oldest ones above the limits; return None if it is in the list already.

        Args:
            seq: its number, if it has one from before a restart; at least `next_seq`.
        """
        if event.id in self._ids:
            return None
        kept = KeptEvent(self.next_seq if seq is None else max(seq, self.next_seq), event)
        size = len(msgspec.json.encode(event))
        self._kept.append(kept)
        self._sizes.append(size)
        self._ids.add(event.id)
        self._bytes += size
        self.next_seq = kept.seq + 1
        while len(self._kept) > EVENTS_MAX or self._bytes > EVENTS_BYTES_MAX:
            self._bytes -= self._sizes.popleft()
            self._ids.discard(self._kept.popleft().event.id)
        return kept

    def page(self, since: int, limit: int = PAGE_EVENTS_MAX) -> Page:
        """Return the first events numbered `since` or higher, at most `limit`."""
        found = tuple(islice((kept for kept in self._kept if kept.seq >= since), limit))
        return Page(found, found[-1].seq + 1 if found else self.next_seq)

    def all(self) -> tuple[KeptEvent, ...]:
        """Return all events, the oldest first."""
        return tuple(self._kept)


def bounded(text: str, fields: Mapping[str, object]) -> tuple[str, dict[str, Field]]:
    """Return text and fields cut to the limits of an event: one printable line, short values of simple types."""
    short: dict[str, Field] = {}
    for name, value in islice(fields.items(), FIELDS_MAX):
        if isinstance(value, bool) or not isinstance(value, int | float):
            short[name] = _cut(str(value), FIELD_BYTES_MAX)
        else:
            short[name] = value
    return _cut(text, TEXT_BYTES_MAX), short


def _cut(text: str, limit: int) -> str:
    if not text.isprintable():
        text = "".join(each if each.isprintable() else "?" for each in text)
    return text.encode(errors="replace")[:limit].decode(errors="ignore")


def merge(lists: Iterable[Iterable[Event]]) -> list[Event]:
    """Return the events of several lists by time, each once; events of one process in the order of their numbers."""
    unique = {event.id: event for events in lists for event in events}
    return sorted(unique.values(), key=_rank)


def _rank(event: Event) -> tuple[int, str, int, str]:
    origin, _, number = event.id.rpartition("-")
    return event.at_ms, origin, int(number) if number.isdecimal() else 0, event.id
