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
from collections.abc import Callable, Mapping
from typing import Any, Final

from safekeeper.base.logs import RateLimit, describe_bug

INTERVAL_S = 5.0
SPAN_S: Final = 600.0

_log = logging.getLogger(__name__)


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
        self._reduced = _REDUCED[page]
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
                    "status": self._reduced(self._status()),
                    "limbo": {"confirms_per_s": self._confirms_per_s()} if self._confirms_per_s is not None else None,
                }
            )
        except Exception as bug:
            # The process serves without a chart.
            more = self._failures.admit()
            if more is not None:
                _log.error("no sample for the charts of the page: %s%s", describe_bug(bug), more)


def _of_proxy(status: Mapping[str, Any]) -> dict[str, Any]:
    times = status["times"]
    return {
        "received_lsn": status["received_lsn"],
        "commit_lsn": status["commit_lsn"],
        "safekeepers": [{"id": each["id"], "lag_bytes": each["lag_bytes"]} for each in status["safekeepers"]],
        "times": {"quorum": {name: times["quorum"][name] for name in ("p50_s", "p99_s")}} if times else None,
    }


def _of_safekeeper(status: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "flush_lsn": status["flush_lsn"],
        "commit_lsn": status["commit_lsn"],
        "disk": {"free_bytes": status["disk"]["free_bytes"]},
    }


_REDUCED: Final = {"proxy": _of_proxy, "safekeeper": _of_safekeeper}
