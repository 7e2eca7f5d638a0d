"""The bounded part of a thread's time that the clients of a listener may use together. Pure.

A share is refilled as time passes, at RATE seconds of work per second, to at most BURST_S. Work is charged when it is
done, so a long piece of work overdraws it; what follows then waits until the debt is repaid and QUANTUM_S is there, so
that the thread does not wake up for each microsecond of it.

While less than half of BURST_S is left, the clients ask for more than they may have: `is_short`.
"""

RATE = 0.1
BURST_S = 0.05
QUANTUM_S = 0.001


class Share:
    """What is left of the time, as of the last call. Times are seconds on any monotonic clock.

    Args:
        rate: seconds of work per second.
        burst_s: the maximum that accumulates while nothing is asked for.
    """

    def __init__(self, now: float, rate: float = RATE, burst_s: float = BURST_S) -> None:
        self.rate = rate
        self._burst_s = burst_s
        self._left_s = burst_s
        self._counted_at = now

    def charge(self, work_s: float, now: float) -> None:
        """Subtract work that was done."""
        self._refill(now)
        self._left_s -= work_s

    def wait_s(self, now: float) -> float:
        """Return how long the next piece of work must wait, 0 if it need not."""
        self._refill(now)
        return 0.0 if self._left_s > 0 else (QUANTUM_S - self._left_s) / self.rate

    def is_short(self, now: float) -> bool:
        """Return whether the clients have used more than half of what they may use at once."""
        self._refill(now)
        return self._left_s < self._burst_s / 2

    def _refill(self, now: float) -> None:
        self._left_s = min(self._burst_s, self._left_s + max(0.0, now - self._counted_at) * self.rate)
        self._counted_at = now
