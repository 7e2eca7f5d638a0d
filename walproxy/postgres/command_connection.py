"""A physical replication connection of libpq on the event loop, for one command after the other.

psycopg makes the connection (TLS, SCRAM, service and password files, several hosts, names resolved off the loop); its
`pgconn` is then driven from here, non-blocking, by the readiness of its socket. Every failure of the server or of the
way to it is raised as a PrimaryProblem; after one the connection may be broken, and every later command says so.
"""

import asyncio
import contextlib
import math
import os
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Self

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from safekeeper.base.errors import LocalProtocolError, RemoteProtocolError
from walproxy.postgres.conninfo import parse_conninfo
from walproxy.postgres.problems import problem_of_connect, problem_of_error

# A primary whose machine is gone sends no reset: these find it within about 20 seconds where the operator says nothing.
_TCP_DEFAULTS = {
    "keepalives_idle": "5",
    "keepalives_interval": "3",
    "keepalives_count": "5",
    "tcp_user_timeout": "20000",
}


def replication_conninfo(conninfo: str, application_name: str, settings: Mapping[str, str] | None = None) -> str:
    """Return `conninfo` (URI or key=value) as that of a physical replication connection.

    `settings` are added as server settings of this connection, e.g. {"wal_sender_timeout": "10s"}. The database is
    called `replication`, which is what pg_hba.conf and .pgpass look for.

    Raises:
        ConfigurationError: libpq cannot read it.
    """
    given = parse_conninfo(conninfo)
    before = given.get("options", os.environ.get("PGOPTIONS"))
    options = [before] if before else []
    for name, value in (settings or {}).items():
        options.append(f"-c {name}=" + value.replace("\\", "\\\\").replace(" ", "\\ "))
    fixed = {
        "dbname": "replication",
        "replication": "true",
        "application_name": application_name,
        "client_encoding": "UTF8",
    }
    if options:
        fixed["options"] = " ".join(options)
    return make_conninfo("", **{**_TCP_DEFAULTS, **given, **fixed})


class CommandConnection:
    """One replication connection outside COPY. Made by `connect`; for one task at a time."""

    def __init__(self, connection: psycopg.AsyncConnection, conninfo: str, timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._pgconn = connection.pgconn
        self._conninfo = conninfo
        self._timeout_s = timeout_s
        # libpq closes the socket by itself when it breaks; the number is needed after that, to stop watching it.
        self._socket = self._pgconn.socket
        self._in_copy = False
        self._broken: str | None = None  # why the connection broke

    @classmethod
    async def connect(
        cls,
        conninfo: str,
        *,
        application_name: str = "walproxy",
        timeout_s: float = 10.0,
        settings: Mapping[str, str] | None = None,
    ) -> Self:
        """Connect to the primary.

        Args:
            conninfo: libpq's, also with several hosts; PG* variables, service and password files count.
            application_name: what synchronous_standby_names calls us.
            timeout_s: for connecting, and later for the answer to each command.
            settings: see `replication_conninfo`.

        Raises:
            ConfigurationError: the connection string cannot be read.
            PrimaryProblem: no connection.
        """
        text = replication_conninfo(conninfo, application_name, settings)
        try:
            async with asyncio.timeout(timeout_s):
                connection = await psycopg.AsyncConnection.connect(
                    text, autocommit=True, connect_timeout=math.ceil(timeout_s)
                )
        except TimeoutError:
            raise problem_of_connect(f"timeout: no answer within {timeout_s:g} s") from None
        except psycopg.Error as error:
            raise problem_of_connect(str(error)) from None
        return cls(connection, conninfo, timeout_s)

    def close(self) -> None:
        """Close the connection. Closing twice is fine."""
        self._in_copy = False
        self._broken = self._broken or "the connection is closed"
        self._pgconn.finish()

    async def _show(self, setting: str) -> str:
        row = await self._row(f"SHOW {setting}", f"read the setting {setting}")
        return row[0] or ""

    async def _row(self, command: str, doing: str) -> list[str | None]:
        """Run a command that answers with one row."""
        results = await self._command(command, doing)
        if not results or results[0].ntuples != 1:
            raise RemoteProtocolError(f"PostgreSQL answered {command} without a row")
        return texts(results[0])

    async def _command(self, command: str, doing: str) -> list[pq.abc.PGresult]:
        """Run a replication command and return its results; `doing` follows "cannot" in an error."""
        if self._in_copy:
            raise LocalProtocolError(f"{command} cannot be sent inside a stream")
        if self._broken is not None:
            raise problem_of_error(doing, None, self._broken)
        results: list[pq.abc.PGresult] = []
        try:
            async with self._answer_in_time(doing):
                self._pgconn.send_query(command.encode())
                await self._flushed()
                while (result := await self._next_result()) is not None:
                    results.append(result)
                    if result.status == pq.ExecStatus.COPY_BOTH:
                        break
        except psycopg.Error as error:
            self._broken = str(error)
            if not results:
                raise problem_of_error(doing, None, self._broken) from None
        for result in results:
            if result.status in (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE):
                raise problem_of_error(doing, sqlstate_of(result), result.get_error_message())
        return results

    @contextlib.asynccontextmanager
    async def _answer_in_time(self, doing: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except TimeoutError:
            self.close()
            raise problem_of_error(doing, None, f"PostgreSQL gave no answer within {self._timeout_s:g} s") from None

    async def _next_result(self) -> pq.abc.PGresult | None:
        while self._pgconn.is_busy():
            await self._ready(self._loop.add_reader, self._loop.remove_reader)
            self._pgconn.consume_input()
        return self._pgconn.get_result()

    async def _flushed(self) -> None:
        while self._pgconn.flush() == 1:
            await self._ready(self._loop.add_writer, self._loop.remove_writer)

    async def _ready(self, add: Callable[..., None], remove: Callable[[int], bool]) -> None:
        """Wait until the socket is readable or writable, once."""
        ready = asyncio.Event()
        add(self._socket, ready.set)
        try:
            await ready.wait()
        finally:
            remove(self._socket)


def texts(result: pq.abc.PGresult) -> list[str | None]:
    """Return the first row of `result` as text."""
    values = (result.get_value(0, column) for column in range(result.nfields if result.ntuples else 0))
    return [None if value is None else value.decode(errors="replace") for value in values]


def sqlstate_of(result: pq.abc.PGresult) -> str | None:
    field = result.error_field(pq.DiagnosticField.SQLSTATE)
    return None if field is None else field.decode()
