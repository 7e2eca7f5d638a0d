"""Connections to the server whose changes are read, and its errors as one line each.

The role needs LOGIN and REPLICATION, and SELECT on the tables for a copy of them. Values arrive as text, so a session
fixes every setting that decides how they look.
"""

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

import psycopg

from safekeeper.base.errors import EXIT_CONFIGURATION, WalproxyError
from walproxy.postgres.problems import one_line
from walproxy.postgres.sessions import open_blocking

OLDEST_MAJOR: Final = 13
_BUSY_TIMEOUT_S: Final = 30.0
_BUSY_POLL_S: Final = 0.1
_SETTINGS: Final = {
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "timezone": "UTC",
    "row_security": "off",  # an error in place of a part of the rows
}
_RIGHTS: Final = (
    "give the role what it needs: ALTER ROLE ... REPLICATION; and to copy tables GRANT SELECT, and BYPASSRLS if they "
    "have row-level security"
)
_Result = TypeVar("_Result")

Connection = psycopg.Connection[Any]


class SourceUnavailable(WalproxyError):
    """The server does not answer, or not now. It may be tried again."""


class SourceRefused(WalproxyError):
    """This server or slot cannot serve the request as it is: an operator must act."""

    exit_code = EXIT_CONFIGURATION


def connect(
    conninfo: str, *, application_name: str = "walproxy cdc", writes: bool = False, replication: bool = False
) -> Connection:
    """Return a connection in autocommit mode, to the database that `conninfo` names, or `postgres`.

    Args:
        writes: it makes or drops publications.
        replication: it takes replication commands too, beside SQL without parameters.

    Raises:
        ConfigurationError: libpq cannot read `conninfo`.
        SourceUnavailable: no connection.
        SourceRefused: the server is a standby, or older than any that is supported.
    """
    with one_line_errors("connect to the server"):
        connection = open_blocking(
            conninfo,
            application_name=application_name,
            writes=writes,
            statement_timeout_s=0,  # decoding goes on as long as there is WAL
            settings=_SETTINGS,
            replication=replication,
        )
    try:
        with one_line_errors("set up the session"):
            row = connection.execute("SELECT pg_is_in_recovery()").fetchone()
        if row is not None and row[0] is True:
            raise SourceRefused("the server is a standby: name its primary, or promote it")
        if server_major(connection) < OLDEST_MAJOR:
            raise SourceRefused(f"PostgreSQL {server_major(connection)} is too old: {OLDEST_MAJOR} is the oldest")
    except BaseException:
        connection.close()
        raise
    return connection


def server_major(connection: Connection) -> int:
    """Return the server's major version, e.g. 18."""
    return connection.info.server_version // 10_000


def system_id(connection: Connection) -> int:
    """Return the identity of the server's cluster.

    Raises:
        SourceUnavailable, SourceRefused.
    """
    return int(one_value(connection, "SELECT system_identifier FROM pg_control_system()", doing="read the system id"))


def server_start(connection: Connection) -> str:
    """Return when the server was started: what tells two servers of one cluster apart, or two runs of one.

    Raises:
        SourceUnavailable, SourceRefused.
    """
    return str(one_value(connection, "SELECT pg_postmaster_start_time()::text", doing="ask when the server started"))


def require_server(connection: Connection, start: str) -> None:
    """See that a connection leads to the server that was started at `start`: `conninfo` may name several.

    The quorum's position is asked of one server, and holds for what that server sends only.

    Raises:
        SourceUnavailable: it leads to another one, or the server does not answer.
        SourceRefused.
    """
    if server_start(connection) != start:
        raise SourceUnavailable("two connections led to different servers, or the server was restarted meanwhile")


def one_value(connection: Connection, query: str, parameters: Mapping[str, object] | None = None, *, doing: str) -> Any:
    """Return the first value of the first row of a query, None without rows. Raises as `one_line_errors`."""
    with one_line_errors(doing):
        row = connection.execute(query, parameters).fetchone()
    return None if row is None else row[0]


@contextlib.contextmanager
def one_line_errors(doing: str) -> Iterator[None]:
    """Turn what psycopg raises in the block into one line: "could not `doing`: reason".

    Raises:
        SourceUnavailable: the connection broke, or the server is short of something.
        SourceRefused: the server refuses.
    """
    try:
        yield
    except psycopg.Error as error:
        raise source_error(error, doing) from error


def source_error(error: psycopg.Error, doing: str) -> SourceUnavailable | SourceRefused:
    """Return what an error of psycopg means."""
    reason = one_line(str(error))
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return SourceRefused(f"could not {doing}: {reason}; {_RIGHTS}")
    if "max_replication_slots" in reason:
        return SourceRefused(f"could not {doing}: {reason}; raise max_replication_slots, or drop a slot")
    if re.search(r"wal_level", reason):
        return SourceRefused(f"could not {doing}: {reason}; set wal_level = logical and restart PostgreSQL")
    transient = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) or error.sqlstate is None
    kind = SourceUnavailable if transient else SourceRefused
    return kind(f"could not {doing}: {reason}")


def patiently(attempt: Callable[[], _Result], *, timeout_s: float = _BUSY_TIMEOUT_S) -> _Result:
    """Return what `attempt` returns, trying again while the slot that it needs is in use.

    A task that was given up may hold the slot until its server process notices.

    Raises:
        psycopg.errors.ObjectInUse: it was in use all the time.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return attempt()
        except psycopg.errors.ObjectInUse:
            if time.monotonic() > deadline:
                raise
        time.sleep(_BUSY_POLL_S)
