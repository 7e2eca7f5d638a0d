"""The routes of the page: its headers, its files, and what its stream has of the other routes."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from safekeeper.net.http_server import QueryRoute, Route, Text
from safekeeper.web.live import LiveStream
from safekeeper.web.page import with_page
from tests.unit.event_loop import on_the_loop
from tests.unit.web.page_contents import event
from tests.unit.web.test_live import Reader, events_of

STATIC = Path(__file__).parents[3] / "safekeeper" / "web" / "static"
ROUTES: dict[str, Route | QueryRoute] = {"/status": lambda: (200, {"state": "streaming"}), "/metrics": lambda: (200, 1)}


def content(routes: Mapping[str, Route | QueryRoute], path: str) -> Any:
    route = routes[path]
    assert not isinstance(route, QueryRoute)
    status, found = route()
    assert status == 200
    return found


@pytest.mark.parametrize("page", ["proxy", "safekeeper"])
def test_the_page_and_its_files_have_headers_that_allow_nothing_else(page: str) -> None:
    routes = with_page(ROUTES, page)
    assert routes.keys() >= ROUTES.keys() | {"/", "/live", "/web/page.css", "/web/uplot.js", f"/web/{page}.js"}
    for path in routes.keys() - ROUTES.keys():
        headers = dict(content(routes, path).headers)
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy and "http" not in policy and "*" not in policy
        assert headers["Referrer-Policy"] == "no-referrer"
    assert content(routes, "/").content_type == "text/html; charset=utf-8"
    assert content(routes, "/status") == {"state": "streaming"}


def test_every_file_has_its_type_and_its_bytes() -> None:
    routes = with_page(ROUTES, "proxy")
    types = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".txt": "text/plain"}
    files = [path for path in STATIC.iterdir() if path.suffix != ".html"]
    assert len(files) > 10
    for path in files:
        found = content(routes, f"/web/{path.name}")
        assert isinstance(found, Text) and found.body == path.read_bytes()
        assert found.content_type.partition(";")[0] == types[path.suffix]


@pytest.mark.parametrize("page", ["proxy", "safekeeper"])
def test_the_page_refers_to_nothing_outside_and_has_no_inline_script_or_style(page: str) -> None:
    routes = with_page(ROUTES, page)
    html = content(routes, "/").body.decode()
    assert f'src="/web/{page}.js"' in html
    targets = re.findall(r'(?:src|href)="([^"]+)"', html)
    assert len(targets) > 6
    assert not [each for each in targets if each not in routes and not each.startswith("#")]
    assert not re.findall(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=", html)
    for path in STATIC.glob("*.js"):
        if path.name != "uplot.js":
            source = path.read_text()
            assert not re.findall(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|https?:", source
            ) or (path.name == "dom.js" and source.count("http") == 1)
            assert not [each for each in re.findall(r'from "([^"]+)"', source) if each not in routes]


@pytest.mark.parametrize(
    ("optional", "more", "parts"),
    [
        ({}, {}, ["status"]),
        ({}, {"limbo": lambda: {"entries": 0}}, ["status", "limbo"]),
        ({"/events": QueryRoute(lambda query: (200, {"events": [], "next": 0}))}, {}, ["status", "events"]),
    ],
    ids=["status only", "limbo", "events"],
)
def test_the_stream_has_the_pages_that_exist(
    optional: dict[str, Route | QueryRoute], more: dict[str, Callable[[], Any]], parts: list[str]
) -> None:
    @on_the_loop
    async def run() -> None:
        live = content(with_page({**ROUTES, **optional}, "proxy", more), "/live")
        assert isinstance(live, LiveStream)
        reader = Reader()
        live.join(reader)  # type: ignore[arg-type]
        live.leave(reader)  # type: ignore[arg-type]
        assert [name for name, _ in events_of(reader.frames[0])] == [*parts, "tick"]

    run()


def test_the_stream_has_the_newest_events_and_asks_for_new_ones_only() -> None:
    kept = [event(seq) for seq in range(1, 251)]
    asked: list[int] = []

    def events(query: Mapping[str, str]) -> tuple[int, Any]:
        since = int(query["since"])
        asked.append(since)
        found = [each for each in kept if each["seq"] >= since][:40]
        return 200, {"events": found, "next": found[-1]["seq"] + 1 if found else since}

    @on_the_loop
    async def run() -> None:
        live = content(with_page({**ROUTES, "/events": QueryRoute(events)}, "proxy"), "/live")

        def shown() -> list[int]:
            reader = Reader()
            live.join(reader)
            live.leave(reader)
            return [each["seq"] for each in dict(events_of(reader.frames[0]))["events"]["events"]]

        assert shown() == list(range(151, 251))
        assert asked == [0, 41, 81, 121, 161, 201, 241, 251]
        kept.append(event(251))
        asked.clear()
        assert shown() == list(range(152, 252))
        assert asked == [251, 252]

    run()


def test_the_license_of_the_library_comes_with_it() -> None:
    assert (STATIC / "uplot-license.txt").read_text().startswith("The MIT License")
