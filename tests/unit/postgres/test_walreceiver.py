"""The stream's reader and the status updates, against a fake libpq that says what a server hardly ever does."""

import asyncio
import socket
import struct
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, cast

import psycopg
import pytest

from safekeeper.base.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from walproxy.postgres.command_connection import replication_conninfo
from walproxy.postgres.problems import PrimaryProblem, ProblemKind
from walproxy.postgres.walreceiver import ReplicationConnection

BEGIN_LSN = 1 << 24


class FakeLibpq:
    """What ReplicationConnection uses of a PGconn in COPY. `arrive` puts messages on the wire."""

    def __init__(self) -> None:
        self.ssl_in_use = False
        self._ours, self._wire = socket.socketpair()
        self._ours.setblocking(False)
        self.socket = self._ours.fileno()
        self.on_the_wire: list[bytes] = []
        self.buffered: list[bytes] = []
        self.sent: list[tuple[int, ...]] = []
        self.feedback: list[tuple[int, ...]] = []
        self.output_blocked = False
        self.failure: str | None = None

    def arrive(self, *messages: bytes) -> None:
        self.on_the_wire += messages
        self._wire.send(b"!")

    def fail(self, reason: str) -> None:
        self.failure = reason
        self._wire.send(b"!")

    def consume_input(self) -> None:
        try:
            self._ours.recv(100)
        except BlockingIOError:
            pass
        self.buffered += self.on_the_wire
        self.on_the_wire = []
        if self.failure is not None:
            raise psycopg.OperationalError(self.failure)

    def get_copy_data(self, _: int) -> tuple[int, memoryview]:
        if not self.buffered:
            return 0, memoryview(b"")
        message = self.buffered.pop(0)
        return len(message), memoryview(message)

    def put_copy_data(self, message: bytes) -> int:
        if message[:1] == b"h":
            self.feedback.append(struct.unpack(">xqIIII", message)[1:])
        else:
            self.sent.append(struct.unpack(">xQQQqB", message))
        return 1

    def flush(self) -> int:
        return int(self.output_blocked)

    def finish(self) -> None:
        self._ours.close()
        self._wire.close()


class FakeConnection:
    def __init__(self) -> None:
        self.pgconn = FakeLibpq()


class Stream:
    """A stream over a fake libpq, and what it handed over."""

    def __init__(self, is_tls: bool = False) -> None:
        fake = FakeConnection()
        fake.pgconn.ssl_in_use = is_tls
        self.libpq = fake.pgconn
        self.connection = ReplicationConnection(cast(psycopg.AsyncConnection, fake), "", 1.0)
        self.connection._in_copy = True
        self.connection.received_lsn = BEGIN_LSN
        self.handed_over: list[tuple[Any, ...]] = []
        self.task = asyncio.create_task(self.connection.stream(self.on_wal, self.on_keepalive))

    def on_wal(self, begin_lsn: int, chunks: list[memoryview]) -> None:
        self.handed_over.append(("wal", begin_lsn, *map(bytes, chunks)))

    def on_keepalive(self, server_end_lsn: int, reply_requested: bool) -> None:
        self.handed_over.append(("keepalive", server_end_lsn, reply_requested))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0)

    async def settle(self) -> None:
        """Let the loop run what is ready."""
        for _ in range(20):
            await asyncio.sleep(0)


def streaming(test: Callable[[Stream], Coroutine[Any, Any, None]], is_tls: bool = False) -> Callable[[], None]:
    """Run `test` with a stream."""

    async def run() -> None:
        stream = Stream(is_tls)
        try:
            await test(stream)
        finally:
            stream.connection.close()
            await asyncio.gather(stream.task, return_exceptions=True)

    def wrapped() -> None:
        asyncio.run(run())

    wrapped.__name__ = test.__name__
    return wrapped


def wal(begin_lsn: int, payload: bytes, server_end_lsn: int = 0) -> bytes:
    return b"w" + struct.pack(">QQq", begin_lsn, server_end_lsn, 0) + payload


def keepalive(server_end_lsn: int, reply_requested: bool = False) -> bytes:
    return b"k" + struct.pack(">QqB", server_end_lsn, 0, reply_requested)


@streaming
async def test_one_wake_up_hands_over_all_wal_as_one_list_and_one_keepalive(stream: Stream) -> None:
    stream.libpq.arrive(
        wal(BEGIN_LSN, b"abc"), keepalive(7, True), wal(BEGIN_LSN + 3, b"de"), keepalive(8), keepalive(9)
    )
    await stream.until(lambda: len(stream.handed_over) >= 2)
    assert stream.handed_over == [("wal", BEGIN_LSN, b"abc", b"de"), ("keepalive", 9, True)]
    assert (stream.connection.received_lsn, stream.connection.server_end_lsn) == (BEGIN_LSN + 5, 9)


@streaming
async def test_messages_that_libpq_held_before_the_stream_began_are_not_waited_for(stream: Stream) -> None:
    stream.libpq.buffered.append(wal(BEGIN_LSN, b"abc"))
    await stream.until(lambda: bool(stream.handed_over))


@pytest.mark.parametrize("begin_lsn", [BEGIN_LSN + 2, BEGIN_LSN + 4, BEGIN_LSN, 0])
def test_gap_and_overlap_break_the_stream_before_the_wal_counts(begin_lsn: int) -> None:
    @streaming
    async def test(stream: Stream) -> None:
        stream.libpq.arrive(wal(BEGIN_LSN, b"abc"))
        await stream.until(lambda: bool(stream.handed_over))
        stream.libpq.arrive(wal(begin_lsn, b"xyz"))
        with pytest.raises(RemoteProtocolError, match="1000003 comes next"):
            await asyncio.wait_for(stream.task, 5)
        assert stream.connection.received_lsn == BEGIN_LSN + 3
        assert len(stream.handed_over) == 1

    test()


@streaming
async def test_nonsense_inside_the_stream_is_a_protocol_error(stream: Stream) -> None:
    stream.libpq.arrive(b"?")
    with pytest.raises(RemoteProtocolError, match="not understood"):
        await asyncio.wait_for(stream.task, 5)


@streaming
async def test_wal_that_came_before_the_connection_broke_is_handed_over(stream: Stream) -> None:
    stream.libpq.on_the_wire.append(wal(BEGIN_LSN, b"abc"))
    stream.libpq.fail("server closed the connection unexpectedly\n\tThis probably means nothing.")
    with pytest.raises(PrimaryProblem, match="server closed the connection unexpectedly; ") as caught:
        await asyncio.wait_for(stream.task, 5)
    assert caught.value.kind is ProblemKind.LOST
    assert stream.handed_over == [("wal", BEGIN_LSN, b"abc")]


@streaming
async def test_blocked_output_keeps_the_newest_status_only(stream: Stream) -> None:
    stream.libpq.arrive(wal(BEGIN_LSN, b"abcdef"))
    await stream.until(lambda: bool(stream.handed_over))
    stream.libpq.output_blocked = True
    send = stream.connection.send_status
    send(1, 1, 1)
    send(2, 2, 2, reply_requested=True)
    send(3, 3, 3)
    assert [status[:3] for status in stream.libpq.sent] == [(1, 1, 1)]
    stream.libpq.output_blocked = False
    await stream.until(lambda: len(stream.libpq.sent) == 2)
    assert (stream.libpq.sent[1][:3], stream.libpq.sent[1][4]) == ((3, 3, 3), 1)
    send(4, 4, 4)
    assert stream.libpq.sent[2][:3] == (4, 4, 4)


@streaming
async def test_feedback_is_split_into_xids_and_epochs_and_only_the_newest_waits(stream: Stream) -> None:
    send = stream.connection.send_hot_standby_feedback
    send((3 << 32) + 700, (2 << 32) + 5)
    assert stream.libpq.feedback == [(700, 3, 5, 2)]
    stream.libpq.output_blocked = True
    stream.connection.send_status(0, 0, 0)
    send(1, 0)
    send(2, 0)
    stream.connection.send_status(0, 0, 0)
    assert (len(stream.libpq.feedback), len(stream.libpq.sent)) == (1, 1)
    stream.libpq.output_blocked = False
    await stream.until(lambda: len(stream.libpq.feedback) == 2)
    assert stream.libpq.feedback[1] == (2, 0, 0, 0) and len(stream.libpq.sent) == 2


@streaming
async def test_feedback_without_a_stream_is_our_own_bug_and_after_the_connection_broke_is_dropped(
    stream: Stream,
) -> None:
    stream.libpq.fail("gone")
    await stream.until(lambda: stream.connection._broken is not None)
    stream.connection.send_hot_standby_feedback(1, 1)
    stream.connection._broken, stream.connection._in_copy = None, False
    with pytest.raises(LocalProtocolError, match="needs a stream"):
        stream.connection.send_hot_standby_feedback(1, 1)
    assert stream.libpq.feedback == []


@streaming
async def test_wal_that_libpq_read_while_its_output_was_blocked_is_handed_over(stream: Stream) -> None:
    stream.libpq.arrive(keepalive(1))
    await stream.until(lambda: len(stream.handed_over) == 1)
    await stream.settle()
    stream.libpq.output_blocked = True
    stream.connection.send_status(0, 0, 0)
    stream.libpq.buffered.append(wal(BEGIN_LSN, b"abc"))  # the socket shows nothing of it
    stream.libpq.output_blocked = False
    await stream.until(lambda: len(stream.handed_over) == 2)


@streaming
async def test_pause_in_the_callback_holds_the_rest_back_until_resume(stream: Stream) -> None:
    stream.libpq.arrive(wal(BEGIN_LSN, b"abc"))
    await stream.until(lambda: bool(stream.handed_over))
    stream.connection.pause_reading()
    stream.libpq.arrive(wal(BEGIN_LSN + 3, b"de"))
    stream.connection.send_status(BEGIN_LSN, BEGIN_LSN, 0)
    await stream.settle()
    assert len(stream.handed_over) == 1
    assert len(stream.libpq.sent) == 1
    # Nor does the loop watch a socket that nobody reads: it would spin.
    assert asyncio.get_running_loop().remove_reader(stream.libpq.socket) is False
    stream.connection.resume_reading()
    await stream.until(lambda: len(stream.handed_over) == 2)


@streaming
async def test_status_beyond_the_wal_received_is_our_own_bug(stream: Stream) -> None:
    for positions in ((BEGIN_LSN + 1, 0, 0), (0, BEGIN_LSN + 1, 0), (0, 0, BEGIN_LSN + 1)):
        with pytest.raises(LocalProtocolError, match="beyond the WAL received"):
            stream.connection.send_status(*positions)
    assert stream.libpq.sent == []


@streaming
async def test_status_after_the_connection_broke_is_dropped(stream: Stream) -> None:
    stream.libpq.fail("gone")
    await stream.until(lambda: stream.connection._broken is not None)
    stream.connection.send_status(0, 0, 0)
    await asyncio.gather(stream.task, return_exceptions=True)
    stream.connection.send_status(0, 0, 0)
    assert stream.libpq.sent == []


@streaming
async def test_status_without_a_stream_is_our_own_bug(stream: Stream) -> None:
    stream.connection._in_copy = False
    with pytest.raises(LocalProtocolError, match="needs a stream"):
        stream.connection.send_status(0, 0, 0)


@streaming
async def test_error_of_libpq_inside_the_stream_is_a_lost_connection(stream: Stream) -> None:
    def out_of_memory(_: int) -> tuple[int, memoryview]:
        raise psycopg.OperationalError("receiving copy data failed: out of memory")

    stream.libpq.get_copy_data = out_of_memory  # type: ignore[method-assign]
    with pytest.raises(PrimaryProblem, match="out of memory") as caught:
        await asyncio.wait_for(stream.task, 5)
    assert caught.value.kind is ProblemKind.LOST


@partial(streaming, is_tls=True)
async def test_tls_is_read_until_nothing_more_comes_though_the_socket_shows_nothing(stream: Stream) -> None:
    await stream.settle()
    late = [[], [wal(BEGIN_LSN + 3, b"de")], [], [wal(BEGIN_LSN + 5, b"f")]]  # what each further pass finds
    plain_consume = stream.libpq.consume_input

    def consume() -> None:
        plain_consume()
        if stream.handed_over and late:
            stream.libpq.buffered += late.pop(0)

    stream.libpq.consume_input = consume  # type: ignore[method-assign]
    stream.libpq.arrive(wal(BEGIN_LSN, b"abc"))
    await stream.until(lambda: len(stream.handed_over) == 3)
    assert stream.connection.received_lsn == BEGIN_LSN + 6


@streaming
async def test_close_forgets_the_sockets_number(stream: Stream) -> None:
    await stream.settle()
    number = stream.libpq.socket
    stream.connection.close()
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert number in (ours.fileno(), theirs.fileno())  # the system gives it to the next
        called = asyncio.Event()
        ours.send(b"1")
        theirs.send(b"1")
        loop.add_reader(number, called.set)
        stream.connection.close()
        stream.connection.pause_reading()
        await asyncio.gather(stream.task, return_exceptions=True)
        await asyncio.wait_for(called.wait(), 5)
        loop.remove_reader(number)


def test_conninfo_of_replication_keeps_what_the_operator_said() -> None:
    text = replication_conninfo(
        "postgresql://me@db:5433/app?keepalives_idle=60&options=-c%20a%3Db", "wp", {"wal_sender_timeout": "1 s"}
    )
    words = psycopg.conninfo.conninfo_to_dict(text)
    assert (words["user"], words["host"], words["port"], words["dbname"]) == ("me", "db", "5433", "replication")
    assert (words["application_name"], words["keepalives_idle"], words["tcp_user_timeout"]) == ("wp", "60", "20000")
    assert words["options"] == "-c a=b -c wal_sender_timeout=1\\ s"
    with pytest.raises(ConfigurationError):
        replication_conninfo("nonsense=1", "wp")


@streaming
async def test_silence_is_counted_from_the_begin_of_the_stream_and_of_the_reading(stream: Stream) -> None:
    """A spare proxy may have waited for hours on this connection, before it has won a term and streams."""
    now = asyncio.get_running_loop().time()
    stream.connection.last_message_s = now - 100  # The stream has not begun yet.
    await stream.settle()
    assert stream.connection.last_message_s >= now
    stream.connection.pause_reading()
    stream.connection.last_message_s = now - 100
    stream.connection.resume_reading()
    assert stream.connection.last_message_s >= now
