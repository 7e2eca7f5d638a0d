"""A conversation with a replication server, one question after the other: whose WAL it has, histories, bytes.

For safekeepers' replication listeners and, since these answer in the same way, for PostgreSQL's own servers. Blocking:
a connection is made for a task, and used by one thread. What is sent and what the answers mean is in
`walproxy.postgres.replication_protocol`; here is what they mean to a reader of WAL.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.logs import one_line
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.base.timelines import parse_timeline_history
from walproxy.postgres.command_connection import replication_conninfo
from walproxy.postgres.conninfo import parse_conninfo
from walproxy.postgres.problems import problem_of_connect, problem_of_error
from walproxy.postgres.replication import build_status_update, parse_segment_size
from walproxy.postgres.replication_protocol import (
    Conversation,
    ServerRefused,
    SocketEvent,
    WalStream,
    end_copy,
    identify_system,
    read_timeline_history,
    show,
    start_replication,
)
from walproxy.postgres.verbose_connect import connect_blocking
from walproxy.postgres.waiting import wait_blocking, wait_until_ready
from walproxy.wal_sources.source import LogPath, Origin, SourceUnavailable, WalMissing

_Answer = TypeVar("_Answer")

_NO_SUCH_FILE = "58P01"
_WRONG_POSITION = "XX000"


class ServedLog(NamedTuple):
    """The WAL that a server reports: nothing at `readable_lsn` or above can be read yet."""

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
        timeout_s: a server that sends nothing for this time counts as unreachable.
        stream_timeout_s: the same for requested WAL; timeout_s if None.
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
        try:
            return connect_blocking(self._conninfo)
        except psycopg.Error as error:
            problem = problem_of_connect(str(error))
            raise SourceUnavailable(f"{self.name}: {problem.message}{self._advice}") from None

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
        return self._ask(connection, identify_system(connection), "IDENTIFY_SYSTEM")

    def log(self, connection: pq.abc.PGconn) -> ServedLog:
        """Return which WAL the server reports."""
        system_id, tli, readable_lsn = self.identify(connection)
        setting = self._ask(connection, show(connection, "wal_segment_size"), "SHOW wal_segment_size")
        segment_size = parse_segment_size(setting)
        lineage = parse_timeline_history(tli, (self.history(connection, tli) or b"") if tli > 1 else b"")
        return ServedLog(Origin(system_id, segment_size), LogPath(tli, lineage, segment_size), readable_lsn)

    def history(self, connection: pq.abc.PGconn, tli: int) -> bytes | None:
        """Return the history file of `tli`, None if it has none."""
        try:
            return self._ask(connection, read_timeline_history(connection, tli), f"TIMELINE_HISTORY {tli}") or None
        except WalMissing:
            return None

    def stream(self, connection: pq.abc.PGconn, tli: int, begin_lsn: Lsn, end_lsn: Lsn) -> Iterator[memoryview]:
        """Yield the bytes [begin_lsn, end_lsn) of `tli`. The connection is of no use afterwards.

        Raises:
            WalMissing: the server no longer has them.
            SourceUnavailable: it shuts down, or anything else went wrong.
        """
        command = f"START_REPLICATION PHYSICAL {format_lsn(begin_lsn)} TIMELINE {tli}"
        timeline_end = self._ask(connection, start_replication(connection, begin_lsn, tli), command)
        if timeline_end is not None:
            raise WalMissing(f"{self.name} has nothing of timeline {tli} at {format_lsn(begin_lsn)}")
        wal_stream = WalStream(connection, begin_lsn)
        has_waited, position_lsn, deadline = True, begin_lsn, time.monotonic() + self._stream_timeout_s
        while True:
            arrived = wal_stream.read(has_waited)
            for chunk in arrived.chunks:
                yield chunk[: end_lsn - position_lsn]
                position_lsn += len(chunk)
                deadline = time.monotonic() + self._stream_timeout_s
                if position_lsn >= end_lsn:
                    return
            if arrived.is_over:
                if self._ask(connection, end_copy(connection), command) is None:
                    raise SourceUnavailable(f"{self.name} has shut down")
                raise WalMissing(f"{self.name} ended timeline {tli} at {format_lsn(position_lsn)}")
            if arrived.broken is not None:
                raise arrived.broken
            if arrived.reply_requested:
                # No positions are reported: a server that waits for its standbys must not wait for this client.
                connection.put_copy_data(build_status_update(0, 0, 0, time.time_ns() // 1000))
                connection.flush()
            has_waited = arrived.is_drained
            if has_waited:
                self._wait(connection, deadline)

    def _ask(self, connection: pq.abc.PGconn, conversation: Conversation[_Answer], command: str) -> _Answer:
        """Have a conversation that begins with `command`, and return its answer.

        Raises:
            WalMissing: it does not have the requested WAL.
            SourceUnavailable: anything else went wrong.
        """
        try:
            return wait_blocking(conversation, connection, self._timeout_s)
        except TimeoutError:
            raise self._no_answer() from None
        except ServerRefused as refusal:
            problem = problem_of_error(command, refusal.sqlstate, refusal.message, refusal.routine)
            # A server that ends the connection with this code has failed; that is no reply about the position.
            is_lack = refusal.sqlstate == _NO_SUCH_FILE or (
                refusal.sqlstate == _WRONG_POSITION and not refusal.is_fatal
            )
            raise (WalMissing if is_lack else SourceUnavailable)(f"{self.name}: {problem.message}") from None

    def _wait(self, connection: pq.abc.PGconn, deadline: float) -> None:
        try:
            wait_until_ready(connection, SocketEvent.READ, deadline)
        except TimeoutError:
            raise self._no_answer() from None

    def _no_answer(self) -> SourceUnavailable:
        return SourceUnavailable(f"{self.name} gave no answer in time")
