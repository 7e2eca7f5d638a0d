"""An HTTP relay in front of an object store, which misbehaves on request: an S3 on a bad day.

    with FaultyRelay(server.endpoint) as relay:
        place = server.place("cluster", relay.endpoint)
        relay.when("PUT", r"\\.receipt$", answer(503, "SlowDown"), times=2)

Faults are functions of the request and of `forward`, which asks the store and returns its answer. Each request gets
the first fault that fits and has not been used up; without one it passes. The relay has a thread and an event loop of
its own; `when`, `clear` and `requests` are for other threads.
"""

import asyncio
import io
import re
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn, Self

import aiohttp
from aiohttp import web
from yarl import URL

from tests.integration.archive.object_stores import ACCESS_KEY

_DEADLINE_S = 30.0
_LARGEST_BODY_BYTES = 64 * 1024 * 1024
_PER_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass(frozen=True)
class Request:
    """One request, read wholly. `path` is percent-encoded and has the query."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    abort: Callable[[], None]

    def without(self, header: str) -> "Request":
        kept = tuple((name, value) for name, value in self.headers if name.lower() != header)
        return Request(self.method, self.path, kept, self.body, self.abort)

    def with_body(self, body: bytes) -> "Request":
        return Request(self.method, self.path, self.headers, body, self.abort)


Forward = Callable[[Request], Awaitable[web.Response]]
Fault = Callable[[Request, Forward], Awaitable[web.Response]]


def answer(status: int, code: str, message: str = "as the test says") -> Fault:
    """S3's error of this code, with all its fields; the store receives nothing."""

    async def fault(request: Request, forward: Forward) -> web.Response:
        body = (
            '<?xml version="1.0" encoding="UTF-8"?>'
            f"<Error><Code>{code}</Code><Message>{message}</Message><AWSAccessKeyId>{ACCESS_KEY}</AWSAccessKeyId>"
            "<StringToSign>AWS4-HMAC-SHA256 and more</StringToSign><RequestId>0</RequestId></Error>"
        )
        return web.Response(status=status, body=body.encode(), content_type="application/xml")

    return fault


def delay(seconds: float) -> Fault:
    """The store receives it late."""

    async def fault(request: Request, forward: Forward) -> web.Response:
        await asyncio.sleep(seconds)
        return await forward(request)

    return fault


async def hang(request: Request, forward: Forward) -> NoReturn:
    """Neither an answer nor an end, until the client goes away or the relay is closed."""
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def drop(request: Request, forward: Forward) -> web.Response:
    """The connection breaks before the store receives anything."""
    request.abort()
    return web.Response()


async def drop_the_answer(request: Request, forward: Forward) -> web.Response:
    """The store does it, and the client does not learn so."""
    await forward(request)
    request.abort()
    return web.Response()


async def tear(request: Request, forward: Forward) -> web.Response:
    """The store keeps the first half of the body and the connection breaks. For a store that checks no signature."""
    await forward(request.without("if-none-match").with_body(request.body[: len(request.body) // 2]))
    request.abort()
    return web.Response()


async def ignore_conditions(request: Request, forward: Forward) -> web.Response:
    """The store never learns that nothing was to be replaced."""
    return await forward(request.without("if-none-match"))


async def garble(request: Request, forward: Forward) -> web.Response:
    """One bit of the answer is another one."""
    response = await forward(request)
    assert isinstance(response.body, bytes) and response.body, "there is nothing to garble"
    middle = len(response.body) // 2
    response.body = response.body[:middle] + bytes([response.body[middle] ^ 1]) + response.body[middle + 1 :]
    return response


async def passing(request: Request, forward: Forward) -> web.Response:
    """Nothing happens to it."""
    return await forward(request)


def first(action: Callable[[], object], then: Fault = passing) -> Fault:
    """Do something in this process and `then` that to the request: another party comes in between."""

    async def fault(request: Request, forward: Forward) -> web.Response:
        await asyncio.to_thread(action)
        return await then(request, forward)

    return fault


@dataclass
class _Rule:
    method: str
    path: re.Pattern[str]
    fault: Fault
    skip: int
    times: int | None

    def takes(self, request: Request) -> bool:
        """Whether this request is to suffer; counts it."""
        if self.method not in ("", request.method) or not self.path.search(request.path):
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.times is not None:
            if self.times == 0:
                return False
            self.times -= 1
        return True


class FaultyRelay:
    """Listening when made.

    Attributes:
        endpoint: where it listens.
    """

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._rules: list[_Rule] = []
        self._seen: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        self.endpoint = ""
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._started.wait(_DEADLINE_S) and self.endpoint, "the relay does not listen"

    def when(self, method: str, path: str, fault: Fault, *, skip: int = 0, times: int | None = None) -> None:
        """Let `fault` happen to the requests whose path and query has `path`, a regular expression, somewhere.

        `method` "" is any. The first `skip` of them pass, then `times` suffer (None: all), then they pass again.
        """
        with self._lock:
            self._rules.append(_Rule(method, re.compile(path), fault, skip, times))

    def clear(self) -> None:
        """A good day from now on. Requests that hang already go on hanging."""
        with self._lock:
            self._rules.clear()

    def requests(self, method: str = "", path: str = "") -> int:
        """How many requests like this have come so far."""
        with self._lock:
            return sum(1 for seen, where in self._seen if method in ("", seen) and re.search(path, where))

    def close(self) -> None:
        """Stop listening and break what is under way. A second time does nothing."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_DEADLINE_S)
        assert not self._thread.is_alive(), "the relay does not end"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        # Bytes pass as they are: neither unpacked nor with headers of this client's own.
        async with aiohttp.ClientSession(
            auto_decompress=False, skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
        ) as self._session:
            application = web.Application(client_max_size=_LARGEST_BODY_BYTES)
            application.router.add_route("*", "/{path:.*}", self._relay)
            runner = web.AppRunner(application, access_log=None, shutdown_timeout=0, handler_cancellation=True)
            await runner.setup()
            try:
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                host, port = runner.addresses[0][:2]
                self.endpoint = f"http://{host}:{port}"
                self._started.set()
                await self._stop.wait()
            finally:
                self._started.set()
                await runner.cleanup()

    async def _relay(self, http: web.Request) -> web.Response:
        def abort() -> None:
            if http.transport is not None:
                http.transport.abort()

        headers = tuple((name, value) for name, value in http.headers.items() if name.lower() not in _PER_HOP)
        request = Request(http.method, http.raw_path, headers, await http.read(), abort)
        with self._lock:
            self._seen.append((request.method, request.path))
            fault = next((rule.fault for rule in self._rules if rule.takes(request)), None)
        return await (fault(request, self._forward) if fault else self._forward(request))

    async def _forward(self, request: Request) -> web.Response:
        async with self._session.request(
            request.method,
            URL(self._upstream + request.path, encoded=True),
            headers=request.headers,
            data=io.BytesIO(request.body) if request.body else None,
            allow_redirects=False,
        ) as answer:
            headers = {name: value for name, value in answer.headers.items() if name.lower() not in _PER_HOP}
            if request.method == "HEAD":
                size = str(answer.content_length or 0)
                return web.Response(status=answer.status, headers=headers | {"Content-Length": size})
            return web.Response(status=answer.status, headers=headers, body=await answer.read())
