"""The client's side of PostgreSQL's streaming replication, once, without waiting: commands, the stream, its end.

A command is a generator over libpq's non-blocking functions. It yields what the socket must be ready for, is resumed
when that is so, and returns its answer. `waiting` has the two shells that wait: on the event loop, and blocking. The
stream itself is a `WalStream`: its owner waits for the socket and calls `read`, which takes all that has arrived.

    stream_end = await wait_on_loop(start_replication(pgconn, begin_lsn, tli), pgconn)
    stream_end = wait_blocking(start_replication(pgconn, begin_lsn, tli), pgconn, timeout_s)

No clock, no socket, no event loop: only what libpq has read already, and what it is given to send.
Source: https://www.postgresql.org/docs/current/protocol-replication.html,
https://www.postgresql.org/docs/current/libpq-async.html

All functions raise
    ServerRefused: the server answered with an error.
    RemoteProtocolError: the answer cannot be parsed (S11).
    psycopg.Error: the connection broke.
"""

from collections.abc import Generator
from enum import Enum
from typing import NamedTuple, TypeAlias, TypeVar

import msgspec
import psycopg
from psycopg import pq

from safekeeper.base.errors import RemoteProtocolError, WalproxyError
from safekeeper.base.lsn import LSN_MAX, Lsn, format_lsn
from walproxy.postgres.replication import (
    TAG_XLOG_DATA,
    XLOG_DATA,
    XLOG_DATA_SIZE,
    XLogData,
    parse_copy_message,
    parse_identify_system,
    parse_timeline_end,
)

_Answer = TypeVar("_Answer")

# OpenSSL may hold the rest of a record that the socket no longer shows. Two passes in a row that completed no
# message have read it: libpq leaves a rest only when its buffer is full, and then makes room for the whole message.
IDLE_PASSES_TLS = 2


class SocketEvent(Enum):
    """The event of the socket that a command waits for."""

    READ = "read"
    WRITE = "write"


Conversation: TypeAlias = Generator[SocketEvent, None, _Answer]
"""A part of the protocol that yields what it waits for, and returns its answer."""


class ServerRefused(WalproxyError):
    """The server answered a command, or ended the stream, with an error.

    Attributes:
        sqlstate: its code; None if it has none.
        message: as libpq writes it, several lines.
        is_fatal: the server ends the connection with it.
        routine: the function of the server that refused; no language translates it. None if it sent none.
    """

    def __init__(self, sqlstate: str | None, message: str, is_fatal: bool, routine: str | None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.message = message
        self.is_fatal = is_fatal
        self.routine = routine


class TimelineEnd(NamedTuple):
    """The stream of a TLI is over: `next_tli` continues at `next_begin_lsn`."""

    next_tli: int
    next_begin_lsn: Lsn


def run_command(pgconn: pq.abc.PGconn, command: str) -> Conversation[list[pq.abc.PGresult]]:
    """Send a replication command and return its results, up to COPY_BOTH if the stream begins.

    A server that ends the connection sends its error first: that is raised, and the next command finds the connection
    broken.
    """
    results: list[pq.abc.PGresult] = []
    refusal: ServerRefused | None = None
    try:
        pgconn.send_query(command.encode())
        yield from _flushed(pgconn)
        while (result := (yield from _next_result(pgconn))) is not None:
            results.append(result)
            if result.status == pq.ExecStatus.COPY_BOTH:
                break
            if refusal is None and result.status in (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE):
                refusal = _refusal(result)
                if refusal.is_fatal:
                    break
    except psycopg.Error:
        if not results:
            raise
    if refusal is not None:
        raise refusal
    return results


def read_row(pgconn: pq.abc.PGconn, command: str) -> Conversation[list[str | None]]:
    """Run a command that is answered with one row, and return that."""
    results = yield from run_command(pgconn, command)
    if not results or results[0].ntuples != 1:
        raise RemoteProtocolError(f"PostgreSQL answered {command} without a row")
    return texts(results[0])


def show(pgconn: pq.abc.PGconn, setting: str) -> Conversation[str]:
    """Return the text of a server setting."""
    return (yield from read_row(pgconn, f"SHOW {setting}"))[0] or ""


def identify_system(pgconn: pq.abc.PGconn) -> Conversation[tuple[int, int, Lsn]]:
    """Return (system id, TLI, end of the WAL that can be streamed)."""
    return parse_identify_system((yield from read_row(pgconn, "IDENTIFY_SYSTEM")))


def read_timeline_history(pgconn: pq.abc.PGconn, tli: int) -> Conversation[bytes]:
    """Return the content of the history file of `tli`, which is not 1."""
    results = yield from run_command(pgconn, f"TIMELINE_HISTORY {tli}")
    return (results[0].get_value(0, 1) if results and results[0].ntuples else None) or b""


def start_replication(
    pgconn: pq.abc.PGconn, begin_lsn: Lsn, tli: int, slot: str | None = None
) -> Conversation[TimelineEnd | None]:
    """Request the WAL of `tli` from `begin_lsn` on. Return None if the stream began, else the end of `tli`, reached.

    A position that the server cannot serve is often refused only inside the stream.
    """
    by_slot = f'SLOT "{slot}" ' if slot is not None else ""
    command = f"START_REPLICATION {by_slot}PHYSICAL {format_lsn(begin_lsn)} TIMELINE {tli}"
    timeline_end: TimelineEnd | None = None
    for result in (yield from run_command(pgconn, command)):
        if result.status == pq.ExecStatus.COPY_BOTH:
            return None
        if result.status == pq.ExecStatus.TUPLES_OK:
            timeline_end = TimelineEnd(*parse_timeline_end(texts(result)))
    if timeline_end is None:
        raise RemoteProtocolError("PostgreSQL answered START_REPLICATION with neither WAL nor the TLI's end")
    return timeline_end


class Arrived(msgspec.Struct, frozen=True, gc=False):
    """The result of one `WalStream.read`.

    Attributes:
        chunks: WAL from the end of the last read on, without a gap: views into libpq's messages, not copies.
        end_lsn: where that ends.
        server_end_lsn: how far the server's WAL reached by its last message; None if no message arrived.
        sent_lsn: how far the server has sent, by its last keepalive; None if none arrived.
        reply_requested: a keepalive requests a status update.
        is_over: the server has ended the stream: call `end_copy`.
        broken: the connection broke after these messages.
        is_drained: the socket shows when more arrives; if not, `read` again before waiting for it.
    """

    chunks: list[memoryview]
    end_lsn: Lsn
    server_end_lsn: Lsn | None
    sent_lsn: Lsn | None
    reply_requested: bool
    is_over: bool
    broken: psycopg.Error | None
    is_drained: bool


class WalStream:
    """The WAL of one START_REPLICATION that began to stream.

    A method and not a generator like the commands: it is called for each wake-up of the proxy.
    """

    def __init__(self, pgconn: pq.abc.PGconn, begin_lsn: Lsn) -> None:
        self._pgconn = pgconn
        self._end_lsn = begin_lsn
        self._is_tls = bool(pgconn.ssl_in_use)
        self._idle_passes = 0

    def read(self, has_waited: bool) -> Arrived:
        """Take all complete messages that have arrived; it may be none.

        Args:
            has_waited: the socket became readable since the last call, or may have.

        Raises:
            RemoteProtocolError: a message is not understood, or WAL does not continue where the last ended. What came
                with it does not count.
            psycopg.Error: libpq failed.
        """
        broken: psycopg.Error | None = None
        try:
            self._pgconn.consume_input()
        except psycopg.Error as error:
            broken = error  # What arrived before is still there to be taken.
        get_copy_data = self._pgconn.get_copy_data
        chunks: list[memoryview] = []
        expected_lsn = self._end_lsn
        server_end_lsn: Lsn | None = None
        sent_lsn: Lsn | None = None
        reply_requested = False
        while True:
            size, data = get_copy_data(1)
            if size <= 0:
                break
            if size > XLOG_DATA_SIZE:
                # As `parse_copy_message`, without the call and the object.
                tag, begin_lsn, message_end_lsn, _ = XLOG_DATA.unpack_from(data)
                if tag == TAG_XLOG_DATA and begin_lsn == expected_lsn <= LSN_MAX + XLOG_DATA_SIZE - size:
                    expected_lsn += size - XLOG_DATA_SIZE
                    chunks.append(data[XLOG_DATA_SIZE:])
                    server_end_lsn = message_end_lsn
                    continue
            message = parse_copy_message(data)
            if isinstance(message, XLogData):
                raise RemoteProtocolError(
                    f"PostgreSQL sent WAL from {format_lsn(message.begin_lsn)}, but {format_lsn(expected_lsn)} "
                    f"comes next"
                )
            server_end_lsn = sent_lsn = message.server_end_lsn
            reply_requested = reply_requested or message.reply_requested
        self._end_lsn = expected_lsn
        is_drained = True
        if self._is_tls:
            is_idle = server_end_lsn is None
            self._idle_passes = (0 if has_waited else self._idle_passes) + 1 if is_idle else 0
            is_drained = self._idle_passes >= IDLE_PASSES_TLS
        return Arrived(chunks, expected_lsn, server_end_lsn, sent_lsn, reply_requested, size == -1, broken, is_drained)


def end_copy(pgconn: pq.abc.PGconn) -> Conversation[TimelineEnd | None]:
    """Find out why the stream is over, and leave it. Return the end of its TLI, None if the server shuts down."""
    timeline_end: TimelineEnd | None = None
    completed = False
    while True:
        try:
            result = yield from _next_result(pgconn)
        except psycopg.Error:
            if completed:
                break
            raise
        if result is None:
            break
        if result.status == pq.ExecStatus.COPY_IN:  # CopyDone came; the server waits for ours
            pgconn.put_copy_end()
            yield from _flushed(pgconn)
        elif result.status == pq.ExecStatus.TUPLES_OK:
            timeline_end = TimelineEnd(*parse_timeline_end(texts(result)))
        elif result.status == pq.ExecStatus.COMMAND_OK:
            completed = True
        else:
            if completed and sqlstate_of(result) is None:
                break
            raise _refusal(result)
    return timeline_end


def _flushed(pgconn: pq.abc.PGconn) -> Conversation[None]:
    while pgconn.flush() == 1:
        yield SocketEvent.WRITE


def _next_result(pgconn: pq.abc.PGconn) -> Conversation[pq.abc.PGresult | None]:
    while pgconn.is_busy():
        yield SocketEvent.READ
        pgconn.consume_input()
    return pgconn.get_result()


def _refusal(result: pq.abc.PGresult) -> ServerRefused:
    is_fatal = result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) != b"ERROR"
    routine = _field(result, pq.DiagnosticField.SOURCE_FUNCTION)
    return ServerRefused(sqlstate_of(result), result.get_error_message(), is_fatal, routine)


def texts(result: pq.abc.PGresult) -> list[str | None]:
    """Return the first row of `result` as text."""
    values = (result.get_value(0, column) for column in range(result.nfields if result.ntuples else 0))
    return [None if value is None else value.decode(errors="replace") for value in values]


def sqlstate_of(result: pq.abc.PGresult) -> str | None:
    """Return the code of an error, None if libpq made the error itself."""
    return _field(result, pq.DiagnosticField.SQLSTATE)


def _field(result: pq.abc.PGresult, name: pq.DiagnosticField) -> str | None:
    field = result.error_field(name)
    return None if field is None else field.decode(errors="replace")
