"""A real `safekeeper run` in a process of its own, on free ports."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from tests.forking import daemons
from tests.unit.scripted_proposer import DEADLINE_S, ScriptedProposer
from walproxy.lab.cluster.local_cluster import Child

_PROGRAM = (sys.executable, "-m", "safekeeper")


def safekeeper(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        (*_PROGRAM, *arguments),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=os.environ | (environment or {}),
        check=False,
    )


class SafekeeperProcess:
    """Started and listening when made; killed at the end of the `with` block if it is still there.

    Attributes:
        lines: what it has logged so far.
        port, http_port: where it listens.

    Args:
        program: what runs a safekeeper.
        forked: it may be a fork (tests/forking), whose command line shows those of its parent's.
    """

    def __init__(
        self,
        data_dir: Path,
        *options: str,
        program: tuple[str, ...] = _PROGRAM,
        safekeeper_id: int = 1,
        forked: bool = True,
    ):
        self.lines: list[str] = []
        command = (
            *program,
            *("run", "--id", str(safekeeper_id), "--data-dir", str(data_dir)),
            *("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", *options),
        )
        written, writable = os.pipe()
        self._log = os.fdopen(written)
        with os.fdopen(writable, "wb") as log:
            self.process: Child = (_fork(command[1:], log) if forked else None) or subprocess.Popen(command, stderr=log)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        ports = re.search(
            r"proxies on 127.0.0.1:(\d+), for HTTP on 127.0.0.1:(\d+)", self.wait_for_line("listening for")
        )
        assert ports is not None
        self.port, self.http_port = int(ports[1]), int(ports[2])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        self._log.close()

    def wait_for_line(self, part: str) -> str:
        """Wait until it logs a line with `part`, and return that line."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            for line in list(self.lines):
                if part in line:
                    return line
            assert self._reader.is_alive() or any(part in line for line in self.lines), self.lines
            self._reader.join(0.005)
        raise AssertionError(f"no line with {part!r} in {self.lines}")

    def wait_exit(self) -> int:
        """Wait until it has ended by itself; return its exit code."""
        code = self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        return code

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def proposer(self, run: str = "run1") -> ScriptedProposer:
        return ScriptedProposer(self.port, run=run)

    def get(self, path: str) -> tuple[int, Any]:
        """Return the status code and the JSON of a page."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=DEADLINE_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def _read(self) -> None:
        for line in self._log:
            self.lines.append(line.rstrip("\n"))


def _fork(arguments: Sequence[str], log: IO[bytes]) -> Child | None:
    with Path(os.devnull).open("wb") as nothing:
        return daemons.start(arguments, output=nothing.fileno(), errors=log.fileno())
