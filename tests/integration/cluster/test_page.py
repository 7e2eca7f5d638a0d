"""The page of a real cluster in a real browser: what is drawn equals /status while processes are killed."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.browser import chromium, opened
from tests.integration.cluster.cluster_fixtures import Commit, Gated, field_of, wait_for
from tests.integration.conftest import NEWEST

WAIT_S = 90.0
# What the picture has of a node, as the page describes it.
DRAWN = """nodes => Object.fromEntries(nodes.map(node => [node.dataset.id, {
    state: node.dataset.state, lsn: node.dataset.lsn, text: node.textContent,
    level: node.classList[1],
}]))"""
BAD = ("disconnected", "refused", "storage_full")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def drawn(page: Page) -> dict[str, dict[str, str]]:
    """Return the nodes of the picture."""
    found: dict[str, dict[str, str]] = page.locator("g.node").evaluate_all(DRAWN)
    return found


def rows(page: Page) -> dict[str, list[str]]:
    """Return the cells of the table of safekeepers, by id."""
    cells = "rows => rows.map(row => [...row.children].map(cell => cell.textContent.trim()))"
    return {row[0]: row for row in page.locator("#members tbody tr").evaluate_all(cells)}


def differences(page: Page, status: dict[str, Any] | None) -> list[str]:
    """Return where the page differs from /status, as far as that does not change with time."""
    if status is None:
        return ["no status"]
    nodes, table = drawn(page), rows(page)
    primary = status["primary"]
    expected = {
        "primary": ("streams" if primary["streams"] else "not connected", status["received_lsn"], primary["streams"]),
        "proxy": (status["state"].replace("_", " "), status["commit_lsn"], status["state"] == "streaming"),
    }
    wrong = []
    for each in status["safekeepers"]:
        name = f"safekeeper-{each['id']}"
        expected[name] = (each["state"].replace("_", " "), each["flush_lsn"], each["state"] not in BAD)
        wrong += [name + "'s row"] * (table.get(str(each["id"]), [])[1:3] != [each["state"], each["flush_lsn"]])
        wrong += [name + "'s problem"] * ((each["problem"] or "none") != table.get(str(each["id"]), ["none"])[-1])
        beginning = (each["problem"] or "")[:15]
        wrong += [name + "'s reason"] * (beginning not in nodes.get(name, {"text": ""})["text"])
    for name, (state, lsn, is_good) in expected.items():
        node = nodes.get(name)
        wrong += [name] * (
            node is None
            or (node["state"], node["lsn"], node["level"] != "bad") != (state, lsn, is_good)
            or lsn not in node["text"]
        )
    return wrong


def until_equal(cluster: Gated, page: Page, state: str, missing: set[int]) -> None:
    """Wait until the proxy is in this state, without these safekeepers, and the page shows it all."""

    def is_equal() -> bool:
        status = cluster.proxy.status()
        if status is None or status["state"] != state:
            return False
        absent = {each["id"] for each in status["safekeepers"] if each["state"] != "streaming"}
        return absent == missing and differences(page, status) == []

    wait_for(is_equal, lambda: f"the page shows it: {differences(page, cluster.proxy.status())}", timeout_s=WAIT_S)


def headline(page: Page) -> str:
    return page.locator("#headline").text_content() or ""


@NEWEST
def test_what_is_drawn_equals_the_status_while_safekeepers_are_killed(cluster: Gated, browser: Browser) -> None:
    with (
        opened(browser, cluster.proxy.url + "/") as page,
        opened(browser, cluster.safekeepers[1].url + "/") as page_of_one,
    ):
        until_equal(cluster, page, "streaming", set())
        assert headline(page) == "Commits succeed."
        assert headline(page_of_one) == "This safekeeper receives WAL from a proxy."
        Commit(cluster.postgres).wait()
        cluster.safekeepers[3].kill9()
        until_equal(cluster, page, "streaming", {3})
        assert headline(page) == "Commits succeed, but members are missing."
        cluster.safekeepers[2].kill9()
        until_equal(cluster, page, "waiting_for_quorum", {2, 3})
        waiting = Commit(cluster.postgres)
        wait_for(lambda: "1 session" in page.inner_text("#details"), "the session is counted", timeout_s=WAIT_S)
        assert headline(page) == "Commits wait: there is no quorum."
        until_equal(cluster, page, "waiting_for_quorum", {2, 3})
        no_quorum = "Commits wait: the proxy has no quorum."
        wait_for(lambda: headline(page_of_one) == no_quorum, "a safekeeper shows it", timeout_s=WAIT_S)
        assert drawn(page_of_one)["leader"]["level"] == "bad"
        cluster.safekeepers[2].start()
        waiting.wait()
        until_equal(cluster, page, "streaming", {3})
        wait_for(lambda: headline(page_of_one) != no_quorum, "its end is shown", timeout_s=WAIT_S)
        cluster.safekeepers[3].start()
        until_equal(cluster, page, "streaming", set())
        assert headline(page) == "Commits succeed."


@NEWEST
def test_the_page_shows_that_it_has_no_data_and_returns_with_the_proxy(cluster: Gated, browser: Browser) -> None:
    with opened(browser, cluster.proxy.url + "/", is_lost=True) as page:
        until_equal(cluster, page, "streaming", set())
        before = page.locator("#terms tbody tr").count()
        cluster.proxy.kill9()
        wait_for(lambda: "no data" in page.inner_text("#connection"), "the page notices", timeout_s=WAIT_S)
        assert "streaming" in page.inner_text("#facts"), "the last state stays"
        cluster.proxy.start()
        wait_for(lambda: "live" in page.inner_text("#connection"), "the page is connected again", timeout_s=WAIT_S)
        until_equal(cluster, page, "streaming", set())
        assert page.locator("#terms tbody tr").count() == min(20, before + 1), "a term has begun"
        assert page.locator("#terms tbody th").first.text_content() == str(field_of(cluster.proxy, "term"))


@NEWEST
def test_the_page_of_a_safekeeper_equals_its_status(cluster: Gated, browser: Browser) -> None:
    with opened(browser, cluster.safekeepers[1].url + "/") as page:

        def is_equal(state: str) -> bool:
            status, nodes = cluster.safekeepers[1].status(), drawn(page)
            if status is None or status["state"] != state or "safekeeper" not in nodes:
                return False
            shown = nodes["safekeeper"]
            terms = page.locator("#terms tbody th").all_text_contents()
            return (
                (shown["state"], shown["lsn"], nodes["leader"]["lsn"])
                == (state, status["flush_lsn"], status["commit_lsn"])
                and (nodes["leader"]["state"] == "leads") == (status["follows"] is not None)
                and terms == [str(entry["term"]) for entry in status["history"]][::-1][:20]
            )

        wait_for(lambda: is_equal("following"), "the page shows its status", timeout_s=WAIT_S)
        assert page.inner_text("#title") == "safekeeper 1"
        cluster.proxy.kill9()
        wait_for(lambda: is_equal("idle"), "it follows no proxy", timeout_s=WAIT_S)
        assert headline(page) == "This safekeeper is a member, and no proxy sends it WAL."
        cluster.proxy.start()
        wait_for(lambda: is_equal("following"), "it follows the proxy again", timeout_s=WAIT_S)
