"""A physical replication connection of libpq on the event loop, for one command after the other.

psycopg makes the connection (TLS, SCRAM, service and password files, several hosts, names resolved off the loop). What
is sent then and what the answers mean is in `replication_protocol`; `waiting` waits for the socket. Every failure of
the server or of the way to it is raised as a PrimaryProblem; after one the connection may be broken, and every later
command raises that.
"""

import asyncio
import math
from collections.abc import Mapping
from typing import Self, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo

from safekeeper.base.errors import LocalProtocolError
from walproxy.postgres.conninfo import parse_conninfo
from walproxy.postgres.problems import problem_of_connect, problem_of_error
from walproxy.postgres.replication_protocol import Conversation, ServerRefused, read_row, run_command, show
from walproxy.postgres.sessions import TCP_DEFAULTS, with_settings
from walproxy.postgres.verbose_connect import VerboseConnection
from walproxy.postgres.waiting import wait_on_loop

_Answer = TypeVar("_Answer")

_IDLE_TIMEOUT = "idle_session_timeout"
_IDLE_TIMEOUT_SINCE = 140000


def replication_conninfo(
    conninfo: str, application_name: str, settings: Mapping[str, str] | None = None, *, runs_sql: bool = False
) -> str:
    """Return `conninfo` (URI or key=value) as that of a physical replication connection.

    `settings` are added as server settings of this connection, e.g. {"wal_sender_timeout": "10s"}. The database is
    called `replication`, which is what pg_hba.conf and .pgpass look for, unless it `runs_sql`: in the database that
    `conninfo` names.

    Raises:
        ConfigurationError: libpq cannot read it.
    """
    given = parse_conninfo(conninfo)
    options = with_settings(given.get("options"), settings or {})
    fixed = {
        "dbname": "replication",
        "replication": "true",
        "application_name": application_name,
        "client_encoding": "UTF8",
    }
    if options:
        fixed["options"] = options
    if runs_sql:
        del fixed["dbname"]
        fixed["replication"] = "database"
    return make_conninfo("", **{**TCP_DEFAULTS, **given, **fixed})


async def _connected(text: str, text_without_idle_timeout: str, timeout_s: float) -> VerboseConnection:
    """Connect, with the second string to a server that does not have the setting (13)."""
    limit_s = math.ceil(timeout_s)
    try:
        return await VerboseConnection.connect(text, autocommit=True, connect_timeout=limit_s)
    except psycopg.Error as error:
        if _IDLE_TIMEOUT not in str(error):
            raise
    return await VerboseConnection.connect(text_without_idle_timeout, autocommit=True, connect_timeout=limit_s)


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
        runs_sql: bool = False,
        server_version: int | None = None,
    ) -> Self:
        """Connect to the primary.

        Args:
            conninfo: libpq's, also with several hosts; PG* variables, service and password files count.
            application_name: what synchronous_standby_names calls us.
            timeout_s: for connecting, and later for the answer to each command.
            settings, runs_sql: see `replication_conninfo`.
            server_version: the server's, as in PGconn.server_version, if it is known: saves an older one a refused
                login.

        Raises:
            ConfigurationError: the connection string cannot be read.
            PrimaryProblem: no connection.
        """
        # A spare's connection is idle, and a site may limit that for everybody.
        text, without = (
            replication_conninfo(conninfo, application_name, {**(settings or {}), **more}, runs_sql=runs_sql)
            for more in ({_IDLE_TIMEOUT: "0"}, {})
        )
        if server_version is not None and server_version < _IDLE_TIMEOUT_SINCE:
            text = without
        try:
            async with asyncio.timeout(timeout_s):
                connection = await _connected(text, without, timeout_s)
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
        return await self._ask(show(self._pgconn, setting), f"read the setting {setting}")

    async def _row(self, command: str, doing: str) -> list[str | None]:
        """Run a command that answers with one row."""
        return await self._ask(read_row(self._pgconn, command), doing)

    async def _command(self, command: str, doing: str) -> None:
        """Run a command; its answer is ignored unless it is an error."""
        await self._ask(run_command(self._pgconn, command), doing)

    async def _ask(self, conversation: Conversation[_Answer], doing: str) -> _Answer:
        """Have a conversation that begins with a command; `doing` follows "cannot" in an error."""
        if self._in_copy:
            raise LocalProtocolError(f"cannot {doing} inside a stream")
        if self._broken is not None:
            raise problem_of_error(doing, None, self._broken)
        return await self._have(conversation, doing, doing)

    async def _have(self, conversation: Conversation[_Answer], doing: str, timeout_doing: str) -> _Answer:
        """Have a conversation with the server, and return its answer."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await wait_on_loop(conversation, self._pgconn)
        except TimeoutError:
            self.close()
            reason = f"PostgreSQL gave no answer within {self._timeout_s:g} s"
            raise problem_of_error(timeout_doing, None, reason) from None
        except ServerRefused as refusal:
            raise problem_of_error(doing, refusal.sqlstate, refusal.message, refusal.routine) from None
        except psycopg.Error as error:
            self._broken = str(error)
            raise problem_of_error(doing, None, self._broken) from None
