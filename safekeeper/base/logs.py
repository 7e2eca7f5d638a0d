"""Logging for both programs: standard logging, one line per event on stderr.

    2026-11-21T14:16:05.123Z INFO safekeeper 1 term 3: follows (3, 5f2a81c0) from 0/3000000

The part before the colon names the process and its term at the time of the line. Control characters in text from a peer
or the operating system are escaped, so an event is always one line. With `log_format json` each line is a JSON
object.

`log_event` logs a line that belongs to an event of event_catalogue.py. A handler for events (event_log.py) gets all of
these, at any log_level. Some events have no line of their own in the text format, because other lines report the
same: `record_event`.
"""

import json
import logging
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

from safekeeper.base.event_catalogue import KINDS, Severity

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
WARN_AGAIN_AFTER_S = 600.0
KINDS_MAX = 200
CHANGES_A_MINUTE = 6
# Numbers, LSNs, hexadecimal ids: the differences between two lines of the same kind.
_FIGURES = re.compile(r"\b(?:[0-9A-F]+/[0-9A-F]+|[0-9a-f]*[0-9][0-9a-f]*)\b")


class LineFormatter(logging.Formatter):
    """Formats time in UTC, level, process and message, all on one line.

    Args:
        who: returns the name of the process; called for each line, e.g. returns `safekeeper 1 term 3`.
    """

    def __init__(self, who: Callable[[], str]) -> None:
        super().__init__()
        self._who = who

    def format(self, record: logging.LogRecord) -> str:
        return f"{_when(record)} {record.levelname} {self._who()}: {one_line(self._message(record))}"

    def _message(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        return f"{message}\n{self.formatException(record.exc_info)}" if record.exc_info else message


class JsonFormatter(LineFormatter):
    """Formats each line as a JSON object: time, level, process, logger, message; event and fields if it has them."""

    def format(self, record: logging.LogRecord) -> str:
        content: dict[str, object] = {
            "time": _when(record),
            "level": record.levelname.lower(),
            "process": self._who(),
            "logger": record.name,
            "message": self._message(record),
        }
        event = event_of(record)
        if event is not None:
            content |= {"event": event.kind, "fields": event.fields}
        return json.dumps(content, default=str, ensure_ascii=False)


def _when(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


class EventHandler(logging.Handler):
    """A handler that gets the lines that belong to events at any level."""


class LoggedEvent:
    """What a line has if it belongs to an event.

    Attributes:
        kind: an id of event_catalogue.py.
        fields: the figures of the line.
        is_line: whether the text format has a line for it.
    """

    __slots__ = ("fields", "is_line", "kind")

    def __init__(self, kind: str, fields: Mapping[str, object], *, is_line: bool) -> None:
        self.kind = kind
        self.fields = fields
        self.is_line = is_line


_LEVELS = {Severity.INFO: logging.INFO, Severity.WARNING: logging.WARNING, Severity.ERROR: logging.ERROR}


def log_event(
    logger: logging.Logger,
    kind: str,
    fields: Mapping[str, object],
    message: str,
    *arguments: object,
    level: int | None = None,
    is_line: bool = True,
) -> None:
    """Log a line that belongs to an event.

    Args:
        kind: an id of event_catalogue.py; its severity is the level.
        level: another level for the line.
        is_line: see LoggedEvent.
    """
    if level is None:
        level = _LEVELS[KINDS[kind].severity]
    event = LoggedEvent(kind, fields, is_line=is_line)
    record = logger.makeRecord(logger.name, level, "", 0, message, arguments, None, extra={"logged_event": event})
    if logger.isEnabledFor(level):
        logger.handle(record)
        return
    for handler in logging.getLogger().handlers:
        if isinstance(handler, EventHandler):
            handler.handle(record)


def record_event(logger: logging.Logger, kind: str, fields: Mapping[str, object], text: str) -> None:
    """Record an event that other lines of the text format report, too."""
    log_event(logger, kind, fields, "%s", text, is_line=False)


def event_of(record: logging.LogRecord) -> LoggedEvent | None:
    """Return the event to which a line belongs, None if it belongs to none."""
    event = getattr(record, "logged_event", None)
    return event if isinstance(event, LoggedEvent) else None


def _is_line(record: logging.LogRecord) -> bool:
    event = event_of(record)
    return event is None or event.is_line


class RateLimit:
    """Lets a number of lines pass per interval and counts the others, so that no client can fill the log."""

    def __init__(self, lines: int, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._lines = lines
        self._interval_s = interval_s
        self._clock = clock
        self._began_at = clock()
        self._passed = 0
        self._suppressed = 0

    @property
    def admits_now(self) -> bool:
        """Whether the next line would pass."""
        return self._passed < self._lines or self._clock() - self._began_at >= self._interval_s

    def admit(self) -> str | None:
        """Return None if a line must be suppressed, else a suffix for it: the number suppressed before, or nothing."""
        now = self._clock()
        if now - self._began_at >= self._interval_s:
            self._began_at = now
            self._passed = 0
        if self._passed >= self._lines:
            self._suppressed += 1
            return None
        self._passed += 1
        suppressed, self._suppressed = self._suppressed, 0
        return f" (and {suppressed} more such lines suppressed)" if suppressed else ""


class RateLimits:
    """A `RateLimit` for each kind of line; lines that differ only in figures are of the same kind."""

    def __init__(self, lines: int, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._lines = lines
        self._interval_s = interval_s
        self._clock = clock
        self._limits: dict[str, RateLimit] = {}

    def admit(self, line: str) -> str | None:
        """Return None if this line must be suppressed, else a suffix for it, as `RateLimit.admit` does."""
        kind = _FIGURES.sub("0", line)
        if kind not in self._limits and len(self._limits) == KINDS_MAX:
            del self._limits[next(iter(self._limits))]
        limit = self._limits.get(kind)
        if limit is None:
            limit = self._limits[kind] = RateLimit(self._lines, self._interval_s, self._clock)
        return limit.admit()


class ProblemLog:
    """One possible problem: logged when it begins, changes or ends, and periodically in between.

    A problem that comes and goes is limited to a few lines a minute: its end is logged only if its begin was, and a
    lasting one is logged as soon as the limit allows.

    Attributes:
        text: the problem, empty if there is none.

    Args:
        logger: the logger of the module that notes the problem.
        again_after_s: the interval after which the same problem is logged again.
    """

    def __init__(
        self,
        logger: logging.Logger,
        clock: Callable[[], float] = time.monotonic,
        again_after_s: float = WARN_AGAIN_AFTER_S,
    ) -> None:
        self.text = ""
        self._logger = logger
        self._clock = clock
        self._again_after_s = again_after_s
        self._logged_text = ""  # The problem as last logged.
        self._logged_at = 0.0
        self._changes = RateLimit(CHANGES_A_MINUTE, 60.0, clock)

    def note(
        self,
        text: str,
        message: str,
        *arguments: object,
        level: int = logging.WARNING,
        event: str = "",
    ) -> None:
        """Log `message` if the problem `text` is new, or was not logged for the interval.

        Args:
            event: the id of the event that the problem is, if it is one; it is recorded when the problem is new.
        """
        now = self._clock()
        is_due = text != self.text or now - self._logged_at >= self._again_after_s
        if is_due or (text != self._logged_text and self._changes.admits_now):
            addition = self._changes.admit()
            if addition is not None:
                is_event = bool(event) and text != self._logged_text
                self._logged_at, self._logged_text = now, text
                if is_event:
                    log_event(self._logger, event, {}, message + addition, *arguments, level=level)
                else:
                    self._logger.log(level, message + addition, *arguments)
        self.text = text

    def over(self, message: str = "", *arguments: object, event: str = "") -> None:
        """Record that there is no problem; log `message` if the log has reported one, with the id of an event."""
        if self._logged_text and message and event:
            log_event(self._logger, event, {}, message, *arguments)
        elif self._logged_text and message:
            self._logger.info(message, *arguments)
        self.text = self._logged_text = ""


def one_line(text: str) -> str:
    """Return `text` with line breaks and other control characters written as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def print_error(program: str, reason: str) -> None:
    """Print the reason why a program ends to standard error, in one line; without effect if that cannot be written."""
    try:
        print(f"{program}: {one_line(reason)}", file=sys.stderr)
    except OSError:
        return  # For instance a file on a full disk. The exit code follows, and must not change.


def describe_bug(error: BaseException) -> str:
    """Return one line for an unexpected error with the place that raised it, for a bug report."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}; " if frames else ""
    return f"unexpected {type(error).__name__}: {error} ({where}please report it)"


def configure(
    who: Callable[[], str],
    level: str,
    stream: TextIO | None = None,
    *,
    log_format: str = "text",
    events: EventHandler | None = None,
) -> None:
    """Send all logging to stderr, replacing earlier handlers.

    Args:
        who: see LineFormatter.
        level: `debug`, `info`, `warning` or `error`.
        log_format: `text` or `json`.
        events: a further handler.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    if log_format == "json":
        handler.setFormatter(JsonFormatter(who))
    else:
        handler.setFormatter(LineFormatter(who))
        handler.addFilter(_is_line)
    root = logging.getLogger()
    root.handlers[:] = [handler, events] if events is not None else [handler]
    set_level(level)
    # Otherwise names of threads, processes and tasks are looked up for each line, although none is shown.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def set_level(level: str) -> None:
    """Change the lowest level that is logged."""
    logging.getLogger().setLevel(level.upper())
