"""Whether commits succeed, as /readyz and walproxy_ready report it. Pure: times are arguments.

Readiness is lost at once, and returns only after the proxy has streamed for a while without interruption: a quorum that
is lost again and again must not be reported as ready in between, which would reset an alert. The first time needs no
wait.
"""

READY_AFTER_S = 3.0
SERVING_STATES = ("streaming",)


class Readiness:
    """Since when a proxy serves.

    Attributes:
        serving_since: since when the proxy serves without interruption; None if it does not.
    """

    def __init__(self) -> None:
        self.serving_since: float | None = None
        self._not_ready_since: float | None = None
        self._was_lost = False

    def observe(self, serves: bool, now: float, *, is_spare: bool = False) -> None:
        """Record whether the proxy serves now.

        Args:
            is_spare: another proxy serves.
        """
        if is_spare or (serves and not self.waits_s(now)):
            self._not_ready_since = None
        elif self._not_ready_since is None:
            self._not_ready_since = now
        if not serves:
            self._was_lost = self._was_lost or self.serving_since is not None
            self.serving_since = None
        elif self.serving_since is None:
            self.serving_since = now

    def not_ready_s(self, now: float) -> float | None:
        """Return for how many seconds the proxy has not been ready; None if it is, or if it is a spare."""
        return now - self._not_ready_since if self._not_ready_since is not None else None

    def waits_s(self, now: float) -> float:
        """Return for how many more seconds a proxy must serve without interruption until it is ready; 0 once it is."""
        if not self._was_lost:
            return 0.0
        # None: it serves since the last observation, which is less than a tick ago.
        since = self.serving_since if self.serving_since is not None else now
        return max(0.0, since + READY_AFTER_S - now)
