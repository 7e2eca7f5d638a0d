"""The pages over TLS: for whom they are, and how strangers are sent away."""

import asyncio
import gc
import http.client
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

import safekeeper.net.http_server
from safekeeper.base.networks import Networks
from safekeeper.base.settings import Address
from safekeeper.net.admission import Budget
from safekeeper.net.http_server import HttpListener, serve_http
from safekeeper.net.tls import ClientTls, ServerTls
from safekeeper.net.tls_transport import TlsTransport
from tests.unit.certificates import HOST, Authority
from tests.unit.event_loop import DEADLINE_S, on_the_loop, until

LARGE = "x" * (4 << 20)


@asynccontextmanager
async def serving(authority: Authority) -> AsyncIterator[HttpListener]:
    """A listener with a small page and a large one, for this machine only."""
    listener = await serve_http(
        {"/small": lambda: (200, "x"), "/large": lambda: (200, LARGE)},
        Address(HOST, 0),
        tls=ServerTls(*authority.sign("server")),
        networks=Networks.parse(HOST),
    )
    try:
        yield listener
    finally:
        await listener.close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def connect(listener: HttpListener, source: str = HOST) -> socket.socket:
    return socket.create_connection(listener.address, timeout=DEADLINE_S, source_address=(source, 0))


def is_hung_up_on(stranger: socket.socket) -> bool:
    with stranger:
        try:
            return stranger.recv(1) == b""
        except ConnectionResetError:
            return True


def test_many_pages_come_over_one_connection_also_large_ones(authority: Authority) -> None:
    def fetch(port: int) -> list[int]:
        connection = http.client.HTTPSConnection(HOST, port, context=ClientTls(authority.ca).context, timeout=20)
        sizes = []
        for path in ("/small", "/large", "/small", "/large"):
            connection.request("GET", path)
            sizes.append(len(json.load(connection.getresponse())))
        connection.close()
        return sizes

    @on_the_loop
    async def run() -> None:
        async with serving(authority) as listener:
            assert await asyncio.to_thread(fetch, listener.address.port) == [1, len(LARGE), 1, len(LARGE)]
            await until(lambda: not listener.connection_count)

    run()


def test_whoever_comes_from_elsewhere_is_hung_up_on_before_the_handshake(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    @on_the_loop
    async def run() -> None:
        async with serving(authority) as listener:
            assert await asyncio.to_thread(is_hung_up_on, connect(listener, "127.0.0.2"))

    run()
    assert "its address is in none of the networks of --http-allow" in caplog.text


def test_whoever_does_not_come_to_the_end_of_the_handshake_is_hung_up_on(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safekeeper.net.http_server, "FIRST_REQUEST_TIMEOUT_S", 0.2)

    @on_the_loop
    async def run() -> None:
        async with serving(authority) as listener:
            assert await asyncio.to_thread(is_hung_up_on, connect(listener))
            await until(lambda: not listener.connection_count)

    run()


def test_plaintext_is_told_so_with_one_line(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    @on_the_loop
    async def run() -> None:
        async with serving(authority) as listener:
            with connect(listener) as stranger:
                stranger.sendall(b"GET /small HTTP/1.1\r\nHost: x\r\n\r\n")
                assert (await asyncio.to_thread(stranger.recv, 100))[:1] == b"\x15", "an alert"
            await until(lambda: bool(caplog.records))

    run()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "refused HTTP to 127.0.0.1:" in record.getMessage() and "the peer does not use TLS" in record.getMessage()


@pytest.mark.parametrize(
    "request_bytes",
    [b"GET / HTTP/1.1\r\nHost:\0\r\n\r\n", b"GET /" + b"a" * 20_000, b"GET / HTTP/9\r\n"],
    ids=["zero byte", "endless", "other version"],
)
def test_what_is_no_request_is_one_line_and_no_error(
    authority: Authority, request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    def ask(listener: HttpListener) -> bytes:
        context = ClientTls(authority.ca).context
        with connect(listener) as plain, context.wrap_socket(plain, server_hostname=HOST) as secured:
            secured.sendall(request_bytes)
            return secured.recv(100)

    @on_the_loop
    async def run() -> None:
        async with serving(authority) as listener:
            assert (await asyncio.to_thread(ask, listener)).startswith(b"HTTP/1.0 400")

    caplog.set_level(logging.INFO)
    run()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and record.exc_info is None
    message = record.getMessage()
    assert message.startswith("refused HTTP to 127.0.0.1: its request is invalid: ") and len(message) < 170


def test_connections_leave_nothing_behind(authority: Authority) -> None:
    def come_and_go(listener: HttpListener) -> None:
        for _ in range(20):
            with (
                connect(listener) as plain,
                ClientTls(authority.ca).context.wrap_socket(plain, server_hostname=HOST) as secured,
            ):
                secured.sendall(b"GET /small HTTP/1.0\r\n\r\n")
                while secured.recv(100):
                    pass

    def alive() -> int:
        return sum(isinstance(each, TlsTransport) for each in gc.get_objects())

    @on_the_loop
    async def run() -> None:
        async with serving(authority) as listener:
            gc.collect()
            gc.disable()
            try:
                before = alive()
                await asyncio.to_thread(come_and_go, listener)
                await until(lambda: alive() == before)
            finally:
                gc.enable()

    run()


def test_the_listener_closes_in_the_middle_of_a_handshake(authority: Authority) -> None:
    @on_the_loop
    async def run() -> None:
        async with serving(authority) as listener:
            stranger = connect(listener)
            await until(lambda: listener.connection_count == 1)
        assert await asyncio.to_thread(is_hung_up_on, stranger)

    run()


def test_a_request_that_is_not_finished_in_time_is_hung_up_on_also_if_bytes_keep_coming(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(safekeeper.net.http_server, "FIRST_REQUEST_TIMEOUT_S", 0.4)

    def drip(listener: HttpListener) -> int:
        with (
            connect(listener) as plain,
            ClientTls(authority.ca).context.wrap_socket(plain, server_hostname=HOST) as client,
        ):
            client.sendall(b"GET /small HTTP/1.1\r\n")
            client.settimeout(0.05)
            for sent in range(1000):
                try:
                    client.sendall(b"X-Header: 1\r\n")
                    if client.recv(1) == b"":
                        return sent
                except TimeoutError:
                    continue
                except OSError:
                    return sent
        return 1000

    @on_the_loop
    async def run() -> None:
        async with serving(authority) as listener:
            assert await asyncio.to_thread(drip, listener) < 1000
            await until(lambda: not listener.connection_count)

    run()
    assert "no request within 0.4 s" in caplog.text


def test_more_bytes_than_a_request_may_have_end_the_connection(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(safekeeper.net.http_server, "REQUEST_BYTES_MAX", 1000)

    def pour(listener: HttpListener) -> bytes:
        with (
            connect(listener) as plain,
            ClientTls(authority.ca).context.wrap_socket(plain, server_hostname=HOST) as client,
        ):
            client.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
            try:
                return client.recv(1)
            except OSError:
                return b""

    @on_the_loop
    async def run() -> None:
        async with serving(authority) as listener:
            assert await asyncio.to_thread(pour, listener) == b""

    run()
    assert "more than 1000 bytes for one request" in caplog.text


def test_of_a_client_that_does_not_wait_for_answers_no_more_is_read_than_a_few_requests() -> None:
    requests = 1000

    def pipeline(client: socket.socket) -> int:
        client.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n" * requests)
        answers = 0
        with client, client.makefile("rb") as lines:
            while answers < requests and (line := lines.readline()):
                answers += line.startswith(b"HTTP/1.1 200")
        return answers

    @on_the_loop
    async def run() -> None:
        may_answer = asyncio.Event()

        async def answer(_: web.Request) -> web.Response:
            await may_answer.wait()
            return web.Response()

        application = web.Application()
        application.router.add_get("/slow", answer)
        listener = await serve_http({}, Address(HOST, 0), application=application)
        try:
            client = connect(listener)
            client_has_all = asyncio.create_task(asyncio.to_thread(pipeline, client))
            await until(lambda: listener.connection_count == 1)
            (connection,) = listener._connections.values()
            await until(lambda: not connection._transport.is_reading())
            may_answer.set()
            assert await client_has_all == requests
        finally:
            await listener.close()

    run()


def test_a_newer_connection_displaces_the_oldest_and_is_answered(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    def ask(listener: HttpListener) -> bytes:
        with connect(listener) as client:
            client.sendall(b"GET /small HTTP/1.0\r\n\r\n")
            return client.recv(100)

    @on_the_loop
    async def run() -> None:
        listener = await serve_http({"/small": lambda: (200, "x")}, Address(HOST, 0), budget=Budget(0, 8))
        try:
            strangers = [await asyncio.to_thread(connect, listener) for _ in range(20)]
            assert (await asyncio.to_thread(ask, listener)).startswith(b"HTTP/1.0 200")
            await until(lambda: listener.connection_count <= 4)
            assert await asyncio.to_thread(is_hung_up_on, strangers[0])
            for stranger in strangers:
                stranger.close()
        finally:
            await listener.close()

    run()
    assert (
        "closed the HTTP connection from 127.0.0.1:" in caplog.text
        and "the oldest of 4, for a newer one" in caplog.text
    )
