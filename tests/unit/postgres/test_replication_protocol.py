"""What a replication client sends, waits for and makes of the answers, against a libpq that answers by a script."""

import struct
from collections.abc import Callable
from typing import Any, cast

import psycopg
import pytest
from psycopg import pq

from safekeeper.base.errors import RemoteProtocolError
from walproxy.postgres.replication_protocol import (
    Conversation,
    ServerRefused,
    SocketEvent,
    TimelineEnd,
    WalStream,
    end_copy,
    identify_system,
    read_timeline_history,
    run_command,
    show,
    start_replication,
)

BEGIN_LSN = 1 << 24
STATUS = pq.ExecStatus
BREAK = psycopg.OperationalError("server closed the connection unexpectedly")


class Result:
    """What is used of a PGresult."""

    def __init__(
        self, status: pq.ExecStatus, *row: bytes | None, sqlstate: bytes | None = None, severity: bytes | None = None
    ) -> None:
        self.status = status
        self._row = row
        self.ntuples = int(bool(row))
        self.nfields = len(row)
        self._fields = {
            pq.DiagnosticField.SQLSTATE: sqlstate,
            pq.DiagnosticField.SEVERITY_NONLOCALIZED: severity,
            pq.DiagnosticField.SOURCE_FUNCTION: b"StartReplication" if sqlstate is not None else None,
        }

    def get_value(self, _: int, column: int) -> bytes | None:
        return self._row[column]

    def error_field(self, field: pq.DiagnosticField) -> bytes | None:
        return self._fields[field]

    def get_error_message(self) -> str:
        return "ERROR:  it is so\n"


def row(*values: bytes | None) -> Result:
    return Result(STATUS.TUPLES_OK, *values)


def refused(sqlstate: bytes | None, severity: bytes | None = b"ERROR") -> Result:
    return Result(STATUS.FATAL_ERROR, sqlstate=sqlstate, severity=severity)


COPY_BOTH, COPY_IN, DONE = Result(STATUS.COPY_BOTH), Result(STATUS.COPY_IN), Result(STATUS.COMMAND_OK)


class ScriptedLibpq:
    """What is used of a PGconn. Each answer comes with a wait of its own; an exception is raised in its place.

    Attributes:
        log: what was sent.
        blocked: how often the socket takes nothing more.
    """

    def __init__(self, *answers: Result | Exception | None, blocked: int = 0) -> None:
        self._answers = list(answers)
        self._is_busy = True
        self.blocked = blocked
        self.log: list[str] = []

    def send_query(self, command: bytes) -> None:
        self.log.append(command.decode())

    def put_copy_end(self) -> None:
        self.log.append("CopyDone")

    def flush(self) -> int:
        self.blocked -= 1
        return int(self.blocked >= 0)

    def is_busy(self) -> bool:
        return self._is_busy

    def consume_input(self) -> None:
        self._is_busy = False
        if isinstance(self._answers[0], Exception):
            raise self._answers[0]

    def get_result(self) -> Result | None:
        self._is_busy = True
        answer = self._answers.pop(0)
        assert not isinstance(answer, Exception)
        return answer


def have(
    conversation: Callable[[pq.abc.PGconn], Conversation[Any]], libpq: ScriptedLibpq
) -> tuple[Any, list[SocketEvent]]:
    """Have a conversation with a socket that is always ready; return its answer, and what it waited for."""
    running, waits = conversation(cast(pq.abc.PGconn, libpq)), []
    while True:
        try:
            waits.append(next(running))
        except StopIteration as end:
            return end.value, waits


def test_a_command_waits_until_it_is_sent_and_for_each_answer() -> None:
    libpq = ScriptedLibpq(row(b"16MB"), None, blocked=2)
    answer, waits = have(lambda pgconn: show(pgconn, "wal_segment_size"), libpq)
    assert (answer, libpq.log) == ("16MB", ["SHOW wal_segment_size"])
    assert waits == [SocketEvent.WRITE, SocketEvent.WRITE, SocketEvent.READ, SocketEvent.READ]


def test_a_system_and_a_history_are_read() -> None:
    assert have(identify_system, ScriptedLibpq(row(b"7", b"2", b"0/3000000", None), None))[0] == (7, 2, 0x3000000)
    history = ScriptedLibpq(row(b"00000002.history", b"1\t0/3000000\tx\n"), None)
    assert have(lambda pgconn: read_timeline_history(pgconn, 2), history)[0] == b"1\t0/3000000\tx\n"
    assert history.log == ["TIMELINE_HISTORY 2"]
    with pytest.raises(RemoteProtocolError, match="answered IDENTIFY_SYSTEM without a row"):
        have(identify_system, ScriptedLibpq(DONE, None))


@pytest.mark.parametrize("behind", [None, BREAK], ids=["the connection stays", "the connection breaks"])
def test_an_error_is_raised_once_the_answer_is_complete(behind: Exception | None) -> None:
    libpq = ScriptedLibpq(refused(b"58P01"), behind)
    with pytest.raises(ServerRefused, match="it is so") as caught:
        have(lambda pgconn: run_command(pgconn, "X"), libpq)
    assert (caught.value.sqlstate, caught.value.routine) == ("58P01", "StartReplication")
    assert not caught.value.is_fatal
    assert libpq._answers in ([], [BREAK])


def test_a_fatal_error_is_raised_though_the_server_does_not_hang_up() -> None:
    libpq = ScriptedLibpq(refused(b"57P01", b"FATAL"), AssertionError("nothing follows"))
    with pytest.raises(ServerRefused) as caught:
        have(lambda pgconn: run_command(pgconn, "X"), libpq)
    assert (caught.value.sqlstate, caught.value.is_fatal) == ("57P01", True)


def test_a_connection_that_breaks_without_an_answer_is_libpqs_error_and_with_one_the_answer_counts() -> None:
    with pytest.raises(psycopg.OperationalError, match="unexpectedly"):
        have(lambda pgconn: run_command(pgconn, "X"), ScriptedLibpq(BREAK))
    assert have(lambda pgconn: show(pgconn, "fsync"), ScriptedLibpq(row(b"on"), BREAK))[0] == "on"


def test_a_start_begins_a_stream_or_says_that_the_timeline_ends_there() -> None:
    def start(pgconn: pq.abc.PGconn) -> Conversation[TimelineEnd | None]:
        return start_replication(pgconn, BEGIN_LSN, 2, "s")

    libpq = ScriptedLibpq(COPY_BOTH)
    assert have(start, libpq)[0] is None
    assert libpq.log == ['START_REPLICATION SLOT "s" PHYSICAL 0/1000000 TIMELINE 2']
    ended = ScriptedLibpq(row(b"3", b"0/1000000"), DONE, None)
    assert have(start, ended)[0] == TimelineEnd(3, BEGIN_LSN)
    without_slot = ScriptedLibpq(COPY_BOTH)
    have(lambda pgconn: start_replication(pgconn, BEGIN_LSN, 1), without_slot)
    assert without_slot.log == ["START_REPLICATION PHYSICAL 0/1000000 TIMELINE 1"]
    with pytest.raises(RemoteProtocolError, match="neither WAL nor the TLI's end"):
        have(start, ScriptedLibpq(DONE, None))


def test_the_end_of_a_timeline_is_answered_and_returned() -> None:
    libpq = ScriptedLibpq(COPY_IN, row(b"3", b"0/1000000"), DONE, None, blocked=1)
    answer, waits = have(end_copy, libpq)
    assert (answer, libpq.log) == (TimelineEnd(3, BEGIN_LSN), ["CopyDone"])
    assert waits == [SocketEvent.READ, SocketEvent.WRITE, *[SocketEvent.READ] * 3]


@pytest.mark.parametrize("behind", [None, BREAK, refused(None, None)], ids=["nothing", "an error", "libpq's result"])
def test_a_stream_that_is_completed_without_a_next_timeline_is_a_shutdown(behind: Any) -> None:
    assert have(end_copy, ScriptedLibpq(DONE, behind))[0] is None


def test_an_error_that_ends_the_stream_is_raised() -> None:
    with pytest.raises(ServerRefused) as caught:
        have(end_copy, ScriptedLibpq(refused(b"58P01")))
    assert caught.value.sqlstate == "58P01"
    with pytest.raises(psycopg.OperationalError, match="unexpectedly"):
        have(end_copy, ScriptedLibpq(BREAK))


class ArrivingLibpq:
    """What a stream uses of a PGconn: each read finds the next list of messages."""

    def __init__(self, *passes: list[bytes], is_tls: bool) -> None:
        self.ssl_in_use = is_tls
        self._passes = list(passes)
        self._buffered: list[bytes] = []

    def consume_input(self) -> None:
        self._buffered += self._passes.pop(0)

    def get_copy_data(self, _: int) -> tuple[int, memoryview]:
        message = self._buffered.pop(0) if self._buffered else b""
        return len(message), memoryview(message)


def wal(begin_lsn: int, payload: bytes) -> bytes:
    return b"w" + struct.pack(">QQq", begin_lsn, begin_lsn + 100, 0) + payload


def drained(libpq: ArrivingLibpq, *has_waited: bool) -> list[bool]:
    stream = WalStream(cast(pq.abc.PGconn, libpq), BEGIN_LSN)
    return [stream.read(each).is_drained for each in has_waited]


def test_a_plain_socket_shows_what_comes_next() -> None:
    assert drained(ArrivingLibpq([wal(BEGIN_LSN, b"a")], [], is_tls=False), True, True) == [True, True]


def test_over_tls_two_passes_without_a_message_show_that_nothing_is_held_back() -> None:
    passes = [wal(BEGIN_LSN, b"a")], [], [wal(BEGIN_LSN + 1, b"b")], [], []
    assert drained(ArrivingLibpq(*passes, is_tls=True), True, *[False] * 4) == [False] * 4 + [True]
    # A pass before the wait does not count: the socket may have become readable behind it.
    assert drained(ArrivingLibpq([], [], [], is_tls=True), True, True, False) == [False, False, True]


def test_what_a_read_takes_continues_the_last_one() -> None:
    keepalive = b"k" + struct.pack(">QqB", BEGIN_LSN + 200, 0, True)
    libpq = ArrivingLibpq(
        [wal(BEGIN_LSN, b"ab"), keepalive, wal(BEGIN_LSN + 2, b"c")], [], [wal(7, b"d")], is_tls=False
    )
    stream = WalStream(cast(pq.abc.PGconn, libpq), BEGIN_LSN)
    arrived = stream.read(True)
    assert [bytes(chunk) for chunk in arrived.chunks] == [b"ab", b"c"]
    assert (arrived.end_lsn, arrived.server_end_lsn) == (BEGIN_LSN + 3, BEGIN_LSN + 102)
    assert (arrived.sent_lsn, arrived.reply_requested) == (BEGIN_LSN + 200, True)
    nothing = stream.read(True)
    assert (nothing.chunks, nothing.server_end_lsn, nothing.sent_lsn, nothing.is_over) == ([], None, None, False)
    with pytest.raises(RemoteProtocolError, match="WAL from 0/7, but 0/1000003 comes next"):
        stream.read(True)
