"""The agent's `walproxy run`: its progress is requested on a socket of the two, and on no listener."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from safekeeper.base.errors import ConfigurationError
from tests.unit.event_loop import on_the_loop, until
from walproxy.agent.proxy_process import _AWAITED_MAX, ProxyProcess, ProxyProgress
from walproxy.postgres.local_server import end_with_parent
from walproxy.proxy.progress_socket import PROGRESS_SOCKET, ProgressSocket, inherited_socket

# Instead of `walproxy run`: it replies to each packet with the next line of the file that is its argument.
SCRIPTED = """
import os, socket, sys
agent = socket.socket(fileno=int(os.environ["WALPROXY_PROGRESS_SOCKET"]))
agent.send(b"started")
for line in open(sys.argv[1], "rb"):
    agent.recv(100)
    agent.send(line)
agent.recv(100)
"""


@asynccontextmanager
async def running(process: ProxyProcess) -> AsyncIterator[ProxyProcess]:
    """Run the process until it can reply."""
    await process.keep_running(0.0)
    try:
        await until(lambda: process._reports is not None and process._reports.has_started)
        yield process
    finally:
        await process.kill()


def scripted(folder: Path, replies: Sequence[str]) -> ProxyProcess:
    file = folder / "replies"
    file.write_text("".join(f"{each}\n" for each in replies))
    return ProxyProcess([], (sys.executable, "-c", SCRIPTED, str(file)))


def test_calls_at_the_same_time_start_one_process_and_an_end_waits_for_a_start(tmp_path: Path) -> None:
    marker = tmp_path / "started"
    program = f"import os, signal; open({str(marker)!r} + str(os.getpid()), 'w'); signal.pause()"
    process = ProxyProcess([], (sys.executable, "-c", program))

    @on_the_loop
    async def run() -> None:
        await asyncio.gather(process.keep_running(0.0), process.keep_running(0.0))
        await until(lambda: bool(list(tmp_path.iterdir())))
        await process.kill()
        assert len(list(tmp_path.iterdir())) == 1
        await asyncio.gather(process.keep_running(1.0), process.kill())
        assert not process.is_running

    run()


def test_the_progress_of_a_proxy_is_requested_on_a_socket_of_its_own(tmp_path: Path) -> None:
    replies = ('{"state": "streaming", "commit_lsn": "0/10"}', "{}", "x", '{"state": "x", "commit_lsn": "1/0"}')

    @on_the_loop
    async def run() -> None:
        process = scripted(tmp_path, replies)
        assert await process.progress() == ProxyProgress()
        async with running(process):
            reached = [await process.progress() for _ in replies]
            assert reached == [
                ProxyProgress(True, 0x10),
                ProxyProgress(),
                ProxyProgress(),
                ProxyProgress(False, 1 << 32),
            ]
            # It ends instead of a reply.
            assert await process.progress() == ProxyProgress()
        assert await process.progress() == ProxyProgress()

    run()


def test_a_reply_that_comes_too_late_is_not_that_to_a_later_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = [f'{{"state": "streaming", "commit_lsn": "0/{each}"}}' for each in range(1, _AWAITED_MAX + 2)]

    @on_the_loop
    async def run() -> None:
        async with running(scripted(tmp_path, replies)) as process:
            assert process._process is not None and process._reports is not None
            os.kill(process._process.pid, signal.SIGSTOP)
            with monkeypatch.context() as patch:
                patch.setattr("walproxy.agent.proxy_process._REPLY_TIMEOUT_S", 0.01)
                assert await process.progress() == await process.progress() == ProxyProgress()
                for _ in range(_AWAITED_MAX):
                    assert await process.progress() == ProxyProgress()
            assert len(process._reports._awaited) == _AWAITED_MAX
            os.kill(process._process.pid, signal.SIGCONT)
            await until(lambda: process._reports is not None and not process._reports._awaited)
            assert await process.progress() == ProxyProgress(True, _AWAITED_MAX + 1)

    run()


def test_walproxy_run_replies_to_its_agent() -> None:
    arguments = ("--primary", "host=127.0.0.1 port=1 user=walproxy", "--safekeepers", "1=127.0.0.1:1")

    @on_the_loop
    async def run() -> None:
        words = [*arguments, "--http-listen", "127.0.0.1:0"]
        async with running(ProxyProcess(words, end_with_parent("KILL"))) as process:
            assert process._reports is not None
            for _ in range(2):
                reply = await process._reports.request()
                assert json.loads(reply) == {"state": "connecting", "commit_lsn": "0/0"}

    run()


def test_a_progress_that_cannot_be_reported_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    @on_the_loop
    async def run() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            reports = ProgressSocket(theirs, lambda: 1 // 0)
            ours.send(b"?")
            assert await asyncio.to_thread(ours.recv, 100) == b"started"
            assert await asyncio.to_thread(ours.recv, 100) == b"{}"
        await until(lambda: theirs.fileno() < 0)  # Its agent has ended.
        reports.close()

    run()
    (record,) = caplog.records
    assert record.getMessage().startswith("could not report the progress to the agent: unexpected ZeroDivisionError")


@pytest.mark.parametrize("number", ["x", "-1", "1000000", "99999999999999999999"])
def test_a_number_that_is_not_that_of_a_socket_is_refused(number: str) -> None:
    environment = {PROGRESS_SOCKET: number}
    with pytest.raises(ConfigurationError, match=f"{PROGRESS_SOCKET}={number} is not the number of an open socket"):
        inherited_socket(environment)
    assert inherited_socket(environment) is None
