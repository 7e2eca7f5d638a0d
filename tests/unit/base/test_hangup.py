"""SIGHUP while a daemon starts does not end it, and is not lost."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.safekeeper_process import SafekeeperProcess

DEADLINE_S = 30.0
# Sends itself SIGHUP as soon as the program has begun to import: earlier is nobody's but the interpreter's.
PROGRAM = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, for one, starts programs with the signal ignored.
from safekeeper.base import hangup
hold = hangup.hold_hangup
def hold_and_send(arguments):
    hold(arguments)
    os.kill(os.getpid(), signal.SIGHUP)
hangup.hold_hangup = hold_and_send
from {package}.__main__ import main
main()
"""


def test_a_sighup_during_the_start_of_a_safekeeper_is_taken_when_it_has_started(tmp_path: Path) -> None:
    with SafekeeperProcess(
        tmp_path / "sk", program=(sys.executable, "-c", PROGRAM.format(package="safekeeper"))
    ) as process:
        process.wait_for_line("reloaded the configuration")


def test_a_sighup_during_the_start_of_a_proxy_does_not_end_it(tmp_path: Path) -> None:
    options = ("run", "--primary", "host=127.0.0.1 port=1", "--safekeepers", "1=127.0.0.1:1", "--http", "127.0.0.1:0")
    command = (sys.executable, "-c", PROGRAM.format(package="walproxy"), *options)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stderr is not None
    try:
        lines = iter(process.stderr.readline, "")
        assert any("reloaded the configuration" in line for line in lines)
    finally:
        process.kill()
        process.wait(DEADLINE_S)
        process.stderr.close()


@pytest.mark.parametrize("package", ["safekeeper", "walproxy"])
def test_other_commands_end_with_their_terminal(package: str) -> None:
    command = (sys.executable, "-c", PROGRAM.format(package=package), "--help")
    done = subprocess.run(command, capture_output=True, timeout=DEADLINE_S, env=os.environ, check=False)
    assert done.returncode == -signal.SIGHUP
