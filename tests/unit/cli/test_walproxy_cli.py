"""`walproxy` as a process: bad input is one line and an exit code, signals and output are as they should be.

Nothing here needs a PostgreSQL: what is tested ends before, or waits for one. What ends before anything has begun is
tested in this process, for speed.
"""

import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from safekeeper.base.errors import EXIT_CONFIGURATION, EXIT_FINE, EXIT_UNEXPECTED, EXIT_USAGE
from tests.unit.proxy.statuses import listed_safekeeper, lost, status, times
from tests.waiting import wait_for
from walproxy.cli import main
from walproxy.lab.cluster.local_cluster import LocalProcess
from walproxy.postgres.local_server import free_port
from walproxy.proxy.status_fields import CommitLatencies

NOBODY = "host=127.0.0.1 port=1 user=walproxy"
MEMBERS = "1=127.0.0.1:1,2=127.0.0.1:2,3=127.0.0.1:3"
RUN = ("run", "--primary", NOBODY, "--safekeepers", MEMBERS, "--http", "127.0.0.1:0")
DEADLINE_S = 20.0

Result = subprocess.CompletedProcess[str]


def walproxy(*arguments: str) -> Result:
    """Run `walproxy` in a process of its own to its end."""
    command = [sys.executable, "-m", "walproxy", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)


class Here:
    """Runs `walproxy` in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Result:
        self._monkeypatch.setattr(sys, "argv", ["walproxy", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        output = self._capsys.readouterr()
        assert isinstance(end.value.code, int)
        return Result(list(arguments), end.value.code, output.out, output.err)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    return Here(monkeypatch, capsys)


def one_line(result: Result) -> str:
    """Return the only line on stderr."""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("walproxy: ") and "unexpected" not in lines[0], lines[0]
    return lines[0]


@contextmanager
def running(directory: Path, *options: str, program: tuple[str, ...] = ("-m", "walproxy")) -> Iterator[LocalProcess]:
    """A `walproxy run` that waits for whatever is not there."""
    port = free_port()
    arguments = [*program, *RUN[:-1], f"127.0.0.1:{port}", *options]
    process = LocalProcess("walproxy", arguments, port, directory / "walproxy.log").start()
    try:
        wait_for(lambda: process.pid is None or "starts as run" in process.log_path.read_text(), "it starts")
        yield process
    finally:
        process.kill9()


# What cannot work.


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("run", "--safekeepers", MEMBERS), "--primary is missing: give it, or set WALPROXY_PRIMARY"),
        (("run", "--primary", NOBODY), "--safekeepers is missing"),
        (("run", "--primary", NOBODY, "--safekeepers", "sk1:5454"), "is not ID=HOST:PORT"),
        ((*RUN, "-c", "window_size=64 pounds"), "window_size: '64 pounds' is not a size"),
        ((*RUN, "--takeover", "perhaps"), "not true or false"),
        ((*RUN, "-c", "slot=Bad Slot"), "slot: 'Bad Slot' cannot be a slot's name: use lower-case letters"),
        ((*RUN, "-c", f"slot={'s' * 64}"), "cannot be a slot's name"),
        ((*RUN, "-c", "application_name=größe"), "cannot be a name in synchronous_standby_names: use printable ASCII"),
        ((*RUN, "-c", 'application_name=a"b'), "cannot be a name in synchronous_standby_names"),
        ((*RUN, "-c", "application_name=*"), "cannot be a name in synchronous_standby_names"),
        ((*RUN[:4], "1=::1:5451"), "write an IPv6 address as [HOST]:PORT, for example [::1]:5454"),
        ((*RUN, "--config", "missing.toml"), "could not read missing.toml"),
        (("rebootstrap", "--primary", NOBODY), "no safekeepers: write [safekeepers] into the cluster's file"),
        (("rebootstrap", "--undo", "--replace-system-id", "7"), "--replace-system-id cannot be combined with --undo"),
        (("failover",), "no safekeepers: write [safekeepers]"),
        (("switchover", "--to", "db2", "--primary", NOBODY), "no safekeepers: write [safekeepers]"),
        (("status", "--url", "127.0.0.1:7667"), "is not a URL: write http://HOST:PORT"),
        (("status", "--url", "http://127.0.0.1:x"), "is not a URL"),
        (("status", "--url", "http://[::1"), "is not a URL"),
    ],
)
def test_what_cannot_work_is_one_line_and_exit_code_3(here: Here, arguments: tuple[str, ...], part: str) -> None:
    result = here(*arguments)
    assert result.returncode == EXIT_CONFIGURATION
    assert part in one_line(result)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("failover",), "--primary is missing"),
        (("failover", "--primary", "host=a,b port=1,2,3"), "the servers' connection string is wrong: 3 values of port"),
    ],
)
def test_the_servers_of_a_failover_are_checked(
    here: Here, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], part: str
) -> None:
    monkeypatch.setenv("WALPROXY_SAFEKEEPERS", MEMBERS)
    result = here(*arguments)
    assert result.returncode == EXIT_CONFIGURATION
    assert part in one_line(result)


AGENT = (
    *("agent", "--name", "pg1", "--pgdata", "data", "-c", "bin_dir=/", "-c", "conninfo=host=db1"),
    *("-c", "address=db1:5432", "--safekeepers", MEMBERS, "-c", "standby_conninfo=host=sk1"),
)
APPLY = ("pipeline", "apply", "--primary", "host=db1", "--slot", "s", "--publication", "p", "--to", "tables")


@pytest.mark.parametrize("program", [RUN, AGENT, APPLY], ids=["run", "agent", "apply"])
def test_https_without_a_certificate_is_never_http(here: Here, program: tuple[str, ...]) -> None:
    result = here(*program, "--http-listen", "127.0.0.1:0", "-c", "http_tls=true")
    assert result.returncode == EXIT_CONFIGURATION
    assert one_line(result) == "walproxy: http_tls has no effect without tls_cert and tls_key: give them, too"


@pytest.mark.parametrize("conninfo", ["host", "port=many", "postgres://[::1", "host=db1 colour=red", "sslmode=some"])
def test_a_wrong_connection_string_is_one_error_and_exit_code_3(conninfo: str) -> None:
    result = walproxy("run", "--primary", conninfo, *RUN[3:])
    assert result.returncode == EXIT_CONFIGURATION
    assert "Traceback" not in result.stderr
    lines = result.stderr.splitlines()
    # Some are found before anything starts, some by libpq when it connects.
    assert [line for line in lines if " ERROR " in line or line.startswith("walproxy: ")] == lines[-1:]


@pytest.mark.parametrize(
    "command",
    [
        ("members", "list"),
        ("members", "replace", "1"),
        ("cluster", "show"),
        ("cluster", "pause"),
        ("cluster", "reinit", "x", "--yes"),
        ("events",),
        ("failover", "--primary", "port=many"),
        ("failover", "--dry-run", "--primary", NOBODY),
        ("failover", "--cancel", "--primary", NOBODY),
        ("switchover", "--to", "db2", "--primary", NOBODY),
        ("ready-to-promote", "--conninfo", NOBODY),
    ],
)
def test_no_reply_of_any_safekeeper_is_exit_code_1_of_every_command(
    here: Here, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("WALPROXY_SAFEKEEPERS", MEMBERS)
    result = here(*command)
    assert result.returncode == EXIT_UNEXPECTED, result.stderr
    assert "safekeeper 1 at 127.0.0.1:1 cannot be reached" in one_line(result)


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--colour", "red"),
        ("dance",),
        ("status", "--interval", "0"),
        ("limbo", "--interval", "0"),
        ("switchover", "--primary", NOBODY),
        ("failover", "--cancel", "--to", "db2"),
        ("failover", "--cancel", "--dry-run"),
        ("failover", "--cancel", "--old-is-dead"),
        ("members", "list", "--safekeepers", MEMBERS),
        ("run", "--primary"),
        ("run", "extra"),
        ("bench", "levels", "members"),
        ("bench", "levels", "--arm", "local"),
        ("bench", "members", "--delay", "1ms"),
        ("bench", "legs"),
        ("bench", "--clients", "1,0"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_no_traceback(
    here: Here, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setenv("WALPROXY_SAFEKEEPERS", MEMBERS)
    result = here(*arguments)
    assert result.returncode == EXIT_USAGE
    assert "Traceback" not in result.stderr and "Error: " in result.stderr


def test_a_wrong_file_or_environment_is_refused_with_its_name(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "walproxy.toml"
    file.write_text('slots = "x"\n')
    result = here(*RUN, "--config", str(file))
    assert result.returncode == EXIT_CONFIGURATION
    assert f"{file}: the top has the unknown key slots; the keys are secret_file" in one_line(result)
    file.write_text("slot = \n")
    monkeypatch.setenv("WALPROXY_CONFIG", str(file))
    assert "is not TOML" in one_line(here(*RUN))
    monkeypatch.delenv("WALPROXY_CONFIG")
    monkeypatch.setenv("WALPROXY_LOG_LEVEL", "loud")
    result = here(*RUN)
    assert result.returncode == EXIT_CONFIGURATION
    assert "WALPROXY_LOG_LEVEL: 'loud' is not one of" in one_line(result)


def test_an_address_where_it_cannot_listen_is_refused_with_what_to_correct() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        in_use = f"127.0.0.1:{taken.getsockname()[1]}"
        for address, part in (
            (in_use, "in use"),
            ("203.0.113.1:1", "assign requested address"),
            ("no-such-host.invalid:1", "not known"),
        ):
            result = walproxy(*RUN[:-1], address)
            assert result.returncode == EXIT_CONFIGURATION
            line = one_line(result)
            assert f"could not serve HTTP at {address}" in line and part in line and "correct --http-listen" in line


def test_a_file_that_another_user_may_not_read_is_reported_and_the_rest_works_from_any_folder(tmp_path: Path) -> None:
    file = tmp_path / "walproxy.toml"
    file.write_text("")
    file.chmod(0o600)
    # All is imported before the user changes: the other one may not be able to see this folder.
    program = (
        "import encodings.idna, os, walproxy.cli.run, walproxy.cli.status\n"
        "if os.getuid() == 0: os.setgid(65534); os.setuid(65534)\n"
        "os.chdir('/')\n"
        "walproxy.cli.main()"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}

    def run(*arguments: str) -> Result:
        command = [sys.executable, "-c", program, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment)

    if os.getuid() == 0:
        result = run(*RUN, "--config", str(file))
        assert result.returncode == EXIT_CONFIGURATION
        assert f"could not read {file}: Permission denied" in one_line(result)
    result = run("status", "--url", "http://127.0.0.1:1")
    assert result.returncode == EXIT_UNEXPECTED
    assert "Connection refused; is walproxy running there" in one_line(result)


# The process.


def test_the_module_is_the_same_as_the_program() -> None:
    program = shutil.which("walproxy", path=str(Path(sys.executable).parent))
    assert program is not None
    answer = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=DEADLINE_S)
    assert answer.stdout == walproxy("--help").stdout
    assert "run" in answer.stdout and "rebootstrap" in answer.stdout


def test_a_signal_ends_a_proxy_that_waits_and_the_log_says_who_sent_it(tmp_path: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        directory = tmp_path / number.name
        directory.mkdir()
        with running(directory) as process:
            assert process.pid is not None
            os.kill(process.pid, number)
            assert process.wait() == EXIT_FINE
            lines = process.log_path.read_text().splitlines()
            assert f"INFO walproxy: {number.name}: shutting down" in " ".join(lines)
            assert lines[-1].endswith("INFO walproxy: stopped")


def test_an_even_number_of_safekeepers_is_warned_about_with_the_reason(tmp_path: Path) -> None:
    with running(tmp_path, "--safekeepers", "1=127.0.0.1:1,2=127.0.0.1:2") as process:
        wait_for(lambda: "WARNING" in process.log_path.read_text(), "it warns")
        text = process.log_path.read_text()
        line = "2 safekeepers tolerate the loss of 0, as 1 would, with quorums of a majority: an odd number is better"
        assert line in text


def test_sighup_reads_the_configuration_again(tmp_path: Path) -> None:
    file = tmp_path / "walproxy.toml"
    file.write_text("")
    with running(tmp_path, "--config", str(file)) as process:
        assert process.pid is not None

        def reload(content: str, expected: str) -> None:
            file.write_text(content)
            os.kill(process.pid or 0, signal.SIGHUP)
            wait_for(lambda: expected in process.log_path.read_text(), f"it logs {expected}")

        reload('log_level = "debug"\n[proxy]\nwindow_size = "1MiB"\n', "reloaded the configuration; changed: log_level")
        needs_restart = "a change of window_size requires a restart"
        wait_for(lambda: needs_restart in process.log_path.read_text(), "it names what it did not change")
        reload("nonsense = 1", "the unknown key nonsense")
        assert "nothing was changed" in process.log_path.read_text()
        assert process.stop() == EXIT_FINE


def test_a_bug_in_a_callback_ends_the_process_with_one_line_that_says_where(tmp_path: Path) -> None:
    broken = (
        "import safekeeper.net.safekeeper_connection\n"
        "def secured(self): raise KeyError(self._safekeeper_id)\n"
        "safekeeper.net.safekeeper_connection.SafekeeperConnection.secured = secured\n"
        "from walproxy.cli import main\n"
        "main()"
    )
    with socket.create_server(("127.0.0.1", 0)) as safekeeper:
        member = f"1=127.0.0.1:{safekeeper.getsockname()[1]}"
        with running(tmp_path, "--safekeepers", member, program=("-c", broken)) as process:
            assert process.wait() == EXIT_UNEXPECTED
            text = process.log_path.read_text()
            assert "ERROR walproxy: unexpected KeyError: 1 (" in text.splitlines()[-1]
            assert "Traceback" not in text


# walproxy status.


STATUS = status(
    state="waiting_for_quorum",
    safekeepers=[
        listed_safekeeper(1, "refused", "WAL [/0, 0/1) [bold]is not here", lag_bytes=None, last_response_s=None),
        listed_safekeeper(2, lag_bytes=5 << 20),
    ],
    members=None,
    gate=None,
)


@contextmanager
def answering(code: int, body: bytes) -> Iterator[str]:
    """An HTTP server that gives one answer to everything; the value is its URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_status_shows_what_peers_say_literally(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(200, msgspec.json.encode(STATUS)) as url:
        monkeypatch.setenv("COLUMNS", "200")
        result = here("status", "--url", url)
        assert result.returncode == EXIT_FINE, result.stderr
        assert "WAL [/0, 0/1) [bold]is not here" in result.stdout
        assert "5.0 MiB" in result.stdout and "waiting_for_quorum" in result.stdout
        assert json.loads(here("status", "--json", "--url", url).stdout) == msgspec.to_builtins(STATUS)
        monkeypatch.setenv("WALPROXY_URL", url)
        assert json.loads(here("status", "--json").stdout) == msgspec.to_builtins(STATUS)


LIMBO: dict[str, Any] = {
    "owner": None,
    "state": "electing",
    "quorum": 2,
    "received_lsn": "0/0",
    "commit_lsn": "0/0",
    "entries": 1,
    "bytes": 0,
    "oldest_s": 1.5,
    "confirms_per_s": None,
    "problem": "no primary is connected",
    "listed": 1,
    "transactions": [
        {
            "xid": 771,
            "kind": "commit",
            "gid": "",
            "start_lsn": None,
            "end_lsn": None,
            "committed_at": None,
            "waits_s": 1.5,
            "level": None,
            "state": "waiting",
            "missing": [],
            "session": None,
        }
    ],
}


def test_limbo_shows_the_transactions_and_the_problem(here: Here) -> None:
    with answering(200, json.dumps(LIMBO).encode()) as url:
        result = here("limbo", "--url", url)
        assert result.returncode == EXIT_FINE, result.stderr
        assert "1 transactions, 0 bytes, oldest 1.5 s, electing, no term" in result.stdout
        assert "771" in result.stdout and "no primary is connected" in result.stdout
        assert json.loads(here("limbo", "--json", "--url", url).stdout) == LIMBO


def a_long_limbo() -> tuple[dict[str, Any], str]:
    """Return a limbo whose only transaction is wider than most terminals, and its query."""
    query = "INSERT INTO orders SELECT * FROM carts WHERE " + " AND ".join(f"column_{n} = {n}" for n in range(20))
    session = {"pid": 1234567, "user": "ann", "application": "shop", "client": "10.0.0.1", "query": query}
    transaction = LIMBO["transactions"][0] | {"xid": 4123456789, "end_lsn": "1A/FF000028", "session": session}
    return LIMBO | {"transactions": [transaction]}, query


def test_limbo_in_a_pipe_has_every_value_in_one_line_per_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    limbo, query = a_long_limbo()
    monkeypatch.setenv("COLUMNS", "80")
    with answering(200, json.dumps(limbo).encode()) as url:
        shown = walproxy("limbo", "--url", url).stdout
    (row,) = (line for line in shown.splitlines() if "4123456789" in line)
    for value in ("1234567", "1.5 s", "1A/FF000028", "waiting", "commit", "ann shop 10.0.0.1", query):
        assert value in row, (value, row)


def test_limbo_in_a_terminal_of_80_columns_has_the_ids_and_the_begin_of_the_query() -> None:
    limbo, query = a_long_limbo()
    with answering(200, json.dumps(limbo).encode()) as url:
        command = f"stty cols 80; {sys.executable} -m walproxy limbo --url {url}"
        shown = subprocess.run(
            ["script", "-qec", command, "/dev/null"], capture_output=True, text=True, timeout=DEADLINE_S
        ).stdout
    (row,) = (line for line in shown.splitlines() if "4123456789" in line)
    assert "1234567" in row and "1A/FF000028" in row and query[:15] in row and "…" in row


@pytest.mark.parametrize(
    ("command", "code", "body", "part"),
    [
        ("status", 200, b'{"id": 1, "state": "following"}', "it may be a safekeeper's"),
        ("limbo", 200, b'{"id": 1, "state": "following"}', "is not the limbo of a walproxy"),
        ("status", 200, b"[]", "is not the status of a walproxy"),
        ("limbo", 200, b"[]", "is not the limbo of a walproxy"),
        ("status", 200, b'{"safekeepers": 3}', "is not the status of a walproxy"),
        ("status", 200, b"<html>", "did not return JSON"),
        ("status", 200, b"\xff\xfe", "did not return JSON"),
        ("status", 404, b"", "returned 404"),
        ("limbo", 421, b"", "or set http_hosts of the proxy"),
    ],
)
def test_an_answer_of_another_program_is_one_line(here: Here, command: str, code: int, body: bytes, part: str) -> None:
    with answering(code, body) as url:
        result = here(command, "--url", url)
    assert result.returncode == EXIT_UNEXPECTED
    assert part in one_line(result)


@pytest.mark.parametrize(
    ("command", "content", "line"),
    [
        ("status", STATUS, "waiting_for_quorum term=5 commit=0/5A3C9F8 p50=- p99=- 1:refused:- 2:streaming:5.0MiB"),
        ("limbo", LIMBO, "- commits/s problem: no primary is connected"),
    ],
)
def test_watched_without_a_terminal_is_a_line_each_time_and_survives_a_proxy_that_is_gone(
    tmp_path: Path, command: str, content: object, line: str
) -> None:
    output = tmp_path / "output"
    with answering(200, msgspec.json.encode(content)) as url, output.open("wb") as stdout:
        watch = [sys.executable, "-m", "walproxy", command, "--watch", "--interval", "0.1", "--url", url]
        process = subprocess.Popen(watch, stdout=stdout, stderr=subprocess.STDOUT)
        try:
            wait_for(lambda: output.read_text().count("\n") >= 2, "two lines are written")
            assert output.read_text().splitlines()[0].endswith(line)
        except BaseException:
            process.kill()
            raise
    try:
        wait_for(lambda: "no reply from" in output.read_text(), "the proxy is gone")
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == EXIT_FINE
        assert "Traceback" not in output.read_text()
    finally:
        process.kill()
        process.wait()


def test_status_of_what_does_not_use_http_is_one_line(here: Here) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            connection.recv(1000)
            connection.sendall(b"WPX1 garbage\r\n\r\n")
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        result = here("status", "--url", f"http://127.0.0.1:{server.getsockname()[1]}")
    assert result.returncode == EXIT_UNEXPECTED
    assert "does not use HTTP" in one_line(result)


@pytest.mark.parametrize(("arguments", "code"), [("--version", 0), ("nonsense", 2)])
def test_a_closed_standard_error_changes_no_exit_code(arguments: str, code: int) -> None:
    command = f"{sys.executable} -m walproxy {arguments} 2>&-"
    answer = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=DEADLINE_S)
    assert answer.returncode == code


@pytest.mark.parametrize(
    ("arguments", "code"),
    [("status", 1), ("status --json", 1), ("limbo", 1), ("check", 3), ("check --json", 3), ("--help", 1)],
)
def test_a_full_standard_output_is_one_line_and_a_failure(arguments: str, code: int) -> None:
    content = LIMBO if arguments == "limbo" else STATUS
    with answering(200, msgspec.json.encode(content)) as url:
        command = f"{sys.executable} -m walproxy {arguments} >/dev/full"
        environment = {**os.environ, "WALPROXY_URL": url}
        done = subprocess.run(
            ["sh", "-c", command], capture_output=True, text=True, timeout=DEADLINE_S, env=environment
        )
    assert one_line(done) == "walproxy: could not write to standard output: No space left on device"
    assert done.returncode == code


@pytest.mark.parametrize("option", [("--config", ""), ("--secret-file", ""), ("-c", "tls_ca="), ("-c", "tls_key=")])
def test_a_fifo_in_place_of_a_file_is_refused_and_not_waited_for(option: tuple[str, str], tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    done = walproxy(*RUN, option[0], f"{option[1]}{fifo}")
    assert done.returncode == EXIT_CONFIGURATION
    assert str(fifo) in one_line(done) and (
        "a FIFO, not a regular file" in done.stderr or "is not a file" in done.stderr
    )


def test_a_fifo_in_place_of_the_ca_of_a_status_is_refused_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    monkeypatch.setenv("WALPROXY_TLS_CA", str(fifo))
    done = walproxy("status", "--url", "https://127.0.0.1:1")
    assert done.returncode == EXIT_CONFIGURATION
    assert f"could not read the certificates of CAs in {fifo}: it is a FIFO, not a regular file" in one_line(done)


def test_a_reader_that_has_enough_ends_a_watched_status_quietly() -> None:
    with answering(200, msgspec.json.encode(STATUS)) as url:
        command = f"{sys.executable} -m walproxy status --watch --interval 0.1 --url {url} | head -1"
        answer = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=DEADLINE_S)
    assert answer.stdout.startswith("waiting_for_quorum")
    assert answer.stderr == ""


# walproxy levels.


def test_levels_are_lines_or_json(here: Here) -> None:
    latencies = CommitLatencies(
        quorum=times(0.002, 0.004), write=times(), apply=times(), members={"2": times(0.002, 0.004)}, oldest_s=None
    )
    with answering(200, msgspec.json.encode(msgspec.structs.replace(STATUS, times=latencies))) as url:
        lines = here("levels", "--url", url).stdout.splitlines()
        rows = json.loads(here("levels", "--json", "--url", url).stdout)["levels"]
    assert [line.split()[0] for line in lines] == ["off", "local", "remote_write", "on", "remote_apply"]
    assert lines[3].startswith("on blocked (the proxy is waiting_for_quorum): p50 2.0 ms, p99 4.0 ms")
    assert [(row["level"], row["state"], row["p50_s"]) for row in rows[2:4]] == [
        ("remote_write", "blocked", None),
        ("on", "blocked", 0.002),
    ]
    assert set(rows[3]) == {"level", "state", "waits_for", "problem", "slowest", "p50_s", "p99_s", "losses"}
    assert set(rows[3]["losses"]) == {"primary", "primary_and_minority", "quorum_disks"}
    assert (rows[3]["slowest"]["name"], rows[3]["slowest"]["is_needed"]) == ("safekeeper 1", True)


# walproxy check.


@pytest.mark.parametrize("cluster_id", ["53685a87", "ID", "5e1f0c3a9b7d24861c8a4f02e6b93d7\n"])
def test_a_cluster_id_that_is_not_whole_is_not_written_into_an_archive(
    here: Here, tmp_path: Path, cluster_id: str
) -> None:
    """The log shows the first digits of an id, and they look like one."""
    words = ("--archive", str(tmp_path / "archive"), "--cluster-id", cluster_id)
    for command in (("create", "--system-id", "1"), ("adopt",)):
        result = here("archive", *command, *words)
        assert result.returncode == EXIT_USAGE
        assert "32 hexadecimal digits" in " ".join(result.stderr.split())
    assert not (tmp_path / "archive").exists()


def test_check_answers_as_monitoring_plugins_do(here: Here) -> None:
    well = {"members": [1], "members_streaming": 1, "safekeepers": [listed_safekeeper(1)], "gate": None}
    with answering(200, msgspec.json.encode(status(**well))) as url:
        result = here("check", "--url", url)
        assert (result.returncode, result.stdout.count("\n"), result.stderr) == (0, 1, "")
        assert result.stdout.startswith("WALPROXY OK - streaming, 1 of 1 members streaming | ")
        assert json.loads(here("check", "--json", "--url", url).stdout)["exit_code"] == 0
    ill = {
        "state": "waiting_for_quorum",
        "safekeepers": [listed_safekeeper(1, "storage_full", "no room")],
        "members_streaming": 0,
        "quorum_lost": lost(present=0, needed=1),
    }
    with answering(200, msgspec.json.encode(status(**well | ill))) as url:
        result = here("check", "--url", url)
        assert (result.returncode, result.stdout[:20]) == (2, "WALPROXY CRITICAL - ")
        assert here("check", "--url", url, "-c", "wait_critical=3600").returncode == 1
        assert here("status", "--url", url).stdout.startswith("NO QUORUM for 63 s: commits wait; waiting sessions: 5;")


def test_check_is_critical_without_an_answer_and_unknown_if_it_does_not_show(here: Here) -> None:
    result = here("check", "--url", "http://127.0.0.1:1")
    assert result.returncode == 2 and result.stdout.startswith("WALPROXY CRITICAL - no reply from ")
    result = here("check", "--url", "127.0.0.1")
    assert result.returncode == 3 and result.stdout.startswith("WALPROXY UNKNOWN - ")
    with answering(200, b'{"safekeepers": []}') as url:
        result = here("check", "--url", url)
        line = "the proxy is a walproxy of another version: its /status lacks 'state'"
        assert (result.returncode, result.stdout) == (3, f"WALPROXY UNKNOWN - {line}\n")
        assert one_line(here("status", "--url", url)) == f"walproxy: {line}"
    for wrong in (("-c", "wait_critical=soon"), ("-c", "lag_warning=0"), ("-c", "colour=red"), ("--colour", "red")):
        assert here("check", *wrong).returncode == 3
