"""What a safekeeper keeps of events: over restarts, never at the cost of WAL, and for its own cluster only."""

import logging
from pathlib import Path

import pytest

from safekeeper.base.events import Event, KeptEvent
from safekeeper.base.logs import log_event
from safekeeper.consensus.messages import EventExchange, EventPage, Refusal, RefusalCode
from safekeeper.net.events_page import events_route
from safekeeper.storage.disk_space import WAL
from safekeeper.storage.filesystem import Space
from tests.unit.event_loop import on_the_loop, until
from tests.unit.faulty_filesystem import FaultyFileSystem
from tests.unit.node.test_node import CLUSTER, Bench, bench

logger = logging.getLogger("safekeeper.test")
PROXY = 11


def event(number: int) -> Event:
    return Event(f"p-{number}", 1000 + number, "term-won", "walproxy", f"term {number}", {"term": number})


async def send(node: Bench, *numbers: int, since: int | None = None) -> EventPage:
    events = tuple(event(number) for number in numbers)
    return await node.ask(EventExchange(CLUSTER, events, since), EventPage, PROXY)


async def kept(node: Bench) -> list[str]:
    return [each.event.id for each in (await send(node, since=0)).events]


def on_disk(folder: Path) -> int:
    path = folder / "events"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@on_the_loop
async def test_events_of_proxies_are_kept_once_and_over_a_restart(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as node:
        await node.lead()
        await node.greet(PROXY)
        assert await send(node, 1, 2) == EventPage((), 0)
        await send(node, 2, 3)
        page = await send(node, since=2)
        assert page == EventPage((KeptEvent(2, event(2)), KeptEvent(3, event(3))), 4)
        await until(lambda: on_disk(tmp_path / "sk") == 3)
    async with bench(tmp_path / "sk") as node:
        await node.greet(PROXY)
        await send(node, 3, 4)
        page = await send(node, since=3)
        assert page == EventPage((KeptEvent(3, event(3)), KeptEvent(4, event(4))), 5)


@on_the_loop
async def test_its_own_events_are_among_them(tmp_path: Path) -> None:
    root = logging.getLogger()
    async with bench(tmp_path / "sk") as node:
        root.addHandler(node.node.services.events.recorder)
        try:
            await node.lead()
            log_event(logger, "disk-low", {}, "the disk is nearly full")
        finally:
            root.removeHandler(node.node.services.events.recorder)
        await node.greet(PROXY)
        listed = [each.event for each in (await send(node, since=0)).events]
        assert [each.kind for each in listed] == ["membership-stored", "leader-followed", "disk-low"]
        assert {each.source for each in listed} == {"safekeeper 1"}
        assert listed[1].fields == {"term": 1, "run": "run", "write_lsn": "0/300000"}


@on_the_loop
async def test_without_disk_space_events_stay_in_memory_and_wal_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "sk"
    async with bench(folder) as node:
        await node.lead()
        await node.greet(PROXY)
        space = node.node.disk_space
        space.space = Space(1 << 20, 1 << 30)
        await send(node, 1)
        space.space = Space(1 << 30, 1 << 30)
        space.lacking[WAL] = "No space left on device"
        await send(node, 2)
        # The keeper's thread has had its turn.
        await node.node.services.events.close()
        assert await kept(node) == ["p-1", "p-2"] and on_disk(folder) == 0
    async with bench(folder) as node:
        await node.greet(PROXY)
        assert await kept(node) == []
        node.node.disk_space.lacking[WAL] = "No space left on device"
        await send(node, 1)
        await until(lambda: not node.node.services.events._is_writing)
        del node.node.disk_space.lacking[WAL]
        await send(node, 2)
        await until(lambda: on_disk(folder) == 2)


@on_the_loop
async def test_events_that_could_not_be_written_are_written_with_the_next_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, fs = tmp_path / "sk", FaultyFileSystem()
    async with bench(folder, fs) as node:
        await node.lead()
        await node.greet(PROXY)
        fs.full = True
        await send(node, 1)

        def complaints() -> list[str]:
            """Return what is logged of events: on a busy machine the next segment is not yet prepared, either."""
            said = [record.getMessage().partition(":")[0] for record in caplog.records]
            return [each for each in said if "events" in each]

        await until(lambda: bool(complaints()))
        await until(lambda: not node.node.services.events._is_writing)
        assert complaints() == ["could not write events, they are in memory only"]
        fs.full = False
        end_lsn = await node.append_durably(b"w" * 100)
        assert node.sent_flush_lsn() == end_lsn
        await send(node, 2)
        await until(lambda: on_disk(folder) == 2)
        assert not node.node.failed.done()


@on_the_loop
async def test_events_of_another_cluster_are_refused(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as node:
        await node.greet(PROXY)
        # An empty safekeeper has events, too.
        assert await node.ask(EventExchange("", since=0), EventPage, PROXY) == EventPage((), 1)
        await node.lead()
        refusal = await node.ask(EventExchange("d" * 32, (event(1),)), Refusal, PROXY)
        assert refusal.code is RefusalCode.OTHER_CLUSTER
        assert refusal.reason == "safekeeper 1 belongs to another cluster: correct the list of safekeepers"
        assert await kept(node) == [] and node.closed == []


@on_the_loop
async def test_a_file_that_cannot_be_read_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "sk" / "events").mkdir(parents=True)
    async with bench(tmp_path / "sk") as node:
        assert caplog.records[0].getMessage().startswith("could not read the events that were kept: could not ")
        await node.greet(PROXY)
        assert await node.ask(EventExchange("", (event(1),), 0), EventPage, PROXY) == EventPage(
            (KeptEvent(1, event(1)),), 2
        )
        await until(lambda: len(caplog.records) == 2)


@on_the_loop
async def test_the_page_of_events_begins_at_the_requested_number(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as node:
        await node.lead()
        await node.greet(PROXY)
        await send(node, 1, 2)
        route = events_route(node.node.services.events.recorder)
        code, content = route.answer({"since": "2"})
        assert code == 200 and content == {
            "events": [
                {
                    "seq": 2,
                    "id": "p-2",
                    "at": "1970-01-01T00:00:01.002Z",
                    "event": "term-won",
                    "source": "walproxy",
                    "text": "term 2",
                    "fields": {"term": 2},
                }
            ],
            "next": 3,
        }
        assert [each["seq"] for each in route.answer({})[1]["events"]] == [1, 2]
        for wrong in ("", "-1", "x", "9" * 19, "²"):
            assert route.answer({"since": wrong})[0] == 400
        node.node.services.events.recorder.add(Event("q-1", 1 << 62, "later-kind", "walproxy", "a clock that is wrong"))
        assert route.answer({"since": "3"})[1]["events"][0]["at"] == "?"
