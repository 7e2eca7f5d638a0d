"""The progress of a command: a bar on a terminal, otherwise lines."""

import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeRemainingColumn

_LINES: Final = 20
_LINE_INTERVAL_S: Final = 5.0


class _Bar:
    """A bar of one task, while the context is entered. Without a terminal it shows nothing."""

    def __init__(self, console: Console, what: str, total: float | None, *columns: ProgressColumn) -> None:
        self._console = console
        columns = columns or (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task(what, total=total, visible=bool(what) or total is not None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()


class SecondsBar(_Bar):
    """The progress of a run with a known length: a bar on a terminal, otherwise a line from time to time."""

    def __init__(self, console: Console, seconds: float) -> None:
        super().__init__(console, "", seconds)
        self._seconds = seconds
        self._lines = 0

    def show(self, passed_s: float, what: str) -> None:
        """Show the seconds that have passed, and the text `what`."""
        self._bar.update(self._task, description=what, completed=passed_s)
        if not self._console.is_terminal and passed_s >= self._seconds * (self._lines + 1) / _LINES:
            self._lines = int(passed_s * _LINES / self._seconds)
            self._console.print(f"{passed_s:.0f} of {self._seconds:.0f} s: {what}")


class StepsBar(_Bar):
    """The progress of steps whose number grows: a bar on a terminal, otherwise a line for each step."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, "starting", 0)
        self._begun = 0
        self._expected = 0

    def expect(self, steps: int) -> None:
        """Add `steps` to the expected number of steps."""
        self._expected += steps

    def begin(self, what: str) -> None:
        """Show that the next step begins."""
        self._bar.update(self._task, description=what, total=self._expected, completed=self._begun)
        self._begun += 1
        if not self._console.is_terminal:
            self._console.print(f"{self._begun}/{self._expected} {what}", highlight=False)


class PartsBar(_Bar):
    """The progress of a known number of parts: a bar on a terminal, otherwise nothing."""

    def __init__(self, console: Console, parts: int) -> None:
        super().__init__(console, "", parts)
        self._parts = parts

    def show(self, done: int, what: str) -> None:
        """Show how many parts are done, and the text `what`."""
        self._bar.update(self._task, description=f"{what} {done}/{self._parts}", completed=done)


class LiveProgress(_Bar):
    """What a command waits for, on stderr: a bar on a terminal, otherwise a line when it changes, and every 5 s.

    Args:
        after_s: without a terminal, what is over sooner is not shown.
        shows_time: each line has the seconds since the beginning.
    """

    def __init__(self, *, after_s: float = 0.0, shows_time: bool = False) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(bar_width=20))
        super().__init__(Console(stderr=True), "", None, *columns)
        self._after_s = after_s
        self._shows_time = shows_time
        self._began_at = time.monotonic()
        self._stage: str | None = None
        self._line_at = 0.0

    def print_line(self, line: str) -> None:
        """Print a line."""
        if self._shows_time:
            line = f"{time.monotonic() - self._began_at:6.2f} s  {line}"
        self._console.print(line, highlight=False, soft_wrap=True, markup=False)

    def show(self, what: str, stage: str, done: float = 0, total: float | None = None) -> None:
        """Show the text `what`; without a terminal at once if the stage is another one."""
        self._bar.update(self._task, description=what, completed=done, total=total, visible=True)
        if self._console.is_terminal:
            return
        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._line_at = stage, now + self._after_s
        if now >= self._line_at:
            self._line_at = now + _LINE_INTERVAL_S
            self.print_line(what)
