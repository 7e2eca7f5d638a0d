"""A real browser for tests of pages: Debian's chromium, driven by Playwright.

While it is open no event loop can run on the test's thread: modules close it at their end.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)


@contextmanager
def chromium(*flags: str) -> Iterator[Browser]:
    """A browser for this block, with further flags."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("there is no chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=[*FLAGS.split(), *flags])
        yield browser
        browser.close()


@contextmanager
def opened(
    browser: Browser, url: str, *, width: int = 1440, scheme: str = "light", is_lost: bool = False
) -> Iterator[Page]:
    """Open a page for this block; it must request nothing from other hosts, and cause no complaint.

    Args:
        is_lost: the server goes away meanwhile, of which the browser complains.
    """
    complaints: list[str] = []
    hosts: set[str] = set()
    page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 900})  # type: ignore[arg-type]
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda sent: hosts.add(urlsplit(sent.url).netloc))
    page.set_default_timeout(60_000)
    page.goto(url)
    yield page
    assert [each for each in complaints if not (is_lost and "Failed to load resource" in each)] == []
    assert hosts == {urlsplit(url).netloc}
    page.close()
