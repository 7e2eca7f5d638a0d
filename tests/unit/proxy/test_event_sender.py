"""Events reach the safekeepers that accept them; one that does not disturbs nothing, and is tried again."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from safekeeper.base.event_log import EventRecorder
from safekeeper.base.events import Event
from safekeeper.base.settings import Address
from safekeeper.consensus.messages import (
    EventExchange,
    EventPage,
    ProposerGreeting,
)
from safekeeper.net.safekeeper_connection import Credentials
from safekeeper.peers.codec import PROPOSER_DIALECT, FrameDecoder, encode
from tests.unit.event_loop import on_the_loop, until
from tests.unit.greetings import empty
from walproxy.proxy import event_sender
from walproxy.proxy.event_reader import EventReader
from walproxy.proxy.event_sender import EventSender


class Safekeeper:
    """One that keeps events, or, if it is old, closes the connection at the first message about them."""

    def __init__(self, refuses: bool = False) -> None:
        self.refuses = refuses
        self.hangs = False  # It replies to nothing.
        self.recorder = EventRecorder("safekeeper", origin="s")
        self.exchanges = 0
        self.address: Address
        self._server: asyncio.Server
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = Address(*self._server.sockets[0].getsockname()[:2])

    async def close(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        decoder = FrameDecoder(PROPOSER_DIALECT)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                for message in [] if self.hangs else decoder.feed(data):
                    if not self._answer(writer, message):
                        writer.close()
                        return
        writer.close()

    def _answer(self, writer: asyncio.StreamWriter, message: object) -> bool:
        if isinstance(message, ProposerGreeting):
            writer.writelines(encode(empty(message.safekeeper_id)))
            return True
        assert isinstance(message, EventExchange) and message.cluster_id == ""
        self.exchanges += 1
        if self.refuses:
            return False
        for event in message.events:
            self.recorder.add(event)
        page = EventPage((), 0) if message.since is None else EventPage(*self.recorder.page(message.since))
        writer.writelines(encode(page))
        return True

    def ids(self) -> list[str]:
        return [kept.event.id for kept in self.recorder.all()]


class House:
    """A proxy's recorder and sender, and three safekeepers."""

    def __init__(self) -> None:
        self.recorder = EventRecorder("walproxy", origin="p")
        self.safekeepers = {i: Safekeeper() for i in (1, 2, 3)}
        self.up = {1, 2, 3}
        self.count = 0

    def receivers(self) -> dict[int, Address]:
        return {i: self.safekeepers[i].address for i in self.up}

    def record(self, count: int = 1) -> list[str]:
        """Record events; return the ids of all so far."""
        for _ in range(count):
            self.count += 1
            self.recorder.add(Event(f"p-{self.count}", self.count, "term-won", "walproxy", "text"))
        return [f"p-{i}" for i in range(1, self.count + 1)]

    async def until_has(self, safekeeper_id: int, ids: list[str]) -> None:
        await until(lambda: self.safekeepers[safekeeper_id].ids() == ids)


@contextlib.asynccontextmanager
async def running(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[House, EventSender]]:
    for name in ("GATHER_S", "PAUSE_MIN_S", "LOOK_INTERVAL_S"):
        monkeypatch.setattr(event_sender, name, 0.01)
    house = House()
    for safekeeper in house.safekeepers.values():
        await safekeeper.open()
    sender = EventSender(house.recorder, house.receivers, Credentials())
    task = asyncio.create_task(sender.run())
    try:
        yield house, sender
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        for safekeeper in house.safekeepers.values():
            await safekeeper.close()


@on_the_loop
async def test_each_event_reaches_every_safekeeper_also_many_and_one_that_was_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(monkeypatch) as (house, _):
        house.up.discard(3)
        ids = house.record()
        await house.until_has(1, ids)
        ids = house.record(450)
        for safekeeper_id in (1, 2):
            await house.until_has(safekeeper_id, ids)
        assert house.safekeepers[3].ids() == []
        house.up.add(3)
        await house.until_has(3, ids)


@on_the_loop
async def test_a_safekeeper_that_refuses_events_is_tried_again_with_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as (house, _):
        other = house.safekeepers[2]
        other.refuses = True
        ids = house.record()
        await house.until_has(1, ids)
        await until(lambda: other.exchanges >= 4)
        other.refuses = False
        await house.until_has(2, ids)


@on_the_loop
async def test_pauses_grow_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as (house, sender):
        monkeypatch.setattr(event_sender, "PAUSE_MAX_S", 0.02)
        house.safekeepers[2].refuses = True
        house.record()
        await until(lambda: house.safekeepers[2].exchanges >= 5)
        assert sender._receivers[2].pause_s == 0.02


@on_the_loop
async def test_the_last_events_are_sent_at_the_end_within_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as (house, sender):
        ids = house.record()
        for safekeeper_id in (1, 2, 3):
            await house.until_has(safekeeper_id, ids)
        monkeypatch.setattr(event_sender, "GATHER_S", 60.0)
        ids = house.record()
        await sender.flush(10.0)
        assert all(each.ids() == ids for each in house.safekeepers.values())
        house.safekeepers[1].hangs = True
        house.record()
        began_at = asyncio.get_running_loop().time()
        await sender.flush(0.05)
        assert asyncio.get_running_loop().time() - began_at < event_sender.SEND_TIMEOUT_S
        assert house.safekeepers[1].ids() == ids


@on_the_loop
async def test_a_bug_ends_the_sending_only(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async with running(monkeypatch) as (_, sender):

        def fail() -> dict[int, Address]:
            raise KeyError(7)

        sender._find_receivers = fail
        await until(lambda: bool(caplog.records))
        assert caplog.records[0].getMessage().startswith("events are no longer sent to the safekeepers: ")


@on_the_loop
async def test_a_reader_continues_where_it_was_and_from_the_start_where_files_were_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(monkeypatch) as (house, _):
        places = [(i, each.address) for i, each in house.safekeepers.items()]
        reader = EventReader(places, Credentials())
        ids = house.record(3)
        for safekeeper_id in (1, 2, 3):
            await house.until_has(safekeeper_id, ids)
        assert {i: [kept.event.id for kept in found] for i, found in (await reader.read()).items()} == dict.fromkeys(
            (1, 2, 3), ids
        )
        assert [found for found in (await reader.read()).values() if found] == []
        house.safekeepers[2].recorder = EventRecorder("safekeeper", origin="s")
        house.safekeepers[2].recorder.add(Event("s-1", 9, "safekeeper-started", "safekeeper 2", "text"))
        found = await reader.read()
        assert [kept.event.id for kept in found[2]] == ["s-1"] and found[1] == found[3] == []
