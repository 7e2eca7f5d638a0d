"""A running safekeeper as a source: which of its errors mean that it does not have the WAL."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from safekeeper.base.lsn import Lsn
from safekeeper.pgwire.backend import authentication_ok, error_response, ready_for_query
from walproxy.wal_sources.source import SourceLacks, SourceUnavailable
from walproxy.wal_sources.wal_fetch_client import WalFetchClient

BEGIN_LSN: Lsn = 0x3000000


# In a process of its own: libpq connects without letting other threads of this one run.
SERVER = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
client, _ = listener.accept()
for answer in map(bytes.fromhex, sys.argv[1:]):
    client.recv(1 << 16)
    client.sendall(answer)
client.recv(1)  # until it has gone
"""


@contextmanager
def answering(answer: bytes) -> Iterator[WalFetchClient]:
    """A server that lets one client in, and gives this answer to its first command."""
    answers = [authentication_ok() + ready_for_query(), answer]
    command = [sys.executable, "-c", SERVER, *(each.hex() for each in answers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        conninfo = f"host=127.0.0.1 port={int(process.stdout.readline())} user=x sslmode=disable gssencmode=disable"
        try:
            yield WalFetchClient("it", conninfo, whose="its", application_name="test", timeout_s=30)
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("severity", "code", "meaning"),
    [
        ("ERROR", "58P01", SourceLacks),
        ("ERROR", "XX000", SourceLacks),
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
