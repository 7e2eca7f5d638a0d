"""The page in a real browser, with contents that the test makes up."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from playwright.sync_api import Browser, Page, expect

import safekeeper.web.history
import safekeeper.web.live
from safekeeper.base.settings import Address
from safekeeper.net.http_server import HttpListener, QueryRoute, serve_http
from safekeeper.web.page import with_page
from tests.browser import chromium, opened
from tests.unit.certificates import HOST
from tests.unit.proxy.statuses import gate, lost, status
from tests.unit.web.page_contents import EVIL, LSN, event, limbo, member, proxy_status
from tests.waiting import wait_for

DEADLINE_MS = 60_000
# As in samples.js.
SAMPLES_MAX = 600
REASON = "Connection refused"


class Site:
    """A process's pages on a thread of its own, with contents that a test sets."""

    def __init__(self) -> None:
        self.status = proxy_status(member(1), member(2), member(3))
        self.limbo = limbo(0)
        self.events = [event(1)]
        self.ticks = 0
        self._loop = uvloop.new_event_loop()
        self._listener: HttpListener = self._run(self._serve())
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.url = f"http://{self._listener.address}/"

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._listener.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> HttpListener:
        def answer() -> tuple[int, Any]:
            self.ticks += 1
            return 200, self.status

        def events(query: Any) -> tuple[int, Any]:
            return 200, {"events": self.events[int(query["since"]) :], "next": len(self.events)}

        routes = {"/status": answer, "/events": QueryRoute(events)}
        parts = {"limbo": lambda: self.limbo}
        pages = with_page(
            routes, "proxy", parts, keeps_history=True, confirms_per_s=lambda: self.limbo["confirms_per_s"]
        )
        return await serve_http(pages, Address(HOST, 0))

    def _run(self, coroutine: Any) -> Any:
        # Playwright's loop counts as running on the test's thread.
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(self._loop.run_until_complete(coroutine)))
        thread.start()
        thread.join()
        return found[0]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(safekeeper.web.live, "INTERVAL_S", 0.1)
    site = Site()
    yield site
    site.close()


def node(page: Page, name: str) -> Any:
    return page.locator(f'g.node[data-id="{name}"]')


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        *((390, "dark"), (1440, "light")),
        # Each width and each scheme is in the two above.
        *(pytest.param(*both, marks=pytest.mark.nightly) for both in ((390, "light"), (1440, "dark"))),
    ],
)
def test_the_page_fits_and_can_be_read_at_any_width_and_in_both_schemes(
    browser: Browser, site: Site, width: int, scheme: str, tmp_path: Path
) -> None:
    problem = f"its connection to 10.0.0.3:5454 failed: {REASON}; " + "a long explanation " * 20
    site.status = proxy_status(member(1), member(2), member(3, "disconnected", problem))
    site.limbo = limbo(32)
    with opened(browser, site.url, width=width, scheme=scheme) as page:
        expect(page.locator("#limbo tbody tr")).to_have_count(32, timeout=DEADLINE_MS)
        expect(page.locator("#charts canvas")).to_have_count(4, timeout=DEADLINE_MS)
        page.screenshot(path=tmp_path / f"{width}-{scheme}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        boxes = [box.bounding_box() for box in page.locator("g.node rect.box").all()]
        assert len(boxes) == 8 and all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes)
        for one in boxes:
            others = [other for other in boxes if other is not one]
            assert not [other for other in others if overlap(one, other)]
        for name in page.locator("g.node").evaluate_all("nodes => nodes.map(node => node.dataset.id)"):
            frame = node(page, name).locator("rect.box").bounding_box()
            for text in node(page, name).locator("text").all():
                place = text.bounding_box()
                assert place["x"] >= frame["x"] and place["x"] + place["width"] <= frame["x"] + frame["width"]
                assert place["y"] + place["height"] <= frame["y"] + frame["height"] + 2
        colours = page.evaluate("(s => [s.color, s.backgroundColor])(getComputedStyle(document.body))")
        assert abs(brightness(colours[0]) - brightness(colours[1])) > 150
        assert (brightness(colours[0]) > 127) == (scheme == "dark")


def overlap(one: dict[str, float], other: dict[str, float]) -> bool:
    return all(
        one[place] < other[place] + other[size] and other[place] < one[place] + one[size]
        for place, size in (("x", "width"), ("y", "height"))
    )


def brightness(colour: str) -> float:
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


def test_levels_differ_in_shape_and_text_not_in_colour_alone(browser: Browser, site: Site) -> None:
    members = member(1), member(2, "catching_up"), member(3, "disconnected", REASON)
    site.status = proxy_status(*members, standbys=[], archive=None)
    with opened(browser, site.url) as page:
        marks = {}
        for number, state in ((1, "streaming"), (2, "catching up"), (3, "disconnected")):
            place = node(page, f"safekeeper-{number}")
            expect(place.locator("text.state")).to_have_text(state, timeout=DEADLINE_MS)
            marks[state] = place.locator(".mark").inner_html()
        assert len(set(marks.values())) == 3
        dashes = "lines => new Set(lines.map(line => getComputedStyle(line).strokeDasharray)).size"
        assert page.locator("g.link:not(:first-child) path.line").evaluate_all(dashes) == 3
        assert page.locator("#members svg.mark").evaluate_all("all => all.map(each => each.ariaLabel)") == [
            "good",
            "attention",
            "failure",
        ]


def test_texts_with_html_and_control_characters_are_texts(browser: Browser, site: Site) -> None:
    site.status = proxy_status(member(1), member(2), member(3, "disconnected", EVIL), apply_problem=EVIL, run=EVIL)
    site.status.primary.hosts[0].host = EVIL
    site.status.standbys[0].name = EVIL
    site.limbo = limbo(2)
    site.events = [event(1, EVIL)]
    shown = EVIL.replace("\u202e", "\\x202e").replace("\x1b", "\\x1b").replace("\x00", "\\x00")
    with opened(browser, site.url) as page:
        expect(page.locator("#limbo td.query").first).to_have_text(shown, timeout=DEADLINE_MS)
        expect(page.locator("#events td.text")).to_have_text(shown)
        expect(page.locator("#members td.text").last).to_have_text(shown)
        assert page.locator("img, b, [onclick], [onerror]").count() == 0
        assert page.locator("script").count() == 2
        expect(page.locator("#standbys tbody th").first).to_have_text(shown)


def test_the_headline_names_what_is_missing_and_is_announced(browser: Browser, site: Site) -> None:
    with opened(browser, site.url) as page:
        expect(page.locator("#headline")).to_have_text("Commits succeed.", timeout=DEADLINE_MS)
        expect(page.locator("[aria-live=polite]")).to_have_text("Commits succeed.")
        page.clock.install()  # Its time goes on as ever, and can be advanced.
        members = member(1), member(2, "storage_full", "no room"), member(3, "disconnected", REASON)
        site.status = proxy_status(*members, state="waiting_for_quorum", quorum_lost=lost(waiting_sessions=32))
        expect(page.locator("#headline")).to_have_text("Commits wait: there is no quorum.", timeout=DEADLINE_MS)
        details = page.locator("#details").inner_text()
        assert "1 of 3 members take part, 2 are needed." in details and "32 sessions wait" in details
        assert f"Safekeeper 3 is disconnected: {REASON}." in details
        assert page.locator("[aria-live=polite]").text_content() == "Commits succeed.", "it is not announced at once"
        page.clock.fast_forward(20_000)
        expect(page.locator("[aria-live=polite]")).to_have_text(
            "Commits wait: there is no quorum.", timeout=DEADLINE_MS
        )
        summary = page.locator("#picture svg").first.get_attribute("aria-label") or ""
        assert "safekeeper 3: disconnected, on disk 0/5A00000, lag 242 kB" in summary and REASON in summary
        assert page.title().startswith("Commits wait")


def test_commits_that_do_not_wait_are_the_headline_and_what_may_come_is_a_detail(browser: Browser, site: Site) -> None:
    with opened(browser, site.url) as page:
        expect(page.locator("#headline")).to_have_text("Commits succeed.", timeout=DEADLINE_MS)
        site.status = status(gate=gate("not gated", "the setting is ''"))
        expect(page.locator("#headline")).to_have_text("Commits do not wait for the quorum.", timeout=DEADLINE_MS)
        expect(page.locator("#now")).to_have_class("bad")
        assert "the setting is ''." in page.locator("#details").inner_text()
        site.status = status(gate=gate("gated with others", "b is gone", hangs=True))
        expect(page.locator("#headline")).to_have_text("Commits wait for another standby.", timeout=DEADLINE_MS)
        site.status = status(gate=gate("gated with others", "b may confirm", exempt="role a does not"))
        expect(page.locator("#headline")).to_have_text("Commits succeed.", timeout=DEADLINE_MS)
        expect(page.locator("#now")).to_have_class("warn")
        assert "role a does not." in page.locator("#details").inner_text()


def test_a_page_that_is_opened_later_shows_what_was_before(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safekeeper.web.history, "INTERVAL_S", 0.02)
    monkeypatch.setattr(safekeeper.web.live, "INTERVAL_S", 3600.0)
    site = Site()
    try:
        wait_for(lambda: site.ticks > 50, "samples are taken without a reader", timeout_s=60)
        with opened(browser, site.url) as page:
            expect(page.locator("#charts canvas")).to_have_count(4, timeout=DEADLINE_MS)
            rows = page.evaluate("import('/web/proxy.js').then(({ walSamples }) => walSamples.rows)")
            assert len(rows[0]) >= 50 and rows[0] == sorted(rows[0])
            assert rows[1][1:10] == [0] * 9, "the commit position has not advanced"
            # It is sent at the beginning only.
            page.click("#pause")
            page.click("#pause")
            count = "import('/web/proxy.js').then(({ walSamples }) => walSamples.rows[0].length)"
            wait_for(lambda: page.evaluate(count) > len(rows[0]), "what was missed is there", timeout_s=60)
    finally:
        site.close()


def test_what_is_missing_in_the_process_is_not_shown(browser: Browser, site: Site) -> None:
    site.status = status(safekeepers=[member(1)], members=[1])
    with opened(browser, site.url) as page:
        expect(node(page, "safekeeper-1")).to_have_count(1, timeout=DEADLINE_MS)
        assert page.locator("#standbys-section").is_hidden()
        assert node(page, "archive").count() == 0


def stands_still(page: Page, site: Site) -> bool:
    """Return whether nothing is computed for a second."""
    ticks = site.ticks
    page.wait_for_timeout(1000)
    return site.ticks == ticks


def test_the_page_can_be_used_by_keyboard_and_paused(browser: Browser, site: Site) -> None:
    with opened(browser, site.url) as page:
        expect(page.locator("#headline")).to_have_text("Commits succeed.", timeout=DEADLINE_MS)
        focused = "document.activeElement.id || document.activeElement.className || document.activeElement.localName"
        reached = []
        for _ in range(6):
            page.keyboard.press("Tab")
            reached.append(page.evaluate(focused))
        assert reached[:3] == ["skip", "pause", "scroll"]
        assert page.evaluate("document.activeElement.ariaLabel || ''") or "a" in reached
        page.focus("#pause")
        page.keyboard.press("Enter")
        expect(page.locator("#pause")).to_have_attribute("aria-pressed", "true")
        expect(page.locator("#connection")).to_contain_text("paused")
        # Without a reader nothing is computed, and the page does not change.
        site.status = proxy_status(member(1, "disconnected"), member(2), member(3))
        assert any(stands_still(page, site) for _ in range(5)), "one more may be on its way"
        assert node(page, "safekeeper-1").get_attribute("data-state") == "streaming"
        page.keyboard.press("Enter")
        expect(node(page, "safekeeper-1")).to_have_attribute("data-state", "disconnected", timeout=DEADLINE_MS)


@pytest.mark.nightly
def test_a_page_that_stays_open_needs_no_more_memory(
    browser: Browser, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safekeeper.web.live, "INTERVAL_S", 0.02)
    site.limbo = limbo(5)
    with opened(browser, site.url, width=390) as page:
        session = page.context.new_cdp_session(page)

        def after(count: int) -> dict[str, float]:
            """Return the page's least figures after it was drawn so often.

            The page goes on drawing between a collection and the reading of the figures, and what it draws then is
            counted: up to 550 kB in one reading of three, seen with Chromium 156.
            """
            move(site, lambda: page.evaluate("window.drawn") >= count)
            readings = []
            for _ in range(8):
                session.send("HeapProfiler.collectGarbage")
                metrics = session.send("Performance.getMetrics")["metrics"]
                readings.append({each["name"]: each["value"] for each in metrics})
            return {name: min(reading[name] for reading in readings) for name in readings[0]}

        session.send("Performance.enable")
        page.wait_for_selector("g.node")
        page.evaluate(
            "window.drawn = 0; new MutationObserver(() => { window.drawn += 1; })"
            ".observe(document.querySelector('g.node'), {attributes: true})"
        )
        # What the page remembers grows until it has SAMPLES_MAX samples, by 200 kB.
        warm = after(SAMPLES_MAX + 50)
        later = after(SAMPLES_MAX + 450)
        # A leak of 0.5 kB a draw; 30 to 60 kB were seen.
        assert later["JSHeapUsedSize"] < warm["JSHeapUsedSize"] + 200_000
        assert later["Nodes"] <= warm["Nodes"] + 20
        assert later["JSEventListeners"] <= warm["JSEventListeners"]


def test_what_the_page_remembers_is_bounded(browser: Browser, site: Site) -> None:
    with opened(browser, site.url) as page:
        sizes = page.evaluate(
            """async () => {
                const { Samples, Passed } = await import("/web/samples.js");
                const samples = new Samples();
                const passed = new Passed();
                for (let at = 0; at < 5000; at += 1) {
                    samples.add(at, at < 1000 ? { gone: 1, stays: at } : { stays: at });
                    passed.add(at, at * 100);
                }
                return [
                    samples.names, samples.rows.map((row) => row.length), samples.last("stays"),
                    passed.samples.length, ...[499900, 499750, 0].map((lsn) => passed.since(lsn, 5000)),
                ];
            }"""
        )
    behind = [{"seconds": 0, "atLeast": False}, {"seconds": 2, "atLeast": False}, {"seconds": 600, "atLeast": True}]
    assert sizes == [["stays"], [600, 600], 4999, 600, *behind]


def move(site: Site, is_over: Callable[[], bool]) -> None:
    """Let positions advance until it is over."""

    def step() -> bool:
        position = int(site.status.received_lsn.split("/")[1], 16) + 5000
        lsn = f"0/{position:X}"
        site.status = proxy_status(member(1), member(2), member(3), received_lsn=lsn, commit_lsn=lsn)
        return is_over()

    assert site.status.received_lsn >= LSN
    wait_for(step, "the server has sent them", timeout_s=200, poll_s=0.02)
