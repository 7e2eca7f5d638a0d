"""The events of a process: the handler of the log that records each line which belongs to one.

Modules log events with `logs.log_event`; a program that keeps events adds an `EventRecorder` to its log. Lines may come
from any thread.
"""

import logging
import secrets
from collections.abc import Callable, Mapping

from safekeeper.base.events import Event, EventList, KeptEvent, Page, bounded
from safekeeper.base.logs import EventHandler, LoggedEvent, event_of


class EventRecorder(EventHandler):
    """Keeps the newest events of this process in memory, and passes them on.

    Args:
        source: the process, as its events name it.
        fields: further fields of each event, e.g. the id of this run.
        origin: the random id of this process.

    Attributes:
        on_event: called with each new event, in the thread that logged it; it must not block or log an event.
    """

    def __init__(self, source: str, fields: Mapping[str, object] | None = None, origin: str = "") -> None:
        super().__init__()
        self.on_event: Callable[[KeptEvent], None] = lambda kept: None
        self._source = source
        self._fields = dict(fields or {})
        self._origin = origin or secrets.token_hex(8)
        self._count = 0
        self._last_at_ms = 0
        self._list = EventList()

    def emit(self, record: logging.LogRecord) -> None:
        """Record the event of a line, if it has one. Called by logging, one line at a time."""
        logged = event_of(record)
        if logged is None:
            return
        try:
            self._record(record, logged)
        except Exception:
            self.handleError(record)  # Prints it: an event must not fail what it reports.

    def _record(self, record: logging.LogRecord, logged: LoggedEvent) -> None:
        text, fields = bounded(record.getMessage(), {**logged.fields, **self._fields})
        self._count += 1
        # The clock may be set back: events of a process stay in order nevertheless.
        self._last_at_ms = max(self._last_at_ms, int(record.created * 1000))
        self.add(Event(f"{self._origin}-{self._count}", self._last_at_ms, logged.kind, self._source, text, fields))

    def add(self, event: Event, seq: int | None = None) -> None:
        """Keep an event of this process or of another one, unless it is kept already."""
        self.acquire()
        try:
            kept = self._list.add(event, seq)
            if kept is not None:
                self.on_event(kept)
        finally:
            self.release()

    def page(self, since: int) -> Page:
        """See EventList."""
        self.acquire()
        try:
            return self._list.page(since)
        finally:
            self.release()

    def all(self) -> tuple[KeptEvent, ...]:
        """Return all events, the oldest first."""
        self.acquire()
        try:
            return self._list.all()
        finally:
            self.release()
