"""Logging for both programs: standard logging, one line per event on stderr.

    2026-11-21T14:16:05.123Z INFO safekeeper 1 term 3: follows (3, 5f2a81c0) from 0/3000000

The part before the colon says who speaks and in which term, at the moment of the line. Control characters that came in
with a peer's or the operating system's text are escaped, so an event is one line whatever it quotes.
"""

import logging
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TextIO


class LineFormatter(logging.Formatter):
    """Time in UTC, level, who, message, all on one line.

    Args:
        who: called for each line, e.g. returns `safekeeper 1 term 3`.
    """

    def __init__(self, who: Callable[[], str]) -> None:
        super().__init__()
        self._who = who

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        return f"{when}.{int(record.msecs):03d}Z {record.levelname} {self._who()}: {one_line(message)}"


class RateLimit:
    """Lets so many lines pass per interval and counts the others, so that a stranger cannot fill the log."""

    def __init__(self, lines: int, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._lines = lines
        self._interval_s = interval_s
        self._clock = clock
        self._began_at = clock()
        self._passed = 0
        self._suppressed = 0

    def admit(self) -> str | None:
        """Return None if a line must be left out, else what to add to it: the number left out before, or nothing."""
        now = self._clock()
        if now - self._began_at >= self._interval_s:
            self._began_at = now
            self._passed = 0
        if self._passed >= self._lines:
            self._suppressed += 1
            return None
        self._passed += 1
        suppressed, self._suppressed = self._suppressed, 0
        return f" (and {suppressed} more such lines left out)" if suppressed else ""


def one_line(text: str) -> str:
    """Return `text` with line breaks and other control characters written as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def describe_bug(error: BaseException) -> str:
    """Return one line about an error that nobody expected, with where it was raised: what a report of it needs."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}; " if frames else ""
    return f"unexpected {type(error).__name__}: {error} ({where}please report it)"


def configure(who: Callable[[], str], level: str, stream: TextIO | None = None) -> None:
    """Send all logging through `LineFormatter` to stderr, in place of whatever was set up.

    Args:
        who: see LineFormatter.
        level: `debug`, `info`, `warning` or `error`.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(LineFormatter(who))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    set_level(level)
    # Names of threads, processes and tasks are looked up for each line otherwise, and are shown nowhere.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def set_level(level: str) -> None:
    """Change what is logged from now on."""
    logging.getLogger().setLevel(level.upper())
