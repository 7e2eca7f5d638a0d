"""The pages over TLS: for whom they are, and how strangers are sent away."""

import asyncio
import base64
import gc
import http.client
import json
import logging
import re
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import safekeeper.net.http_server
from safekeeper.base.networks import Networks
from safekeeper.base.settings import Address, Secret
from safekeeper.net.admission import Budget
from safekeeper.net.http_access import OPEN_TO_ALL, HttpAccess
from safekeeper.net.http_server import (
    HTTP_BUDGET,
    Answer,
    HttpListener,
    QueryRoute,
    Route,
    SlowRoute,
    Text,
    made_at_first_request,
    serve_http,
)
from safekeeper.net.tls import ClientTls, ServerTls
from safekeeper.net.tls_transport import TlsTransport
from safekeeper.net.turns import TURN_S
from safekeeper.peers.shared_secret import SharedSecret
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


@on_the_loop
async def test_many_pages_come_over_one_connection_also_large_ones(authority: Authority) -> None:
    def fetch(port: int) -> list[int]:
        connection = http.client.HTTPSConnection(HOST, port, context=ClientTls(authority.ca).context, timeout=20)
        sizes = []
        for path in ("/small", "/large", "/small", "/large"):
            connection.request("GET", path)
            sizes.append(len(json.load(connection.getresponse())))
        connection.close()
        return sizes

    async with serving(authority) as listener:
        assert await asyncio.to_thread(fetch, listener.address.port) == [1, len(LARGE), 1, len(LARGE)]
        await until(lambda: not listener.connection_count)


@on_the_loop
async def test_whoever_comes_from_elsewhere_is_hung_up_on_before_the_handshake(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(authority) as listener:
        assert await asyncio.to_thread(is_hung_up_on, connect(listener, "127.0.0.2"))
    assert "its address is in none of the networks of http_allow" in caplog.text


@on_the_loop
async def test_whoever_does_not_come_to_the_end_of_the_handshake_is_hung_up_on(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safekeeper.net.http_server, "FIRST_REQUEST_TIMEOUT_S", 0.2)
    async with serving(authority) as listener:
        assert await asyncio.to_thread(is_hung_up_on, connect(listener))
        await until(lambda: not listener.connection_count)


@on_the_loop
async def test_plaintext_is_reported_with_one_line(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(authority) as listener:
        with connect(listener) as stranger:
            stranger.sendall(b"GET /small HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await asyncio.to_thread(stranger.recv, 100))[:1] == b"\x15", "an alert"
        await until(lambda: bool(caplog.records))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "refused HTTP to 127.0.0.1:" in record.getMessage() and "the peer does not use TLS" in record.getMessage()


@pytest.mark.parametrize(
    "request_bytes",
    [b"GET / HTTP/1.1\r\nHost:\0\r\n\r\n", b"GET /" + b"a" * 20_000, b"GET / HTTP/9\r\n\r\n"],
    ids=["zero byte", "endless", "other version"],
)
@on_the_loop
async def test_what_is_no_request_is_one_line_and_no_error(
    authority: Authority, request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    def ask(listener: HttpListener) -> bytes:
        context = ClientTls(authority.ca).context
        with connect(listener) as plain, context.wrap_socket(plain, server_hostname=HOST) as secured:
            secured.sendall(request_bytes)
            return secured.recv(100)

    caplog.set_level(logging.INFO)
    async with serving(authority) as listener:
        assert (await asyncio.to_thread(ask, listener)).startswith(b"HTTP/1.1 400")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and record.exc_info is None
    message = record.getMessage()
    assert message.startswith("refused HTTP to 127.0.0.1:")
    assert ": its request is invalid: " in message and len(message) < 170


@on_the_loop
async def test_connections_leave_nothing_behind(authority: Authority) -> None:
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

    async with serving(authority) as listener:
        gc.collect()
        gc.disable()
        try:
            before = alive()
            await asyncio.to_thread(come_and_go, listener)
            await until(lambda: alive() == before)
        finally:
            gc.enable()


@on_the_loop
async def test_the_listener_closes_in_the_middle_of_a_handshake(authority: Authority) -> None:
    async with serving(authority) as listener:
        stranger = connect(listener)
        await until(lambda: listener.connection_count == 1)
    assert await asyncio.to_thread(is_hung_up_on, stranger)


@on_the_loop
async def test_a_request_that_is_not_finished_in_time_is_hung_up_on_also_if_bytes_keep_coming(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
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

    async with serving(authority) as listener:
        listener.stop_watching()
        dripping = asyncio.create_task(asyncio.to_thread(drip, listener))
        await until(lambda: any(each.unanswered_bytes for each in listener._connections.values()))
        (connection,) = listener._connections.values()
        connection.deadline = connection._first_deadline = connection.deadline - 11
        before = connection.unanswered_bytes
        await until(lambda: connection.unanswered_bytes > before)
        listener.watch()
        assert await dripping < 1000
        await until(lambda: not listener.connection_count)
    assert "no request within 10 s" in caplog.text


@on_the_loop
async def test_more_bytes_than_a_request_may_have_end_the_connection(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(safekeeper.net.http_server, "REQUEST_BYTES_MAX", 1000)

    def pour(listener: HttpListener) -> bytes:
        with (
            connect(listener) as plain,
            ClientTls(authority.ca).context.wrap_socket(plain, server_hostname=HOST) as client,
        ):
            client.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
            try:
                return client.recv(1)
            except OSError:
                return b""

    async with serving(authority) as listener:
        assert await asyncio.to_thread(pour, listener) == b""
    assert "more than 1000 bytes for one request" in caplog.text


@on_the_loop
async def test_of_a_client_that_does_not_read_its_answers_no_more_is_read_and_answered() -> None:
    requests = 1000
    page = b"x" * 100_000
    pages = 0

    def answer() -> Answer:
        nonlocal pages
        pages += 1
        return 200, Text("text/plain", page)

    def read_all(client: socket.socket) -> int:
        answers = 0
        with client, client.makefile("rb") as lines:
            while answers < requests and (line := lines.readline()):
                answers += line.endswith(b"HTTP/1.1 200 OK\r\n")
        return answers

    listener = await serve_http({"/page": answer}, Address(HOST, 0))
    try:
        client = connect(listener)
        client.sendall(b"GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n" * requests)
        await until(lambda: listener.connection_count == 1)
        (connection,) = listener._connections.values()
        await until(lambda: connection._writing_paused)
        assert not connection._transport.is_reading()
        assert 0 < pages < requests / 2
        assert connection._transport.get_write_buffer_size() < 2 * len(page)
        assert await asyncio.to_thread(read_all, client) == requests
    finally:
        await listener.close()


GET = b"GET /small HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /small HTTP/1.1\r\nHost: localhost\r\n"


def answers_to(
    requests: bytes, *, ends_stream: bool = True, access: HttpAccess = OPEN_TO_ALL
) -> list[tuple[int, dict[str, str], bytes]]:
    """Send these bytes, and the end of the stream; return status, headers and content of each answer."""

    async def slow() -> Answer:
        await asyncio.sleep(0)
        return 200, "slow"

    async def slow_and_broken() -> Answer:
        await asyncio.sleep(0)
        return 200, 1 // 0

    routes: dict[str, Route | QueryRoute | SlowRoute] = {
        "/slow": SlowRoute(slow),
        "/slow-and-broken": SlowRoute(slow_and_broken),
        "/small": lambda: (200, "x"),
        "/broken": lambda: 1 // 0,
        "/query": QueryRoute(lambda query: (200, query)),
    }

    def exchange(client: socket.socket) -> bytes:
        with client, client.makefile("rb") as stream:
            client.sendall(requests)
            if ends_stream:
                client.shutdown(socket.SHUT_WR)
            return stream.read()

    received = b""

    @on_the_loop
    async def run() -> None:
        nonlocal received
        listener = await serve_http(routes, Address(HOST, 0), access=access)
        try:
            received = await asyncio.to_thread(exchange, connect(listener))
        finally:
            await listener.close()

    run()
    answers = []
    while received:
        header, _, received = received.partition(b"\r\n\r\n")
        status, *lines = header.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        size = 0 if requests.startswith(b"HEAD") else int(headers["Content-Length"])
        answers.append((int(status.split()[1]), headers, received[:size]))
        received = received[size:]
    return answers


def test_an_answer_has_these_headers() -> None:
    ((status, headers, content),) = answers_to(GET + b"\r\n")
    assert (status, content) == (200, b'"x"\n')
    assert parsedate_to_datetime(headers.pop("Date")).tzinfo == UTC
    assert headers == {
        "Content-Type": "application/json",
        "Content-Length": "4",
        "Server": "walproxy",
        "X-Content-Type-Options": "nosniff",
        "Cross-Origin-Resource-Policy": "same-origin",
    }


def test_a_request_for_another_host_gets_no_page_and_is_the_last_of_its_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    foreign = b"GET /small HTTP/1.1\r\nHost: evil.example:80\r\n\r\n"
    ((status, headers, content),) = answers_to(foreign + GET + b"\r\n")
    assert (status, headers["Connection"]) == (421, "close") and b'"x"' not in content
    assert headers["X-Content-Type-Options"] == "nosniff"
    (line,) = [record.getMessage() for record in caplog.records]
    assert re.fullmatch(
        r"refused HTTP to 127\.0\.0\.1:\d+: its request is for the host 'evil\.example:80': "
        "to serve it set http_hosts",
        line,
    )
    assert [status for status, _, _ in answers_to(foreign, access=HttpAccess(frozenset({"evil.example"})))] == [200]


def test_a_request_without_the_password_gets_no_page(caplog: pytest.LogCaptureFixture) -> None:
    access = HttpAccess(password=SharedSecret(None, Secret(b"x" * 16)), probes=("/small", "/broken"))
    with_password = b"Authorization: Basic " + base64.b64encode(b"prometheus:" + b"x" * 16) + b"\r\n\r\n"
    answers = answers_to(GET + with_password + GET + b"\r\n" + b"GET /query HTTP/1.0\r\n\r\n" + GET, access=access)
    assert [(status, content) for status, _, content in answers] == [
        (200, b'"x"\n'),
        (200, b""),
        (401, b"401: Unauthorized"),
    ]
    assert answers[2][1]["WWW-Authenticate"].startswith("Basic ") and answers[2][1]["Connection"] == "close"
    assert "its request has no password (http_password_file)" in caplog.text
    wrong = GET + b"Authorization: Basic eDp5\r\n\r\n"
    assert [status for status, _, _ in answers_to(wrong, access=access)] == [401]
    assert "its password is wrong (http_password_file)" in caplog.text


def test_a_slow_page_whose_status_is_public_has_no_content_without_the_password() -> None:
    access = HttpAccess(password=SharedSecret(None, Secret(b"x" * 16)), probes=("/slow",))
    answers = answers_to(b"GET /slow HTTP/1.0\r\n\r\n", ends_stream=False, access=access)
    assert [(status, content) for status, _, content in answers] == [(200, b"")]


@on_the_loop
async def test_refused_requests_are_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    foreign = b"GET /small HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"

    def flood(listener: HttpListener) -> None:
        for _ in range(100):
            with connect(listener) as client:
                client.sendall(foreign)
                assert client.recv(100).startswith(b"HTTP/1.1 421 ")

    listener = await serve_http({}, Address(HOST, 0))
    try:
        await asyncio.to_thread(flood, listener)
    finally:
        await listener.close()
    assert len(caplog.records) == 10


def test_head_is_answered_with_the_header_of_the_page() -> None:
    ((status, headers, content),) = answers_to(b"HEAD /small HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (status, headers["Content-Length"], content) == (200, "4", b"")


@pytest.mark.parametrize(
    ("request_bytes", "statuses"),
    [
        (b"GET /small?a=b HTTP/1.1\r\nHost: localhost\r\n\r\n", [200]),
        (b"GET http://localhost/sm%61ll HTTP/1.1\r\nHost: localhost\r\n\r\n", [200]),
        (b"GET http://[x/small HTTP/1.1\r\nHost: localhost\r\n\r\n", [404]),
        (b"GET //small HTTP/1.1\r\nHost: localhost\r\n\r\n", [404]),
        (b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", [404]),
        (b"OPTIONS /small HTTP/1.0\r\n\r\n" + GET + b"\r\n", [200]),
        (b"OPTIONS /broken HTTP/1.1\r\nHost: localhost\r\n\r\n" + GET + b"\r\n", [500, 200]),
        (b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n" + GET + b"\r\n", [404, 200]),
        (GET + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n" + GET + b"\r\n", [200, 200]),
        ((GET + b"\r\n") * 3, [200, 200, 200]),
        ((GET + b"Content-Length: 3\r\n\r\nabc") * 2, [200, 200]),
        ((POST + b"Content-Length: 3\r\n\r\nabc") * 2, [405, 405]),
        ((POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n") * 2, [405, 405]),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nnothing\r\n" + GET + b"\r\n", [405]),
        (POST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n" + GET + b"\r\n", [405]),
        (GET + b"Connection: close\r\n\r\n" + GET + b"\r\n", [200]),
        (b"GET /small HTTP/1.0\r\n\r\n" + GET + b"\r\n", [200]),
        (b"GET /small HTTP/1.1\r\n\r\n" + GET + b"\r\n", [400]),
        (GET + b"\r\n\0\r\n\r\n" + GET + b"\r\n", [200, 400]),
        (GET + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", [400]),
    ],
    ids=[
        *(
            "query",
            "whole URL",
            "no URL",
            "no path",
            "asterisk",
            "options",
            "broken options",
            "connect",
            "upgrade",
            "three requests",
        ),
        *("body of GET", "body of POST", "chunks", "no chunk", "100-continue", "close", "HTTP/1.0", "no host"),
        *("a bad second one", "endless length"),
    ],
)
def test_requests_are_answered_one_after_the_other(
    request_bytes: bytes, statuses: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    answers = answers_to(request_bytes)
    assert [status for status, _, _ in answers] == statuses
    assert all(headers["Allow"] == "GET,HEAD,OPTIONS" for status, headers, _ in answers if status == 405)
    assert all(record.levelno == logging.WARNING for record in caplog.records if 500 not in statuses)


def test_options_is_answered_with_the_status_of_the_page_and_nothing_more() -> None:
    ((status, headers, content), _) = answers_to(b"OPTIONS /small HTTP/1.1\r\nHost: localhost\r\n\r\n" + GET + b"\r\n")
    assert (status, headers["Content-Length"], headers["Allow"], content) == (200, "0", "GET,HEAD,OPTIONS", b"")


@pytest.mark.parametrize(
    ("query", "received"),
    [
        (b"", {}),
        (b"?", {}),
        (b"?a=1&b=16%20MB&c+d=+", {"a": "1", "b": "16 MB", "c d": " "}),
        (b"?a=1&a=2", {"a": "1"}),
        (b"?a=&b", {"a": "", "b": ""}),
        (b"?%ff=%zz&&=", {"\ufffd": "%zz", "": ""}),
    ],
)
def test_a_page_receives_the_query_of_its_request(query: bytes, received: dict[str, str]) -> None:
    ((status, _, content),) = answers_to(b"GET /query" + query + b" HTTP/1.0\r\n\r\n")
    assert (status, json.loads(content)) == (200, received)


@on_the_loop
async def test_a_client_that_waits_for_100_continue_has_the_answer_and_the_end_of_the_connection() -> None:
    def ask(listener: HttpListener) -> bytes:
        with connect(listener) as client, client.makefile("rb") as stream:
            client.sendall(POST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n")
            return stream.read()

    listener = await serve_http({"/small": lambda: (200, "x")}, Address(HOST, 0))
    try:
        answer = await asyncio.to_thread(ask, listener)
    finally:
        await listener.close()
    assert answer.startswith(b"HTTP/1.1 405 ") and b"\r\nConnection: close\r\n" in answer


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.is_closed = False

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("192.0.2.1", 4711) if name == "peername" else self

    def setsockopt(self, *option: int) -> None:
        pass

    def pause_reading(self) -> None:
        assert not self.is_closed

    resume_reading = pause_reading

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed


def statuses_of(pieces: list[bytes]) -> tuple[list[bytes], list[str]]:
    """Return the statuses of the answers to these bytes, and the lines about refused requests. On the loop."""
    refused: list[str] = []
    wire = Wire()
    listener = HttpListener({"/small": lambda: (200, "x")}, budget=HTTP_BUDGET, tls=None, networks=None)
    listener.refuse = lambda who, reason: refused.append(reason)  # type: ignore[method-assign]
    connection = listener.new_protocol()
    assert isinstance(connection, asyncio.Protocol)
    connection.connection_made(wire)  # type: ignore[arg-type]
    for piece in pieces:
        connection.data_received(piece)
        while listener.turns._queues:
            listener.turns._take()
    return re.findall(rb"HTTP/1\.1 (\d+)", wire.written), refused


@pytest.mark.parametrize("with_tls", [False, True])
@on_the_loop
async def test_a_closed_connection_does_not_wait_for_its_turn_any_longer(authority: Authority, with_tls: bool) -> None:
    tls = ServerTls(*authority.sign("server")) if with_tls else None
    listener = HttpListener({}, budget=HTTP_BUDGET, tls=tls, networks=None)
    connection: Any = listener.new_protocol()
    connection.connection_made(Wire())
    if with_tls:
        hello = ClientTls(authority.ca).channel(HOST)
        hello.begin()
        data = hello.take_outgoing()
        connection.get_buffer(-1)[: len(data)] = data
        connection.buffer_updated(len(data))
    else:
        connection.data_received(GET)
    assert listener.turns._queues
    connection.connection_lost(None)
    assert not listener.turns._queues


REQUESTS = st.sampled_from(
    [
        *(GET + b"\r\n", b"HEAD /small HTTP/1.0\r\n\r\n", b"GET * HTTP/2.0\r\nHost: localhost\r\n\r\n"),
        *(POST + b"Content-Length: 3\r\n\r\nabc", POST + b"Transfer-Encoding: chunked\r\n\r\n3;x\r\nabc\r\n0\r\n\r\n"),
        POST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n",
        b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ]
)
LINES = st.sampled_from(
    [
        *(
            b"GET /small HTTP/1.1",
            b"HEAD /small HTTP/1.0",
            b"POST / HTTP/1.1",
            b"CONNECT localhost:1 HTTP/1.1",
            b"",
            b"0",
            b"abc",
        ),
        *(
            b"Host: localhost",
            b"Content-Length: 5",
            b"Transfer-Encoding: chunked",
            b"Connection: close",
            b"X:",
            b" folded",
        ),
        *(b"Expect: 100-continue", b"Upgrade: h2c", b"Connection: upgrade"),
    ]
)
PIECES = st.sampled_from([b"\r\n", b"\n", b"\r", b"\0", b"\x80", b" ", b":", b"9" * 30]) | st.binary(max_size=3)


@on_the_loop
async def test_any_bytes_are_answered_or_refused_and_the_pieces_do_not_matter() -> None:
    answered = set()

    @settings(max_examples=400, deadline=None)
    @given(st.lists(REQUESTS | LINES.map(lambda line: line + b"\r\n") | PIECES, max_size=12).map(b"".join))
    def check(data: bytes) -> None:
        statuses, refused = statuses_of([data])
        assert not [reason for reason in refused if "please report" in reason]
        assert statuses_of([bytes([byte]) for byte in data])[0] == statuses
        answered.update(statuses)

    check()
    assert answered == {b"200", b"400", b"404", b"405"}


@on_the_loop
async def test_an_error_that_h11_does_not_document_ends_the_connection_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(http: h11.Connection) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(h11.Connection, "next_event", broken)
    statuses, refused = statuses_of([GET])
    assert not statuses and "unexpected AssertionError: a bug" in refused[0]


@on_the_loop
async def test_of_a_body_no_more_is_read_than_a_request_may_have(caplog: pytest.LogCaptureFixture) -> None:
    def pour(client: socket.socket) -> None:
        with client, pytest.raises(OSError):
            client.sendall(POST + b"Content-Length: 100000000\r\n\r\n" + bytes(100_000_000))

    listener = await serve_http({"/small": lambda: (200, "x")}, Address(HOST, 0))
    try:
        await asyncio.to_thread(pour, connect(listener))
        await until(lambda: not listener.connection_count)
    finally:
        await listener.close()
    assert "more than 65536 bytes for one request" in caplog.text


def test_a_page_that_fails_is_a_line_of_a_few_and_the_next_request_is_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = b"GET /broken HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answers = answers_to(broken * 30 + GET + b"\r\n")
    assert [status for status, _, _ in answers] == [500] * 30 + [200]
    assert len(caplog.records) == 10  # Not 30: a client can repeat it.
    record = caplog.records[0]
    assert record.levelno == logging.ERROR and record.exc_info is None
    assert record.getMessage().startswith("no answer to an HTTP request from 127.0.0.1:")
    assert "unexpected ZeroDivisionError" in record.getMessage()


@on_the_loop
async def test_the_listener_closes_also_if_an_answer_is_not_read() -> None:
    listener = await serve_http({"/large": lambda: (200, LARGE)}, Address(HOST, 0))
    with connect(listener) as client:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10)
        await until(lambda: any(each._writing_paused for each in listener._connections.values()))
        await listener.close()
        await until(lambda: not listener.connection_count)


def test_a_page_that_waits_is_answered_in_the_order_of_the_requests(caplog: pytest.LogCaptureFixture) -> None:
    end = b" HTTP/1.1\r\nHost: localhost\r\n"
    lines = [b"GET /slow", b"GET /small", b"GET /slow-and-broken", b"GET /small", b"OPTIONS /slow"]
    last = b"GET /slow" + end + b"Connection: close\r\n\r\n"
    answers = answers_to(b"".join(line + end + b"\r\n" for line in lines) + last, ends_stream=False)
    assert [(status, content) for status, _, content in answers] == [
        *((200, b'"slow"\n'), (200, b'"x"\n'), (500, b"500: Internal Server Error"), (200, b'"x"\n')),
        *((200, b""), (200, b'"slow"\n')),
    ]
    assert "ZeroDivisionError" in caplog.text
    head = b"HEAD /slow" + end + b"Connection: close\r\n\r\n"
    ((status, headers, content),) = answers_to(head, ends_stream=False)
    assert (status, headers["Content-Length"], content) == (200, "7", b"")


@on_the_loop
async def test_a_page_that_waits_delays_no_other_connection_and_ends_with_its_own() -> None:
    ends: list[str] = []
    begun = asyncio.Event()

    async def hang() -> Answer:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise
        return 200, ""

    def ask() -> bytes:
        with connect(listener) as client:
            client.sendall(b"GET /small HTTP/1.0\r\n\r\n")
            return client.makefile("rb").read()

    listener = await serve_http({"/hang": SlowRoute(hang), "/small": lambda: (200, "x")}, Address(HOST, 0))
    try:
        with connect(listener) as waiting:
            waiting.sendall(b"GET /hang HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await asyncio.wait_for(begun.wait(), DEADLINE_S)
            assert (await asyncio.to_thread(ask)).endswith(b'"x"\n')
            assert ends == []
        async with asyncio.timeout(DEADLINE_S):
            while not ends:
                await asyncio.sleep(0.01)
    finally:
        await listener.close()


def test_a_page_of_made_at_first_request_is_made_once() -> None:
    made = []

    def make() -> Route:
        made.append(1)
        return lambda: (200, len(made))

    route = made_at_first_request(make)
    assert not made
    assert route() == route() == (200, 1)


@on_the_loop
async def test_a_newer_connection_displaces_the_oldest_and_is_answered(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    def ask(listener: HttpListener) -> bytes:
        with connect(listener) as client:
            client.sendall(b"GET /small HTTP/1.0\r\n\r\n")
            return client.recv(100)

    listener = await serve_http({"/small": lambda: (200, "x")}, Address(HOST, 0), budget=Budget(0, 8))
    try:
        strangers = [await asyncio.to_thread(connect, listener) for _ in range(20)]
        assert (await asyncio.to_thread(ask, listener)).startswith(b"HTTP/1.1 200")
        await until(lambda: listener.connection_count <= 4)
        assert await asyncio.to_thread(is_hung_up_on, strangers[0])
        for stranger in strangers:
            stranger.close()
    finally:
        await listener.close()
    assert (
        "closed the HTTP connection from 127.0.0.1:" in caplog.text
        and "the oldest of 4, for a newer one" in caplog.text
    )


def test_while_the_share_of_time_is_short_a_page_is_rendered_once_for_all_requests() -> None:
    rendered = 0

    def page() -> Answer:
        nonlocal rendered
        rendered += 1
        return 200, rendered

    async def slow_page() -> Answer:
        await asyncio.sleep(0)
        return page()

    def ask(path: bytes, requests: int) -> bytes:
        with connect(listener) as client:
            client.sendall((b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path) * requests)
            client.sendall(b"GET /end HTTP/1.0\r\n\r\n")
            return client.makefile("rb").read()

    @on_the_loop
    async def run() -> None:
        nonlocal listener
        routes: dict[str, Route | QueryRoute | SlowRoute] = {"/page": page, "/slow": SlowRoute(slow_page)}
        listener = await serve_http({**routes, "/end": lambda: (200, "end")}, Address(HOST, 0))
        try:
            assert (await asyncio.to_thread(ask, b"/page", 3)).count(b"200 OK") == 4
            assert rendered == 3
            for path in (b"/page", b"/slow"):
                listener.turns.charge(HOST, 0.1)
                before = rendered
                assert (await asyncio.to_thread(ask, path, 500)).count(b"200 OK") == 501
                # A page is kept for a second.
                assert rendered - before < 100
        finally:
            await listener.close()

    listener: HttpListener
    run()


WITH_PASSWORD = b"Authorization: Basic " + base64.b64encode(b"x:" + b"x" * 16) + b"\r\n"


@pytest.mark.parametrize(
    ("requests", "rendered", "contents"),
    [
        (("GET /page", "GET /page?x", "HEAD /page?x=1&y=2", "GET /page"), 1, "1101"),
        (("OPTIONS /page", "OPTIONS /page?x"), 1, "00"),
        (("GET /page", "OPTIONS /page", "GET /page", "OPTIONS /page"), 2, "1010"),
        (("GET /query", "GET /query"), 1, "11"),
        (("GET /query", "GET /query?x=1", "GET /query?x=2"), 3, "111"),
        # Without the password.
        (("GET /page", "get /page", "GET /page", "get /page?x"), 2, "1010"),
    ],
)
@on_the_loop
async def test_while_the_share_of_time_is_short_a_page_is_rendered_again_for_the_query_on_which_it_depends_alone(
    requests: tuple[str, ...], rendered: int, contents: str
) -> None:
    calls = 0

    def page(*query: object) -> Answer:
        nonlocal calls
        calls += 1
        return 200, "content"

    wire = Wire()
    routes: dict[str, Route | QueryRoute | SlowRoute] = {"/page": page, "/query": QueryRoute(page)}
    access = HttpAccess(password=SharedSecret(None, Secret(b"x" * 16)), probes=("/page",))
    listener = HttpListener(routes, budget=HTTP_BUDGET, tls=None, networks=None, access=access)
    connection: Any = listener.new_protocol()
    connection.connection_made(wire)
    listener.turns.charge(HOST, 1.0)
    for request in requests:
        password = b"" if request.islower() else WITH_PASSWORD
        line = f"{request.replace('get', 'GET')} HTTP/1.1\r\nHost: localhost\r\n"
        connection.data_received(line.encode() + password + b"\r\n")
        while listener.turns._queues:
            listener.turns._take()
    answers = wire.written.split(b"HTTP/1.1 200 ")[1:]
    assert "".join(str(int(answer.endswith(b'"content"\n'))) for answer in answers) == contents
    assert calls == rendered


@on_the_loop
async def test_a_page_that_is_being_cancelled_is_not_awaited_by_another_request() -> None:
    began, cancelled, release = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def page() -> Answer:
        if began.is_set():
            return 200, "second"
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
            await release.wait()
        raise AssertionError

    listener = HttpListener({"/page": SlowRoute(page)}, budget=HTTP_BUDGET, tls=None, networks=None)

    def ask() -> tuple[Any, Wire]:
        connection: Any = listener.new_protocol()
        wire = Wire()
        connection.connection_made(wire)
        connection.data_received(b"GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n")
        listener.turns._take()
        return connection, wire

    listener.turns.charge(HOST, 1000.0)
    first, _ = ask()
    await began.wait()
    first.connection_lost(None)
    await cancelled.wait()
    _, wire = ask()
    await until(lambda: wire.written.endswith(b'"second"\n'))
    release.set()
    await until(lambda: len(asyncio.all_tasks()) == 1)


def test_a_request_behind_others_on_its_connection_waits_until_the_loop_has_done_everything_else() -> None:
    turn = 0
    answered_in: list[int] = []  # By request: the turn of the loop in which it was answered.

    def page() -> Answer:
        answered_in.append(turn)
        # Longer than a turn.
        end_s = time.thread_time() + 2 * TURN_S
        while time.thread_time() < end_s:
            pass
        return 200, "x"

    @on_the_loop
    async def run() -> None:
        def count_turns() -> None:
            nonlocal turn
            turn += 1
            loop.call_soon(count_turns)

        loop = asyncio.get_running_loop()
        listener = await serve_http({"/page": page}, Address(HOST, 0))
        try:
            with connect(listener) as client:
                client.sendall(b"GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10)
                count_turns()
                await until(lambda: len(answered_in) == 10)
        finally:
            await listener.close()

    run()
    assert len(set(answered_in)) == 10
