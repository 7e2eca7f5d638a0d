"""The progress of a failover on stderr: a bar while a standby catches up on a terminal, otherwise lines."""

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from walproxy.proxy.status_table import format_bytes

_LINE_INTERVAL_S = 5.0
# What is over at once is not shown.
_FIRST_LINE_AFTER_S = 1.0


class FailoverProgress:
    """See walproxy/failover/failover.py, Show."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(bar_width=20))
        self._bar = Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        self._task = self._bar.add_task("", total=None, visible=False)
        self._began_at = time.monotonic()
        self._waits_since: float | None = None
        self._most_bytes = 0
        self._line_at = 0.0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def step(self, text: str) -> None:
        """Print a step, with the seconds since the beginning."""
        self._bar.update(self._task, visible=False)
        self._waits_since = None
        self._most_bytes = 0
        self._print(text)

    def waiting(self, text: str, missing_bytes: int = 0) -> None:
        """Show for what the failover waits: on a terminal at once, else after a second, and then every few seconds."""
        now = time.monotonic()
        if self._waits_since is None:
            self._waits_since, self._line_at = now, now + _FIRST_LINE_AFTER_S
        self._most_bytes = max(self._most_bytes, missing_bytes)
        if missing_bytes:
            text = f"{text}: {format_bytes(missing_bytes)} left"
        if self._console.is_terminal:
            total = self._most_bytes or None
            done = self._most_bytes - missing_bytes
            self._bar.update(self._task, description=text, total=total, completed=done, visible=True)
        elif now >= self._line_at:
            self._line_at = now + _LINE_INTERVAL_S
            self._print(text)

    def _print(self, text: str) -> None:
        line = f"{time.monotonic() - self._began_at:6.2f} s  {text}"
        self._console.print(line, highlight=False, soft_wrap=True, markup=False)
