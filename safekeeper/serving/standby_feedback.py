"""Decides when the standbys' positions are sent to the leader: at once if a commit may wait for them, else later.

A commit may wait until a standby has replayed it (`remote_apply`). Therefore an advance of apply_lsn is sent at once,
as is the start or end of a reader. Everything that happens in one cycle of the event loop is sent together, and at most
once per millisecond, because the leader handles thousands of appends per second. Values for which no commit waits, the
write and flush positions and the standbys' oldest transactions, are sent with these, or alone within 0.1 s.
"""

import asyncio
from collections.abc import Callable

PAUSE_S = 0.001
PATIENCE_S = 0.1


class FeedbackTimer:
    """Calls `send` when the feedback is due.

    Args:
        send: sends the present feedback to the leader.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[], None]) -> None:
        self._loop = loop
        self._send = send
        self._due_at = 0.0
        self._reported_at = -PAUSE_S
        self._handle: asyncio.Handle | None = None

    def changed(self, *, urgent: bool) -> None:
        """Schedule a call after a change. `urgent`: a commit may wait for it."""
        now = self._loop.time()
        due_at = max(now if urgent else now + PATIENCE_S, self._reported_at + PAUSE_S)
        if self._handle is not None:
            if self._due_at <= due_at:
                return
            self._handle.cancel()
        self._due_at = due_at
        # At the end of this cycle at the earliest, because a cycle may bring several changes.
        self._handle = self._loop.call_at(due_at, self._fire) if due_at > now else self._loop.call_soon(self._fire)

    def stop(self) -> None:
        """Send nothing more."""
        if self._handle is not None:
            self._handle.cancel()

    def _fire(self) -> None:
        self._handle = None
        self._reported_at = self._loop.time()
        self._send()
