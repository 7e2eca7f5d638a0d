"""A daemon that a test forks is what a start of the program would be (tests/forking)."""

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.forking import daemons
from tests.forking.daemons import ForkedProcess
from tests.unit.scripted_proposer import DEADLINE_S
from tests.waiting import wait_for
from walproxy.postgres.process_table import is_alive

PROBE = ["-m", "tests.forking.probe", "run"]

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.environ.get("WALPROXY_TESTS_FORK") == "0", reason="no daemon is forked here"
)


def fork(log: Path, *words: str, **further: Any) -> ForkedProcess:
    with log.open("wb") as output:
        process = daemons.start([*PROBE, *words], output=output.fileno(), **further)
    assert process is not None
    return process


@contextlib.contextmanager
def waiting(log: Path) -> Iterator[ForkedProcess]:
    process = fork(log, "wait")
    try:
        wait_for(lambda: "waits" in log.read_text(), "the program waits")
        yield process
    finally:
        process.kill()
        process.wait(DEADLINE_S)


def facts(log: Path, start: Callable[[], Any]) -> dict[str, Any]:
    assert start().wait(DEADLINE_S) == 0, log.read_text()
    found: dict[str, Any] = json.loads(log.read_text())
    return found


def test_a_fork_finds_itself_in_what_a_start_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = fork(tmp_path / "first", "facts")  # The server is made before all this changes.
    before.wait(DEADLINE_S)
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    monkeypatch.setenv("WALPROXY_TESTS_PROBE", "a value")
    old_umask = os.umask(0o027)
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 7, hard))
    try:
        with log.open("wb") as output:
            started = facts(
                log,
                lambda: subprocess.Popen(
                    [sys.executable, *PROBE, "facts"],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=dict(os.environ),
                    start_new_session=True,
                ),
            )
        forked = facts(log, lambda: fork(log, "facts"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        os.umask(old_umask)
    assert forked["facts"] == started["facts"]


def test_no_two_forks_draw_the_same_random_numbers(tmp_path: Path) -> None:
    found = [facts(tmp_path / "log", lambda: fork(tmp_path / "log", "facts")) for _ in range(3)]
    assert len({each["chance"] for each in found}) == 3
    assert len({each["pid"] for each in found} | {os.getpid()}) == 4


def test_a_fork_ends_as_a_start_does(tmp_path: Path) -> None:
    for words in (["exit", "0"], ["exit", "3"], ["exit", "a reason"], ["fail"]):
        log = tmp_path / words[-1]
        code = fork(log, *words).wait(DEADLINE_S)
        answer = subprocess.run([sys.executable, *PROBE, *words], capture_output=True, text=True, cwd=Path.cwd())
        assert code == answer.returncode
        said = log.read_text().splitlines()
        assert said[-1:] == answer.stderr.splitlines()[-1:]
        assert ("Traceback" in log.read_text()) == ("Traceback" in answer.stderr)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_ends_a_fork_as_it_ends_a_start(tmp_path: Path, number: signal.Signals) -> None:
    with waiting(tmp_path / "log") as process:
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(DEADLINE_S) == -number
        assert process.poll() == process.returncode == -number
        process.kill()  # Harmless now, as it may be another's pid.
        assert not is_alive(process.pid)


def test_a_fork_stops_and_goes_on(tmp_path: Path) -> None:
    with waiting(tmp_path / "log") as process:
        process.send_signal(signal.SIGSTOP)
        state = Path(f"/proc/{process.pid}/stat")
        wait_for(lambda: state.read_text().rpartition(")")[2].split()[0] == "T", "it is stopped")
        process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
        process.send_signal(signal.SIGCONT)
        assert process.wait(DEADLINE_S) == -signal.SIGTERM


def test_an_ended_fork_keeps_its_pid_until_it_is_asked_for_its_end(tmp_path: Path) -> None:
    process = fork(tmp_path / "log", "exit", "5")
    wait_for(lambda: not is_alive(process.pid), "it has ended")
    assert Path(f"/proc/{process.pid}").exists()
    assert process.wait(DEADLINE_S) == 5
    assert not Path(f"/proc/{process.pid}").exists()


def test_forks_end_with_their_server(tmp_path: Path) -> None:
    with waiting(tmp_path / "log") as process:
        server = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert server != os.getpid()
        daemons.stop_servers(PROBE[1])  # Others may have forked the cluster of a session.
        wait_for(lambda: not is_alive(process.pid), "it has ended")
        with pytest.raises(OSError):
            process.poll()
        process.returncode = -signal.SIGKILL
    began_at = time.monotonic()
    assert fork(tmp_path / "log", "exit", "0").wait(DEADLINE_S) == 0  # Another server is there.
    assert time.monotonic() - began_at < DEADLINE_S


@pytest.mark.parametrize("words", [("members", "list"), ("restore", "--help"), ("archive", "list", "--colour")])
def test_a_command_that_is_forked_prints_and_returns_what_a_start_does(words: tuple[str, ...]) -> None:
    started = subprocess.run([sys.executable, "-m", "walproxy", *words], capture_output=True, text=True)
    with Path(os.devnull).open("wb") as nothing:
        assert daemons.start(["-m", "walproxy", *words], output=nothing.fileno()) is not None
    forked = daemons.run_walproxy(*words)
    assert (forked.returncode, forked.stdout, forked.stderr) == (started.returncode, started.stdout, started.stderr)
    assert forked.stdout or forked.stderr


def test_a_command_that_does_not_end_is_killed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(subprocess.TimeoutExpired):
        daemons.run_walproxy("limbo", "--url", f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.1)


def test_a_server_that_is_made_in_a_changed_environment_suits_others(monkeypatch: pytest.MonkeyPatch) -> None:
    daemons.stop_servers(PROBE[1])
    with Path(os.devnull).open("wb") as nothing:
        with monkeypatch.context() as patched:
            patched.setenv("TZ", "C")
            assert daemons.start([*PROBE, "exit", "0"], output=nothing.fileno()) is None
        process = daemons.start([*PROBE, "exit", "0"], output=nothing.fileno())
        assert process is not None and process.wait(DEADLINE_S) == 0


def test_what_a_fork_would_not_have_read_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path(os.devnull).open("wb") as nothing:

        def forks(*words: str, **variables: str) -> bool:
            environment = {**os.environ, **variables}
            process = daemons.start(words, output=nothing.fileno(), environment=environment)
            return process is not None and process.wait(DEADLINE_S) == 0

        assert forks(*PROBE, "exit", "0", WALPROXY_TESTS_PROBE="1", PGUSER="one")
        assert forks(*PROBE, "exit", "0", SPARK_HOME="C", PYSPARK_PYTHON="C", _RJEM_MALLOC_CONF="C")
        for name in ("PYTHONPATH", "PYTHONHASHSEED", "LC_ALL", "LANG", "LD_PRELOAD", "TZ", "PSYCOPG_IMPL"):
            assert not forks(*PROBE, "exit", "0", **{name: "C"})
        assert not forks("-c", "pass")
        assert not forks("-m", "walproxy", "status")
        assert not forks("-m", "tests.simulation", "run")
