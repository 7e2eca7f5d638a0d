"""SIGHUP while a daemon starts does not end it, and is not lost; a job is never ended by it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from safekeeper.base.errors import EXIT_CONFIGURATION
from safekeeper.base.hangup import takes_hangup
from tests.unit.safekeeper_process import SafekeeperProcess

DEADLINE_S = 60.0
# Sends itself SIGHUP as soon as the program has begun to import, and again and again: what is earlier is of the
# interpreter.
PROGRAM = """
import os, signal, sys, threading, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, for one, starts programs with the signal ignored.
from safekeeper.base import hangup
hold = hangup.hold_hangup
def send():
    while True:
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(0.01)
def hold_and_send(arguments):
    hold(arguments)
    os.kill(os.getpid(), signal.SIGHUP)
    threading.Thread(target=send, daemon=True).start()
hangup.hold_hangup = hold_and_send
from {package}.__main__ import main
main()
"""


@contextlib.contextmanager
def started(folder: Path, *options: str, **environment: str) -> Iterator["subprocess.Popen[str]"]:
    """Start a command of walproxy that sends itself SIGHUP; it is killed at the end."""
    process = subprocess.Popen(
        (sys.executable, "-c", PROGRAM.format(package="walproxy"), *options),
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=os.environ | environment,
    )
    assert process.stderr is not None
    with process.stderr:
        try:
            yield process
        finally:
            process.kill()
            process.wait(DEADLINE_S)


def test_a_sighup_during_the_start_of_a_safekeeper_is_taken_when_it_has_started(tmp_path: Path) -> None:
    with SafekeeperProcess(
        tmp_path / "sk", program=(sys.executable, "-c", PROGRAM.format(package="safekeeper"))
    ) as process:
        process.wait_for_line("reloaded the configuration")


PROXY = ("run", "--primary", "host=127.0.0.1 port=1", "--safekeepers", "1=127.0.0.1:1", "--http", "127.0.0.1:0")
AGENT = (
    *("agent", "--name", "pg1", "--pgdata", "data", "-c", "bin_dir=/", "-c", "conninfo=host=127.0.0.1 port=1"),
    *("-c", "address=127.0.0.1:1", "--safekeepers", "1=127.0.0.1:1", "-c", "standby_conninfo=host=127.0.0.1 port=1"),
    *("--http-listen", "127.0.0.1:0"),
)


@pytest.mark.parametrize("options", [PROXY, AGENT], ids=lambda words: words[0])
def test_a_sighup_during_the_start_of_a_daemon_does_not_end_it(tmp_path: Path, options: tuple[str, ...]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "socket"))
        manager.settimeout(DEADLINE_S)
        with started(tmp_path, *options, NOTIFY_SOCKET=str(tmp_path / "socket")) as process:
            assert process.stderr is not None
            lines = list[str]()
            while not (lines and "reloaded the configuration" in lines[-1]):
                lines.append(process.stderr.readline())
                assert lines[-1], lines
            # The agent ends by itself soon: it has no data folder.
            assert takes_hangup(process.pid) or process.wait(DEADLINE_S) == EXIT_CONFIGURATION
            assert manager.recv(100) == b"READY=1"


APPLY = ("apply", "--primary", "{conninfo}", "--slot", "s", "--publication", "p", "--to", "tables")
RUN = ("run", "safekeeper://{address}", "--to", "tables")


@pytest.mark.parametrize("options", [APPLY, RUN], ids=lambda words: words[0])
def test_a_sighup_does_not_end_a_job(tmp_path: Path, options: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as source:
        source.settimeout(DEADLINE_S)
        host, port = source.getsockname()
        names = {"conninfo": f"host={host} port={port} user=u dbname=d", "address": f"{host}:{port}"}
        words = [word.format(**names) for word in options]
        with started(tmp_path, "pipeline", *words) as process, source.accept()[0]:
            # It has started, and waits for a reply.
            assert takes_hangup(process.pid)
            assert process.poll() is None


@pytest.mark.parametrize(
    "words",
    [("safekeeper", "--help"), ("walproxy", "--help"), ("walproxy", "pipeline", "apply", "--once")],
    ids=" ".join,
)
def test_other_commands_end_with_their_terminal(words: tuple[str, ...]) -> None:
    command = (sys.executable, "-c", PROGRAM.format(package=words[0]), *words[1:])
    done = subprocess.run(command, capture_output=True, timeout=DEADLINE_S, env=os.environ, check=False)
    assert done.returncode == -signal.SIGHUP


def test_a_process_that_the_signal_would_end_does_not_take_it() -> None:
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        process = subprocess.Popen(["sleep", "60"])
    finally:
        signal.signal(signal.SIGHUP, inherited)
    try:
        assert not takes_hangup(process.pid)
    finally:
        process.kill()
        process.wait(DEADLINE_S)
    assert not takes_hangup(process.pid)
