"""SIGTERM, SIGINT and SIGHUP of the pipeline's commands."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from safekeeper.process.credential_files import http_access
from walproxy.cli.pipeline_work import apply
from walproxy.cli.pipeline_work.apply import ApplyOptions

DEADLINE_S = 30.0
IN_WAIT = """
import os, signal
from walproxy.cli.pipeline_work.stop_signals import stopped_by_signals

with stopped_by_signals() as stop:
    with stop._cond:  # As at the beginning and at the end of stop.wait().
        os.kill(os.getpid(), signal.{name})
        print("the handler has returned", flush=True)
    print(stop.wait(30), flush=True)
"""
IN_LIBRARY = """
import sqlite3, threading
from walproxy.cli.pipeline_work.stop_signals import stopped_by_signals

with stopped_by_signals() as stop:
    threading.Thread(target=lambda: print(stop.wait(60), flush=True), daemon=True).start()
    print("begins", flush=True)
    endless = "WITH RECURSIVE n AS (SELECT 1 UNION ALL SELECT 1 FROM n) SELECT count(*) FROM n"
    sqlite3.connect(":memory:").execute(endless)
"""
RESTORED = """
import os, signal
from walproxy.cli.pipeline_work.stop_signals import stopped_by_signals

with stopped_by_signals():
    pass
os.kill(os.getpid(), signal.SIGTERM)
"""


@contextlib.contextmanager
def program(text: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_in_the_middle_of_a_wait_for_it_sets_the_event(name: str) -> None:
    with program(IN_WAIT.format(name=name)) as process:
        output, errors = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, output, errors) == (0, "the handler has returned\nTrue\n", "")


def test_a_second_signal_ends_a_process_whose_main_thread_is_in_a_library() -> None:
    with program(IN_LIBRARY) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begins\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "True\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 128 + signal.SIGTERM


def test_afterwards_a_signal_does_what_it_did_before() -> None:
    with program(RESTORED) as process:
        assert process.wait(DEADLINE_S) == -signal.SIGTERM


def test_hangup_of_a_job_reads_the_password_of_http_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "http.password"
    file.write_text("the first password")
    file.chmod(0o600)
    access = http_access(frozenset(), file)
    assert access.password is not None and access.password.value == b"the first password"

    def run(options: ApplyOptions, **_: object) -> None:
        file.write_text("the second password")
        os.kill(os.getpid(), signal.SIGHUP)
        deadline = time.monotonic() + DEADLINE_S
        while options.http_access.password.value != b"the second password":
            assert time.monotonic() < deadline, "the password is still the first one"
            time.sleep(0.01)

    # A job ignores the signal from its start on.
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        monkeypatch.setattr(apply, "run_apply", run)
        apply.apply_until_signal(cast(ApplyOptions, SimpleNamespace(http_access=access, http_tls=None)), once=False)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
