"""Statements with a deadline that holds for every step, also against a server that hangs.

A stopped postmaster accepts connections, because the kernel does, and sends nothing; a stopped backend receives a
cancellation and does not reply. Therefore libpq is used without waiting, and the connection is dropped at the deadline.
Only the resolution of host names is not bounded: a local server is reached by an address or a socket.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import Self

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from walproxy.postgres.problems import ServerHangs, problem_of_connect, problem_of_error
from walproxy.postgres.replication_protocol import Conversation, ServerRefused, SocketEvent, run_command
from walproxy.postgres.sessions import later_settings, session_conninfo
from walproxy.postgres.verbose_connect import end_verbose, start_verbose
from walproxy.postgres.waiting import wait_blocking

APPLICATION_NAME = "walproxy agent"

Row = tuple[str | None, ...]


class BoundedConnection:
    """An SQL connection whose statements end before one common deadline. Made by `open` and `bounded_connection`.

    Args:
        whose: names the server in errors, e.g. "the local server".
        timeout_s: until the deadline.
    """

    def __init__(self, pgconn: pq.abc.PGconn, whose: str, timeout_s: float) -> None:
        self._pgconn = pgconn
        self._whose = whose
        self.limit(timeout_s)

    @classmethod
    def open(
        cls,
        conninfo: str,
        *,
        whose: str,
        timeout_s: float,
        application_name: str = APPLICATION_NAME,
        writes: bool = False,
        replication: bool = False,
    ) -> Self:
        """Connect; the caller closes it. Arguments and errors as for `bounded_connection`."""
        began_at = time.monotonic()
        text = session_conninfo(conninfo, application_name, writes=writes, statement_timeout_s=timeout_s + 1)
        if replication:
            text = make_conninfo(text, replication="true")
        connection = cls(start_verbose(text), whose, timeout_s - (time.monotonic() - began_at))
        try:
            connection._connect()
            statement = None if replication else later_settings(connection._pgconn.server_version)
            if statement is not None:
                connection.rows(statement.decode(), "set up the session")
        except BaseException:
            connection.close()
            raise
        return connection

    def limit(self, timeout_s: float) -> None:
        """Set the deadline of the statements that follow, from now on."""
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s

    def close(self) -> None:
        """Disconnect, also in the middle of a statement. Closing twice is fine."""
        self._pgconn.finish()

    def rows(self, sql: str, doing: str) -> list[Row]:
        """Run one statement in autocommit mode and return its rows, as text.

        Args:
            doing: what it is for, to follow "cannot" in an error.

        Raises:
            ServerHangs: no reply before the deadline.
            PrimaryProblem: the server refuses it, or the connection is lost.
        """
        try:
            results = self._wait(run_command(self._pgconn, sql))
        except ServerRefused as error:
            raise problem_of_error(doing, error.sqlstate, error.message, error.routine) from None
        except psycopg.Error as error:
            raise problem_of_error(doing, None, str(error)) from None
        return [
            tuple(_text(result.get_value(row, column)) for column in range(result.nfields))
            for result in results[-1:]
            for row in range(result.ntuples)
        ]

    def value(self, sql: str, doing: str) -> str | None:
        """Return the only value of a statement with one row. Raises as `rows`."""
        return self.rows(sql, doing)[0][0]

    def _connect(self) -> None:
        try:
            self._wait(_connected(self._pgconn))
        except psycopg.Error as error:
            raise problem_of_connect(str(error)) from None
        self._pgconn.nonblocking = 1

    def _wait(self, conversation: Conversation[list[pq.abc.PGresult]]) -> list[pq.abc.PGresult]:
        try:
            return wait_blocking(conversation, self._pgconn, max(0.0, self._deadline - time.monotonic()))
        except TimeoutError:
            raise ServerHangs(f"{self._whose} does not reply within {self._timeout_s:g} s") from None


@contextlib.contextmanager
def bounded_connection(
    conninfo: str,
    *,
    whose: str,
    timeout_s: float,
    application_name: str = APPLICATION_NAME,
    writes: bool = False,
    replication: bool = False,
) -> Iterator[BoundedConnection]:
    """Connect, and disconnect after the block. All of it, with the statements, has `timeout_s`.

    Args:
        writes: it may write, and shows default_transaction_read_only as other sessions have it.
        replication: for replication commands, not for SQL.

    Raises:
        ServerHangs, PrimaryProblem: as `BoundedConnection.rows`.
        ConfigurationError: the connection string is wrong.
    """
    connection = BoundedConnection.open(
        conninfo,
        whose=whose,
        timeout_s=timeout_s,
        application_name=application_name,
        writes=writes,
        replication=replication,
    )
    with contextlib.closing(connection):
        yield connection


def _connected(pgconn: pq.abc.PGconn) -> Conversation[list[pq.abc.PGresult]]:
    if pgconn.status == pq.ConnStatus.BAD:
        raise psycopg.OperationalError(pgconn.get_error_message())
    wanted = SocketEvent.WRITE
    while True:
        yield wanted
        status = pgconn.connect_poll()
        if status == pq.PollingStatus.OK:
            end_verbose(pgconn)
            return []
        if status == pq.PollingStatus.FAILED:
            raise psycopg.OperationalError(pgconn.get_error_message())
        wanted = SocketEvent.READ if status == pq.PollingStatus.READING else SocketEvent.WRITE


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")


def quoted(text: str) -> str:
    """Return `text` as an SQL literal that does not depend on standard_conforming_strings."""
    doubled = text.replace("\\", "\\\\").replace("'", "''")
    return f" E'{doubled}'" if "\\" in text else f"'{doubled}'"
