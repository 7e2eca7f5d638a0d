"""The session against libpq itself: connecting, passwords, TLS, streaming."""

import queue
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, padding
from psycopg import pq
from psycopg.pq import abc

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.net.tls import ServerTls, TlsChannel
from safekeeper.pgwire.backend import keepalive, xlog_data_header
from safekeeper.pgwire.commands import StartReplication
from safekeeper.pgwire.events import (
    Authenticated,
    CommandReceived,
    CommandRefused,
    CopyEnded,
    Event,
    StartTls,
    StatusUpdate,
)
from safekeeper.pgwire.scram import make_verifier
from safekeeper.pgwire.session import Session, SessionState
from tests.unit.certificates import Authority
from tests.unit.pgwire.test_channel_binding import ECDSA, RSA, certificate
from tests.unit.pgwire_client import answer, new_session
from walproxy.postgres.replication import Keepalive, XLogData, build_status_update, parse_copy_message

DEADLINE_S = 20.0
USERS = {"me": str(make_verifier("pencil", b"0123456789abcdef"))}
BEGIN_LSN, FORK_LSN = 0x3000000, 0x3000010


@dataclass
class Served:
    """What a connection came to: its events, how it ended, and what its end meant."""

    events: list[Event] = field(default_factory=list)
    error: str = ""
    eof: str = ""


class Server:
    """A listener of one connection at a time, in a thread of its own."""

    def __init__(self, tls: ServerTls | None, users: dict[str, str] | None, shown_certificate: bytes | None) -> None:
        self._tls = tls
        self._users = users
        self._shown_certificate = shown_certificate
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._run)
        self._connections: queue.Queue[Served] = queue.Queue()
        self._thread.start()

    def connect(self, conninfo: str = "") -> abc.PGconn:
        port = self._listener.getsockname()[1]
        defaults = "host=127.0.0.1 user=me dbname=replication replication=true gssencmode=disable"
        if self._tls is None and "sslmode" not in conninfo:
            defaults += " sslmode=disable"
        connection = pq.PGconn.connect_start(f"{defaults} port={port} {conninfo}".encode())
        # PQconnectdb would hold the interpreter, and so this server, until it has its answers.
        while (polled := connection.connect_poll()) in (pq.PollingStatus.READING, pq.PollingStatus.WRITING):
            reading, writing = (
                ([connection.socket], []) if polled == pq.PollingStatus.READING else ([], [connection.socket])
            )
            assert any(select.select(reading, writing, [], DEADLINE_S))
        return connection

    def served(self) -> Served:
        """What the next connection that has ended came to."""
        return self._connections.get(timeout=DEADLINE_S)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(DEADLINE_S)
                self._connections.put(self._serve(connection))

    def _serve(self, connection: socket.socket) -> Served:
        session = new_session(tls=self._tls is not None, users=self._users)
        listener = _Listener(connection, session, self._tls, self._shown_certificate)
        while session.state is not SessionState.CLOSED:
            data = connection.recv(65536)
            if not data:
                listener.served.eof = session.explain_eof()
                break
            try:
                listener.receive(data)
            except RemoteProtocolError as error:
                listener.served.error = str(error)
                listener.send(session.take_output())
        return listener.served


class _Listener:
    """One connection: bytes to the session, through TLS where there is any, and a bit of WAL for whoever asks."""

    def __init__(
        self, connection: socket.socket, session: Session, tls: ServerTls | None, shown_certificate: bytes | None
    ) -> None:
        self.served = Served()
        self._connection = connection
        self._session = session
        self._tls = tls
        self._shown_certificate = shown_certificate
        self._channel: TlsChannel | None = None
        self._ends_at_fork = False

    def send(self, data: bytes) -> None:
        if self._channel is not None and data:
            self._channel.send(data)
        self._connection.sendall(data if self._channel is None else self._channel.take_outgoing())

    def receive(self, data: bytes) -> None:
        if self._channel is not None:
            data = self._decrypt(self._channel, data)
        if not data:
            return
        for event in self._session.receive(data):
            self.served.events.append(event)
            if isinstance(event, StartTls):
                assert self._tls is not None
                self.send(self._session.take_output())
                self._channel = self._tls.channel()
                self.receive(event.data)
            else:
                self._act(event)
        self.send(self._session.take_output())

    def _decrypt(self, channel: TlsChannel, data: bytes) -> bytes:
        plaintext = channel.receive(data)
        self._connection.sendall(channel.take_outgoing())
        if channel.established and self._session.state is SessionState.TLS_HANDSHAKE:
            self._session.tls_started(self._shown_certificate or channel.server_certificate_der)
        return plaintext

    def _act(self, event: Event) -> None:
        match event:
            case CommandReceived(StartReplication(tli=tli)):
                self._ends_at_fork = tli == 1
                self._session.begin_copy()
                self.send(self._session.take_output() + xlog_data_header(BEGIN_LSN, FORK_LSN, 0, 3) + b"wal")
                self.send(keepalive(FORK_LSN, 0, True))
                if self._ends_at_fork:
                    self._session.end_copy()
            case CopyEnded() if self._ends_at_fork:
                self._session.finish_copy((2, FORK_LSN))
            case _:
                answer(self._session, [event])


@contextmanager
def serving(
    *, tls: ServerTls | None = None, users: dict[str, str] | None = None, shown_certificate: bytes | None = None
) -> Iterator[Server]:
    server = Server(tls, users, shown_certificate)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> ServerTls:
    folder = tmp_path_factory.mktemp("certificates")
    pair = Authority(folder).sign("server")
    return ServerTls(pair.cert, pair.key)


def refusal(connection: abc.PGconn) -> str:
    """What libpq says about a connection that was not made."""
    assert connection.status == pq.ConnStatus.BAD
    return connection.get_error_message()


def is_let_in(connection: abc.PGconn) -> bool:
    """Whether the connection was made and takes commands; it is closed."""
    assert connection.status == pq.ConnStatus.OK, connection.get_error_message()
    result = connection.exec_(b"SHOW wal_segment_size")
    connection.finish()
    return result.get_value(0, 0) == b"16MB"


# libpq's waiting calls would hold the interpreter too: it is asked what there is, and waited for outside.


def wait(connection: abc.PGconn) -> None:
    assert any(select.select([connection.socket], [], [], DEADLINE_S))
    connection.consume_input()


def copy_message(connection: abc.PGconn) -> memoryview | None:
    """The next message of the COPY, None if the server has ended it."""
    while (received := connection.get_copy_data(1))[0] == 0:
        wait(connection)
    return memoryview(received[1]) if received[0] > 0 else None


def next_result(connection: abc.PGconn) -> abc.PGresult | None:
    while connection.is_busy():
        wait(connection)
    return connection.get_result()


def test_libpq_connects_asks_and_receives_what_the_server_is() -> None:
    with serving() as server:
        connection = server.connect("application_name=s1")
        assert connection.parameter_status(b"integer_datetimes") == b"on"
        assert connection.server_version == 170002
        result = connection.exec_(b"IDENTIFY_SYSTEM")
        assert [result.get_value(0, column) for column in range(4)] == [b"7", b"1", b"0/3000000", None]
        assert result.command_status == b"IDENTIFY_SYSTEM"
        assert connection.exec_(b"").status == pq.ExecStatus.EMPTY_QUERY
        connection.finish()
        events = server.served().events
    assert isinstance(events[0], Authenticated)
    assert (events[0].user, events[0].application_name) == ("me", "s1")


def test_libpq_goes_on_after_what_a_safekeeper_cannot_do() -> None:
    with serving() as server:
        connection = server.connect()
        refused = connection.exec_(b"TABLE ledger")
        assert refused.error_field(pq.DiagnosticField.SQLSTATE) == b"0A000"
        assert b"primary" in (refused.error_field(pq.DiagnosticField.MESSAGE_HINT) or b"")
        refused = connection.exec_params(b"SELECT $1", [b"1"])
        assert refused.error_field(pq.DiagnosticField.SQLSTATE) == b"0A000"
        assert is_let_in(connection)
        assert len([event for event in server.served().events if isinstance(event, CommandRefused)]) == 2


def test_libpq_streams_and_ends_the_copy() -> None:
    with serving() as server:
        connection = server.connect()
        assert connection.exec_(b"START_REPLICATION 0/3000000").status == pq.ExecStatus.COPY_BOTH
        wal, alive = copy_message(connection), copy_message(connection)
        assert wal is not None
        assert alive is not None
        assert parse_copy_message(wal) == XLogData(BEGIN_LSN, FORK_LSN, memoryview(b"wal"))
        assert parse_copy_message(alive) == Keepalive(FORK_LSN, True)
        connection.put_copy_data(build_status_update(3, 2, 1, 0))
        connection.put_copy_end()
        assert copy_message(connection) is None
        results = [next_result(connection) for _ in range(3)]
        tags = [result and result.command_status for result in results]
        assert tags == [b"START_STREAMING", b"START_REPLICATION", None]
        assert is_let_in(connection)
        assert server.served().events[2:4] == [StatusUpdate(3, 2, 1, False), CopyEnded()]


def test_libpq_receives_where_the_next_timeline_begins() -> None:
    with serving() as server:
        connection = server.connect()
        assert connection.exec_(b"START_REPLICATION 0/3000000 TIMELINE 1").status == pq.ExecStatus.COPY_BOTH
        while copy_message(connection) is not None:
            pass
        # Only the client's direction is open now.
        copying = next_result(connection)
        assert copying is not None
        assert copying.status == pq.ExecStatus.COPY_IN
        connection.put_copy_end()
        row, completed, end = (next_result(connection) for _ in range(3))
        assert row is not None
        assert [row.get_value(0, column) for column in range(2)] == [b"2", b"0/3000010"]
        assert completed is not None
        assert completed.status == pq.ExecStatus.COMMAND_OK
        assert end is None
        assert is_let_in(connection)


def test_libpq_logs_in_with_its_password() -> None:
    with serving(users=USERS) as server:
        assert is_let_in(server.connect("password=pencil"))
        assert is_let_in(server.connect("password=pencil require_auth=scram-sha-256"))


@pytest.mark.parametrize("method", ["md5", "password"])
def test_libpq_that_accepts_no_scram_leaves_and_the_log_says_why(method: str) -> None:
    with serving(users=USERS) as server:
        assert "server requested SASL" in refusal(server.connect(f"password=pencil require_auth={method}"))
        assert "does not support SCRAM-SHA-256" in server.served().eof


def test_libpq_without_a_password_leaves_and_the_log_says_why(tmp_path: Path) -> None:
    with serving(users=USERS) as server:
        assert "no password supplied" in refusal(server.connect(f"passfile={tmp_path / 'none'}"))
        assert "has none" in server.served().eof


def test_libpq_negotiates_the_protocol() -> None:
    with serving() as server:
        assert is_let_in(server.connect("max_protocol_version=latest"))
        assert "version" in refusal(server.connect("min_protocol_version=3.2 max_protocol_version=latest"))


@pytest.mark.parametrize(
    "how",
    [
        "sslmode=require",
        "sslmode=prefer",
        "sslmode=require sslnegotiation=direct",
        "sslmode=require channel_binding=disable",
        "channel_binding=require",
    ],
)
def test_libpq_logs_in_over_tls(tls: ServerTls, how: str) -> None:
    with serving(tls=tls, users=USERS) as server:
        connection = server.connect(f"password=pencil {how}")
        assert connection.ssl_in_use
        assert is_let_in(connection)
        first = server.served().events[0]
        assert isinstance(first, StartTls)
        assert bool(first.data) == ("direct" in how)


def test_libpq_that_demands_tls_is_answered_that_there_is_none() -> None:
    with serving() as server:
        assert "server does not support SSL" in refusal(server.connect("sslmode=require"))
        assert is_let_in(server.connect("sslmode=prefer"))


def test_libpq_that_saw_another_certificate_is_not_let_in(tls: ServerTls, tmp_path: Path) -> None:
    other = Authority(tmp_path).sign("other")
    certificate = ServerTls(other.cert, other.key).certificate_der
    with serving(tls=tls, users=USERS, shown_certificate=certificate) as server:
        assert "a third party may relay the connection" in refusal(
            server.connect("password=pencil channel_binding=require")
        )
        assert "a third party may relay the connection" in server.served().error


def test_libpq_in_doubt_about_a_downgrade_is_not_let_in(tls: ServerTls) -> None:
    # The server has no certificate to bind to, and so offers none; then a client that demands it does not go on.
    with serving(tls=tls, users=USERS, shown_certificate=b"no certificate") as server:
        assert "channel binding" in refusal(server.connect("password=pencil channel_binding=require"))
        assert is_let_in(server.connect("password=pencil channel_binding=prefer"))


@pytest.mark.parametrize(
    ("key", "hash_function", "options"),
    [
        (RSA, hashes.SHA384(), {}),
        (RSA, hashes.SHA512(), {"rsa_padding": padding.PSS(padding.MGF1(hashes.SHA512()), 64)}),
        (ECDSA, hashes.SHA512(), {}),
        (ed25519.Ed25519PrivateKey.generate(), None, {}),
    ],
    ids=["RSA with SHA-384", "RSA-PSS with SHA-512", "ECDSA with SHA-512", "Ed25519"],
)
def test_libpq_binds_to_certificates_of_every_kind(
    tmp_path: Path, key: Any, hash_function: Any, options: dict[str, Any]
) -> None:
    cert_file, key_file = tmp_path / "server.pem", tmp_path / "server.key"
    cert_file.write_text(ssl.DER_cert_to_PEM_cert(certificate(key, hash_function, **options)))
    pkcs8 = serialization.PrivateFormat.PKCS8
    key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, pkcs8, serialization.NoEncryption()))
    with serving(tls=ServerTls(cert_file, key_file), users=USERS) as server:
        # What has no hash function cannot be bound to, and must not keep out a client that would rather bind.
        binding = "require" if hash_function else "prefer"
        assert is_let_in(server.connect(f"password=pencil sslmode=require channel_binding={binding}"))
