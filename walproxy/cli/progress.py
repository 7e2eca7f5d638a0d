"""The progress of what takes a known time: a bar on a terminal, else a line now and then."""

from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

_LINES: Final = 20


class SecondsBar:
    """The progress of a run of so many seconds, while it is entered."""

    def __init__(self, console: Console, seconds: float) -> None:
        self._console = console
        self._seconds = seconds
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=seconds)
        self._lines = 0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def show(self, passed_s: float, what: str) -> None:
        """Show how far it is, and what there is to say."""
        self._bar.update(self._task, description=what, completed=passed_s)
        if not self._console.is_terminal and passed_s >= self._seconds * (self._lines + 1) / _LINES:
            self._lines = int(passed_s * _LINES / self._seconds)
            self._console.print(f"{passed_s:.0f} of {self._seconds:.0f} s: {what}")
