"""The link to a safekeeper, against real sockets: it connects, says what happened once, and connects anew."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.settings import Address
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.messages import AcceptorMessage, PreVoteResponse, Refusal, RefusalCode
from safekeeper.peers.codec import encode
from tests.unit.event_loop import on_the_loop, until
from walproxy.proxy.safekeeper_link import SafekeeperLink

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Owner:
    """What a link told."""

    def __init__(self) -> None:
        self.ups = 0
        self.downs = 0
        self.messages: list[AcceptorMessage] = []
        self.objects = False
        self.link: SafekeeperLink | None = None  # Closed at the first message.

    def link_up(self, safekeeper_id: int) -> None:
        self.ups += 1

    def link_down(self, safekeeper_id: int) -> None:
        self.downs += 1

    def link_message(self, safekeeper_id: int, message: AcceptorMessage) -> None:
        self.messages.append(message)
        if self.objects:
            raise RemoteProtocolError("that cannot be")
        if self.link is not None:
            self.link.disconnect("enough")


def reserved() -> socket.socket:
    """A socket with a port of its own, which refuses connections until a server is opened on it."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    return sock


class Safekeeper:
    """A listener that keeps the connections that were made to it."""

    def __init__(self) -> None:
        self.writers: list[asyncio.StreamWriter] = []
        self.readers: list[asyncio.StreamReader] = []
        self.closes_at_once = False
        self.server: asyncio.Server

    async def open(self, sock: socket.socket) -> None:
        self.server = await asyncio.start_server(self._serve, sock=sock)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.readers.append(reader)
        self.writers.append(writer)
        if self.closes_at_once:
            writer.close()

    async def close(self) -> None:
        self.server.close()
        for writer in self.writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        await self.server.wait_closed()

    def say(self, *messages: AcceptorMessage) -> None:
        for message in messages:
            self.writers[-1].writelines(encode(message))


@contextlib.asynccontextmanager
async def linked() -> AsyncIterator[tuple[SafekeeperLink, Owner, Safekeeper]]:
    """A link that runs, and its safekeeper."""
    safekeeper, owner, sock = Safekeeper(), Owner(), reserved()
    await safekeeper.open(sock)
    link = SafekeeperLink(2, Address(*sock.getsockname()), owner)
    task = asyncio.create_task(link.run())
    try:
        yield link, owner, safekeeper
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await safekeeper.close()


@on_the_loop
async def test_frames_go_out_and_messages_come_in() -> None:
    async with linked() as (link, owner, safekeeper):
        await until(lambda: owner.ups == 1 and bool(safekeeper.writers))
        assert link.is_up and link.problem == ""
        link.send([b"ab", memoryview(b"cd")])
        assert await safekeeper.readers[0].readexactly(4) == b"abcd"
        safekeeper.say(PreVoteResponse(True, "a"), PreVoteResponse(False, "b"))
        await until(lambda: len(owner.messages) == 2)
        assert owner.messages == [PreVoteResponse(True, "a"), PreVoteResponse(False, "b")]


@on_the_loop
async def test_a_connection_that_breaks_is_reported_and_made_anew(caplog: pytest.LogCaptureFixture) -> None:
    async with linked() as (link, owner, safekeeper):
        await until(lambda: bool(safekeeper.writers))
        safekeeper.writers[0].close()
        await until(lambda: owner.downs == 1)
        assert "the safekeeper closed the connection" in caplog.text
        await until(lambda: owner.ups == 2)
        assert link.is_up


@on_the_loop
async def test_what_is_not_understood_breaks_the_connection_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    async with linked() as (_, owner, safekeeper):
        await until(lambda: bool(safekeeper.writers))
        safekeeper.writers[0].write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await until(lambda: owner.downs == 1)
        assert "lost safekeeper 2" in caplog.text and "magic" in caplog.text
        assert owner.messages == []


@on_the_loop
async def test_nothing_behind_a_message_that_its_owner_objects_to_is_looked_at() -> None:
    async with linked() as (link, owner, safekeeper):
        await until(lambda: bool(safekeeper.writers))
        owner.objects = True
        safekeeper.say(PreVoteResponse(True, "a"), PreVoteResponse(True, "b"))
        await until(lambda: owner.downs == 1)
        assert owner.messages == [PreVoteResponse(True, "a")]
        assert link.problem.endswith("that cannot be") or link.is_up


@on_the_loop
async def test_nothing_behind_a_message_at_which_its_owner_hangs_up_is_looked_at() -> None:
    async with linked() as (link, owner, safekeeper):
        await until(lambda: bool(safekeeper.writers))
        owner.link = link
        safekeeper.say(PreVoteResponse(True, "a"), PreVoteResponse(True, "b"))
        await until(lambda: owner.ups == 2)
        assert owner.messages == [PreVoteResponse(True, "a")]


@on_the_loop
async def test_a_safekeeper_that_is_not_there_is_reported_once_and_found_when_it_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    safekeeper, owner, sock = Safekeeper(), Owner(), reserved()
    link = SafekeeperLink(2, Address(*sock.getsockname()), owner)
    link.send([b"to nobody"])
    task = asyncio.create_task(link.run())
    await until(lambda: "could not connect to safekeeper 2" in link.problem)
    # Long enough for the second attempt, and the third: that nothing is said can only be shown by waiting.
    await asyncio.sleep(0.4)
    assert caplog.text.count("could not connect") == 1
    await safekeeper.open(sock)
    await until(lambda: owner.ups == 1)
    assert link.problem == "" and "connected to safekeeper 2" in caplog.text
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert owner.downs == 1
    await safekeeper.close()


@on_the_loop
async def test_a_safekeeper_that_refuses_at_once_again_and_again_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with linked() as (_, owner, safekeeper):
        await until(lambda: bool(safekeeper.writers))
        safekeeper.closes_at_once = True
        safekeeper.writers[0].close()
        await until(lambda: owner.downs == 5)
        assert caplog.text.count("lost safekeeper 2") == caplog.text.count("connected to safekeeper 2") == 1
        safekeeper.closes_at_once = False
        await until(lambda: caplog.text.count("connected to safekeeper 2") == 2)


@on_the_loop
async def test_what_arrives_on_a_connection_that_was_given_up_belongs_to_nobody() -> None:
    async with linked() as (link, owner, safekeeper):
        await until(lambda: bool(safekeeper.writers))
        first = safekeeper.writers[0]
        first.writelines(encode(Refusal(RefusalCode.STALE_TERM, "late", LeaderId(1, "a"))))
        link.disconnect("another one is wanted")
        await until(lambda: owner.ups == 2)
        assert owner.messages == []
        assert owner.downs == 1
