"""A page of another origin in a real browser reads nothing of a listener on loopback, also if its name leads there."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from safekeeper.base.settings import Address
from safekeeper.net.http_server import HttpListener, serve_http
from tests.browser import chromium
from tests.unit.certificates import HOST

SECRET = "UPDATE accounts SET owner = 'Ada'"
READ = "url => fetch(url).then(reply => reply.text()).catch(error => String(error))"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium("--host-resolver-rules=MAP evil.example 127.0.0.1") as browser:
        yield browser


@pytest.fixture
def listener() -> Iterator[HttpListener]:
    """A listener on a thread of its own, which serves /limbo: Playwright's loop runs on the test's."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    serving = serve_http({"/limbo": lambda: (200, {"query": SECRET})}, Address(HOST, 0))
    listener = asyncio.run_coroutine_threadsafe(serving, loop).result()
    yield listener
    asyncio.run_coroutine_threadsafe(listener.close(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_a_foreign_page_reads_nothing_under_its_own_name_or_by_the_address(
    browser: Browser, listener: HttpListener
) -> None:
    site = f"http://evil.example:{listener.address.port}"
    page = browser.new_page()
    page.goto(f"{site}/")  # A document of that origin, whatever it says.
    assert page.evaluate("location.origin") == site
    assert page.evaluate(READ, f"{site}/limbo") == "421: use an IP address or localhost, or set http_hosts"
    assert "Failed to fetch" in page.evaluate(READ, f"http://{listener.address}/limbo")
    # Its own page reads it.
    page.goto(f"http://{listener.address}/limbo")
    assert SECRET in page.evaluate(READ, "/limbo")
    page.close()
