"""A logical stream: what is sent to begin and to end it, and what becomes of what arrives."""

import struct
from collections.abc import Callable
from typing import Any, cast

import psycopg
import pytest
from psycopg import pq

from safekeeper.base.errors import RemoteProtocolError
from tests.unit.postgres.test_replication_protocol import COPY_BOTH, DONE, ArrivingLibpq, ScriptedLibpq, have, refused
from walproxy.postgres.logical_replication import LogicalStream, end_logical, start_logical
from walproxy.postgres.replication_protocol import Conversation, ServerRefused, SocketEvent


def message(lsn: int, payload: bytes) -> bytes:
    return b"w" + struct.pack(">QQq", lsn, lsn, 0) + payload


def keepalive(lsn: int, reply_requested: bool) -> bytes:
    return b"k" + struct.pack(">QqB", lsn, 0, reply_requested)


def start(options: dict[str, str]) -> Callable[[pq.abc.PGconn], Conversation[Any]]:
    return lambda pgconn: start_logical(pgconn, "lake", 0x1_0000_0028, options)


def test_a_stream_begins_with_names_and_values_that_are_quoted() -> None:
    libpq = ScriptedLibpq(COPY_BOTH)
    have(start({"proto_version": "4", "publication_names": '"it\'s"'}), libpq)
    assert libpq.log == [
        'START_REPLICATION SLOT "lake" LOGICAL 1/28 ("proto_version" \'4\', "publication_names" \'"it\'\'s"\')'
    ]


def test_a_stream_that_does_not_begin_is_an_error() -> None:
    with pytest.raises(ServerRefused) as caught:
        have(start({}), ScriptedLibpq(refused(b"55006"), None))
    assert caught.value.sqlstate == "55006"
    with pytest.raises(RemoteProtocolError, match="without a stream"):
        have(start({}), ScriptedLibpq(DONE, None))


def stream_of(libpq: ArrivingLibpq) -> LogicalStream:
    return LogicalStream(cast(pq.abc.PGconn, libpq))


def test_messages_and_positions_come_in_the_order_of_the_server() -> None:
    passes = [message(7, b"B..."), keepalive(5, False), message(0, b"R")], [keepalive(9, True)], []
    stream = stream_of(ArrivingLibpq(*passes, is_tls=False))
    arrived = stream.read(True)
    assert arrived.items == [(7, b"B..."), (5, b""), (0, b"R")]
    assert (arrived.size, arrived.reply_requested, arrived.is_drained) == (25 + 4 + 18 + 25 + 1, False, True)
    assert stream.read(True).reply_requested
    assert stream.read(True).items == []


@pytest.mark.parametrize("wrong", [b"w" + bytes(24), b"w", b"k123", b"x" * 30], ids=["empty", "short", "k", "x"])
def test_what_is_not_understood_is_refused(wrong: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="not understood"):
        stream_of(ArrivingLibpq([wrong], is_tls=False)).read(True)


def test_over_tls_the_socket_is_trusted_after_two_reads_without_a_message() -> None:
    stream = stream_of(ArrivingLibpq([message(7, b"B")], [], [], is_tls=True))
    assert [stream.read(has_waited).is_drained for has_waited in (True, False, False)] == [False, False, True]


class BrokenLibpq(ArrivingLibpq):
    def consume_input(self) -> None:
        super().consume_input()
        raise psycopg.OperationalError("server closed the connection unexpectedly")


def test_what_came_before_the_connection_broke_is_there() -> None:
    arrived = stream_of(BrokenLibpq([message(7, b"B")], is_tls=False)).read(True)
    assert arrived.items == [(7, b"B")]
    assert "unexpectedly" in str(arrived.broken)


class EndingLibpq(ScriptedLibpq):
    """A stream of which some messages are still to come; then the answers."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(DONE, None)
        self._sizes = list(sizes)

    def consume_input(self) -> None:
        if not self._sizes:
            super().consume_input()

    def get_copy_data(self, _: int) -> tuple[int, memoryview]:
        return self._sizes.pop(0), memoryview(b"")


def test_an_end_discards_what_still_comes_and_waits_for_the_answer() -> None:
    libpq = EndingLibpq(30, 0, 30, -1)
    _, waits = have(end_logical, libpq)
    assert libpq.log == ["CopyDone"]
    assert waits == [SocketEvent.READ] * 3
