"""Real object stores on loopback: a local folder, moto's S3 server, rclone serving a folder as S3, and SeaweedFS.

    with MotoServer() as server:
        place = server.place("cluster")         # what an operator would configure
        store = ObjectStore.open(place.url, options=place.options)      # with place.environment set

They differ where stores in the field differ. moto checks no signature and honours If-None-Match. rclone checks
signatures and ignores If-None-Match silently. SeaweedFS checks and honours both, and is for tables. A folder has
no server at all.

`write`, `read`, `keys` and `remove` go behind the archive's back, into the folder or past the client library: that is
how a test makes a torn upload, rots a bit or finds out what is really there. Keys are relative to the place.
"""

import abc
import json
import re
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree as xml
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from obstore.exceptions import BaseError
from obstore.store import S3Store

from tests.waiting import wait_for

_DEADLINE_S = 60.0
_BUCKET = "archive"
_LIST_NAMESPACE = {"s3": "http://s3.amazonaws.com/doc/2006-03-01/"}

# rclone takes no shorter ones. They open nothing but a server that lives as long as a test.
ACCESS_KEY = "AKIATESTTESTTESTTEST"
SECRET_KEY = "of-forty-characters-as-those-of-AWS-are-"


@dataclass(frozen=True)
class Place:
    """One archive as an operator configures it."""

    url: str
    options: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


class Server(abc.ABC):
    """A store of objects, there as long as the `with` block.

    Attributes:
        name: for the ids of tests.
        conditional_puts: a put that must not replace anything does not.
        endpoint: its HTTP address, empty for a folder.
    """

    name: ClassVar[str]
    conditional_puts: ClassVar[bool]
    endpoint = ""

    @abc.abstractmethod
    def place(self, prefix: str, endpoint: str = "") -> Place:
        """An archive under `prefix`, reached directly or through another `endpoint`."""

    @abc.abstractmethod
    def write(self, prefix: str, key: str, content: bytes) -> None:
        """Store or replace an object."""

    @abc.abstractmethod
    def read(self, prefix: str, key: str) -> bytes: ...

    @abc.abstractmethod
    def remove(self, prefix: str, key: str) -> None: ...

    @abc.abstractmethod
    def keys(self, prefix: str) -> list[str]:
        """All keys below `prefix`, sorted."""

    @abc.abstractmethod
    def close(self) -> None:
        """End it. What it stores is gone."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


class LocalFolder(Server):
    """A folder of this machine."""

    name = "folder"
    conditional_puts = True

    def __init__(self) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="walproxy-test-")
        self.folder = Path(self._temporary.name) / _BUCKET
        self.folder.mkdir()

    def close(self) -> None:
        self._temporary.cleanup()

    def place(self, prefix: str, endpoint: str = "") -> Place:
        assert not endpoint, "a folder has no endpoint"
        return Place(str(self.folder / prefix))

    def write(self, prefix: str, key: str, content: bytes) -> None:
        path = self.folder / prefix / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def read(self, prefix: str, key: str) -> bytes:
        return (self.folder / prefix / key).read_bytes()

    def remove(self, prefix: str, key: str) -> None:
        (self.folder / prefix / key).unlink()

    def keys(self, prefix: str) -> list[str]:
        top = self.folder / prefix
        return sorted(str(path.relative_to(top)) for path in top.rglob("*") if path.is_file())


class _Program:
    """A server in a process of its own, which prints on its standard error where it listens.

    Attributes:
        endpoint: that address. It answers from now on.
    """

    def __init__(self, *command: str, listening: str) -> None:
        self._pattern = re.compile(listening)
        self._lines: list[str] = []
        self._listens = threading.Event()
        self.endpoint = ""
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        # It logs each request: if the log is not read, it stops when the pipe is full.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._listens.wait(_DEADLINE_S) or not self.endpoint:
            self.close()
            raise AssertionError(f"{command[0]} does not listen: {''.join(self._lines)}")

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if not self.endpoint:
                self._lines.append(line)
                if found := self._pattern.search(line):
                    self.endpoint = found[1]
                    self._listens.set()
        self._listens.set()

    def close(self) -> None:
        self._process.kill()
        self._process.wait(_DEADLINE_S)
        self._reader.join(_DEADLINE_S)
        assert self._process.stderr is not None
        self._process.stderr.close()


def _s3_place(prefix: str, endpoint: str) -> Place:
    return Place(
        f"s3://{_BUCKET}/{prefix}",
        {"endpoint": endpoint, "region": "us-east-1"},
        {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY},
    )


def _path(prefix: str, key: str) -> str:
    return urllib.parse.quote(f"/{prefix}/{key}")


_MOTO_WITH_ATOMIC_PUTS = """
import sys, threading
from moto import server
from moto.s3.responses import S3Response

put, lock = S3Response.put_object, threading.Lock()

def put_object(self):
    with lock:
        return put(self)

S3Response.put_object = put_object
server.main(sys.argv[1:])
"""


class MotoServer(Server):
    """moto's S3: objects in memory, no signature is checked.

    moto checks the condition of a put, and then puts: of two at once both can succeed, as they cannot in AWS S3. Here
    one follows the other.
    """

    name = "moto"
    conditional_puts = True

    def __init__(self) -> None:
        self._program = _Program(
            *(sys.executable, "-c", _MOTO_WITH_ATOMIC_PUTS, "-H", "127.0.0.1", "-p", "0"),
            listening=r"Running on (http://[\d.]+:\d+)",
        )
        self.endpoint = self._program.endpoint
        self._ask("PUT", "")

    def close(self) -> None:
        self._program.close()

    def place(self, prefix: str, endpoint: str = "") -> Place:
        return _s3_place(prefix, endpoint or self.endpoint)

    def write(self, prefix: str, key: str, content: bytes) -> None:
        self._ask("PUT", _path(prefix, key), content)

    def read(self, prefix: str, key: str) -> bytes:
        return self._ask("GET", _path(prefix, key))

    def remove(self, prefix: str, key: str) -> None:
        self._ask("DELETE", _path(prefix, key))

    def keys(self, prefix: str) -> list[str]:
        query = urllib.parse.urlencode({"list-type": "2", "prefix": f"{prefix}/"})
        listing = xml.fromstring(self._ask("GET", f"?{query}"))
        assert listing.findtext("s3:IsTruncated", "", _LIST_NAMESPACE) == "false"
        found = [element.text or "" for element in listing.findall("s3:Contents/s3:Key", _LIST_NAMESPACE)]
        return sorted(key.removeprefix(f"{prefix}/") for key in found)

    def _ask(self, method: str, path: str, content: bytes | None = None) -> bytes:
        # It does not check the name, only that one is given.
        signed = f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/20260101/us-east-1/s3/aws4_request"
        headers = {"Authorization": signed, "Content-Type": "application/octet-stream"}
        request = urllib.request.Request(f"{self.endpoint}/{_BUCKET}{path}", content, headers, method=method)
        with urllib.request.urlopen(request, timeout=_DEADLINE_S) as answer:
            return bytes(answer.read())


class RcloneServer(LocalFolder):
    """`rclone serve s3` over a folder: signatures are checked, conditions are not.

    It remembers what its folders hold, so that files are changed through it.
    """

    name = "rclone"
    conditional_puts = False

    def __init__(self) -> None:
        super().__init__()
        self._program = _Program(
            *(str(Path(sysconfig.get_path("scripts")) / "rclone"), "serve", "s3", str(self.folder.parent)),
            *("--addr", "127.0.0.1:0", "--auth-key", f"{ACCESS_KEY},{SECRET_KEY}"),
            *("--config", "", "--cache-dir", str(self.folder.parent / "cache")),
            listening=r"Starting s3 server on \[(http://[\d.]+:\d+)/\]",
        )
        self.endpoint = self._program.endpoint
        self._client = _s3_client(self.endpoint)

    def close(self) -> None:
        self._program.close()
        super().close()

    def place(self, prefix: str, endpoint: str = "") -> Place:
        return _s3_place(prefix, endpoint or self.endpoint)

    def write(self, prefix: str, key: str, content: bytes) -> None:
        self._client.put(f"{prefix}/{key}", content)

    def remove(self, prefix: str, key: str) -> None:
        self._client.delete(f"{prefix}/{key}")


class SeaweedServer(Server):
    """SeaweedFS, a program in Go: signatures are checked, conditions of puts are honoured."""

    name = "seaweedfs"
    conditional_puts = True

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="walproxy-test-")
        folder = Path(self._folder.name)
        identity = {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}
        identities = [{"name": "test", "credentials": [identity], "actions": ["Admin"]}]
        (folder / "s3.json").write_text(json.dumps({"identities": identities}))
        ports = _free_ports(8)
        named = ("master.port", "volume.port", "filer.port", "s3.port")
        listening = [f"-{name}{suffix}={next(ports)}" for name in named for suffix in ("", ".grpc")]
        try:
            self._program = _Program(
                *(str(Path(sysconfig.get_path("scripts")) / "weed"), "-logtostderr", "server", f"-dir={folder}"),
                *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3", "-master.telemetry=false", *listening),
                *("-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false", f"-s3.config={folder / 's3.json'}"),
                *(f"-filer.localSocket={folder / 'filer'}", f"-s3.localSocket={folder / 's3'}"),
                *("-master.volumeSizeLimitMB=64", "-volume.max=100"),
                listening=r"Start Seaweed S3 API Server .* at http port (\d+)",
            )
        except BaseException:
            self._folder.cleanup()
            raise
        self.endpoint = f"http://127.0.0.1:{self._program.endpoint}"
        self._client = _s3_client(self.endpoint)
        try:
            wait_for(self._stores, "the parts of SeaweedFS have found each other", _DEADLINE_S)
        except BaseException:
            self.close()
            raise

    def _stores(self) -> bool:
        """Return whether an object can be stored."""
        try:
            self._client.put("started", b"1")
        except BaseError:
            return False
        return True

    def close(self) -> None:
        self._program.close()
        self._folder.cleanup()

    def place(self, prefix: str, endpoint: str = "") -> Place:
        return _s3_place(prefix, endpoint or self.endpoint)

    def write(self, prefix: str, key: str, content: bytes) -> None:
        self._client.put(f"{prefix}/{key}", content)

    def read(self, prefix: str, key: str) -> bytes:
        return bytes(self._client.get(f"{prefix}/{key}").bytes())

    def remove(self, prefix: str, key: str) -> None:
        self._client.delete(f"{prefix}/{key}")

    def keys(self, prefix: str) -> list[str]:
        found = [info["path"] for page in self._client.list(f"{prefix}/") for info in page]
        return sorted(path.removeprefix(f"{prefix}/") for path in found)


def _free_ports(count: int) -> Iterator[int]:
    """Yield different ports of loopback that nothing listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        ports = [each.getsockname()[1] for each in sockets]
    yield from ports


def _s3_client(endpoint: str) -> S3Store:
    return S3Store(
        _BUCKET,
        endpoint=endpoint,
        region="us-east-1",
        access_key_id=ACCESS_KEY,
        secret_access_key=SECRET_KEY,
        client_options={"allow_http": True},
    )


SERVERS: tuple[type[Server], ...] = (LocalFolder, MotoServer, RcloneServer)
