"""The agent's `walproxy run`: a child process beside the primary.

It is a process of its own because the agent must not delay commits, and ends with the agent, however that ends: a
primary whose agent is dead commits nothing, and another agent takes over.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.hangup import takes_hangup
from safekeeper.base.logs import CHANGES_A_MINUTE, ProblemLog, RateLimit
from safekeeper.base.lsn import Lsn, parse_lsn
from walproxy.proxy.progress_socket import PACKET_BYTES_MAX, PROGRESS_SOCKET
from walproxy.proxy.readiness import SERVING_STATES

_log = logging.getLogger(__name__)

_RESTART_PAUSE_MIN_S = 0.25
_RESTART_PAUSE_MAX_S = 5.0
_WORKS_AFTER_S = 10.0
_REPLY_TIMEOUT_S = 1.0
# Without a reply to that many requests, no further one is sent.
_AWAITED_MAX = 8


class ProxyProgress(NamedTuple):
    """What a proxy has reached.

    Attributes:
        commits: it streams to a quorum.
        commit_lsn: the quorum has the WAL below it; 0 if it leads no term, or does not reply.
    """

    commits: bool = False
    commit_lsn: Lsn = 0

    def has_advanced(self, before: "ProxyProgress") -> bool:
        """Return whether it has sent WAL of the server to the quorum since `before`."""
        return self.commit_lsn > before.commit_lsn > 0


class ProxyProcess:
    """A child process `walproxy run`, restarted while it is wanted.

    Args:
        arguments: after `walproxy run`.
        launcher: words before the command, e.g. those that make it end with its parent.
    """

    def __init__(self, arguments: Sequence[str], launcher: Sequence[str] = ()) -> None:
        self._words = [*launcher, sys.executable, "-m", "walproxy", "run", *arguments]
        self._process: asyncio.subprocess.Process | None = None
        self._reports: _Reports | None = None
        self._started_at = 0.0
        self._start_at = 0.0
        self._pause_s = _RESTART_PAUSE_MIN_S
        self._ends = ProblemLog(_log)
        self._starts = RateLimit(CHANGES_A_MINUTE, 60.0)
        self._lock = asyncio.Lock()  # The agent's step and its failover may start or end it at the same time.

    @property
    def is_running(self) -> bool:
        """Whether the process exists."""
        return self._process is not None and self._process.returncode is None

    async def keep_running(self, now: float) -> None:
        """Start it if it does not run; one that ends again and again is started with a growing pause."""
        async with self._lock:
            if not self.is_running:
                await self._start_again(now)

    async def _start_again(self, now: float) -> None:
        ended = self._process
        if ended is not None:
            self._process = None
            works = now - self._started_at > _WORKS_AFTER_S
            self._pause_s = _RESTART_PAUSE_MIN_S if works else min(2 * self._pause_s, _RESTART_PAUSE_MAX_S)
            self._start_at = now + self._pause_s
            problem = f"walproxy run has ended with exit code {ended.returncode}: see its log lines"
            self._ends.note(problem, "%s; starting it again in %.2f s", problem, self._pause_s)
        if now < self._start_at:
            return
        self._close_reports()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._reports = _Reports(ours)
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                *self._words,
                stdin=asyncio.subprocess.DEVNULL,
                env={**os.environ, PROGRESS_SOCKET: str(theirs.fileno())},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._started_at = now
        addition = self._starts.admit()
        if addition is not None:
            _log.info("started walproxy run, process %d%s", self._process.pid, addition)

    async def stop(self, timeout_s: float = 5.0) -> None:
        """End it with SIGTERM, which lets the quorum acknowledge what it has received; after the timeout kill it."""
        process = await self._take()
        self._pause_s, self._start_at = _RESTART_PAUSE_MIN_S, 0.0
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(timeout_s):
                await process.wait()
        except TimeoutError:
            _log.warning("walproxy run has not stopped within %g s: killing it", timeout_s)
            await self._kill(process)

    def retry(self) -> None:
        """Let it connect to the server now: without this it waits up to two seconds between attempts.

        A proxy whose interpreter still starts would be ended by the signal; it connects when it has started.
        """
        if self._process is not None and self._process.returncode is None and takes_hangup(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGHUP)

    async def kill(self) -> None:
        """End it at once."""
        process = await self._take()
        if process is not None and process.returncode is None:
            await self._kill(process)

    async def _take(self) -> asyncio.subprocess.Process | None:
        """Return the process, which the caller ends; a start under way is over first."""
        async with self._lock:
            process, self._process = self._process, None
            self._close_reports()
        return process

    @staticmethod
    async def _kill(process: asyncio.subprocess.Process) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    def _close_reports(self) -> None:
        if self._reports is not None:
            self._reports.close()
            self._reports = None

    async def progress(self) -> ProxyProgress:
        """Return whether commits succeed, and how far."""
        reports = self._reports
        if not self.is_running or reports is None or not reports.has_started:
            return ProxyProgress()
        try:
            async with asyncio.timeout(_REPLY_TIMEOUT_S):
                status = msgspec.json.decode(await reports.request(), type=_Status)
            return ProxyProgress(status.state in SERVING_STATES, parse_lsn(status.commit_lsn))
        except (OSError, TimeoutError, msgspec.DecodeError, ConfigurationError):
            return ProxyProgress()  # It hangs: a problem that lasts ends its leadership by the safekeepers' clocks.


class _Reports:
    """The agent's end of a proxy's socket (walproxy/proxy/progress_socket.py).

    Attributes:
        has_started: the proxy can reply.
    """

    def __init__(self, ours: socket.socket) -> None:
        ours.setblocking(False)
        self.has_started = False
        self._socket = ours
        self._awaited: deque[asyncio.Future[bytes]] = deque()  # Also those whose requester waits no longer.
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(ours, self._receive)

    async def request(self) -> bytes:
        """Return the reply to a request.

        Raises:
            OSError: the proxy has ended, or has not replied to many requests.
        """
        if len(self._awaited) >= _AWAITED_MAX:
            raise TimeoutError
        self._socket.send(b"?")
        reply: asyncio.Future[bytes] = self._loop.create_future()
        self._awaited.append(reply)
        return await reply

    def close(self) -> None:
        """End all requests. Closing twice is harmless."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()
        while self._awaited:
            reply = self._awaited.popleft()
            if not reply.done():
                reply.set_exception(ConnectionResetError())

    def _receive(self) -> None:
        try:
            packet = self._socket.recv(PACKET_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self.close()
        elif not self.has_started:
            self.has_started = True
        elif self._awaited:
            reply = self._awaited.popleft()
            if not reply.done():
                reply.set_result(packet)


class _Status(msgspec.Struct):
    state: str
    commit_lsn: str
