"""Turns: the work for the clients that a listener does not know, in pieces, within a share of the event loop's time.

The loop that serves these clients also decides commits, so they must not occupy it, whatever they send. Each of them
may receive some bytes; then nothing more is read from it until its turn, in which it does one piece of its work: a step
of a TLS handshake, a request. Accepting connections is such a piece of work, too. The clients' addresses take turns, so
that one with a thousand connections delays another one by one piece of work.

    a turn      as many pieces as fit into TURN_S, at least one; then the loop handles everything else
    the share   the processor time of all turns is charged to it (safekeeper/net/share.py); when it is used up, turns
                pause. Processor time, because what other processes take from this one is not the clients' work
    the log     one line when clients have waited for the share for SLOW_AFTER_S, with the address that used the most

A piece of work is also charged PIECE_S, for what the loop and the kernel do for it outside of the turn.
"""

import asyncio
import logging
import time
import types
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

from safekeeper.net.admission import host_group
from safekeeper.net.share import Share

TURN_S = 0.001
# A read of the socket with its events of the poll, and the write of an answer of 30 kB: 40 to 60 us.
PIECE_S = 50e-6
SLOW_AFTER_S = 1.0
# The minimum interval between two lines about slowed clients.
AGAIN_AFTER_S = 60.0
# The maximum number of addresses whose work is added up for the log.
_COUNTED_MAX = 1024

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class Turns:
    """The turns of one listener's unknown clients. On the event loop's thread.

    Args:
        whose: these clients, for the log.
        share: the time for them, None for the usual share.
        work_clock: measures work.
    """

    def __init__(
        self, whose: str, share: Share | None = None, work_clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._whose = whose
        self._loop = asyncio.get_running_loop()
        self._share = share if share is not None else Share(self._loop.time())
        self._work_clock = work_clock
        # By host group, in the order of their turns.
        self._queues: dict[str, deque[Callable[[], None]]] = {}
        self._next: asyncio.Handle | None = None
        # While clients wait for the share: since when, and the work of each host group in this time.
        self._slow_since: float | None = None
        self._used: dict[str, float] = {}
        self._logged_at = -AGAIN_AFTER_S

    @property
    def is_short(self) -> bool:
        """Whether the clients ask for more than the share: expensive work should be done once for all of them."""
        return self._share.is_short(self._loop.time())

    def ask(self, host: str, work: Callable[[], None]) -> None:
        """Do a piece of work at the next turn of clients from `host`, which is empty for none. It must not raise."""
        group = host_group(host)
        self._queues.setdefault(group, deque()).append(work)
        if self._next is None:
            self._schedule()

    def withdraw(self, host: str, work: Callable[[], None]) -> None:
        """Drop work that `ask` was given and that has not begun, if any: its connection is closed."""
        group = host_group(host)
        queue = self._queues.get(group)
        if queue is not None and work in queue:
            queue.remove(work)
            if not queue:
                del self._queues[group]

    def charge(self, host: str, work_s: float) -> None:
        """Count work that was done for clients from `host` outside of their turns."""
        self._charge(host_group(host), work_s)

    @types.coroutine
    def charged(self, host: str, work: Awaitable[_T]) -> Generator[Any, Any, _T]:
        """Await `work`, and count the time of its steps as `charge` does."""
        steps = work.__await__()
        step: Callable[[Any], Any] = steps.send
        value: Any = None
        while True:
            began_s = self._work_clock()
            try:
                awaited = step(value)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            finally:
                self.charge(host, self._work_clock() - began_s)
            try:
                value, step = (yield awaited), steps.send
            except BaseException as error:  # A cancellation, for `work` to handle.
                value, step = error, steps.throw

    def stop(self) -> None:
        """Drop all work that waits."""
        self._queues.clear()
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _schedule(self) -> None:
        now = self._loop.time()
        wait_s = self._share.wait_s(now)
        if wait_s > 0:
            self._next = self._loop.call_later(wait_s, self._take)
            self._note_slow(now)
        else:
            self._next = self._loop.call_soon(self._take)
            if self._slow_since is not None and not self._share.is_short(now):
                self._slow_since = None
                self._used.clear()

    def _take(self) -> None:
        self._next = None
        began_s = self._work_clock()
        end_s = began_s + TURN_S
        try:
            while self._queues and began_s < end_s:
                group = next(iter(self._queues))
                queue = self._queues.pop(group)
                work = queue.popleft()
                if queue:
                    self._queues[group] = queue  # After the others.
                work()
                now_s = self._work_clock()
                self._charge(group, now_s - began_s + PIECE_S)
                began_s = now_s
        finally:
            if self._queues and self._next is None:
                self._schedule()

    def _charge(self, group: str, work_s: float) -> None:
        self._share.charge(work_s, self._loop.time())
        if self._slow_since is not None and group and (group in self._used or len(self._used) < _COUNTED_MAX):
            self._used[group] = self._used.get(group, 0.0) + work_s

    def _note_slow(self, now: float) -> None:
        if self._slow_since is None:
            self._slow_since = now
        elif now - self._slow_since >= SLOW_AFTER_S and now - self._logged_at >= AGAIN_AFTER_S and self._used:
            self._logged_at = now
            most = max(self._used, key=lambda group: self._used[group])
            _log.warning(
                "limiting %s to %.0f%% of this process's time: %s used %.0f%% of that in the last %.0f s",
                self._whose,
                100 * self._share.rate,
                most,
                100 * self._used[most] / sum(self._used.values()),
                now - self._slow_since,
            )
            self._used.clear()
            self._slow_since = now
