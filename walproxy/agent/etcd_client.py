"""Calls of etcd's version 3 interface as JSON over HTTP, with a deadline for each. Blocking.

etcd serves that beside gRPC on its client port (the gRPC gateway), from 3.4 on under `/v3/`. Numbers of 64 bits are
text there, bytes are base64. Each call is a connection of its own. Only the resolution of host names is not bounded.

Source: https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/
"""

import base64
import json
import socket
import ssl
import time
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import h11

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.logs import one_line
from safekeeper.net.tls import describe_failure
from walproxy.agent.errors import LeaseUnavailable

# Codes of gRPC. A repetition, or another member, does not change these.
NOT_FOUND, _UNAUTHENTICATED = 5, 16
_INVALID_ARGUMENT, _PERMISSION_DENIED, _UNIMPLEMENTED = 3, 7, 12
_FINAL = frozenset({_INVALID_ARGUMENT, NOT_FOUND, _PERMISSION_DENIED, _UNIMPLEMENTED, _UNAUTHENTICATED})
_AUTHENTICATE = "/v3/auth/authenticate"
_READ_BYTES = 64 << 10
_REPLY_BYTES_MAX = 1 << 20
_PORT = 2379


class EtcdRefused(ConfigurationError):
    """etcd refuses a call, and a repetition does not help.

    Attributes:
        code: of gRPC.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class _Endpoint(NamedTuple):
    url: str
    host: str
    port: int
    is_tls: bool


class EtcdClient:
    """Calls the members of one etcd cluster, one after the other until one replies. For one thread at a time.

    Args:
        endpoints: URLs of members: http://HOST:PORT or https://HOST:PORT.
        tls: for https; None: the CAs of this machine.
        user, password: if etcd's authentication is enabled.
        timeout_s: for a call, shared by the members.

    Raises:
        ConfigurationError: an endpoint is not a URL of that form.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        tls: ssl.SSLContext | None = None,
        user: str = "",
        password: str = "",
        timeout_s: float = 2.0,
    ) -> None:
        self._endpoints = [_endpoint(url) for url in endpoints]
        self._tls = tls
        self._user = user
        self._password = password
        self._timeout_s = timeout_s
        self._token = ""

    def call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the reply to a request. If its outcome is not known, it may be executed nevertheless.

        Args:
            path: e.g. "/v3/kv/txn".

        Raises:
            LeaseUnavailable: no member replies, or has a leader.
            EtcdRefused: etcd refuses the call, or the login.
        """
        if self._user and not self._token:
            self._log_in()
        try:
            return self._call(path, body)
        except EtcdRefused as error:
            if error.code != _UNAUTHENTICATED or not self._user:
                raise
        self._log_in()  # A token expires, also when etcd restarts.
        return self._call(path, body)

    def _log_in(self) -> None:
        self._token = ""
        token = self._call(_AUTHENTICATE, {"name": self._user, "password": self._password}).get("token")
        if not isinstance(token, str) or not token:
            raise EtcdRefused(f"etcd has returned no token to the user {self._user}", _UNAUTHENTICATED)
        self._token = token

    def _call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        content = json.dumps(body).encode()
        problems = []
        for endpoint in list(self._endpoints):
            deadline = time.monotonic() + self._timeout_s / len(self._endpoints)
            try:
                return _parse(*self._post(endpoint, path, content, deadline), path)
            except (OSError, UnicodeError, h11.ProtocolError, _Unusable) as error:
                problems.append(f"{endpoint.url}: {_reason(error)}")
                # The next call begins with another one.
                self._endpoints.remove(endpoint)
                self._endpoints.append(endpoint)
        raise LeaseUnavailable(one_line(f"etcd does not reply: {'; '.join(problems)}"))

    def _post(self, endpoint: _Endpoint, path: str, content: bytes, deadline: float) -> tuple[int, bytes]:
        """Send one request; return the status and the body of the reply."""
        address = (endpoint.host, endpoint.port)
        with socket.create_connection(address, timeout=_left_s(deadline)) as plain:
            if not endpoint.is_tls:
                return self._exchange(plain, endpoint, path, content, deadline)
            plain.settimeout(_left_s(deadline))
            context = self._tls if self._tls is not None else ssl.create_default_context()
            with context.wrap_socket(plain, server_hostname=endpoint.host) as encrypted:
                return self._exchange(encrypted, endpoint, path, content, deadline)

    def _exchange(
        self, connection: socket.socket, endpoint: _Endpoint, path: str, content: bytes, deadline: float
    ) -> tuple[int, bytes]:
        headers = [
            ("Host", endpoint.url.partition("://")[2]),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(content))),
            ("Connection", "close"),
        ]
        if self._token:
            headers.append(("Authorization", self._token))
        http = h11.Connection(h11.CLIENT)
        request = http.send(h11.Request(method="POST", target=path, headers=headers)) or b""
        connection.settimeout(_left_s(deadline))
        connection.sendall(
            request + (http.send(h11.Data(data=content)) or b"") + (http.send(h11.EndOfMessage()) or b"")
        )
        status, reply, has_ended = 0, b"", False
        while True:
            try:
                event = http.next_event()
            except h11.RemoteProtocolError:
                raise _Unusable("no complete reply" if has_ended else "a reply that is not HTTP") from None
            if event is h11.NEED_DATA:
                connection.settimeout(_left_s(deadline))
                data = connection.recv(_READ_BYTES)
                has_ended = not data
                http.receive_data(data)
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                reply += event.data
                if len(reply) > _REPLY_BYTES_MAX:
                    raise _Unusable("a reply that is too long: it is not etcd")
            elif isinstance(event, h11.EndOfMessage):
                return status, reply
            elif not isinstance(event, h11.InformationalResponse):
                raise _Unusable("no complete reply")


class _Unusable(Exception):
    """A member's reply does not help: another one may have a better one."""


def _parse(status: int, content: bytes, path: str) -> dict[str, Any]:
    """Return the object in a reply.

    Raises:
        EtcdRefused: etcd refuses the call.
        _Unusable: it has no leader, or is not etcd.
    """
    try:
        reply = json.loads(content)
    except (ValueError, RecursionError):
        reply = None
    if isinstance(reply, dict) and status == 200 and "error" not in reply:
        return reply
    code, message = (reply.get("code"), reply.get("message")) if isinstance(reply, dict) else (None, None)
    if not isinstance(code, int) or not isinstance(message, str):
        hint = ": it does not serve /v3 as etcd 3.4 and later do" if status == 404 else ""
        raise _Unusable(f"status {status} for {path}{hint}")
    if code in _FINAL:
        raise EtcdRefused(one_line(f"etcd refuses {path}: {message}"), code)
    raise _Unusable(message)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return describe_failure(error)
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)


def _left_s(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _endpoint(url: str) -> _Endpoint:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _PORT
    except ValueError:
        host, port, parts = "", 0, urlsplit("")
    # A user in the URL would be part of messages.
    if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc or parts.path.strip("/") or parts.query:
        raise ConfigurationError(
            f"{url.rpartition('@')[2]!r} is not an endpoint of etcd: write http://HOST:PORT or https://HOST:PORT"
        )
    return _Endpoint(url.rstrip("/"), host, port, parts.scheme == "https")


def encoded(value: bytes | str) -> str:
    """Return bytes as they are in a request."""
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode()


def decoded(value: object) -> str:
    """Return the text that a reply has as base64.

    Raises:
        LeaseUnavailable: it is not base64.
    """
    try:
        return base64.b64decode(value, validate=True).decode(errors="replace") if isinstance(value, str) else ""
    except ValueError:
        raise LeaseUnavailable("etcd has returned a value that is not base64") from None
