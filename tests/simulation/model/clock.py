"""Virtual time: a heap of what is to happen, in an order that depends on nothing but the seed."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Clock:
    """Runs what was scheduled, in the order of its time; what falls on one instant runs as it was scheduled.

    Attributes:
        now: virtual seconds since the start.
        steps: events run so far.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self._scheduled = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def after(self, delay_s: float, event: Callable[..., None], *args: Any) -> None:
        """Run `event(*args)` in `delay_s` seconds."""
        self._scheduled += 1
        heappush(self._heap, (self.now + delay_s, self._scheduled, event, args))

    def at(self, time_s: float, event: Callable[..., None], *args: Any) -> None:
        """Run `event(*args)` at a time: two events at the same one in this order, whenever each was scheduled."""
        self._scheduled += 1
        heappush(self._heap, (time_s, self._scheduled, event, args))

    def soon(self, event: Callable[..., None], *args: Any) -> None:
        """Run `event(*args)` at this instant, after what was scheduled for it before."""
        self._scheduled += 1
        heappush(self._heap, (self.now, self._scheduled, event, args))

    def run(self, until_s: float, events: int | None = None) -> None:
        """Let time pass up to `until_s`, or until so many events have been run."""
        heap, pop = self._heap, heappop
        last_step = self.steps + events if events is not None else -1
        while heap and heap[0][0] <= until_s:
            if self.steps == last_step:
                return
            self.now, _, event, args = pop(heap)
            self.steps += 1
            event(*args)
        self.now = until_s


class MachineClock:
    """The monotonic clock of one machine: faster or slower than time itself, and now and then ahead at once.

    Attributes:
        rate: its seconds in a second.
        ahead_s: how far it has leapt, as that of a virtual machine may that was suspended.
        soon: as that of time itself.
    """

    def __init__(self, time: Clock, rate: float) -> None:
        self._time = time
        self.soon = time.soon
        self.rate = rate
        self.ahead_s = 0.0

    @property
    def now(self) -> float:
        """What it shows, in seconds: never less than it has shown before."""
        return self._time.now * self.rate + self.ahead_s

    def after(self, delay_s: float, event: Callable[..., None], *args: Any) -> None:
        """Run `event(*args)` when it has counted so many seconds; it may leap in between."""
        self._time.after(delay_s / self.rate, event, *args)
