"""Starts daemons and commands of tests by a fork where that is the same as a start: see tests/forking/server.py.

`start` returns what behaves as a `subprocess.Popen`, or None where the program must be started as a user starts it:

- tests/forking/server.py does not know the program, or the command is none that its modules were imported for,
- the environment differs from the servers' in what the interpreter or a library reads while it starts,
- the system is not Linux, or WALPROXY_TESTS_FORK=0.

Every test passes without, too. The tests of the command line (tests/unit/cli), which start each command, those of
`walproxy.testing`, the demo, the benchmark and the containers never use it.
"""

import contextlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.forking.probe import LIMITS
from tests.forking.server import COMMANDS, COMMANDS_KEY, MESSAGE_BYTES, PRELOADED, Request
from walproxy.lab.cluster.local_cluster import Child, LocalProcess

# Variables that are read after the imports only: ours, libpq's, those of the archive's stores, what pytest writes, and
# what a Spark session and Polars leave in the process that has used them.
_READ_LATE = ("WALPROXY_", "SAFEKEEPER_", "PG", "AWS_", "XDG_", "PYTEST_", "SPARK_", "PYSPARK_", "_RJEM_MALLOC_CONF")
# Of the process before its tests: one of them may have changed it while the first daemon is forked.
_ENVIRONMENT = dict(os.environ)
_END_TIMEOUT_S = 10.0
_POSSIBLE = sys.platform == "linux" and os.environ.get("WALPROXY_TESTS_FORK") != "0"

_lock = threading.Lock()
_servers: dict[str, "_Server"] = {}


class ForkedLocalProcess(LocalProcess):
    """A `LocalProcess` that is forked where it can be."""

    def _spawn(self, output: IO[bytes], environment: dict[str, str]) -> Child:
        return start(self.arguments, output=output.fileno(), environment=environment) or super()._spawn(
            output, environment
        )


def start(
    arguments: Sequence[str],
    *,
    output: int,
    errors: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> "ForkedProcess | None":
    """Start `python ARGUMENTS` in a session of its own, with an empty standard input.

    Returns:
        None if it must be started as a user does.

    Args:
        output, errors: descriptors for its standard streams; `errors` is `output` by default.
        environment: all of it; this process's own by default.
    """
    environment = dict(os.environ if environment is None else environment)
    if not _POSSIBLE or len(arguments) < 2 or arguments[0] != "-m":
        return None
    program, words = arguments[1], list(arguments[2:])
    key = COMMANDS_KEY if program == "walproxy" and words[:1] and words[0] in COMMANDS else program
    if key not in PRELOADED or (key == program and "run" not in words):
        return None
    server = _server(key)
    if not server.suits(environment):
        return None
    request = Request(
        words=words,
        environment=environment,
        folder=str(Path.cwd()),
        umask=_umask(),
        limits=[(number, *resource.getrlimit(number)) for number in LIMITS],
        mask=[int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    )
    return ForkedProcess(server, request, output, output if errors is None else errors)


def run_walproxy(
    *arguments: str, answer: str = "", environment: Mapping[str, str] | None = None, timeout_s: float = 60.0
) -> "subprocess.CompletedProcess[str]":
    """Run `walproxy` to its end, with `answer` on its standard input.

    Args:
        environment: added to this process's own.

    Raises:
        subprocess.TimeoutExpired: it still ran after `timeout_s`, and was killed.
    """
    words = ["-m", "walproxy", *arguments]
    variables = {**os.environ, **(environment or {})}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        forked = None
        if not answer:
            forked = start(words, output=output.fileno(), errors=errors.fileno(), environment=variables)
        if forked is None:
            command = [sys.executable, *words]
            return subprocess.run(
                command, input=answer, capture_output=True, text=True, env=variables, timeout=timeout_s, check=False
            )
        try:
            code = forked.wait(timeout_s)
        finally:
            forked.kill()
        for written in (output, errors):
            written.seek(0)
        return subprocess.CompletedProcess(words, code, output.read(), errors.read())


def stop_servers(*keys: str) -> None:
    """End the servers of these keys of PRELOADED, all by default, and so every process that they have started.

    A key without a server is ignored: pytest may run a test that stops one before any that starts it.
    """
    with _lock:
        for key in keys or tuple(_servers):
            if (server := _servers.pop(key, None)) is not None:
                server.close()


class ForkedProcess:
    """What was started, with the part of the interface of `subprocess.Popen` that tests use.

    Attributes:
        pid: its process id; it stays its own until `poll` or `wait` has returned its exit code.
        returncode: as far as `poll` and `wait` have asked.
    """

    def __init__(self, server: "_Server", request: Request, output: int, errors: int) -> None:
        self._server = server
        self._asking = threading.Lock()
        self.returncode: int | None = None
        self.pid = server.fork(request, output, errors)
        self._end = os.pidfd_open(self.pid)

    def __del__(self) -> None:
        self._close()

    def poll(self) -> int | None:
        """Return its exit code, negative the signal that ended it, None while it lives."""
        with self._asking:
            if self.returncode is None:
                self.returncode = self._server.exit_code(self.pid)
                if self.returncode is not None:
                    self._close()
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return its exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout` s.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            code = self.poll()
            if code is not None:
                return code
            left_s = None if deadline is None else deadline - time.monotonic()
            if timeout is not None and left_s is not None and left_s <= 0:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            self._wait_for_end(left_s)

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send it SIGTERM unless it has ended."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send it SIGKILL unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def _wait_for_end(self, timeout_s: float | None) -> None:
        with self._asking:
            if self.returncode is not None:
                return
            end = os.dup(self._end)  # Another thread may ask, and close ours.
        try:
            poll = select.poll()
            poll.register(end, select.POLLIN)
            poll.poll(None if timeout_s is None else timeout_s * 1000)
        finally:
            os.close(end)

    def _close(self) -> None:
        end, self._end = getattr(self, "_end", -1), -1
        if end >= 0:
            os.close(end)


class _Server:
    """One process of tests/forking/server.py."""

    def __init__(self, key: str) -> None:
        self._environment = _ENVIRONMENT
        self._asking = threading.Lock()
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forking.server", key, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=_ENVIRONMENT,
                cwd=Path(__file__).parents[2],
                start_new_session=True,  # Ctrl-C in the terminal is for us.
            )

    def suits(self, environment: Mapping[str, str]) -> bool:
        """Return whether a process with this environment would have come up as the server has."""
        return all(name.startswith(_READ_LATE) for name, _ in environment.items() ^ self._environment.items())

    def fork(self, request: Request, output: int, errors: int) -> int:
        """Return the process id of a new child."""
        with Path(os.devnull).open("rb") as nothing:
            return int(self._ask(json.dumps(request).encode(), [nothing.fileno(), output, errors]) or 0)

    def exit_code(self, pid: int) -> int | None:
        """Return how a child has ended, None while it lives. Once it was returned, `pid` may be another process's."""
        return self._ask(str(pid).encode(), [])

    def close(self) -> None:
        """End it, and its children."""
        self._connection.close()
        self._process.wait(_END_TIMEOUT_S)

    def _ask(self, message: bytes, descriptors: list[int]) -> int | None:
        with self._asking:
            socket.send_fds(self._connection, [message], descriptors)
            answer = self._connection.recv(MESSAGE_BYTES)
        if not answer:
            raise ConnectionError("the process that forks the tests' daemons has ended")
        code: int | None = json.loads(answer)
        return code


def _server(key: str) -> _Server:
    with _lock:
        if key not in _servers:
            _servers[key] = _Server(key)
        return _servers[key]


def _umask() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1], 8) for line in lines if line.startswith("Umask:"))
