"""The last ten minutes of a process: what the charts of its page show when the page is opened.

A sample is taken every five seconds, also without a reader, and reduced to the values that the charts have. The first
frame of each reader contains the samples as the event `history`:

    event: history
    data: [{"at": 1764108603.0, "status": {"flush_lsn": "0/5A3C9F8", ...}, "limbo": null}, ...]
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from safekeeper.base.logs import RateLimit, describe_bug
from safekeeper.base.status_fields import RecentTimes

INTERVAL_S = 5.0
SPAN_S: Final = 600.0

_log = logging.getLogger(__name__)


class _SafekeeperLag(msgspec.Struct):
    id: int
    lag_bytes: int | None


class _Times(msgspec.Struct):
    quorum: RecentTimes


class _OfProxy(msgspec.Struct):
    received_lsn: str
    commit_lsn: str
    safekeepers: list[_SafekeeperLag]
    times: _Times


class _Disk(msgspec.Struct):
    free_bytes: int | None


class _OfSafekeeper(msgspec.Struct):
    flush_lsn: str
    commit_lsn: str
    disk: _Disk


# What a sample has of /status, by the name of the page.
_SAMPLED: Final[dict[str, type[msgspec.Struct]]] = {"proxy": _OfProxy, "safekeeper": _OfSafekeeper}


class SampleHistory:
    """The samples of one process. On the event loop's thread, which runs already.

    Args:
        status: returns the content of /status.
        page: the name of the page: `proxy` or `safekeeper`.
        confirms_per_s: returns that value of /limbo, which costs more; None if the process has no limbo.
    """

    def __init__(
        self, status: Callable[[], Any], page: str, confirms_per_s: Callable[[], float | None] | None = None
    ) -> None:
        self.samples: deque[dict[str, Any]] = deque(maxlen=int(SPAN_S / INTERVAL_S))
        self._status = status
        self._confirms_per_s = confirms_per_s
        self._sampled = _SAMPLED[page]
        self._failures = RateLimit(lines=3, interval_s=60)
        self._wait()

    def _wait(self) -> None:
        asyncio.get_running_loop().call_later(INTERVAL_S, self._take)

    def _take(self) -> None:
        self._wait()
        try:
            self.samples.append(
                {
                    "at": round(time.time(), 3),
                    "status": msgspec.convert(self._status(), self._sampled, from_attributes=True),
                    "limbo": {"confirms_per_s": self._confirms_per_s()} if self._confirms_per_s is not None else None,
                }
            )
        except Exception as bug:
            # The process serves without a chart.
            more = self._failures.admit()
            if more is not None:
                _log.error("no sample for the charts of the page: %s%s", describe_bug(bug), more)
