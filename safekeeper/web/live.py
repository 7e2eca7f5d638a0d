"""The stream of the page: the contents of a process's JSON pages, once a second, as server-sent events.

The contents are computed once for all readers, and only while there are any. Each frame has an event for each part
that has changed since the last one, and ends with the event `tick`, at which the page is drawn; it lists the parts that
could not be computed:

    event: status
    data: {"state": "streaming", ...}

    event: tick
    data: {"at": "2026-11-25T22:10:03.000+00:00", "failed": []}

The first frame of a reader also contains the event `history` (safekeeper/web/history.py).

A reader that has not read the last frames gets none until it has, and then one with every part. So nothing is queued
for a reader (safekeeper/net/http_server.py disconnects those that stop reading).
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from safekeeper.base.logs import RateLimit, describe_bug
from safekeeper.net.http_server import HttpConnection, Stream
from safekeeper.web.history import SampleHistory

INTERVAL_S = 1.0
# The time after which a browser that lost its connection connects again.
_RETRY_MS = 3000

_log = logging.getLogger(__name__)


class LiveStream(Stream):
    """The stream of one process. On the event loop's thread.

    Args:
        parts: functions that return the content of each part, a value to encode as JSON.
        headers: of the answer.
        history: the last ten minutes, None without them.
    """

    content_type = "text/event-stream"

    def __init__(
        self,
        parts: Mapping[str, Callable[[], Any]],
        headers: tuple[tuple[str, str], ...],
        history: SampleHistory | None = None,
    ) -> None:
        self.headers = headers
        self._history = history
        self._parts = parts
        self._events: dict[str, bytes] = {}
        # Each reader, and whether it has every part as of the last frame.
        self._readers: dict[HttpConnection, bool] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._failures = RateLimit(lines=3, interval_s=60)

    def join(self, reader: HttpConnection) -> None:
        """See Stream: the first frame has every part, at most INTERVAL_S old."""
        if self._timer is None:
            self._take()
            self._wait()
        past = _event("history", list(self._history.samples)) if self._history is not None else b""
        self._readers[reader] = reader.send_frame(b"retry: %d\n\n%s%s" % (_RETRY_MS, past, self._everything()))

    def leave(self, reader: HttpConnection) -> None:
        """See Stream: without readers nothing is computed."""
        self._readers.pop(reader, None)
        if not self._readers and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._events.clear()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._send)

    def _send(self) -> None:
        self._wait()
        changed = b"".join([*self._take(), self._events["tick"]])
        everything = self._everything()
        for reader, is_current in list(self._readers.items()):
            self._readers[reader] = reader.send_frame(changed if is_current else everything)

    def _take(self) -> list[bytes]:
        """Compute all parts; return the events of those that have changed."""
        changed, failed = [], []
        for name, content_of in self._parts.items():
            try:
                event = _event(name, content_of())
            except Exception as bug:
                # The other parts are shown without it.
                more = self._failures.admit()
                if more is not None:
                    _log.error("no %s for the page: %s%s", name, describe_bug(bug), more)
                failed.append(name)
                continue
            if self._events.get(name) != event:
                self._events[name] = event
                changed.append(event)
        # The last entry, so that it ends every frame.
        self._events.pop("tick", None)
        self._events["tick"] = _event(
            "tick", {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "failed": failed}
        )
        return changed

    def _everything(self) -> bytes:
        return b"".join(self._events.values())


def _event(name: str, content: Any) -> bytes:
    """Return one server-sent event. JSON as msgspec encodes it has no line break, so that it is one line of data."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(content))
