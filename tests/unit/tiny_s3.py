"""A tiny S3 server on loopback that answers as it is told: it keeps objects in memory and checks no signature."""

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class Answer(NamedTuple):
    """A canned answer."""

    status: int
    body: bytes = b""


class TinyS3:
    """The server. A context manager; one bucket called `bucket`.

    Attributes:
        objects: what is stored, by key.
        conditions: whether a put with If-None-Match is refused when the object exists.
        ranges: whether a request for a part of an object gets that; otherwise it gets all of it.
        answer: what every request gets, if set.
        silent: no request is answered before the server is closed.
    """

    def __init__(self, *, conditions: bool = True, ranges: bool = False) -> None:
        self.objects: dict[str, bytes] = {}
        self.conditions = conditions
        self.ranges = ranges
        self.answer: Answer | None = None
        self.silent = False
        self.requests: list[str] = []
        self.closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = False
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def options(self) -> dict[str, str]:
        """What a client must be told."""
        return {
            "endpoint": f"http://127.0.0.1:{self._server.server_port}",
            "region": "us-east-1",
            "access_key_id": "AKIDEXAMPLE",
            "secret_access_key": "very-secret-indeed",
        }

    def __enter__(self) -> "TinyS3":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def reply(self, method: str, target: str, body: bytes, is_conditional: bool) -> Answer:
        """Carry out one request."""
        parts = urlsplit(target)
        query = parse_qs(parts.query, keep_blank_values=True)
        key = unquote(parts.path).removeprefix("/bucket").removeprefix("/")
        self.requests.append(f"{method} {key}")
        if self.answer is not None:
            return self.answer
        if "list-type" in query:
            return Answer(200, self._listing(query["prefix"][0] if "prefix" in query else ""))
        if method == "POST" and "delete" in query:
            named = [name.decode() for name in re.findall(rb"<Key>([^<]*)</Key>", body)]
            for name in named:
                self.objects.pop(name, None)
            deleted = "".join(f"<Deleted><Key>{escape(name)}</Key></Deleted>" for name in named)
            return Answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())
        if method == "PUT":
            if is_conditional and self.conditions and key in self.objects:
                return Answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            self.objects[key] = body
            return Answer(200)
        if key not in self.objects:
            return Answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        return Answer(200, self.objects[key])

    def _listing(self, prefix: str) -> bytes:
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(data)}</Size><ETag>x</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for key, data in sorted(self.objects.items())
            if key.startswith(prefix)
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>".encode()


def _handler_of(server: TinyS3) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if server.silent:
                server.closing.wait()
                return
            answer = server.reply(self.command, self.path, body, "If-None-Match" in self.headers)
            wanted = _RANGE.fullmatch(self.headers.get("Range") or "")
            if server.ranges and wanted is not None and answer.status == 200:
                begin, end = int(wanted[1]), min(int(wanted[2]) + 1, len(answer.body))
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(answer.body)}")
                answer = Answer(206, answer.body[begin:end])
            else:
                self.send_response(answer.status)
            self.send_header("Content-Length", str(len(answer.body)))
            self.send_header("ETag", '"x"')
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _respond

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    return Handler
