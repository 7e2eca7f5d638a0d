"""A lease over an etcd of our own, in memory, that loses requests and replies; and the client over scripted replies."""

import base64
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from safekeeper.base.errors import ConfigurationError
from walproxy.agent import etcd_client
from walproxy.agent.errors import LeaseUnavailable
from walproxy.agent.etcd_client import EtcdClient, EtcdRefused, decoded, encoded
from walproxy.agent.lease import EtcdLease

KEY = "/walproxy/main/leader"
REPLY = {"header": {}, "ID": "7", "TTL": "5"}


class Etcd:
    """Leases and keys as etcd has them. `now` is its clock.

    Attributes:
        lost: called for each request: "" if all is well, "request" or "reply" if that is lost.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.lost: Callable[[], str] = lambda: ""
        self.calls: list[str] = []
        self.granted_s = 0  # if set, in place of what was asked for
        self._next_id = 1
        self._leases: dict[str, tuple[int, float]] = {}
        self.keys: dict[str, tuple[str, str]] = {}

    def call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        lost = self.lost()
        self.calls.append(path)
        if lost == "request":
            raise LeaseUnavailable("lost")
        for lease_id, (_, until) in list(self._leases.items()):
            if until <= self.now:
                self._remove(lease_id)
        reply: dict[str, Any] = getattr(self, path.rpartition("/")[2])(**body)
        if lost == "reply":
            raise LeaseUnavailable("lost")
        return reply

    def _remove(self, lease_id: str) -> None:
        del self._leases[lease_id]
        self.keys = {key: value for key, value in self.keys.items() if value[1] != lease_id}

    def grant(self, TTL: str) -> dict[str, Any]:
        self._next_id += 1
        ttl_s = self.granted_s or int(TTL)
        self._leases[str(self._next_id)] = (ttl_s, self.now + ttl_s)
        return {"ID": str(self._next_id), "TTL": str(ttl_s)}

    def keepalive(self, ID: str) -> dict[str, Any]:
        if ID not in self._leases:
            return {"result": {"ID": ID}}
        ttl_s = self._leases[ID][0]
        self._leases[ID] = (ttl_s, self.now + ttl_s)
        return {"result": {"ID": ID, "TTL": str(ttl_s)}}

    def revoke(self, ID: str) -> dict[str, Any]:
        if ID not in self._leases:
            raise EtcdRefused("etcdserver: requested lease not found", 5)
        self._remove(ID)
        return {}

    def range(self, key: str) -> dict[str, Any]:
        if key not in self.keys:
            return {}
        value, lease_id = self.keys[key]
        return {"kvs": [{"key": key, "value": value, "lease": lease_id}], "count": "1"}

    def txn(self, compare: list[dict[str, Any]], **branches: Any) -> dict[str, Any]:
        (condition,) = compare
        found = self.keys.get(condition["key"])
        if condition["target"] == "LEASE":
            return {"succeeded": True} if found is not None and found[1] == condition["lease"] else {}
        if found is not None:
            return {"responses": [{"response_range": self.range(condition["key"])}]}
        put = branches["success"][0]["request_put"]
        if put["lease"] not in self._leases:
            raise EtcdRefused("etcdserver: requested lease not found", 5)
        self.keys[put["key"]] = (put["value"], put["lease"])
        return {"succeeded": True, "responses": [{"response_put": {}}]}


def lease_over(etcd: Any, ttl_s: int = 10, clock: Callable[[], float] | None = None) -> EtcdLease:
    lease = EtcdLease(["http://127.0.0.1:1"], KEY, ttl_s, clock=clock or (lambda: etcd.now))
    lease._client = etcd
    return lease


def test_lease_counts_from_the_time_at_which_it_was_requested() -> None:
    etcd = slow_etcd(1.5)
    lease = lease_over(etcd)
    assert lease.acquire("one")  # Two requests.
    assert (etcd.now, lease.remaining_s) == (3.0, pytest.approx(9.8 - 3.0))
    assert lease.renew()  # Two requests.
    assert (etcd.now, lease.remaining_s) == (6.0, pytest.approx(9.8 - 3.0))


@pytest.mark.parametrize("slowness_s", [4.95, 6.0, 20.0])
def test_lease_that_ends_before_the_last_reply_is_not_held(slowness_s: float) -> None:
    etcd = slow_etcd(slowness_s)
    lease = lease_over(etcd)
    assert (lease.acquire("one"), lease.remaining_s) == (False, 0)
    etcd.lost = lambda: ""
    assert (etcd.keys, lease.holder()) == ({}, None)
    assert lease.acquire("one")
    etcd = slow_etcd(slowness_s, etcd)
    assert (lease.renew(), lease.remaining_s) == (False, 0)


def slow_etcd(seconds: float, etcd: Etcd | None = None) -> Etcd:
    """Return an etcd that needs so many seconds for each request."""
    slow = etcd or Etcd()

    def wait() -> str:
        slow.now += seconds
        return ""

    slow.lost = wait
    return slow


def test_shorter_lease_than_requested_is_used_as_it_is() -> None:
    etcd = Etcd()
    etcd.granted_s = 4
    lease = lease_over(etcd)
    assert lease.acquire("one")
    assert lease.remaining_s == pytest.approx(4 * 0.98)
    etcd.granted_s = 60
    with pytest.raises(ConfigurationError, match="etcd grants leases of 60 s at least, not of 10 s"):
        lease.probe()
    other = lease_over(Etcd())
    other._client.granted_s = 60  # type: ignore[attr-defined]
    assert other.acquire("one") and other.remaining_s == pytest.approx(9.8)


def test_renewal_without_a_time_is_none() -> None:
    etcd = Etcd()
    lease = lease_over(etcd)
    assert lease.acquire("one")
    etcd.keepalive = lambda ID: {"result": {"ID": ID}}  # type: ignore[method-assign]
    assert (lease.renew(), lease.remaining_s) == (False, 0)


def test_key_is_created_once_although_the_reply_was_lost() -> None:
    etcd = Etcd()
    lease, other = lease_over(etcd), lease_over(etcd)
    losses = iter(["", "reply"])
    etcd.lost = lambda: next(losses, "")
    with pytest.raises(LeaseUnavailable):
        lease.acquire("one")
    # It was executed, and is taken back.
    assert (lease.remaining_s, etcd.keys) == (0, {})
    assert other.acquire("two")
    # Of a repetition by the client the reply is that the key exists, with this very lease.
    other.release()
    call = etcd.call

    def twice(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path.endswith("txn"):
            call(path, body)
        return call(path, body)

    etcd.call = twice  # type: ignore[method-assign]
    assert lease.acquire("one") and lease.renew()
    assert not other.acquire("two")


def test_lost_lease_is_not_renewed_and_is_revoked() -> None:
    etcd = Etcd()
    lease = lease_over(etcd)
    assert lease.acquire("one")
    etcd.now = 9.9  # etcd still has it.
    assert not lease.renew()
    assert (etcd.keys, etcd.calls[-1]) == ({}, "/v3/lease/revoke")


def test_key_without_its_lease_is_lost() -> None:
    etcd = Etcd()
    lease = lease_over(etcd)
    for key in ({}, {encoded(KEY): (encoded("operator"), "0")}):
        assert lease.acquire("one")
        etcd.keys = key
        assert (lease.renew(), lease.remaining_s) == (False, 0)
        etcd.keys = {}


def test_release_takes_effect_without_a_reply() -> None:
    etcd = Etcd()
    lease = lease_over(etcd)
    assert lease.acquire("one")
    etcd.lost = lambda: "request"
    with pytest.raises(LeaseUnavailable):
        lease.release()
    assert lease.remaining_s == 0
    lease.release()


def test_store_that_ignores_conditions_is_found_by_the_probe() -> None:
    etcd = Etcd()
    lease_over(etcd).probe()
    assert etcd.keys == {}

    class Careless(Etcd):
        def txn(self, compare: list[dict[str, Any]], **branches: Any) -> dict[str, Any]:
            self.keys.pop(compare[0]["key"], None)
            return super().txn(compare, **branches)

    with pytest.raises(ConfigurationError, match="etcd does not create a key only where there is none"):
        lease_over(Careless()).probe()

    class Keeper(Etcd):
        def _remove(self, lease_id: str) -> None:
            del self._leases[lease_id]

    with pytest.raises(ConfigurationError, match="keeps the key of a lease that was revoked"):
        lease_over(Keeper()).probe()


@pytest.mark.parametrize("seed", range(40))
def test_two_agents_never_hold_it_at_the_same_time(seed: int) -> None:
    """Requests and replies are lost, agents stop for a while, clocks run at slightly different rates."""
    rng = random.Random(seed)
    etcd = Etcd()
    etcd.lost = lambda: rng.choices(("", "request", "reply"), (6, 1, 1))[0]
    rates = [1.0, rng.uniform(0.985, 1.015)]
    leases = [lease_over(etcd, 5, lambda rate=rate: etcd.now * rate + 77) for rate in rates]  # type: ignore[misc]
    held, changes = -1, 0
    for _ in range(400):
        etcd.now += rng.choice((0.0, 0.1, 1.0, 2.0, 6.0))
        which = rng.randrange(2)
        try:
            action = rng.choice(("acquire", "renew", "renew", "release", "holder"))
            if action == "acquire":
                leases[which].acquire(f"agent {which}")
            else:
                getattr(leases[which], action)()
        except LeaseUnavailable:
            pass
        holders = [number for number, lease in enumerate(leases) if lease.remaining_s > 0]
        assert len(holders) <= 1
        if holders and holders[0] != held:
            held, changes = holders[0], changes + 1
    assert changes > 3


def test_settings_that_cannot_be_are_refused() -> None:
    for endpoint, ttl_s, problem in (
        ("http://h:1", 1, "a lease of 1 s is too short for etcd"),
        ("h:2379", 5, "'h:2379' is not an endpoint of etcd: write http://HOST:PORT"),
        ("http://h:port", 5, "is not an endpoint"),
        ("http://h:99999999", 5, "is not an endpoint"),
        ("http://", 5, "is not an endpoint"),
        ("http://h:1/path", 5, "is not an endpoint"),
        ("http://me:secret@h:1", 5, "'h:1' is not an endpoint"),
        ("http://[::1", 5, "is not an endpoint"),
    ):
        with pytest.raises(ConfigurationError, match=problem) as caught:
            EtcdLease([endpoint], KEY, ttl_s)
        assert "secret" not in str(caught.value)


# The client.


@contextmanager
def scripted(*replies: bytes | None) -> Iterator[tuple[str, list[bytes]]]:
    """Serve connections, each with the next of the replies; None hangs. Yield the URL, and what was received."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            kept = []
            for reply in replies:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    break
                kept.append(connection)
                data = b""
                while b"\r\n\r\n" not in data or len(data.partition(b"\r\n\r\n")[2]) < length_of(data):
                    more = connection.recv(65536)
                    if not more:
                        break
                    data += more
                received.append(data)
                if reply is not None:
                    connection.sendall(reply)
                    connection.close()
            ended.wait()
            for connection in kept:
                connection.close()

        ended = threading.Event()
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", received
        finally:
            ended.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def length_of(request: bytes) -> int:
    (line,) = [line for line in request.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    return int(line.partition(b":")[2])


def http(body: object, status: int = 200) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"HTTP/1.1 %d x\r\nContent-Length: %d\r\n\r\n" % (status, len(content)) + content


def test_call_returns_the_object_of_the_reply() -> None:
    chunked = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n{"a"\r\n5\r\n: "b"\r\n1\r\n}\r\n0\r\n\r\n'
    with scripted(http(REPLY), chunked) as (url, received):
        client = EtcdClient([url])
        assert client.call("/v3/lease/grant", {"TTL": "5"}) == REPLY
        assert client.call("/v3/kv/range", {}) == {"a": "b"}
    assert received[0].startswith(b"POST /v3/lease/grant HTTP/1.1\r\nHost: 127.0.0.1:")
    assert received[0].endswith(b'\r\n\r\n{"TTL": "5"}')
    assert b"authorization" not in received[0].lower()


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (b"", "no complete reply$"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}", "no complete reply$"),
        (b"220 mail.example.org ESMTP\r\n\r\n", "a reply that is not HTTP$"),
        (http(b"not JSON"), "status 200 for /v3/x"),
        (http([1, 2]), "status 200 for /v3/x"),
        (http(b"[" * 100_000), "status 200 for /v3/x"),
        (http(b"Not Found\n", 404), "status 404 for /v3/x: it does not serve /v3 as etcd 3.4 and later do"),
        (http({"error": "x", "message": "etcdserver: no leader", "code": 14}, 503), "etcdserver: no leader"),
        (http({"error": "x"}), "status 200 for /v3/x"),
        (http({"code": "5", "message": 7}, 500), "status 500 for /v3/x"),
        (http(b"x" * ((1 << 20) + 1)), "too long: it is not etcd"),
        (None, "timeout"),
    ],
)
def test_reply_that_does_not_help_is_one_line(reply: bytes | None, problem: str) -> None:
    with scripted(reply) as (url, _):
        with pytest.raises(LeaseUnavailable, match=f"^etcd does not reply: {url}: .*(?:{problem})") as caught:
            EtcdClient([url], timeout_s=0.3 if reply is None else 10).call("/v3/x", {})
        assert str(caught.value).isprintable()


def test_next_member_is_called_and_remembered() -> None:
    with scripted(*[http({}, 500)] * 3) as (bad, asked), scripted(*[http(REPLY)] * 3) as (good, received):
        client = EtcdClient([bad, good], timeout_s=10)
        for _ in range(3):
            assert client.call("/v3/x", {}) == REPLY
    assert (len(asked), len(received)) == (1, 3)


@pytest.mark.parametrize("code", [3, 5, 7, 12, 16])
def test_refusal_is_final(code: int) -> None:
    with (
        scripted(http({"error": "e", "message": "etcdserver: no\n", "code": code}, 400)) as (url, _),
        pytest.raises(EtcdRefused, match=r"^etcd refuses /v3/x: etcdserver: no\\n$") as caught,
    ):
        EtcdClient([url, url]).call("/v3/x", {})
    assert caught.value.code == code


def test_token_is_requested_once_and_again_when_it_has_expired() -> None:
    expired = http({"error": "e", "message": "etcdserver: invalid auth token", "code": 16}, 401)
    replies = [http({"token": "t1"}), http(REPLY), http(REPLY), expired, http({"token": "t2"}), http(REPLY)]
    with scripted(*replies) as (url, received):
        client = EtcdClient([url], user="me", password="secret")
        for _ in range(3):
            assert client.call("/v3/x", {}) == REPLY
    assert [request.split(b" ")[1] for request in received] == [
        *(b"/v3/auth/authenticate", b"/v3/x", b"/v3/x"),
        *(b"/v3/x", b"/v3/auth/authenticate", b"/v3/x"),
    ]
    assert b"Authorization: t1\r\n" in received[1] and b"Authorization: t2\r\n" in received[5]
    assert b"Authorization" not in received[4]


def test_login_without_a_token_is_refused() -> None:
    for reply in ({}, {"token": 7}, {"token": ""}):
        with (
            scripted(http(reply)) as (url, _),
            pytest.raises(EtcdRefused, match="etcd has returned no token to the user me"),
        ):
            EtcdClient([url], user="me", password="secret").call("/v3/x", {})
    with (
        scripted(http({"token": "a\nb"}), http(REPLY)) as (url, _),
        pytest.raises(LeaseUnavailable, match="etcd does not reply"),
    ):
        EtcdClient([url], user="me", password="secret").call("/v3/x", {})


def test_time_is_shared_by_the_members(monkeypatch: pytest.MonkeyPatch) -> None:
    left_s = []

    def post(endpoint: object, path: str, content: bytes, deadline: float) -> tuple[int, bytes]:
        left_s.append(deadline - time.monotonic())
        raise TimeoutError

    client = EtcdClient(["http://a", "http://b"], timeout_s=60)
    client._post = post  # type: ignore[method-assign]
    with pytest.raises(LeaseUnavailable, match=r"^etcd does not reply: http://a: timeout; http://b: timeout$"):
        client.call("/v3/x", {})
    assert len(left_s) == 2 and all(29 < each <= 30 for each in left_s)
    times = iter([0.0, 0.0, 0.0, 99.0])
    monkeypatch.setattr(etcd_client.time, "monotonic", lambda: next(times, 100.0))
    with scripted() as (url, _), pytest.raises(LeaseUnavailable, match="timeout"):
        EtcdClient([url]).call("/v3/x", {})


@pytest.mark.parametrize(
    "reply",
    [
        *({}, {"ID": "7"}, {"ID": "x", "TTL": "5"}, {"ID": [7], "TTL": "5"}, {"ID": "7", "TTL": -1}),
        *({"ID": "7", "TTL": "5", "result": []}, {"ID": 7, "TTL": 5, "responses": [7]}),
        {"ID": "7", "TTL": "5", "responses": [{"response_range": {"kvs": []}}]},
        {"ID": "7", "TTL": "5", "responses": [{"response_range": {"kvs": [{"lease": 8}]}}], "succeeded": 1},
    ],
)
def test_strange_reply_gives_no_lease(reply: dict[str, Any]) -> None:
    class Strange:
        def call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
            return reply

    lease = lease_over(Strange(), clock=lambda: 0.0)
    try:
        assert not lease.acquire("one")
    except LeaseUnavailable as error:
        assert str(error) == "etcd has granted no lease"
    assert (lease.remaining_s, lease.renew(), lease.holder()) == (0, False, None)


def test_value_that_is_not_base64_is_reported() -> None:
    assert decoded(base64.b64encode(b"one").decode()) == "one"
    with pytest.raises(LeaseUnavailable, match="not base64"):
        decoded("%%%")
    assert decoded(7) == ""
