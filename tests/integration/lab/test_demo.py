"""The quick demo as its user runs it, and its audit of the bank. The whole demo: tests/torture/test_demo.py."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.integration.conftest import NEWEST, SERVERS, NewCluster
from tests.waiting import wait_for
from walproxy.lab.demo.bank import ACCOUNTS, CREATE, OPENING_BALANCE, Audit, Transfer, audit
from walproxy.postgres.local_server import LocalPostgres

pytestmark = pytest.mark.on_disk
DEMO = [sys.executable, "-m", "walproxy", "demo"]
TOTAL_BALANCE = ACCOUNTS * OPENING_BALANCE
TRANSFERS = [Transfer(1, 1, 2, 50), Transfer(2, 2, 3, 7), Transfer(3, 3, 1, 1)]


def processes_with(word: str) -> list[str]:
    """Return the command lines of all processes that contain `word`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        if word in line:
            found.append(line)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)], ids=["ctrl_c", "sigterm"]
)
def test_an_interrupted_demo_leaves_nothing_behind(folder: Path, number: signal.Signals) -> None:
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        DEMO, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.startswith(" 2."):
                break
        assert processes_with(f"{folder}/walproxy-demo")
        demo.send_signal(number)
        _, errors = demo.communicate(timeout=30)
    assert demo.returncode == 1
    assert errors.strip() == "walproxy: interrupted"
    assert list(folder.iterdir()) == []
    assert processes_with(str(folder)) == []


@pytest.mark.nightly
@pytest.mark.slow
def test_a_kept_demo_leaves_everything_running_and_prints_how_to_end_it(folder: Path) -> None:
    kept = folder / "kept"
    answer = subprocess.run(
        [*DEMO, "--keep", str(kept), "--postgres", str(min(SERVERS)), "--quick"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )
    pids = [int(pid) for pid in re.findall(r"^kill -9 (\d+)$", answer.stdout, re.MULTILINE)]
    postgres = re.findall(r"^kill -INT (\d+)$", answer.stdout, re.MULTILINE)
    try:
        assert answer.returncode == 0, answer.stdout + answer.stderr
        assert len(pids) == 5
        [psql] = re.findall(r"^# look at the bank\n(.*)$", answer.stdout, re.MULTILINE)
        with psycopg.connect(shlex.split(psql)[-1], autocommit=True) as connection:
            connection.execute("INSERT INTO transfer VALUES (-1, 1, 2, 0)")  # through the quorum
        [url] = re.findall(r"^# watch walproxy-spare\n.* --url (\S+)$", answer.stdout, re.MULTILINE)
        command = [sys.executable, "-m", "walproxy", "status", "--url", url]
        status = subprocess.run(command, capture_output=True, text=True, check=False)
        assert status.returncode == 0, status.stderr
        [look] = re.findall(r"^# see what can be restored.*\n(.*)$", answer.stdout, re.MULTILINE)

        def lists_the_promoted_timeline() -> bool:
            listed = subprocess.run(look, shell=True, capture_output=True, text=True, check=False)
            assert listed.returncode == 0, listed.stderr
            return "\ntimeline 2: " in listed.stdout

        # The archive may be behind on a busy machine: the demo ends without waiting for it.
        wait_for(lists_the_promoted_timeline, "the archive has WAL of the promoted server")
    finally:
        for pid in [*map(int, postgres), *pids]:
            os.kill(pid, signal.SIGINT if str(pid) in postgres else signal.SIGTERM)
        deadline = time.monotonic() + 20
        while processes_with(str(kept)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert processes_with(str(kept)) == []


def test_a_folder_that_is_not_empty_is_refused(folder: Path) -> None:
    (folder / "precious").touch()
    answer = subprocess.run([*DEMO, "--keep", str(folder)], capture_output=True, text=True, check=False, timeout=30)
    assert answer.returncode == 3
    assert answer.stderr.strip() == (f"walproxy: {folder} is not empty: name another folder with --keep, or remove it")
    assert [path.name for path in folder.iterdir()] == ["precious"]


@pytest.fixture
def bank(new_cluster: NewCluster) -> Iterator[LocalPostgres]:
    """A bank with TRANSFERS in its books."""
    server = new_cluster(fsync="off")
    server.execute(CREATE)
    for transfer in TRANSFERS:
        server.execute(f"{transfer.statements()}; COMMIT")
    yield server


@NEWEST
def test_the_audit_finds_nothing_where_nothing_is_wrong(bank: LocalPostgres) -> None:
    found = audit(bank, set(TRANSFERS[:2]), {TRANSFERS[2], Transfer(9, 1, 2, 3)})
    assert found == Audit(3, [], [], 1, 0, TOTAL_BALANCE)


@NEWEST
def test_the_audit_finds_what_was_lost_changed_and_made_up(bank: LocalPostgres) -> None:
    bank.execute("DELETE FROM transfer WHERE id = 1")
    bank.execute("UPDATE account SET balance = balance + 5 WHERE id = 77")
    found = audit(bank, {TRANSFERS[0], Transfer(2, 2, 3, 8)}, set())
    assert found.missing == [1, 2]
    assert found.strangers == [2, 3]
    assert found.wrong_accounts == 3
    assert found.total_balance == TOTAL_BALANCE + 5
