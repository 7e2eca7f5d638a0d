"""A conversation with a replication server, one question after the other: whose WAL it has, histories, bytes.

For safekeepers' replication listeners and, since these answer in the same way, for PostgreSQL's own servers. Blocking:
a connection is made for a task, and used by one thread.
"""

import contextlib
import select
import time
from collections.abc import Iterator
from typing import NamedTuple

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.logs import one_line
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.base.timelines import parse_timeline_history
from walproxy.postgres.command_connection import replication_conninfo, sqlstate_of, texts
from walproxy.postgres.conninfo import parse_conninfo
from walproxy.postgres.problems import problem_of_connect, problem_of_error
from walproxy.postgres.replication import (
    XLogData,
    build_status_update,
    parse_copy_message,
    parse_identify_system,
    parse_segment_size,
)
from walproxy.wal_sources.source import LogPath, Origin, SourceLacks, SourceUnavailable

_NO_SUCH_FILE = "58P01"
_WRONG_POSITION = "XX000"


class ServedLog(NamedTuple):
    """What a server says of its WAL: nothing at `readable_lsn` or behind it can be read yet."""

    origin: Origin
    path: LogPath
    readable_lsn: Lsn


class WalFetchClient:
    """One host.

    Args:
        name: how messages call it.
        conninfo: of this host alone.
        whose: whose connection string that is, for a message.
        application_name: what we call ourselves there.
        timeout_s: without a word for so long it counts as unreachable.
        stream_timeout_s: the same for WAL that it was asked for; timeout_s if None.
        advice: what an operator may do about it when it cannot be reached.
    """

    def __init__(
        self,
        name: str,
        conninfo: str,
        *,
        whose: str,
        application_name: str,
        timeout_s: float = 10.0,
        stream_timeout_s: float | None = None,
        advice: str = "",
    ) -> None:
        self.name = name
        given = parse_conninfo(conninfo, whose)
        limit = {} if "connect_timeout" in given else {"connect_timeout": str(max(2, round(timeout_s)))}
        self._conninfo = make_conninfo(replication_conninfo(conninfo, application_name), **limit)
        self._timeout_s = timeout_s
        self._stream_timeout_s = stream_timeout_s or timeout_s
        self._advice = advice

    def connect(self) -> pq.abc.PGconn:
        """Return a new connection, to be closed with `finish`.

        Raises:
            SourceUnavailable: there is none to be had.
        """
        connection = pq.PGconn.connect(self._conninfo.encode())
        if connection.status != pq.ConnStatus.OK:
            problem = problem_of_connect(connection.get_error_message())
            connection.finish()
            raise SourceUnavailable(f"{self.name}: {problem.message}{self._advice}")
        connection.nonblocking = 1
        return connection

    @contextlib.contextmanager
    def connected(self) -> Iterator[pq.abc.PGconn]:
        """A connection for the `with` block; a server that breaks the protocol in it counts as unreachable."""
        connection = self.connect()
        try:
            with self.talking():
                yield connection
        finally:
            connection.finish()

    @contextlib.contextmanager
    def talking(self) -> Iterator[None]:
        """Turn what a connection raises into what it means to a reader."""
        try:
            yield
        except RemoteProtocolError as error:
            raise SourceUnavailable(f"{self.name}: {error}") from error
        except psycopg.Error as error:
            raise SourceUnavailable(f"{self.name}: the connection broke: {one_line(str(error))}") from error

    def identify(self, connection: pq.abc.PGconn) -> tuple[int, int, Lsn]:
        """Return (system id, TLI, end of the readable WAL)."""
        return parse_identify_system(self._row(connection, "IDENTIFY_SYSTEM"))

    def log(self, connection: pq.abc.PGconn) -> ServedLog:
        """Return what it says of its WAL."""
        system_id, tli, readable_lsn = self.identify(connection)
        segment_size = parse_segment_size(self._row(connection, "SHOW wal_segment_size")[0] or "")
        lineage = parse_timeline_history(tli, (self.history(connection, tli) or b"") if tli > 1 else b"")
        return ServedLog(Origin(system_id, segment_size), LogPath(tli, lineage, segment_size), readable_lsn)

    def history(self, connection: pq.abc.PGconn, tli: int) -> bytes | None:
        """Return the history file of `tli`, None if it has none."""
        try:
            result = self._command(connection, f"TIMELINE_HISTORY {tli}")
        except SourceLacks:
            return None
        return (result.get_value(0, 1) if result.ntuples else None) or None

    def stream(self, connection: pq.abc.PGconn, tli: int, begin_lsn: Lsn, end_lsn: Lsn) -> Iterator[memoryview]:
        """Yield the bytes [begin_lsn, end_lsn) of `tli`. The connection is of no use afterwards.

        Raises:
            SourceLacks: they are not there any more.
        """
        command = f"START_REPLICATION PHYSICAL {format_lsn(begin_lsn)} TIMELINE {tli}"
        if self._command(connection, command).status != pq.ExecStatus.COPY_BOTH:
            raise SourceLacks(f"{self.name} has nothing of timeline {tli} at {format_lsn(begin_lsn)}")
        position_lsn, deadline = begin_lsn, time.monotonic() + self._stream_timeout_s
        while position_lsn < end_lsn:
            size, data = connection.get_copy_data(1)
            if size == 0:
                self._wait(connection, deadline)
            elif size < 0:
                result = self._next_result(connection)
                if result is not None:
                    self._check(result, command)
                raise SourceLacks(f"{self.name} ended timeline {tli} at {format_lsn(position_lsn)}")
            else:
                message = parse_copy_message(data)
                if isinstance(message, XLogData):
                    if message.begin_lsn != position_lsn:
                        raise RemoteProtocolError(
                            f"WAL from {format_lsn(message.begin_lsn)} came where {format_lsn(position_lsn)} is next"
                        )
                    yield message.payload[: end_lsn - position_lsn]
                    position_lsn += len(message.payload)
                    deadline = time.monotonic() + self._stream_timeout_s
                elif message.reply_requested:
                    # Nothing is said of positions: whoever waits for standbys must not wait for us.
                    connection.put_copy_data(build_status_update(0, 0, 0, time.time_ns() // 1000))
                    connection.flush()

    def _row(self, connection: pq.abc.PGconn, command: str) -> list[str | None]:
        result = self._command(connection, command)
        if result.ntuples != 1:
            raise RemoteProtocolError(f"{command} was answered without a row")
        return texts(result)

    def _command(self, connection: pq.abc.PGconn, command: str) -> pq.abc.PGresult:
        """Send a command and return its first result.

        Raises:
            SourceLacks: it has not what was asked for.
            SourceUnavailable: anything else went wrong.
        """
        connection.send_query(command.encode())
        result = self._next_result(connection)
        if result is None:
            raise SourceUnavailable(f"{self.name} gave no answer to {command}")
        self._check(result, command)
        if result.status != pq.ExecStatus.COPY_BOTH:
            while self._next_result(connection) is not None:
                pass  # What belongs to the same answer.
        return result

    def _check(self, result: pq.abc.PGresult, command: str) -> None:
        if result.status not in (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE):
            return
        code, text = sqlstate_of(result), result.get_error_message()
        problem = problem_of_error(command, code, text)
        # A server that ends the connection with this code has failed, and knows nothing of the position.
        is_fatal = result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) != b"ERROR"
        if code == _NO_SUCH_FILE or (code == _WRONG_POSITION and not is_fatal):
            raise SourceLacks(f"{self.name}: {problem.message}")
        raise SourceUnavailable(f"{self.name}: {problem.message}")

    def _next_result(self, connection: pq.abc.PGconn) -> pq.abc.PGresult | None:
        deadline = time.monotonic() + self._timeout_s
        while connection.flush() == 1 or connection.is_busy():
            self._wait(connection, deadline)
        return connection.get_result()

    def _wait(self, connection: pq.abc.PGconn, deadline: float) -> None:
        """Wait until there is something to read, and read it."""
        if not select.select([connection.socket], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise SourceUnavailable(f"{self.name} gave no answer in time")
        connection.consume_input()
