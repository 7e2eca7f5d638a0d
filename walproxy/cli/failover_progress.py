"""The progress of a failover on stderr: a bar while a standby catches up on a terminal, otherwise lines."""

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from walproxy.failover.candidates import HostLook
from walproxy.proxy.status_table import format_bytes

_LINE_INTERVAL_S = 5.0


class FailoverProgress:
    """See walproxy/failover/failover.py, Show."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn())
        self._bar = Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        self._task = self._bar.add_task("", total=None, visible=False)
        self._most_bytes = 0
        self._line_at = 0.0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def step(self, text: str) -> None:
        """Print a step."""
        self._bar.update(self._task, visible=False)
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def behind(self, look: HostLook, missing_bytes: int) -> None:
        """Show how much a standby lacks: at once, and then every few seconds."""
        if not missing_bytes:
            return
        self._most_bytes = max(self._most_bytes, missing_bytes)
        text = f"{look.name} lacks {format_bytes(missing_bytes)}"
        done = self._most_bytes - missing_bytes
        self._bar.update(self._task, description=text, total=self._most_bytes, completed=done, visible=True)
        if not self._console.is_terminal and time.monotonic() >= self._line_at:
            self._line_at = time.monotonic() + _LINE_INTERVAL_S
            self.step(text)
