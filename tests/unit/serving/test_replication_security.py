"""Who may stream from the replication listener, and over what; the clients are libpq's."""

import random
import select
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from psycopg import pq
from psycopg.pq import abc

from safekeeper.base.networks import Networks
from safekeeper.net.tls import ServerTls
from safekeeper.pgwire.scram import make_verifier
from safekeeper.serving.users import Users
from tests.unit.certificates import Authority
from tests.unit.replication_client import DEADLINE_S
from tests.unit.replication_house import ReplicationHouse
from tests.unit.scripted_proposer import BASE_LSN
from walproxy.postgres.replication import XLogData, parse_copy_message

WAL = random.Random(9).randbytes(3 << 20)
BAD = pq.ConnStatus.BAD


@contextmanager
def connected(house: ReplicationHouse, conninfo: str = "") -> Iterator[abc.PGconn]:
    """Connect without holding the interpreter, in which the server is, too."""
    defaults = "host=127.0.0.1 user=repl replication=true gssencmode=disable"
    connection = pq.PGconn.connect_start(f"{defaults} port={house.pg_port} {conninfo}".encode())
    while (polled := connection.connect_poll()) in (pq.PollingStatus.READING, pq.PollingStatus.WRITING):
        wait(connection, writing=polled == pq.PollingStatus.WRITING)
    yield connection
    connection.finish()


def wait(connection: abc.PGconn, *, writing: bool = False) -> None:
    sockets = ([], [connection.socket]) if writing else ([connection.socket], [])
    assert any(select.select(*sockets, [], DEADLINE_S))


def stream(connection: abc.PGconn, length: int) -> bytes:
    """Return the first `length` bytes of the WAL."""
    connection.send_query(b"START_REPLICATION 0/300000 TIMELINE 1")
    while connection.is_busy():
        wait(connection)
        connection.consume_input()
    result = connection.get_result()
    assert result is not None and result.status == pq.ExecStatus.COPY_BOTH, connection.error_message
    received = bytearray()
    while len(received) < length:
        size, data = connection.get_copy_data(1)
        if size == 0:
            wait(connection)
            connection.consume_input()
            continue
        assert size > 0, connection.error_message
        message = parse_copy_message(memoryview(bytes(data)))
        if isinstance(message, XLogData):
            received += message.payload
    return bytes(received)


def written(house: ReplicationHouse) -> None:
    leader = house.led()
    leader.write(WAL)
    leader.commit()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Users:
    path = tmp_path_factory.mktemp("users") / "users"
    path.write_text(f"repl:{make_verifier('secret', b'0123456789abcdef')}\n")
    return Users(path)


def test_over_tls_with_a_password_bound_to_it_the_wal_arrives_whole(
    tmp_path: Path, authority: Authority, users: Users
) -> None:
    tls = ServerTls(*authority.sign("server"))
    with ReplicationHouse(tmp_path, tls=tls, users=users) as house:
        written(house)
        conninfo = f"sslmode=verify-full sslrootcert={authority.ca} password=secret channel_binding=require"
        with connected(house, conninfo) as connection:
            assert stream(connection, len(WAL)) == WAL
            (reader,) = house.call(house.listener.describe_readers)
            assert (reader.user, reader.lag_bytes) == ("repl", 0)


def test_a_slow_reader_over_tls_is_bounded_too(tmp_path: Path, authority: Authority) -> None:
    with ReplicationHouse(tmp_path, tls=ServerTls(*authority.sign("server"))) as house:
        leader = house.led()
        for _ in range(4):
            leader.write(WAL)
        leader.commit()
        with connected(house, "sslmode=require") as connection:
            connection.send_query(b"START_REPLICATION 0/300000 TIMELINE 1")
            house.until(lambda: bool(house.hub.readers) and house.hub.readers[0].paused)
            assert house.call(lambda: house.hub.readers[0].position_lsn) < BASE_LSN + 4 * len(WAL)


def test_a_client_from_elsewhere_is_sent_away(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path, networks=Networks.parse("192.0.2.0/24")) as house:
        assert house.stranger().is_closed()
        assert house.call(lambda: house.listener.connection_count) == 0
