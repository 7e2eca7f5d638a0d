"""Announcements of schema changes: who takes them, what a failure shows, and that each is sent until it is taken."""

import fcntl
import json
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from safekeeper.base.errors import ConfigurationError
from tests.unit.certificates import Authority, Pair
from walproxy.pipeline.cdc.apply import announcer as announcer_module
from walproxy.pipeline.cdc.apply import receivers
from walproxy.pipeline.cdc.apply.announcements import Announcement, TableChange, followed_change
from walproxy.pipeline.cdc.apply.announcer import Announcer
from walproxy.pipeline.cdc.apply.fingerprint import Column, Fingerprint
from walproxy.pipeline.cdc.apply.receivers import NotTaken, parse_receiver
from walproxy.pipeline.cdc.publication import TableName

SECRETS = ("s3cret", "t0ken", "hook-path")
Post = tuple[str, dict[str, str], bytes]


class HookServer:
    """An HTTP server that notes what is posted.

    Attributes:
        replies: statuses of the next replies; after them 204.
        taken: of the posts that were replied to with 2xx.

    Args:
        certificate: the server uses TLS with it.
    """

    def __init__(self, certificate: Pair | None = None) -> None:
        self.replies: list[int] = []
        self.posts: list[Post] = []
        self.taken: list[dict[str, Any]] = []
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.posts.append((self.path, dict(self.headers), body))
                status = hook.replies.pop(0) if hook.replies else 204
                if status < 300:
                    hook.taken.append(json.loads(body))
                self.send_response(status)
                self.send_header("Location", f"http://127.0.0.1:{self.server.server_address[1]}/elsewhere")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._scheme = "http" if certificate is None else "https"
        if certificate is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def url(self) -> str:
        return f"{self._scheme}://user%40x:s3cret@127.0.0.1:{self.port}/hook-path/x?key=t0ken"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def hook() -> Iterator[HookServer]:
    with closing(HookServer()) as server:
        yield server


def assert_no_secret(text: str) -> None:
    assert not [secret for secret in SECRETS if secret in text], text


def test_a_post_has_the_path_the_query_and_the_credentials_of_the_url(hook: HookServer) -> None:
    receiver = parse_receiver(hook.url())
    receiver.send(b'{"a": 1}')
    [(path, headers, body)] = hook.posts
    assert (path, body) == ("/hook-path/x?key=t0ken", b'{"a": 1}')
    assert headers["Authorization"] == "Basic dXNlckB4OnMzY3JldA=="  # user@x:s3cret
    assert headers["Content-Type"] == "application/json"
    assert str(receiver) == f"http://127.0.0.1:{hook.port}"
    assert_no_secret(repr(receiver) + str(receiver))


def test_a_post_over_tls_goes_only_to_a_server_whose_certificate_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    with closing(HookServer(authority.sign("server"))) as secure:
        receiver = parse_receiver(secure.url())
        with pytest.raises(
            NotTaken, match=rf"^https://127\.0\.0\.1:{secure.port}: .*certificate is refused: .*SSL_CERT_FILE"
        ) as raised:
            receiver.send(b'{"a": 1}')
        assert_no_secret(str(raised.value))
        assert secure.posts == []
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca))
        receiver.send(b'{"a": 1}')
        [(path, headers, body)] = secure.posts
    assert (path, body) == ("/hook-path/x?key=t0ken", b'{"a": 1}')
    assert headers["Authorization"] == "Basic dXNlckB4OnMzY3JldA=="  # user@x:s3cret


@pytest.mark.parametrize("status", [302, 307, 400, 500, 503])
def test_every_other_status_is_a_failure_and_no_redirect_is_followed(hook: HookServer, status: int) -> None:
    hook.replies = [status]
    with pytest.raises(NotTaken, match=f"replied with status {status}$") as raised:
        parse_receiver(hook.url()).send(b"{}")
    assert len(hook.posts) == 1
    assert_no_secret(str(raised.value))


def test_a_receiver_that_cannot_be_reached_is_named_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receivers, "_TIMEOUT_S", 0.2)
    with socket.socket() as listening:  # It accepts and does not reply.
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        for scheme in ("http", "https"):
            with pytest.raises(NotTaken) as raised:
                parse_receiver(f"{scheme}://u:s3cret@127.0.0.1:{port}/hook-path?t0ken").send(b"{}")
            assert str(raised.value).startswith(f"{scheme}://127.0.0.1:{port}: ")
            assert_no_secret(str(raised.value))
    with pytest.raises(NotTaken, match="Connection refused"):
        parse_receiver(f"http://u:s3cret@127.0.0.1:{port}/").send(b"{}")
    with pytest.raises(NotTaken):
        parse_receiver(f"http://{'a' * 70}.example/").send(b"{}")


@pytest.mark.parametrize(
    "text",
    [
        "ftp://u:s3cret@host/hook-path",
        "http://u:s3cret@",
        "https://u:s3cret@host:99999/t0ken",
        "https://u:s3cret@host:0/t0ken",
        "https://host/hook-path t0ken",
        "https://host/hook-path\r\nX-Evil: t0ken",
        "https://u:s3cret@[::1/t0ken",
        "https://host/é?t0ken",
    ],
)
def test_a_bad_url_is_refused_in_one_line_without_secrets(text: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse_receiver(text)
    assert "\n" not in str(raised.value) and "receiver of schema changes" in str(raised.value)
    assert_no_secret(str(raised.value))


def test_a_file_gets_a_line_for_each_and_a_cut_line_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "changes.jsonl"
    receiver = parse_receiver(str(path))
    receiver.send(b'{"a": 1}')
    with path.open("ab") as file:
        file.write(b'{"cut')
    receiver.send(b'{"b": 2}')
    assert path.read_bytes() == b'{"a": 1}\n{"cut\n{"b": 2}\n'


def test_a_file_that_takes_only_a_part_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "changes.jsonl"
    receiver = parse_receiver(str(path))
    receiver.send(b"first")
    write = os.write

    def full(file: int, content: bytes) -> int:
        if len(content) < 8:
            raise OSError(28, "No space left on device")
        return write(file, content[: len(content) // 2])

    with monkeypatch.context() as patched:
        patched.setattr(receivers.os, "write", full)
        with pytest.raises(NotTaken, match="No space left on device"):
            receiver.send(b"second, which is longer")
    assert path.read_bytes() == b"first\n"
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(NotTaken, match="temporarily unavailable"):
            receiver.send(b"third")
    path.unlink()
    os.mkfifo(path)  # It has no reader.
    with pytest.raises(NotTaken, match="it is not a file"):
        receiver.send(b"third")


def test_a_place_that_cannot_be_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not a file: schema changes are appended"):
        parse_receiver(str(tmp_path))
    with pytest.raises(ConfigurationError, match="nowhere is not a folder"):
        parse_receiver(str(tmp_path / "nowhere" / "file"))


class Taking:
    """A receiver that does what it is told."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.attempts = 0
        self.works = threading.Event()
        self.blocks = threading.Event()
        self.blocks.set()

    def send(self, content: bytes) -> None:
        self.attempts += 1
        self.blocks.wait(30)
        if not self.works.is_set():
            raise NotTaken("receiver: it is away")
        self.taken.append(json.loads(content)["change"])

    def __str__(self) -> str:
        return "receiver"


@contextmanager
def running(receiver: Taking) -> Iterator[Announcer]:
    announcer = Announcer(receiver)
    thread = threading.Thread(target=announcer.run)
    thread.start()
    try:
        yield announcer
    finally:
        receiver.blocks.set()
        announcer.close()
        thread.join(30)
        assert not thread.is_alive()


def changes(*names: str) -> list[TableChange]:
    return [TableChange(TableName("public", "t"), "followed", name) for name in names]


def until(condition: Callable[[], bool]) -> None:
    event, deadline = threading.Event(), 2000
    while not condition():
        deadline -= 1
        assert deadline
        event.wait(0.01)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcer_module, "_RETRY_MIN_S", 0.02)
    monkeypatch.setattr(announcer_module, "_RETRY_MAX_S", 0.05)


def test_each_is_sent_in_order_until_it_is_taken_and_logged_when_that_changes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "walproxy")
    receiver = Taking()
    with running(receiver) as announcer:
        pending = announcer.pending([], changes("a", "b"), "db", "s", 7)
        assert receiver.attempts == 0  # They are not in the job's file yet.
        announcer.send(pending)
        until(lambda: receiver.attempts > 3)
        pending = announcer.pending(pending, changes("c"), "db", "s", 8)
        announcer.send(pending)
        assert [each.change for each in pending] == ["a", "b", "c"] and not announcer.has_taken
        receiver.works.set()
        until(lambda: len(receiver.taken) == 3)
        assert receiver.taken == ["a", "b", "c"]
        announcer.drain()
        assert announcer.has_taken
        pending = announcer.pending(pending, [], "db", "s", 9)
        announcer.send(pending)
        assert pending == [] and announcer.pending(pending, [], "db", "s", 9) == []
        assert not announcer.has_taken
        receiver.works.clear()
        announcer.send(announcer.pending([], changes("d"), "db", "s", 9))
        until(lambda: receiver.attempts > 8)
        receiver.works.set()
        until(lambda: len(receiver.taken) == 4)
        announcer.drain()
    until(lambda: len(caplog.messages) == 4)
    failing = "schema changes are not announced, retrying until they are: receiver: it is away"
    assert caplog.messages == [failing, "schema changes are announced again: receiver"] * 2


def test_a_receiver_that_hangs_delays_nothing_but_the_end_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcer_module, "_END_S", 0.2)
    receiver = Taking()
    receiver.blocks.clear()
    with running(receiver) as announcer:
        pending = announcer.pending([], changes("a"), "db", "s", 7)
        announcer.send(pending)
        until(lambda: receiver.attempts == 1)
        for _ in range(100):
            pending = announcer.pending(pending, changes("more"), "db", "s", 7)
            announcer.send(pending)
        announcer.drain()
        assert len(pending) == 101 and receiver.attempts == 1 and not announcer.has_taken


def test_the_end_waits_for_one_attempt_only_if_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcer_module, "_END_S", 30)
    receiver = Taking()
    with running(receiver) as announcer:
        announcer.send(announcer.pending([], changes("a"), "db", "s", 7))
        started_at = time.monotonic()
        announcer.drain()
        assert time.monotonic() - started_at < 25
        assert not announcer.has_taken and receiver.attempts >= 1
        receiver.works.set()
        announcer.drain()
        assert receiver.taken == ["a"]


def test_what_is_pending_has_a_limit(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(announcer_module, "PENDING_MAX", 3)
    announcer = Announcer(Taking())
    pending = announcer.pending([], changes(*"abc"), "db", "s", 7)
    assert not caplog.messages
    for name in "de":
        pending = announcer.pending(pending, changes(name), "db", "s", 7)
    assert [each.change for each in pending] == ["c", "d", "e"]
    assert [message for message in caplog.messages if "the oldest are given up" in message] == caplog.messages[:1]


def test_without_a_receiver_nothing_is_noted_and_nothing_is_lost() -> None:
    announcer = Announcer(None)
    known = [Announcement("1", "", "db", "s", "public", "t", "followed", "a", "0/0")]
    assert announcer.pending(known, changes("b"), "db", "s", 7) == known
    announcer.send(known)
    announcer.drain()
    assert not announcer.has_taken


def test_an_announcement_has_what_a_program_needs() -> None:
    change = TableChange(TableName('a "b"', "<script>"), "copied", "why", 0x1_0000_0002)
    [made] = Announcer(Taking()).pending([], [change], "db", "s", 7)
    found = json.loads(msgspec.json.encode(made))
    assert found.pop("id") and found.pop("time").endswith("+00:00")
    assert found == {
        "database": "db",
        "slot": "s",
        "schema": 'a "b"',
        "table": "<script>",
        "action": "copied",
        "change": "why",
        "lsn": "1/2",
    }
    [made] = Announcer(Taking()).pending([], changes("x"), "db", "s", 7)
    assert made.lsn == "0/7"


def definition(columns: dict[str, Column], *partitions: int, types: tuple[str, ...] = ()) -> Fingerprint:
    return Fingerprint(1, [], 0, {}, dict.fromkeys(partitions, 5), columns, dict.fromkeys(types, 5))


def test_a_change_of_a_definition_is_in_words() -> None:
    one, two = Column(1, 23, -1), Column(2, 25, -1)
    types = {"a": "int32", "b": "string"}
    same = definition({"a": one})
    assert followed_change(same, definition({"a": one}), types) is None
    assert followed_change(same, definition({"a": one, "b": two}), types) == ("column b was added, here of type string")
    assert followed_change(same, definition({}, 7, 8), types) == (
        "2 partitions added; column a was dropped, and keeps its values here"
    )
    assert followed_change(same, definition({"a": Column(1, 23, 9)}, 7), types) == (
        "1 partition added; the type of column a was altered, here it is int32"
    )
    assert followed_change(same, definition({"a": one}, types=("label 3",)), types) == (
        "a type of its columns has new labels"
    )
    assert followed_change(same, definition({"a": one, "b": two}, types=("label 3",)), types) == (
        "column b was added, here of type string"
    )
