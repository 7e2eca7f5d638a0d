"""Time limits for what is no measurement: longer on a busy machine, where a process gets a part of a CPU only."""

import os
import time

BUSY_SLOWDOWN = 4.0
"""From here on a wait that is over shows that the machine is too slow, rather than that its condition never holds."""


def slowdown() -> float:
    """Return how much longer work takes than on an idle machine, roughly: the load for each CPU, at least 1."""
    try:
        return max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))
    except OSError:  # Not known on this machine.
        return 1.0


def load_text() -> str:
    """Return the load of this machine in words."""
    try:
        return f"load average {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} CPUs"
    except OSError:
        return "load average unknown"


class TimeLimit:
    """The limit of one wait, from now on.

    Args:
        timeout_s: on an idle machine. The load is an average of the last minute, so it may still rise during the wait.
    """

    def __init__(self, timeout_s: float) -> None:
        self._began_at = time.monotonic()
        self._timeout_s = timeout_s
        self._slowdown = 1.0

    @property
    def passed_s(self) -> float:
        """Seconds since its beginning."""
        return time.monotonic() - self._began_at

    @property
    def is_over(self) -> bool:
        """Whether the wait has taken too long."""
        if self.passed_s <= self._timeout_s:
            return False
        self._slowdown = max(self._slowdown, slowdown())
        return self.passed_s > self._timeout_s * self._slowdown
