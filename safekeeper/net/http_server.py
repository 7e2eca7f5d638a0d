"""An HTTP server of a few pages, for both programs.

Connections are accepted, counted and displaced as at the other listeners (safekeeper/net/listener.py), and TLS is the
same (safekeeper/net/tls_transport.py): a network that is not allowed is refused before the handshake. h11 parses the
requests and frames the answers. `HttpConnection` passes bytes between it and the socket, answers one request after the
other, reads nothing while its answers are not being read, and limits the time until a request is complete, the time
between two requests, and the bytes of one (S14).

A request that is for another host, or lacks the password, gets no page (safekeeper/net/http_access.py), and its
connection is closed. No answer may be read, or loaded as anything else than it is, by the page of another origin.

Requests are parsed and answered by `Turns`, within a share of the event loop's time (safekeeper/net/turns.py): one
request of a connection, then nothing more is read from it until its next turn. While the clients ask for more than the
share, a page is rendered at most once in PAGE_KEPT_S, for all of them.

A page is answered at the header of its request; a body is skipped. A client that waits for "100 Continue" gets the
answer instead, and the connection is closed, because the client may send the body or not.

HEAD returns the header of the page, and OPTIONS its status code alone: load balancers check servers by either.

A page can be a `Stream`, which sends frames until the client leaves. A stream is a connection like the others: it
counts in the budget, and newer connections can displace it. Streams also have a budget of their own, so that they
cannot fill the listener's. What a stream may occupy is bounded: a frame for a client that has not read the last ones is
not sent, and a client that does not read them within STREAM_STALLED_S is disconnected (S14).
"""

import asyncio
import functools
import logging
import math
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qsl, unquote, urlsplit

import h11
import msgspec

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.logs import RateLimit, describe_bug
from safekeeper.base.networks import Networks
from safekeeper.base.settings import Address
from safekeeper.net.admission import Admission, Budget
from safekeeper.net.http_access import OPEN_TO_ALL, AccessVerdict, HttpAccess, named
from safekeeper.net.listener import Listener, peer_name, prepare_socket
from safekeeper.net.tls import ServerTls
from safekeeper.net.tls_transport import TlsTransport

# The time limit from the start of a connection, TLS handshake included, until its first request is complete.
FIRST_REQUEST_TIMEOUT_S = 10.0
# The time limit from one answer until it has been read and the next request is complete.
NEXT_REQUEST_TIMEOUT_S = 75.0
# The size limit of a request with its header, and of further bytes received before it was answered.
REQUEST_BYTES_MAX = 64 << 10
# The maximum number of streams of all clients; one host can have half of it.
STREAMS_MAX = 32
# The time limit for a stream's client to read what was sent to it.
STREAM_STALLED_S = 10.0
# While the share of time is short: how long a rendered page is sent again.
PAGE_KEPT_S = 1.0
# The kernel's buffer for a stream: without a limit it grows to megabytes for a client that has stopped reading.
_STREAM_KERNEL_BYTES = 128 << 10
_RECEIVE_BYTES = 64 << 10
# What is parsed in one turn, and the size limit of a request's header: h11 needs about 5 us for each of its lines.
_PIECE_BYTES = 2 << 10
_HEADER_BYTES_MAX = 8 << 10
_WATCH_INTERVAL_S = 1.0
# The time limit for connections to send their last bytes when the listener closes.
_CLOSE_TIMEOUT_S = 1.0
# The size limit of a quotation in h11's error about a request.
_QUOTED_MAX = 100
_METHODS = (b"GET", b"HEAD", b"OPTIONS")
_ALLOW = ("Allow", b",".join(_METHODS).decode())
_CLOSE = ("Connection", "close")
_ASK_FOR_PASSWORD = ("WWW-Authenticate", 'Basic realm="walproxy", charset="UTF-8"')
_PLAIN = "text/plain; charset=utf-8"
_Headers = tuple[tuple[str, str], ...]


class Text(NamedTuple):
    """The content of a page as bytes, with further headers."""

    content_type: str
    body: bytes
    headers: _Headers = ()


class Stream(ABC):
    """A page that sends frames until its client leaves.

    Attributes:
        content_type, headers: as of a Text.
    """

    content_type: str
    headers: _Headers = ()

    @abstractmethod
    def join(self, reader: "HttpConnection") -> None:
        """Begin to send frames to `reader`, by its `send_frame`."""

    @abstractmethod
    def leave(self, reader: "HttpConnection") -> None:
        """Stop to send frames to a reader; it is closed."""


# A status code, and the content: a Text, a Stream, or a value to encode as JSON.
Answer = tuple[int, Any]
Route = Callable[[], Answer]
# The first value of each name in the query of a request.
Query = Mapping[str, str]


class QueryRoute(NamedTuple):
    """A page that depends on the query of its request."""

    answer: Callable[[Query], Answer]


class SlowRoute(NamedTuple):
    """A page whose answer waits for something: further requests of its connection wait, others do not.

    A client that ends its side of the connection meanwhile receives no answer.
    """

    answer: Callable[[], Awaitable[Answer]]


HTTP_BUDGET = Budget(proven_max=0)
_ReadyAnswer = tuple[HTTPStatus, Text | Stream, _Headers]


class _Key(NamedTuple):
    """What an answer depends on, unless it is that of a QueryRoute to a query."""

    verdict: AccessVerdict
    is_options: bool
    path: str


class _SlowPage:
    """A page that is being made, for one request or several. It is cancelled when the connections of all are closed."""

    def __init__(self, making: Awaitable[Answer]) -> None:
        self._task = asyncio.ensure_future(making)
        self._waiting = 0

    @property
    def is_over(self) -> bool:
        """Whether it has been made, has failed, or is being cancelled."""
        return self._task.done() or self._task.cancelling() > 0

    async def answer(self) -> Answer:
        """Return the page. Raises what making it has raised."""
        self._waiting += 1
        try:
            return await asyncio.shield(self._task)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._task.cancel()


_log = logging.getLogger(__name__)


class HttpListener(Listener["HttpConnection"]):
    """A small HTTP server. Created by `serve_http`; `close` ends it.

    None of its connections is ever proven: newer ones can displace each of them, first the one whose last request was
    answered the longest ago.

    Attributes:
        access: the host names and the password of requests from now on.
    """

    CANNOT_LISTEN = "could not serve HTTP at %s: %s: correct --http-listen"
    FOREIGN = "refused HTTP to %s: its address is in none of the networks of http_allow"
    UNPROVEN = "HTTP"
    EVICTED = "closed the HTTP connection from %s, the oldest of %d, for a newer one"
    STALLED = "closed the HTTP stream of %s: it has not read what was sent within %g s"

    def __init__(
        self,
        routes: Mapping[str, Route | QueryRoute | SlowRoute],
        *,
        budget: Budget,
        tls: ServerTls | None,
        networks: Networks | None,
        access: HttpAccess = OPEN_TO_ALL,
    ) -> None:
        super().__init__(budget=budget, networks=networks)
        self.access = access
        self._bugs = RateLimit(lines=10, interval_s=60)
        self._routes = routes
        self._tls = tls
        # When each was rendered, and the answer; and the pages that are being made.
        self._kept: dict[_Key, tuple[float, _ReadyAnswer]] = {}
        self._slow_pages: dict[_Key, _SlowPage] = {}
        self._streams = Admission(Budget(proven_max=0, unproven_max=STREAMS_MAX))
        self._open: set[HttpConnection] = set()
        self._none_is_open = asyncio.Event()

    def new_protocol(self) -> asyncio.BaseProtocol:
        """See Listener."""
        if self._tls is None:
            return _PlainConnection(self)
        return TlsTransport(self._tls.channel(), _TlsConnection(self), turns=self.turns)

    async def close(self) -> None:
        """Stop listening and close all connections, at once those that do not read their last answer."""
        self.stop_accepting()
        self.stop_watching()
        for connection in list(self._open):
            connection.close()
        if self._open:
            try:
                await asyncio.wait_for(self._none_is_open.wait(), _CLOSE_TIMEOUT_S)
            except TimeoutError:
                for connection in list(self._open):
                    connection.abort()

    @property
    def stream_count(self) -> int:
        """The number of connections that receive a stream."""
        return self._streams.unproven

    def opened(self, connection: "HttpConnection") -> None:
        """Count a new connection."""
        self._open.add(connection)
        self._none_is_open.clear()
        self.admit(connection, connection.host)

    def began_stream(self, connection: "HttpConnection") -> None:
        """Count a connection that receives a stream from now on; the oldest stream may be closed for it."""
        evicted = self._streams.arrive(connection.number, connection.host, self.now())
        if evicted:
            old = self._connections[evicted]
            self._warn(self.EVICTED % (old.peer, self._streams.unproven))
            self.evict(old, "")

    def forget(self, number: int) -> "HttpConnection | None":
        """See Listener."""
        self._streams.leave(number)
        return super().forget(number)

    def answer(self, connection: "HttpConnection", request: h11.Request) -> _ReadyAnswer | Awaitable[_ReadyAnswer]:
        """Record that a request has arrived, and return the answer: its status, content, and further headers."""
        connection.unanswered_bytes = 0
        connection.deadline = self.now() + NEXT_REQUEST_TIMEOUT_S
        self.admission.renew(connection.number, self.now())
        authority, path, query = _target(request.target)
        verdict = self.access.judge(self.address.host, authority, request.headers, path)
        if verdict not in (AccessVerdict.FULL, AccessVerdict.STATUS_ONLY):
            return self._refusal(connection, request, authority, verdict)
        route = self._routes.get(path)
        if route is None:
            return HTTPStatus.NOT_FOUND, _reason(HTTPStatus.NOT_FOUND), ()
        if request.method not in _METHODS:
            status = HTTPStatus.METHOD_NOT_ALLOWED
            return status, _reason(status), (_ALLOW,)
        key = _Key(verdict, request.method == b"OPTIONS", path)
        varies = bool(query) and isinstance(route, QueryRoute)
        if not varies and key in self._kept and self.turns.is_short:
            rendered_at, kept = self._kept[key]
            if self.now() - rendered_at < PAGE_KEPT_S:
                return kept
        if isinstance(route, SlowRoute):
            return self._slow_answer(connection, request, key, route)
        try:
            answer = route.answer(query) if isinstance(route, QueryRoute) else route()
            ready = _encoded(request, answer, verdict)
            return ready if varies else self._keep(key, ready)
        except Exception as bug:
            return self._no_answer(connection, bug)

    def _refusal(
        self, connection: "HttpConnection", request: h11.Request, authority: str, verdict: AccessVerdict
    ) -> tuple[HTTPStatus, Text, _Headers]:
        if verdict is AccessVerdict.MISDIRECTED:
            host = authority or dict(request.headers)[b"host"].decode("latin-1")
            self.refuse(connection.peer, f"its request is for the host {named(host)}: to serve it set http_hosts")
            status = HTTPStatus.MISDIRECTED_REQUEST
            return status, Text(_PLAIN, b"421: use an IP address or localhost, or set http_hosts"), (_CLOSE,)
        reason = "password is wrong" if verdict is AccessVerdict.WRONG_PASSWORD else "request has no password"
        self.refuse(connection.peer, f"its {reason} (http_password_file)")
        return HTTPStatus.UNAUTHORIZED, _reason(HTTPStatus.UNAUTHORIZED), (_ASK_FOR_PASSWORD, _CLOSE)

    async def _slow_answer(
        self, connection: "HttpConnection", request: h11.Request, key: _Key, route: SlowRoute
    ) -> _ReadyAnswer:
        page = self._slow_pages.get(key)
        if page is None or page.is_over or not self.turns.is_short:
            page = self._slow_pages[key] = _SlowPage(self.turns.charged(connection.host, route.answer()))
        try:
            ready = _encoded(request, await page.answer(), key.verdict)
        except Exception as bug:
            return self._no_answer(connection, bug)
        return self._keep(key, ready)

    def _keep(self, key: _Key, ready: _ReadyAnswer) -> _ReadyAnswer:
        """Keep a rendered page, and return it."""
        if isinstance(ready[1], Text):
            self._kept[key] = self.now(), ready
        return ready

    def _no_answer(self, connection: "HttpConnection", bug: Exception) -> tuple[HTTPStatus, Text, _Headers]:
        """Log a bug, rate-limited, and return the answer instead of the page."""
        more = self._bugs.admit()
        if more is not None:
            _log.error("no answer to an HTTP request from %s: %s%s", connection.peer, describe_bug(bug), more)
        return HTTPStatus.INTERNAL_SERVER_ERROR, _reason(HTTPStatus.INTERNAL_SERVER_ERROR), ()

    def evict(self, connection: "HttpConnection", reason: str) -> None:
        """See Listener."""
        self.forget(connection.number)
        connection.abort()

    def lost(self, connection: "HttpConnection") -> None:
        """Forget a connection that is closed."""
        self.forget(connection.number)
        self._open.discard(connection)
        if not self._open:
            self._none_is_open.set()

    def watch(self) -> float:
        """See Listener."""
        now = self.now()
        for connection in list(self._connections.values()):
            if now > connection.deadline:
                if not connection.was_answered:
                    self.refuse(connection.peer, f"no request within {FIRST_REQUEST_TIMEOUT_S:g} s")
                elif connection.streams:
                    self._warn(self.STALLED % (connection.peer, STREAM_STALLED_S))
                self.evict(connection, "")
        return min(_WATCH_INTERVAL_S, FIRST_REQUEST_TIMEOUT_S / 4)

    def refuse(self, who: str, reason: str) -> None:
        """Log that a connection is refused."""
        self._warn(f"refused HTTP to {who}: {reason}")


class HttpConnection:
    """Counts, times and limits a connection, and answers its requests.

    Attributes:
        number, peer: see Visitor.
        host: its peer's address without the port, empty if unknown.
        deadline: it is closed at this time of the loop.
        unanswered_bytes: received since the last request was answered.
    """

    def __init__(self, listener: HttpListener) -> None:
        self._listener = listener
        self._transport: asyncio.Transport
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEADER_BYTES_MAX)
        # Received, and not parsed yet.
        self._waiting = bytearray()
        self._waits_for_turn = False
        self._writing_paused = False
        self._stream: Stream | None = None
        self.host = ""
        self.number = 0
        self.peer = "an unknown peer"
        self.deadline = 0.0
        self.unanswered_bytes = 0
        self._first_deadline = 0.0
        self._slow_answer: asyncio.Task[None] | None = None

    @property
    def was_answered(self) -> bool:
        """Whether one of its requests has been answered."""
        return self.deadline != self._first_deadline

    @property
    def streams(self) -> bool:
        """Whether it receives a stream."""
        return self._stream is not None

    def send_frame(self, frame: bytes) -> bool:
        """Send the next frame of its stream; return False if it is left out: the last ones are not read yet."""
        if self._writing_paused or self._transport.is_closing():
            return False
        self._transport.write(self._http.send(h11.Data(data=frame)) or b"")
        return True

    def close(self) -> None:
        """Close as soon as everything is sent."""
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if peer:
            self.host, self.peer = peer[0], peer_name(peer[0], peer[1])
        self.deadline = self._first_deadline = self._listener.now() + FIRST_REQUEST_TIMEOUT_S
        prepare_socket(transport.get_extra_info("socket"))
        self._listener.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._slow_answer is not None:
            self._slow_answer.cancel()
        if self._stream is not None:
            self._stream.leave(self)
        if self._waits_for_turn:
            self._listener.turns.withdraw(self.host, self._take_turn)
        self._listener.lost(self)

    def pause_writing(self) -> None:
        self._writing_paused = True
        if not self._transport.is_closing():
            self._transport.pause_reading()
        if self.streams:
            self.deadline = self._listener.now() + STREAM_STALLED_S

    def resume_writing(self) -> None:
        self._writing_paused = False
        if self.streams:
            self.deadline = math.inf
        self._ask_for_turn()

    def _receive(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self.unanswered_bytes += len(data)
        if self.unanswered_bytes > REQUEST_BYTES_MAX:
            self._listener.refuse(self.peer, f"more than {REQUEST_BYTES_MAX} bytes for one request")
            self._listener.evict(self, "")
            return
        self._waiting += data
        self._transport.pause_reading()
        self._ask_for_turn()

    def _ask_for_turn(self) -> None:
        if not (self._waits_for_turn or self._writing_paused or self._slow_answer is not None):
            self._waits_for_turn = True
            self._listener.turns.ask(self.host, self._take_turn)

    def _take_turn(self) -> None:
        """Parse received bytes until a request is answered or a piece is parsed; then read, or ask for another turn."""
        self._waits_for_turn = False
        is_idle = self._proceed()
        if self._writing_paused or self._transport.is_closing():
            return
        if is_idle or self._slow_answer is not None:
            # Also while the answer is awaited, so that the client's disconnection is noticed.
            self._transport.resume_reading()
        else:
            self._ask_for_turn()

    def _proceed(self) -> bool:
        """Answer at most one request, if the answers are read; return whether more must be received first."""
        http = self._http
        piece = bytes(self._waiting[:_PIECE_BYTES])
        try:
            while not (self._writing_paused or self._transport.is_closing() or self._slow_answer is not None):
                event = http.next_event()
                if isinstance(event, h11.Request):
                    self._answer(event)
                elif isinstance(event, h11.EndOfMessage):
                    if http.our_state is h11.DONE:
                        http.start_next_cycle()
                        return False
                    if not self.streams:
                        self.close()
                elif not isinstance(event, h11.Data):
                    if not piece:
                        return not self._waiting
                    del self._waiting[: len(piece)]
                    http.receive_data(piece)
                    piece = b""
        except h11.RemoteProtocolError as error:
            reason = str(error)[:_QUOTED_MAX]
            self._listener.refuse(self.peer, f"its request is invalid: {reason}")
            if http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                status = HTTPStatus.BAD_REQUEST
                self._send(status, Text(_PLAIN, f"400: {reason}".encode()), (("Connection", "close"),))
            self.close()
        except Exception as bug:
            # It must not end the process, as an error in a callback does.
            self._listener.refuse(self.peer, describe_bug(bug))
            self._listener.evict(self, "")
        return False

    def _answer(self, request: h11.Request) -> None:
        waits_for_100 = self._http.they_are_waiting_for_100_continue
        answer = self._listener.answer(self, request)
        if isinstance(answer, tuple):
            self._send_answer(request, answer, waits_for_100)
        else:
            answering = self._answer_later(request, answer, waits_for_100)
            self._slow_answer = asyncio.ensure_future(self._listener.turns.charged(self.host, answering))

    async def _answer_later(self, request: h11.Request, answer: Awaitable[_ReadyAnswer], waits_for_100: bool) -> None:
        ready = await answer
        self._slow_answer = None
        if not self._transport.is_closing():
            self._send_answer(request, ready, waits_for_100)
            self._ask_for_turn()

    def _send_answer(self, request: h11.Request, answer: _ReadyAnswer, waits_for_100: bool) -> None:
        status, content, headers = answer
        if waits_for_100:
            headers = (*headers, ("Connection", "close"))
        if isinstance(content, Stream):
            self._begin(content, status, headers, goes_on=request.method == b"GET" and not waits_for_100)
        else:
            self._send(status, content, headers, with_body=request.method != b"HEAD")
        if waits_for_100:
            self.close()

    def _begin(self, stream: Stream, status: HTTPStatus, headers: _Headers, *, goes_on: bool) -> None:
        """Send the header of a stream; if it does not go on, also its end."""
        parts = [self._http.send(self._header(status, stream.content_type, headers))]
        if not goes_on:
            parts.append(self._http.send(h11.EndOfMessage()))
        self._transport.write(b"".join(part or b"" for part in parts))
        if goes_on:
            self._transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDBUF, _STREAM_KERNEL_BYTES
            )
            self._stream = stream
            self.deadline = math.inf
            self._listener.began_stream(self)
            stream.join(self)

    def _send(self, status: HTTPStatus, content: Text, headers: _Headers, *, with_body: bool = True) -> None:
        headers = (("Content-Length", str(len(content.body))), *headers)
        parts = [self._http.send(self._header(status, content.content_type, headers))]
        if with_body and content.body:
            parts.append(self._http.send(h11.Data(data=content.body)))
        parts.append(self._http.send(h11.EndOfMessage()))
        self._transport.write(b"".join(parts))

    @staticmethod
    def _header(status: HTTPStatus, content_type: str, headers: _Headers) -> h11.Response:
        listed = [
            ("Content-Type", content_type),
            # Names of days and months are English: the programs never set a locale.
            ("Date", time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())),
            ("Server", "walproxy"),
            ("X-Content-Type-Options", "nosniff"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            *headers,
        ]
        return h11.Response(status_code=status, headers=listed, reason=status.phrase.encode())


class _PlainConnection(HttpConnection, asyncio.Protocol):
    """A connection over a socket's transport."""

    def data_received(self, data: bytes) -> None:
        self._receive(data)


class _TlsConnection(HttpConnection, asyncio.BufferedProtocol):
    """A connection over TLS: it receives plaintext."""

    def __init__(self, listener: HttpListener) -> None:
        super().__init__(listener)
        self._received = memoryview(bytearray(_RECEIVE_BYTES))

    def secured(self) -> None:
        """See SecuredProtocol: the client sends first."""

    def tls_failed(self, reason: str) -> None:
        self._listener.refuse(self.peer, reason)
        self._transport.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        self._receive(bytes(self._received[:nbytes]))


async def serve_http(
    routes: Mapping[str, Route | QueryRoute | SlowRoute],
    address: Address,
    *,
    tls: ServerTls | None = None,
    networks: Networks | None = None,
    access: HttpAccess = OPEN_TO_ALL,
    budget: Budget = HTTP_BUDGET,
) -> HttpListener:
    """Serve `routes` (path -> function that returns status code and content) at `address`.

    Args:
        tls: serve over TLS.
        networks: the networks from which clients are accepted, None for all.
        access: the host names and the password of requests.
        budget: the maximum number of connections.

    Raises:
        ConfigurationError: it cannot listen there.
    """
    listener = HttpListener(routes, budget=budget, tls=tls, networks=networks, access=access)
    try:
        await listener.open(address)
    except ConfigurationError:
        await listener.close()
        raise
    return listener


def made_at_first_request(make: Callable[[], Route]) -> Route:
    """Return a route that `make` returns at the first request: what it imports is not needed before."""
    made = functools.cache(make)
    return lambda: made()()


def _target(target: bytes) -> tuple[str, str, dict[str, str]]:
    """Return the host and port, the path and the query of a request's target; all empty if it is not valid.

    It is a whole URL if a proxy for HTTP forwards it, and then replaces the header Host (RFC 9112, 3.2.2).
    """
    try:
        parts = urlsplit(target.decode("ascii"))
    except ValueError:
        return "", "", {}
    # dict() keeps the last value of a name.
    return (
        parts.netloc if parts.scheme else "",
        unquote(parts.path),
        dict(reversed(parse_qsl(parts.query, keep_blank_values=True))),
    )


def _encoded(request: h11.Request, answer: Answer, verdict: AccessVerdict) -> _ReadyAnswer:
    code, content = answer
    if request.method == b"OPTIONS":
        return HTTPStatus(code), Text(_PLAIN, b""), (_ALLOW,)
    if verdict is AccessVerdict.STATUS_ONLY:
        return HTTPStatus(code), Text(_PLAIN, b""), ()
    if not isinstance(content, Text | Stream):
        body = msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
        content = Text("application/json", body)
    return HTTPStatus(code), content, content.headers


def _reason(status: HTTPStatus) -> Text:
    return Text(_PLAIN, f"{status.value}: {status.phrase}".encode())
