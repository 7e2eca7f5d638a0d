"""The progress of a failover on stderr: a bar while a standby catches up on a terminal, otherwise lines."""

from walproxy.cli.progress import LiveProgress
from walproxy.proxy.status_table import format_bytes

# What is over at once is not shown.
_FIRST_LINE_AFTER_S = 1.0


class FailoverProgress(LiveProgress):
    """See walproxy/failover/failover.py, Show."""

    def __init__(self) -> None:
        super().__init__(after_s=_FIRST_LINE_AFTER_S, shows_time=True)
        self._most_bytes = 0

    def step(self, text: str) -> None:
        """Print a step, with the seconds since the beginning."""
        self._bar.update(self._task, visible=False)
        self._stage = None
        self._most_bytes = 0
        self.print_line(text)

    def waiting(self, text: str, missing_bytes: int = 0) -> None:
        """Show for what the failover waits."""
        self._most_bytes = max(self._most_bytes, missing_bytes)
        if missing_bytes:
            text = f"{text}: {format_bytes(missing_bytes)} left"
        self.show(text, "waiting", self._most_bytes - missing_bytes, self._most_bytes or None)
