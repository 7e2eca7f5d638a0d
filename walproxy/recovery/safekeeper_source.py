"""A running safekeeper as a source of WAL, through its replication door.

It serves what is committed, as far as it knows, and where it reads through to an archive also what it has removed. A
connection is made for each question: recovery asks once per segment. PostgreSQL's own servers answer in the same way,
so a primary or a standby can be named as well.
"""

import contextlib
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from psycopg import pq
from psycopg.conninfo import make_conninfo

from safekeeper.errors import ConfigurationError, RemoteProtocolError
from safekeeper.lsn import LSN_MAX, Lsn, format_lsn, segment_start
from safekeeper.timelines import parse_timeline_history
from walproxy.command_connection import replication_conninfo, sqlstate_of, texts
from walproxy.conninfo import parse_conninfo
from walproxy.primary_check import problem_of_connect, problem_of_error
from walproxy.primary_hosts import primary_hosts
from walproxy.recovery.sources import LogPath, Offer, Origin, SourceLacks, SourceUnavailable
from walproxy.replication import XLogData, parse_copy_message, parse_identify_system, parse_segment_size

_WHOSE = "the safekeepers'"
_NO_SUCH_FILE = "58P01"
_WRONG_POSITION = "XX000"


class _Log(NamedTuple):
    """What a server says of its WAL."""

    origin: Origin
    path: LogPath
    readable_lsn: Lsn


class SafekeeperSource:
    """One safekeeper.

    Args:
        host: how messages call it.
        conninfo: of this host alone.
        timeout_s: without a word for so long it counts as unreachable.
    """

    def __init__(self, host: str, conninfo: str, *, timeout_s: float = 10.0) -> None:
        self.name = f"the safekeeper {host}"
        given = parse_conninfo(conninfo, _WHOSE)
        limit = {} if "connect_timeout" in given else {"connect_timeout": str(max(2, round(timeout_s)))}
        self._conninfo = make_conninfo(replication_conninfo(conninfo, "walproxy_recovery"), **limit)
        self._timeout_s = timeout_s

    def origin(self) -> Origin:
        """See WalSource."""
        with self._connected() as connection:
            return self._log(connection).origin

    def offers(self, tli: int, begin_lsn: Lsn) -> list[Offer]:
        """See WalSource."""
        with self._connected() as connection:
            log = self._log(connection)
        end_lsn = self._end_of(log, tli, begin_lsn)
        if end_lsn <= begin_lsn:
            return []
        return [Offer(self.name, begin_lsn, end_lsn, end_lsn, self._writer(tli, begin_lsn, end_lsn))]

    def history(self, tli: int) -> bytes | None:
        """See WalSource."""
        with self._connected() as connection:
            return self._history(connection, tli)

    def has_later(self, tli: int, begin_lsn: Lsn) -> str | None:
        """See WalSource. A safekeeper's log has no hole: what it lacks was removed, and what follows is there."""
        with self._connected() as connection:
            log = self._log(connection)
        later_lsn = begin_lsn + log.origin.segment_size
        if self._end_of(log, tli, later_lsn) <= later_lsn:
            return None
        return log.path.name_of(later_lsn)

    def reach(self, path: LogPath, begin_lsn: Lsn) -> Lsn:
        """See WalSource."""
        with self._connected() as connection:
            log = self._log(connection)
            common_lsn = min(path.common_end(log.path), log.readable_lsn)
            if begin_lsn >= common_lsn:
                return begin_lsn
            start_lsn = segment_start(begin_lsn, log.origin.segment_size)
            try:
                for _ in self._stream(connection, path.tli_of(begin_lsn), start_lsn, start_lsn + 1):
                    return common_lsn
            except SourceLacks:
                pass
            return begin_lsn

    def next_after(self, path: LogPath, lsn: Lsn) -> Lsn | None:
        """See WalSource. Where its log begins it does not say, so the answer may be too low."""
        with self._connected() as connection:
            log = self._log(connection)
        return lsn if lsn < min(path.common_end(log.path), log.readable_lsn) else None

    # The conversation.

    @contextlib.contextmanager
    def _connected(self) -> Iterator[pq.abc.PGconn]:
        connection = pq.PGconn.connect(self._conninfo.encode())
        try:
            if connection.status != pq.ConnStatus.OK:
                problem = problem_of_connect(connection.get_error_message())
                raise SourceUnavailable(
                    f"{self.name}: {problem.message}; if it is lost for good, leave it out of --safekeepers"
                )
            connection.nonblocking = 1
            yield connection
        except RemoteProtocolError as error:
            raise SourceUnavailable(f"{self.name}: {error}") from error
        finally:
            connection.finish()

    def _log(self, connection: pq.abc.PGconn) -> _Log:
        row = self._row(connection, "IDENTIFY_SYSTEM")
        system_id, tli, readable_lsn = parse_identify_system(row)
        segment_size = parse_segment_size(self._row(connection, "SHOW wal_segment_size")[0] or "")
        lineage = parse_timeline_history(tli, (self._history(connection, tli) or b"") if tli > 1 else b"")
        return _Log(Origin(system_id, segment_size), LogPath(tli, lineage, segment_size), readable_lsn)

    def _history(self, connection: pq.abc.PGconn, tli: int) -> bytes | None:
        try:
            result = self._command(connection, f"TIMELINE_HISTORY {tli}")
        except SourceLacks:
            return None
        return (result.get_value(0, 1) if result.ntuples else None) or None

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
        if code in (_NO_SUCH_FILE, _WRONG_POSITION):
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
            raise SourceUnavailable(f"{self.name} gave no answer within {self._timeout_s:g} s")
        connection.consume_input()

    # WAL.

    def _end_of(self, log: _Log, tli: int, begin_lsn: Lsn) -> Lsn:
        """Return where the bytes of `tli` end that this server can send of a segment."""
        left = dict(log.path.lineage)
        if tli not in (log.path.tli, *left):
            return 0
        return min(begin_lsn + log.origin.segment_size, left.get(tli, LSN_MAX), log.readable_lsn)

    def _stream(self, connection: pq.abc.PGconn, tli: int, begin_lsn: Lsn, end_lsn: Lsn) -> Iterator[memoryview]:
        """Yield the bytes [begin_lsn, end_lsn) of `tli`. The connection is of no use afterwards.

        Raises:
            SourceLacks: they are not there any more.
        """
        command = f"START_REPLICATION PHYSICAL {format_lsn(begin_lsn)} TIMELINE {tli}"
        if self._command(connection, command).status != pq.ExecStatus.COPY_BOTH:
            raise SourceLacks(f"{self.name} has nothing of timeline {tli} at {format_lsn(begin_lsn)}")
        position_lsn, deadline = begin_lsn, time.monotonic() + self._timeout_s
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
                    deadline = time.monotonic() + self._timeout_s

    def _writer(self, tli: int, begin_lsn: Lsn, end_lsn: Lsn) -> Callable[[Path], None]:
        def write(target: Path) -> None:
            with self._connected() as connection, target.open("wb") as file:
                for piece in self._stream(connection, tli, begin_lsn, end_lsn):
                    file.write(piece)

        return write


def safekeeper_sources(conninfo: str, *, timeout_s: float = 10.0) -> list[SafekeeperSource]:
    """Return a source for each host of a libpq connection string.

    Raises:
        ConfigurationError: libpq cannot read it.
    """
    try:
        hosts = primary_hosts(conninfo, _WHOSE)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{error}; --safekeepers takes a libpq connection string of their replication doors (--pg-listen)"
        ) from None
    return [SafekeeperSource(host.name, host.conninfo, timeout_s=timeout_s) for host in hosts]
