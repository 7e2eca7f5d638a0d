"""The routes of the page: `/`, its files below `/web/`, and `/live`.

The page shows what the other routes of the process return; it can change nothing. Texts that come from clients, for
example names and queries, are inserted as text only. The headers make sure that the browser does not run or load
anything but the files of this package, whatever such a text contains.
"""

import functools
from collections import deque
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

from safekeeper.net.http_server import Answer, QueryRoute, Route, SlowRoute, Text
from safekeeper.web.history import SampleHistory
from safekeeper.web.live import LiveStream

# frame-ancestors, base-uri and form-action do not follow default-src.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = (
    ("Content-Security-Policy", _POLICY),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    # A browser asks again after an upgrade.
    ("Cache-Control", "no-cache"),
)
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
_FILES = resources.files("safekeeper.web") / "static"
# The number of the newest events that the page has.
_EVENTS_MAX = 100
# The number of requests for new events in one second: at the first one there may be many.
_PAGES_MAX = 20


def with_page(
    routes: Mapping[str, Route | QueryRoute | SlowRoute],
    page: str,
    more: Mapping[str, Callable[[], Any]] | None = None,
    *,
    keeps_history: bool = False,
    confirms_per_s: Callable[[], float | None] | None = None,
) -> dict[str, Route | QueryRoute | SlowRoute]:
    """Return these routes, the page, its files, and its stream.

    Args:
        routes: what the stream has of them: `/status`, and `/events` if it exists.
        page: `proxy` or `safekeeper`: the script that draws it.
        more: functions that return the content of further parts of the stream.
        keeps_history: the charts show the last ten minutes also of a page that is opened later; needs a running loop.
        confirms_per_s: see History.
    """
    parts: dict[str, Callable[[], Any]] = {"status": functools.partial(_content_of, routes["/status"]), **(more or {})}
    if "/events" in routes:
        parts["events"] = _RecentEvents(routes["/events"])
    history = SampleHistory(parts["status"], page, confirms_per_s) if keeps_history else None
    live = LiveStream(parts, HEADERS, history)
    files = {f"/web/{each.name}": _file(each.name) for each in _FILES.iterdir() if not each.name.endswith(".html")}
    return {**routes, "/": _file("page.html", page), **files, "/live": lambda: (200, live)}


class _RecentEvents:
    """The newest events, fetched from the route `/events` as they occur."""

    def __init__(self, route: Route | QueryRoute | SlowRoute) -> None:
        self._route = route
        self._next = 0
        self._recent: deque[dict[str, Any]] = deque(maxlen=_EVENTS_MAX)

    def __call__(self) -> dict[str, Any]:
        for _ in range(_PAGES_MAX):
            content = _content_of(self._route, {"since": str(self._next)})
            self._recent.extend(content["events"])
            if content["next"] <= self._next or not content["events"]:
                break
            self._next = content["next"]
        return {"events": list(self._recent), "next": self._next}


def _content_of(route: Route | QueryRoute | SlowRoute, query: Mapping[str, str] | None = None) -> Any:
    assert not isinstance(route, SlowRoute)  # The stream waits for nothing.
    _, content = route.answer(query or {}) if isinstance(route, QueryRoute) else route()
    return content


def _file(name: str, program: str = "") -> Callable[[], Answer]:
    """Return the route of a file, which is read at its first request."""

    @functools.cache
    def answer() -> Answer:
        content = (_FILES / name).read_bytes()
        if program:
            content = content.replace(b"{program}", program.encode())
        return 200, Text(_TYPES[name.rpartition(".")[2]], content, HEADERS)

    return answer
