"""Streams of the HTTP listener: their bytes, their limits, and that they do not keep other clients out."""

import asyncio
import contextlib
import http.client
import logging
import math
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import safekeeper.net.http_server
from safekeeper.base.settings import Address
from safekeeper.net.admission import Budget
from safekeeper.net.http_server import HTTP_BUDGET, HttpConnection, HttpListener, Stream, serve_http
from safekeeper.net.tls import ClientTls, ServerTls
from tests.unit.certificates import HOST, Authority
from tests.unit.event_loop import DEADLINE_S, on_the_loop, until

GET = b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Channel(Stream):
    """A stream of the frames that a test sends."""

    content_type = "text/event-stream"
    headers = (("Cache-Control", "no-store"),)

    def __init__(self) -> None:
        self.readers: list[HttpConnection] = []

    def join(self, reader: HttpConnection) -> None:
        self.readers.append(reader)
        reader.send_frame(b"first\n\n")

    def leave(self, reader: HttpConnection) -> None:
        self.readers.remove(reader)


@asynccontextmanager
async def serving(
    channel: Channel, budget: Budget = HTTP_BUDGET, tls: ServerTls | None = None
) -> AsyncIterator[HttpListener]:
    """A listener with the stream and a small page."""
    routes = {"/stream": lambda: (200, channel), "/small": lambda: (200, "x")}
    listener = await serve_http(routes, Address(HOST, 0), budget=budget, tls=tls)
    try:
        yield listener
    finally:
        await listener.close()


def connect(listener: HttpListener, source: str = HOST) -> socket.socket:
    return socket.create_connection(listener.address, timeout=DEADLINE_S, source_address=(source, 0))


def exchange(listener: HttpListener, request: bytes) -> bytes:
    """Return everything that the server sends for a request until it closes."""
    with connect(listener) as client, client.makefile("rb") as received:
        client.sendall(request)
        return received.read()


def small(listener: HttpListener, source: str = HOST) -> bytes:
    with connect(listener, source) as client:
        client.sendall(b"GET /small HTTP/1.0\r\n\r\n")
        return client.recv(100)


def test_frames_come_as_chunks_until_the_client_leaves() -> None:
    @on_the_loop
    async def run() -> None:
        channel = Channel()
        async with serving(channel) as listener:
            client = http.client.HTTPConnection(*listener.address, timeout=DEADLINE_S)

            def begin() -> http.client.HTTPResponse:
                client.request("GET", "/stream")
                return client.getresponse()

            answer = await asyncio.to_thread(begin)
            assert (answer.status, answer.headers["Content-Type"]) == (200, "text/event-stream")
            assert answer.headers["Transfer-Encoding"] == "chunked" and answer.headers["Cache-Control"] == "no-store"
            assert "Content-Length" not in answer.headers
            assert await asyncio.to_thread(answer.read, 7) == b"first\n\n"
            assert listener.stream_count == 1
            assert channel.readers[0].send_frame(b"next\n\n")
            assert await asyncio.to_thread(answer.read, 6) == b"next\n\n"
            answer.close()
            client.close()
            await until(lambda: not channel.readers)
            assert (listener.stream_count, listener.connection_count) == (0, 0)

    run()


def test_frames_come_over_tls(tmp_path_factory: pytest.TempPathFactory) -> None:
    authority = Authority(tmp_path_factory.mktemp("tls"))

    @on_the_loop
    async def run() -> None:
        channel = Channel()
        async with serving(channel, tls=ServerTls(*authority.sign("server"))) as listener:
            context = ClientTls(authority.ca).context
            client = http.client.HTTPSConnection(*listener.address, context=context, timeout=DEADLINE_S)

            def begin() -> bytes:
                client.request("GET", "/stream")
                return client.getresponse().read(7)

            assert await asyncio.to_thread(begin) == b"first\n\n"
            client.close()
            await until(lambda: not channel.readers)

    run()


@pytest.mark.parametrize(
    ("request_bytes", "status", "chunks"),
    [
        (b"HEAD /stream HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"200", b""),
        (b"OPTIONS /stream HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"200", b""),
        (b"POST /stream HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"405", b"405: Method Not Allowed"),
        (GET[:-2] + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n", b"200", b"0\r\n\r\n"),
    ],
    ids=["head", "options", "post", "100-continue"],
)
@on_the_loop
async def test_only_a_get_begins_a_stream(request_bytes: bytes, status: bytes, chunks: bytes) -> None:
    channel = Channel()
    async with serving(channel) as listener:
        received = await asyncio.to_thread(exchange, listener, request_bytes)
        header, _, content = received.partition(b"\r\n\r\n")
        assert header.startswith(b"HTTP/1.1 " + status) and content == chunks
        assert not channel.readers and not listener.stream_count


@on_the_loop
async def test_an_old_client_gets_the_frames_without_chunks() -> None:
    channel = Channel()
    async with serving(channel) as listener:
        with connect(listener) as client:
            client.sendall(b"GET /stream HTTP/1.0\r\n\r\n")
            await until(lambda: bool(channel.readers))
            channel.readers[0].send_frame(b"next\n\n")
            channel.readers[0].close()
            with client.makefile("rb") as received:
                content = await asyncio.to_thread(received.read)
        assert content.partition(b"\r\n\r\n")[2] == b"first\n\nnext\n\n"


@on_the_loop
async def test_a_stream_outlives_the_limit_between_two_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safekeeper.net.http_server, "NEXT_REQUEST_TIMEOUT_S", 0.05)
    channel = Channel()
    async with serving(channel) as listener:
        with connect(listener) as client, connect(listener) as other:
            client.sendall(GET)
            other.sendall(b"GET /small HTTP/1.1\r\nHost: localhost\r\n\r\n")
            # The other client is disconnected by the same limit, so that its time has passed.
            await until(lambda: listener.connection_count == 1 and listener.stream_count == 1)
            listener.watch()
            assert channel.readers[0].deadline == math.inf
            assert channel.readers[0].send_frame(b"next\n\n")


@on_the_loop
async def test_a_reader_that_stops_reading_is_dropped_and_costs_no_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(safekeeper.net.http_server, "STREAM_STALLED_S", 0.3)
    frame = b"x" * 20_000
    channel = Channel()
    async with serving(channel) as listener:
        with connect(listener) as client:
            client.sendall(GET)
            await until(lambda: bool(channel.readers))
            (reader,) = channel.readers
            sent = 0
            while reader.send_frame(frame):
                sent += 1
                assert sent < 10_000
                await asyncio.sleep(0)
            assert not any(reader.send_frame(frame) for _ in range(1000))
            assert reader._transport.get_write_buffer_size() < (64 << 10) + 2 * len(frame)
            listener.watch()
            assert channel.readers, "it has its time"
            await until(lambda: listener.watch() > 0 and not channel.readers)
        assert (listener.stream_count, listener.connection_count) == (0, 0)
    assert "it has not read what was sent within 0.3 s" in caplog.text


@on_the_loop
async def test_a_reader_that_reads_again_in_time_gets_the_next_frame() -> None:
    frame = b"x" * 20_000
    channel = Channel()
    async with serving(channel) as listener:
        with connect(listener) as client:
            client.sendall(GET)
            await until(lambda: bool(channel.readers))
            (reader,) = channel.readers
            while reader.send_frame(frame):
                await asyncio.sleep(0)
            assert reader.deadline < math.inf
            client.setblocking(False)
            while not reader.send_frame(b"last\n\n"):
                with contextlib.suppress(BlockingIOError):
                    client.recv(1 << 20)
                await asyncio.sleep(0)
            assert reader.deadline == math.inf


@on_the_loop
async def test_streams_displace_each_other_and_leave_room_for_other_clients(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(safekeeper.net.http_server, "STREAMS_MAX", 8)
    channel = Channel()
    async with serving(channel, Budget(0, 32)) as listener:
        clients = []
        for number in range(1, 21):
            clients.append(connect(listener))
            clients[-1].sendall(GET)
            # One host has half of the streams; the newest are those that stay.
            await until(lambda number=number: listener.stream_count == min(number, 4))  # type: ignore[misc]
        newest = {str(client.getsockname()[1]) for client in clients[-4:]}
        await until(lambda: {reader.peer.rpartition(":")[2] for reader in channel.readers} == newest)
        elsewhere = connect(listener, "127.0.0.2")
        elsewhere.sendall(GET)
        await until(lambda: listener.stream_count == 5)
        assert (await asyncio.to_thread(small, listener)).startswith(b"HTTP/1.1 200")
        assert listener.stream_count == 5, "another client did not cost a stream"
        for client in [*clients, elsewhere]:
            client.close()
        await until(lambda: not listener.stream_count and not channel.readers)
    assert all(record.levelno == logging.WARNING for record in caplog.records)


@on_the_loop
async def test_a_flood_of_connections_displaces_streams_like_any_other_connection() -> None:
    channel = Channel()
    async with serving(channel, Budget(0, 8)) as listener:
        with connect(listener) as client:
            client.sendall(GET)
            await until(lambda: listener.stream_count == 1)
            others = [connect(listener) for _ in range(8)]
            await until(lambda: not listener.stream_count and not channel.readers)
            for other in others:
                other.close()


@on_the_loop
async def test_a_client_that_sends_much_during_a_stream_is_disconnected() -> None:
    channel = Channel()
    async with serving(channel) as listener:
        with connect(listener) as client:
            client.sendall(GET + GET * 3)
            await until(lambda: len(channel.readers) == 1)
            assert channel.readers[0].send_frame(b"next\n\n")
            await asyncio.to_thread(client.sendall, b"x" * 70_000)
            await until(lambda: not channel.readers)


@on_the_loop
async def test_the_listener_closes_with_open_streams() -> None:
    channel = Channel()
    async with serving(channel) as listener:
        with connect(listener) as client:
            client.sendall(GET)
            await until(lambda: bool(channel.readers))
            await listener.close()
            assert not channel.readers
