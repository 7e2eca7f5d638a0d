"""GET /events?since=SEQ, of both programs: the kept events from that number on, as JSON, at most PAGE_EVENTS_MAX.

    {"events": [{"seq": 1, "id": ..., "at": "2026-11-21T14:16:05.123Z", "event": "term-won", "source": "walproxy",
                 "text": ..., "fields": {...}}], "next": 2}

`next` is the number with which to ask for what follows. The numbers are those of this process: after a restart of a
proxy they begin again at 1.
"""

from datetime import UTC, datetime
from typing import Any

from safekeeper.base.event_log import EventRecorder
from safekeeper.base.events import Event, KeptEvent
from safekeeper.net.http_server import Answer, Query, QueryRoute


def events_route(recorder: EventRecorder) -> QueryRoute:
    """Return the page of the events that `recorder` keeps."""

    def answer(query: Query) -> Answer:
        written = query.get("since", "0")
        if not (written.isascii() and written.isdecimal() and len(written) <= 18):
            return 400, {"reason": "since must be the number of an event, e.g. /events?since=12"}
        page = recorder.page(int(written))
        return 200, {"events": [kept_as_json(kept) for kept in page.events], "next": page.next_seq}

    return QueryRoute(answer)


def kept_as_json(kept: KeptEvent) -> dict[str, Any]:
    """Return an event with its number as JSON has it."""
    return {"seq": kept.seq, **event_as_json(kept.event)}


def event_as_json(event: Event) -> dict[str, Any]:
    """Return an event as JSON has it."""
    return {
        "id": event.id,
        "at": format_time(event.at_ms),
        "event": event.kind,
        "source": event.source,
        "text": event.text,
        "fields": event.fields,
    }


def format_time(at_ms: int) -> str:
    """Return a time in UTC as ISO 8601 has it; "?" if no calendar has it, because a peer's clock is wrong."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return "?"
