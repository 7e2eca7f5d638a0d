"""When the leader hears of the standbys: soon after something that somebody waits for, seldom otherwise.

A commit may wait for a standby that has replayed it (`remote_apply`), so an advance of apply_lsn is told at once, like
the coming and going of readers. All that happens in one turn of the event loop is told together, and no more often than
once a millisecond: the leader handles thousands of appends a second and has better to do. What no commit waits for,
positions written and flushed and the standbys' oldest transactions, travels along, or alone within a tenth of a second.
"""

import asyncio
from collections.abc import Callable

PAUSE_S = 0.001
PATIENCE_S = 0.1


class FeedbackTimer:
    """Calls `tell` when it is time.

    Args:
        tell: says everything that there is to say.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, tell: Callable[[], None]) -> None:
        self._loop = loop
        self._tell = tell
        self._due_at = 0.0
        self._told_at = -PAUSE_S
        self._handle: asyncio.Handle | None = None

    def changed(self, *, urgent: bool) -> None:
        """There is something to tell."""
        now = self._loop.time()
        due_at = max(now if urgent else now + PATIENCE_S, self._told_at + PAUSE_S)
        if self._handle is not None:
            if self._due_at <= due_at:
                return
            self._handle.cancel()
        self._due_at = due_at
        # At the end of this turn at the earliest: a turn may bring several changes.
        self._handle = self._loop.call_at(due_at, self._fire) if due_at > now else self._loop.call_soon(self._fire)

    def stop(self) -> None:
        """Send nothing more."""
        if self._handle is not None:
            self._handle.cancel()

    def _fire(self) -> None:
        self._handle = None
        self._told_at = self._loop.time()
        self._tell()
