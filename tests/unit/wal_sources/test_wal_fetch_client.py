"""The client of a replication server: which of its answers mean that it does not have the WAL."""

import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pytest
from psycopg import pq

from safekeeper.base.lsn import Lsn
from safekeeper.pgwire.backend import (
    authentication_ok,
    command_complete,
    copy_both_response,
    copy_done,
    data_row,
    error_response,
    ready_for_query,
    row_description,
)
from tests.unit.pgwire_client import TEXT_COLUMN
from walproxy.wal_sources.source import SourceUnavailable, WalMissing
from walproxy.wal_sources.wal_fetch_client import WalFetchClient

BEGIN_LSN: Lsn = 0x3000000


# In a process of its own: libpq connects without letting other threads of this one run.
SERVER = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
client, _ = listener.accept()
for answer in map(bytes.fromhex, sys.argv[1:]):
    if not answer:
        sys.exit()
    client.recv(1 << 16)
    client.sendall(answer)
client.recv(1)  # until it has gone
"""


@contextmanager
def answering(*commands: bytes, refused: bytes = b"", timeout_s: float = 30) -> Iterator[WalFetchClient]:
    """A server that lets one client in, and gives these answers to what it sends; it hangs up behind an empty one.

    `refused`: its answer to the login instead.
    """
    answers = [refused or authentication_ok() + ready_for_query(), *commands]
    command = [sys.executable, "-c", SERVER, *(each.hex() for each in answers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        conninfo = f"host=127.0.0.1 port={int(process.stdout.readline())} user=x sslmode=disable gssencmode=disable"
        try:
            yield WalFetchClient("it", conninfo, whose="its", application_name="test", timeout_s=timeout_s)
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("severity", "code", "meaning"),
    [
        ("ERROR", "58P01", WalMissing),
        ("ERROR", "XX000", WalMissing),
        ("FATAL", "XX000", SourceUnavailable),
        ("FATAL", "58030", SourceUnavailable),
    ],
    ids=["removed", "not there yet", "a bug", "a disk"],
)
def test_only_what_is_said_of_the_position_means_that_the_wal_is_not_there(
    severity: str, code: str, meaning: type[Exception]
) -> None:
    error = error_response(severity, code, "it is so") + (ready_for_query() if severity == "ERROR" else b"")
    with (
        answering(error) as server,
        pytest.raises(meaning, match="it is so"),
        server.connected() as connection,
    ):
        list(server.stream(connection, 1, BEGIN_LSN, BEGIN_LSN + 1))


@pytest.mark.parametrize(
    ("code", "text", "advice"),
    [
        ("28P01", "Passwort-Authentifizierung fehlgeschlagen", "check user and password (.pgpass, PGPASSWORD)"),
        ("53300", "tut mir leid, schon zu viele Clients", "raise max_connections"),
    ],
)
def test_a_refused_login_has_its_advice_in_any_language(code: str, text: str, advice: str) -> None:
    refusal = error_response("FATAL", code, text)
    with answering(refused=refusal) as server, pytest.raises(SourceUnavailable) as refused:
        server.connect()
    assert f"{text}; {advice}" in str(refused.value)


def test_a_server_that_never_completes_the_login_is_left_in_time() -> None:
    # The end of the test shows that the client has left: the server waits for that.
    with (
        answering(refused=authentication_ok(), timeout_s=2) as server,
        pytest.raises(SourceUnavailable, match=r"it: cannot connect to PostgreSQL: .*time"),
    ):
        server.connect()


NEXT_TIMELINE = (
    row_description([TEXT_COLUMN] * 2)
    + data_row(["2", "0/3000000"])
    + command_complete("START_STREAMING")
    + command_complete("START_REPLICATION")
    + ready_for_query()
)


def test_a_server_that_shuts_down_says_nothing_of_the_position() -> None:
    with (
        answering(copy_both_response() + command_complete("COPY 0"), b"") as server,
        pytest.raises(SourceUnavailable, match="it has shut down"),
        server.connected() as connection,
    ):
        list(server.stream(connection, 1, BEGIN_LSN, BEGIN_LSN + 1))


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ((NEXT_TIMELINE,), "it has nothing of timeline 1 at 0/3000000"),
        ((copy_both_response() + copy_done(), NEXT_TIMELINE), "it ended timeline 1 at 0/3000000"),
    ],
    ids=["at its end", "in the stream"],
)
def test_behind_the_end_of_a_timeline_there_is_none_of_it(answers: tuple[bytes, ...], problem: str) -> None:
    with answering(*answers) as server, pytest.raises(WalMissing, match=problem), server.connected() as connection:
        list(server.stream(connection, 1, BEGIN_LSN, BEGIN_LSN + 1))


class HoldingBack:
    """A libpq over TLS in a stream: what OpenSSL holds back its socket does not show."""

    ssl_in_use = True

    def __init__(self, silent: socket.socket, *passes: bytes) -> None:
        self.socket = silent.fileno()
        self._passes = list(passes)
        self._message = b""

    def send_query(self, _: bytes) -> None:
        pass

    def flush(self) -> int:
        return 0

    def is_busy(self) -> bool:
        return False

    def get_result(self) -> pq.abc.PGresult:
        class Streaming:
            status = pq.ExecStatus.COPY_BOTH

        return cast(pq.abc.PGresult, Streaming())

    def consume_input(self) -> None:
        self._message = self._passes.pop(0)

    def get_copy_data(self, _: int) -> tuple[int, memoryview]:
        message, self._message = self._message, b""
        return len(message), memoryview(message)


def test_wal_that_tls_holds_back_is_not_waited_for() -> None:
    wal = b"w" + struct.pack(">QQq", BEGIN_LSN, BEGIN_LSN, 0) + b"abc"
    server = WalFetchClient("it", "host=x", whose="its", application_name="test", timeout_s=0.1)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = cast(pq.abc.PGconn, HoldingBack(ours, b"", wal))
        assert [bytes(piece) for piece in server.stream(connection, 1, BEGIN_LSN, BEGIN_LSN + 2)] == [b"ab"]
