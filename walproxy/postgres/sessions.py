"""Open every SQL session of this project: one place for its settings, its errors, and the pool of a daemon.

A session is made for a role that may do much, in databases whose owners may not. Therefore:

- `search_path` is pg_catalog: the owner of a database cannot put functions and operators of its own before PostgreSQL's
  (ALTER DATABASE ... SET search_path). Tables of users are written with their schema.
- The timeouts and the isolation level that a site sets for everybody do not apply: a copy takes hours, and a session of
  a pool waits. Each session sets its own.
- A session is read-only unless its user writes.
- Warnings of a login, such as a password that expires soon, stay out of results.

PostgreSQL applies settings of a connection request (`options`) before the first statement, and above those of databases
and roles. Settings that older servers do not have follow in the first statement.
Source: https://www.postgresql.org/docs/current/config-setting.html#CONFIG-SETTING-SHELL

`SqlSessions` is what a daemon has for each server: up to two sessions, opened when they are needed, checked before use,
closed when unused. `one_session` and `open_blocking` are for a command. `walproxy.postgres.bounded_sql` is for a server
that may hang.
"""

import asyncio
import contextlib
import logging
import math
import os
import socket
import time
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from walproxy.postgres.conninfo import parse_conninfo
from walproxy.postgres.problems import PrimaryProblem, problem_of_connect, problem_of_error
from walproxy.postgres.verbose_connect import VerboseConnection

APPLICATION_NAME = "walproxy sql"
SESSIONS_MAX = 2
# A session that is used every minute stays open.
IDLE_S_MAX = 150.0
# Above each limit of those that wait for an answer, so that the server does not continue for a client that is gone.
STATEMENT_TIMEOUT_S = 30.0

_CONNECT_TIMEOUT_S = 10
_CLOSE_S = 1.0
# A server whose machine is gone sends no reset: these find it within about 20 seconds unless the operator sets others.
TCP_DEFAULTS: Final = {
    "keepalives_idle": "5",
    "keepalives_interval": "3",
    "keepalives_count": "5",
    "tcp_user_timeout": "20000",
}
SETTINGS: Final = {
    "search_path": "pg_catalog,pg_temp",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "client_min_messages": "error",
}
# By the first version that has them, as in PGconn.server_version. A server refuses a login with an unknown setting.
_LATER_SETTINGS: Final = ((140000, "idle_session_timeout", "0"), (170000, "transaction_timeout", "0"))

# The failures of sessions are raised here, with what they were for.
for _name in ("psycopg", "psycopg.pool"):
    logging.getLogger(_name).setLevel(logging.ERROR)


class SqlSession(VerboseConnection):
    """A configured session in autocommit mode. A wait that is given up drops it, and takes no time."""

    @classmethod
    async def open(cls, text: str) -> Self:
        """Connect and configure.

        Args:
            text: of `session_conninfo`.

        Raises:
            psycopg.Error: no connection.
        """
        session = await cls.connect(text, autocommit=True, prepare_threshold=None)
        try:
            statement = later_settings(session.info.server_version)
            if statement is not None:
                await session.execute(statement)
        except BaseException:
            await session.close()
            raise
        return session

    async def cancel_safe(self, *, timeout: float = 30.0) -> None:
        """Drop the connection: psycopg cancels a query and waits up to ten seconds for a server that may hang."""
        drop(self.pgconn)


class _PooledSession(SqlSession):
    """One of a pool, which connects in a task of its own."""

    @classmethod
    async def connect(cls, conninfo: str = "", *, logins: Any = None, **kwargs: Any) -> Self:
        if logins is None:
            return await super().connect(conninfo, **kwargs)
        if not logins.wanted:
            raise psycopg.OperationalError("no use waits for a session")
        began_at = time.monotonic()
        try:
            session = await cls.open(conninfo)
        except psycopg.Error as error:
            logins.failed(_Failure(began_at, str(error)))
            raise
        logins.opened.add(session)
        return session


@dataclass(frozen=True)
class _Failure:
    """A failure to connect: when the attempt began, by time.monotonic(), and why it failed."""

    began_at: float
    reason: str


class _Logins:
    """What a pool keeps to itself: the failures to open a session, and whether one is open.

    Attributes:
        opened: the sessions that were opened; those that are closed may remain.
    """

    def __init__(self) -> None:
        self.opened: weakref.WeakSet[_PooledSession] = weakref.WeakSet()
        self._waiting: set[asyncio.Future[_Failure]] = set()

    @property
    def wanted(self) -> bool:
        """Whether a use waits: the pool would try again after a failure, and replace a session that is dropped."""
        return any(not each.done() for each in self._waiting)

    @property
    def has_session(self) -> bool:
        """Whether a session is open: lent, or on its way to the next use."""
        return any(not each.closed for each in self.opened)

    @contextmanager
    def failure(self) -> "Iterator[asyncio.Future[_Failure]]":
        """Yield the next failure to open a session."""
        future: asyncio.Future[_Failure] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            yield future
        finally:
            self._waiting.discard(future)

    def failed(self, failure: _Failure) -> None:
        """Handle a failure to open a session."""
        for future in self._waiting:
            if not future.done():
                future.set_result(failure)


class SqlSessions:
    """The sessions with one server, which are read-only. Nothing is opened before the first use.

    `close` must be called before the event loop ends: the pool's tasks do not always end when they are cancelled.

    Args:
        conninfo: of one server, as the operator has written it.

    Attributes:
        conninfo: the same.
    """

    def __init__(self, conninfo: str, application_name: str = APPLICATION_NAME) -> None:
        self.conninfo = conninfo
        self._application_name = application_name
        self._pool: AsyncConnectionPool[_PooledSession] | None = None
        self._logins = _Logins()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @asynccontextmanager
    async def session(self, doing: str, timeout_s: float = 10.0) -> AsyncIterator[SqlSession]:
        """Lend a session for the block, in which everything that fails becomes a PrimaryProblem.

        Args:
            doing: what it is for, to follow "cannot" in an error.
            timeout_s: for the connection and the block, below STATEMENT_TIMEOUT_S. Then the session is dropped.

        Raises:
            PrimaryProblem: no connection, an error of PostgreSQL, or no answer in time.
            ConfigurationError: the connection string is wrong.
        """
        refusals: list[str] = []
        async with _problems(doing, timeout_s, refusals):
            pool, logins = await self._open_pool()
            session = await self._take(pool, logins, timeout_s, refusals)
            refusals.clear()
            try:
                yield session
            finally:
                await pool.putconn(session)

    async def close(self) -> None:
        """Close the sessions; a session in use is closed after its use. Closing twice is fine."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close(_CLOSE_S)

    async def _open_pool(self) -> tuple[AsyncConnectionPool[_PooledSession], _Logins]:
        if self._pool is not None:
            return self._pool, self._logins
        text = session_conninfo(self.conninfo, self._application_name)
        logins = self._logins = _Logins()
        pool = self._pool = AsyncConnectionPool(
            text,
            connection_class=_PooledSession,
            kwargs={"logins": logins},
            min_size=0,
            max_size=SESSIONS_MAX,
            open=False,
            check=AsyncConnectionPool.check_connection,
            max_idle=IDLE_S_MAX,
            max_lifetime=math.inf,  # One that is closed while clients use all connections cannot be replaced.
            reconnect_timeout=0.0,  # The next use tries again.
            num_workers=1,
        )
        await pool.open()
        return pool, logins

    async def _take(
        self, pool: AsyncConnectionPool[_PooledSession], logins: _Logins, timeout_s: float, refusals: list[str]
    ) -> _PooledSession:
        """Return a session of the pool, or raise why there is none."""
        began_at = time.monotonic()
        while True:
            remaining_s = began_at + timeout_s - time.monotonic()
            result = await self._session_or_failure(pool, logins, remaining_s, began_at, refusals)
            if isinstance(result, _PooledSession):
                return result
            # A failure to connect that began before says nothing of the server as it is now.
            if result.began_at >= began_at:
                raise problem_of_connect(result.reason)

    async def _session_or_failure(
        self,
        pool: AsyncConnectionPool[_PooledSession],
        logins: _Logins,
        timeout_s: float,
        began_at: float,
        refusals: list[str],
    ) -> _PooledSession | _Failure:
        """Wait for a session of the pool, or for the failure to open one while none is open.

        A session that is open serves this use when it is returned. Meanwhile `refusals` gets the failures.
        """
        getting = asyncio.ensure_future(pool.getconn(timeout_s))
        is_taken = False
        try:
            while True:
                with logins.failure() as failing:
                    waited: set[asyncio.Future[Any]] = {getting, failing}
                    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if getting.done():
                    session, is_taken = getting.result(), True
                    return session
                failure = failing.result()
                if failure.began_at < began_at or not logins.has_session:
                    return failure
                refusals.append(failure.reason)
        except PoolTimeout:
            raise problem_of_connect(refusals[-1] if refusals else "timeout: no answer") from None
        except PoolClosed:
            raise problem_of_connect("the server is another one now") from None
        finally:
            if not is_taken:
                getting.cancel()
                # This raises only a cancellation of this use.
                await asyncio.wait([getting])
                if not getting.cancelled() and getting.exception() is None:
                    # It came in the same moment.
                    await pool.putconn(getting.result())


@asynccontextmanager
async def one_session(
    conninfo: str,
    doing: str,
    timeout_s: float = 10.0,
    *,
    application_name: str = APPLICATION_NAME,
    writes: bool = False,
) -> AsyncIterator[SqlSession]:
    """Open one session for the block. Arguments and errors as for `SqlSessions.session`."""
    text = session_conninfo(
        conninfo,
        application_name,
        writes=writes,
        statement_timeout_s=max(STATEMENT_TIMEOUT_S, timeout_s + 1),
        connect_timeout_s=timeout_s,
    )
    async with _problems(doing, timeout_s):
        try:
            session = await SqlSession.open(text)
        except psycopg.Error as error:
            raise problem_of_connect(str(error)) from None
        async with session:
            yield session


def open_blocking(
    conninfo: str,
    *,
    application_name: str,
    writes: bool = False,
    statement_timeout_s: float = STATEMENT_TIMEOUT_S,
    connect_timeout_s: float = _CONNECT_TIMEOUT_S,
    settings: Mapping[str, str] | None = None,
    replication: bool = False,
) -> "psycopg.Connection[TupleRow]":
    """Open a session that blocks, in autocommit mode; the caller closes it.

    Args:
        statement_timeout_s: 0 for none.
        settings: further settings of the session, by name.
        replication: it takes replication commands too.

    Raises:
        psycopg.Error: no connection.
        ConfigurationError: the connection string is wrong.
    """
    text = session_conninfo(
        conninfo,
        application_name,
        writes=writes,
        statement_timeout_s=statement_timeout_s,
        connect_timeout_s=connect_timeout_s,
        settings=settings,
    )
    if replication:
        text = make_conninfo(text, replication="database")
    session = psycopg.connect(text, autocommit=True)
    try:
        statement = later_settings(session.info.server_version)
        if statement is not None:
            session.execute(statement)
    except BaseException:
        session.close()
        raise
    return session


def drop(pgconn: pq.abc.PGconn) -> None:
    """End the connection at once: everything that waits for it fails. Its memory is freed by the one that waits."""
    with contextlib.suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(pgconn.socket)) as ours:
        ours.shutdown(socket.SHUT_RDWR)


def sql_conninfo(conninfo: str) -> str:
    """Return `conninfo` with the database `postgres` where neither it nor the environment names one.

    Raises:
        ConfigurationError: libpq cannot read it.
    """
    given = parse_conninfo(conninfo)
    given.pop("replication", None)
    elsewhere = "service" in given or os.environ.keys() & {"PGDATABASE", "PGSERVICE"}
    if "dbname" not in given and not elsewhere:
        given["dbname"] = "postgres"
    return make_conninfo("", **given)


def session_conninfo(
    conninfo: str,
    application_name: str,
    *,
    writes: bool = False,
    statement_timeout_s: float = STATEMENT_TIMEOUT_S,
    connect_timeout_s: float = _CONNECT_TIMEOUT_S,
    settings: Mapping[str, str] | None = None,
) -> str:
    """Return `conninfo` (URI or key=value) as that of an SQL session. Arguments as for `open_blocking`.

    Raises:
        ConfigurationError: libpq cannot read it.
    """
    given = parse_conninfo(sql_conninfo(conninfo))
    ours = {**SETTINGS, "statement_timeout": str(math.ceil(statement_timeout_s * 1000)), **(settings or {})}
    wanted: dict[str, str] = {}
    if not writes:
        ours["default_transaction_read_only"] = "on"
        # libpq would take the session's own setting for that of a server that permits no writes.
        asked = given.get("target_session_attrs")
        has_service = "service" in given or "PGSERVICE" in os.environ  # Which may have it; only libpq can read it.
        if (asked or os.environ.get("PGTARGETSESSIONATTRS")) == "read-write" or (has_service and asked is None):
            wanted["target_session_attrs"] = "primary"
    defaults = {**TCP_DEFAULTS, "connect_timeout": str(math.ceil(connect_timeout_s))}
    fixed = {
        "application_name": application_name,
        "client_encoding": "UTF8",
        "options": with_settings(given.get("options"), ours),
    }
    return make_conninfo("", **{**defaults, **given, **wanted, **fixed})


def with_settings(options: str | None, settings: Mapping[str, str]) -> str:
    """Return libpq's parameter `options` with settings of this connection added, e.g. {"wal_sender_timeout": "10s"}.

    Args:
        options: the operator's; None for those of PGOPTIONS.
    """
    before = options if options is not None else os.environ.get("PGOPTIONS")
    words = [before] if before else []
    for name, value in settings.items():
        words.append(f"-c {name}=" + value.replace("\\", "\\\\").replace(" ", "\\ "))
    return " ".join(words)


def later_settings(server_version: int) -> bytes | None:
    """Return the statement that completes the settings of a session, None if this version needs none."""
    known = [(name, value) for version, name, value in _LATER_SETTINGS if server_version >= version]
    if not known:
        return None
    return ("SELECT " + ", ".join(f"pg_catalog.set_config('{n}', '{v}', false)" for n, v in known)).encode()


@asynccontextmanager
async def _problems(doing: str, timeout_s: float, refusals: Sequence[str] = ()) -> AsyncIterator[None]:
    """Limit the time of the block, and turn what fails in it into a PrimaryProblem.

    Args:
        refusals: why there is no session at that time, the last reason last.
    """
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except PrimaryProblem:
        raise
    except psycopg.Error as error:
        raise problem_of_error(doing, error.sqlstate, str(error), error.diag.source_function) from None
    except TimeoutError:
        if refusals:
            raise problem_of_connect(refusals[-1]) from None
        raise problem_of_error(doing, None, f"no answer within {timeout_s:g} s") from None
