"""Where announcements go: an HTTP server, or a file. Both take one at a time, and fail within a bounded time.

A URL may have credentials in its user information, its path or its query. So errors and logs name the scheme, the host
and the port alone. Redirects are not followed: the credentials are not for another host, and a POST would become a GET.
"""

import base64
import contextlib
import fcntl
import http.client
import os
import re
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import SplitResult, unquote, urlsplit

from safekeeper.base.errors import ConfigurationError, WalproxyError

_TIMEOUT_S: Final = 10.0
"""For the connection, and for each read and write of it."""

_SCHEMES: Final = ("http", "https")
_UNSAFE: Final = re.compile(r"[^\x21-\x7e]")
_SUCCESS: Final = range(200, 300)


class NotTaken(WalproxyError):
    """A receiver did not take an announcement. The message has no credentials."""


class Receiver(Protocol):
    """Takes announcements. As text: its name without credentials."""

    def send(self, content: bytes) -> None:
        """Hand over one announcement, a line of JSON without its end. Raises NotTaken."""


def parse_receiver(text: str) -> Receiver:
    """Return the receiver that a URL or the path of a file names.

    Raises:
        ConfigurationError: it is neither. The message does not contain the URL.
    """
    scheme, divider, _ = text.partition("://")
    if not divider:
        return FileReceiver(Path(text))
    if scheme.lower() not in _SCHEMES:
        raise ConfigurationError("the receiver of schema changes must be an http:// or https:// URL, or a file")
    if _UNSAFE.search(text):
        raise ConfigurationError(
            "the URL of the receiver of schema changes has a character that must be written as %XX: percent-encode it"
        )
    try:
        parts = urlsplit(text)
        is_good = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise ConfigurationError("the URL of the receiver of schema changes has no valid host and port")
    return HttpReceiver(parts)


class HttpReceiver:
    """Posts each announcement to a URL; any status from 200 to 299 means that it was taken."""

    def __init__(self, url: SplitResult) -> None:
        assert url.hostname is not None  # by parse_receiver
        self._is_secure = url.scheme == "https"
        self._host, self._port = url.hostname, url.port
        self._target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        self._headers = {"Content-Type": "application/json", "User-Agent": "walproxy"}
        if url.username is not None:
            user = f"{unquote(url.username)}:{unquote(url.password or '')}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(user).decode()}"

    def __str__(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._is_secure else 'http'}://{host}" + ("" if self._port is None else f":{self._port}")

    def __repr__(self) -> str:
        return f"HttpReceiver({self})"

    def send(self, content: bytes) -> None:
        """Post it. Raises NotTaken."""
        try:
            with contextlib.closing(self._connection()) as connection:
                connection.request("POST", self._target, content, self._headers)
                status = connection.getresponse().status
        except ssl.SSLCertVerificationError as error:
            reason = f"its certificate is refused: {error.verify_message}; SSL_CERT_FILE can name the file of its CA"
            raise NotTaken(f"{self}: {reason}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            # Only what the system reports is shown: other messages may quote the URL or the reply.
            reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            raise NotTaken(f"{self}: {reason}") from None
        if status not in _SUCCESS:
            raise NotTaken(f"{self} replied with status {status}")

    def _connection(self) -> http.client.HTTPConnection:
        if not self._is_secure:
            return http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(self._host, self._port, timeout=_TIMEOUT_S, context=context)


class FileReceiver:
    """Appends each announcement to a file as a line, on disk when `send` returns.

    Raises:
        ConfigurationError: it cannot be such a file.
    """

    def __init__(self, path: Path) -> None:
        if path.exists() and not path.is_file():
            raise ConfigurationError(f"{path} is not a file: schema changes are appended to a file, or sent to a URL")
        if not path.absolute().parent.is_dir():
            raise ConfigurationError(f"{path.absolute().parent} is not a folder: schema changes are appended to {path}")
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def send(self, content: bytes) -> None:
        """Append it. Raises NotTaken."""
        try:
            with self._opened() as file:
                _append(file, content)
        except OSError as error:
            raise NotTaken(f"{self}: {error.strerror}") from error

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        # O_NONBLOCK: what became a pipe without a reader meanwhile is not waited for.
        file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise OSError(0, "it is not a file")
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # Other jobs may append to it.
            yield file
        finally:
            os.close(file)


def _append(file: int, content: bytes) -> None:
    """Add a line, wholly or not at all; one that a crash has cut is ended first."""
    size = os.fstat(file).st_size
    is_cut = size > 0 and os.pread(file, 1, size - 1) != b"\n"
    line = (b"\n" if is_cut else b"") + content + b"\n"
    try:
        written = 0
        while written < len(line):
            written += os.write(file, line[written:])
        os.fsync(file)
    except OSError:
        os.ftruncate(file, size)
        raise
