"""A real etcd of one member, in a process of its own, for the tests of leases. Debian has it as etcd-server."""

import json
import shutil
import signal
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.unit.certificates import Pair
from tests.waiting import wait_for
from walproxy.postgres.local_server import free_port

PROGRAM = shutil.which("etcd")
needs_etcd = pytest.mark.skipif(PROGRAM is None, reason="etcd is not installed: apt-get install etcd-server")


class EtcdServer:
    """Its data remain over a kill. It is started by the `with` block and ends with it.

    Attributes:
        url: for clients.
    """

    def __init__(self, folder: Path, pair: Pair | None = None, ca: Path | None = None) -> None:
        self._folder = folder
        self._scheme = "http" if pair is None else "https"
        self.url = f"{self._scheme}://127.0.0.1:{free_port()}"
        self._peer = f"http://127.0.0.1:{free_port()}"
        self._tls = ["--cert-file", str(pair.cert), "--key-file", str(pair.key)] if pair is not None else []
        self._context = ssl.create_default_context(cafile=str(ca)) if ca is not None else None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> Self:
        assert PROGRAM is not None
        # Elections of one member are quick; the shortest lease of etcd is one and a half elections.
        options = {
            "data-dir": str(self._folder / "etcd"),
            "listen-client-urls": self.url,
            "advertise-client-urls": self.url,
            "listen-peer-urls": self._peer,
            "initial-advertise-peer-urls": self._peer,
            "initial-cluster": f"default={self._peer}",
            "log-level": "error",
        }
        words = [PROGRAM, *self._tls, *(word for name, value in options.items() for word in (f"--{name}", value))]
        with (self._folder / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log, cwd=self._folder)
        wait_for(self._replies, lambda: f"etcd replies: {(self._folder / 'etcd.log').read_text()[-2000:]}")
        return self

    def _replies(self) -> bool:
        try:
            return "leader" in self.call("/v3/maintenance/status")
        except (urllib.error.URLError, OSError):
            return False

    def call(self, path: str, **body: Any) -> dict[str, Any]:
        """Call etcd past the code under test."""
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=5, context=self._context) as response:
            content = json.loads(response.read())
        assert isinstance(content, dict)
        return content

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def require_passwords(self, password: str) -> None:
        """Enable authentication, with the user root."""
        self.call("/v3/auth/user/add", name="root", password=password)
        self.call("/v3/auth/user/grant", user="root", role="root")
        self.call("/v3/auth/enable")
