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
closed when unused. `one_session` and `blocking_session` are for a command. `walproxy.postgres.bounded_sql` is for a
server that may hang.
"""

import asyncio
import contextlib
import logging
import math
import os
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping
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
    """One of a pool, which connects in a task of its own: a failure reaches those that wait by `failed`."""

    @classmethod
    async def connect(cls, conninfo: str = "", *, failed: Any = None, **kwargs: Any) -> Self:
        if failed is None:
            return await super().connect(conninfo, **kwargs)
        began_at = time.monotonic()
        try:
            return await cls.open(conninfo)
        except psycopg.Error as error:
            failed(began_at, error)
            raise


@dataclass(frozen=True)
class _Failure:
    """A failure to connect: when the attempt began, by time.monotonic(), and why it failed."""

    began_at: float
    reason: str


class SqlSessions:
    """The sessions with one server. Nothing is opened before the first use.

    `close` must be called before the event loop ends: the pool's tasks do not always end when they are cancelled.

    Args:
        conninfo: of one server, as the operator has written it.
        writes: they may write; otherwise they are read-only, which permits functions for administration.

    Attributes:
        conninfo: the same.
    """

    def __init__(self, conninfo: str, application_name: str = APPLICATION_NAME, *, writes: bool = False) -> None:
        self.conninfo = conninfo
        self._application_name = application_name
        self._writes = writes
        self._pool: AsyncConnectionPool[_PooledSession] | None = None
        self._waiting: set[asyncio.Future[_Failure]] = set()

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
        async with _problems(doing, timeout_s):
            pool = await self._open_pool()
            session = await self._take(pool, timeout_s)
            try:
                yield session
            finally:
                await pool.putconn(session)

    async def empty(self) -> None:
        """Close the sessions: the server is another one now. A session in use is closed after its use."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close(_CLOSE_S)

    async def close(self) -> None:
        """Close the sessions. Closing twice is fine."""
        await self.empty()

    async def _open_pool(self) -> AsyncConnectionPool[_PooledSession]:
        if self._pool is None:
            text = session_conninfo(self.conninfo, self._application_name, writes=self._writes)
            self._pool = AsyncConnectionPool(
                text,
                connection_class=_PooledSession,
                kwargs={"failed": self._failed},
                min_size=0,
                max_size=SESSIONS_MAX,
                open=False,
                check=AsyncConnectionPool.check_connection,
                max_idle=IDLE_S_MAX,
                reconnect_timeout=0.0,  # The next use tries again.
                num_workers=1,
            )
            await self._pool.open()
        return self._pool

    async def _take(self, pool: AsyncConnectionPool[_PooledSession], timeout_s: float) -> _PooledSession:
        """Return a session of the pool, or raise why there is none."""
        began_at = time.monotonic()
        while True:
            result = await self._session_or_failure(pool, began_at + timeout_s - time.monotonic())
            if isinstance(result, _PooledSession):
                return result
            # A failure to connect that began before says nothing of the server as it is now.
            if result.began_at >= began_at:
                raise problem_of_connect(result.reason)

    async def _session_or_failure(
        self, pool: AsyncConnectionPool[_PooledSession], timeout_s: float
    ) -> "_PooledSession | _Failure":
        """Wait for a session of the pool, or for the failure to make one, which the pool keeps to itself."""
        failure: asyncio.Future[_Failure] = asyncio.get_running_loop().create_future()
        getting = asyncio.ensure_future(pool.getconn(timeout_s))
        waited: set[asyncio.Future[Any]] = {getting, failure}
        self._waiting.add(failure)
        is_taken = False
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not getting.done():
                return failure.result()
            session, is_taken = await getting, True
            return session
        except (PoolTimeout, PoolClosed) as error:
            reason = "timeout: no answer" if isinstance(error, PoolTimeout) else "the server is another one now"
            raise problem_of_connect(reason) from None
        finally:
            self._waiting.discard(failure)
            if not is_taken:
                getting.cancel()
                # A session that comes in the same moment goes back.
                with contextlib.suppress(asyncio.CancelledError, psycopg.Error):
                    await pool.putconn(await getting)

    def _failed(self, began_at: float, error: psycopg.Error) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(_Failure(began_at, str(error)))


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


@contextmanager
def blocking_session(
    conninfo: str,
    *,
    application_name: str,
    writes: bool = False,
    statement_timeout_s: float = STATEMENT_TIMEOUT_S,
    connect_timeout_s: float = _CONNECT_TIMEOUT_S,
) -> Iterator["psycopg.Connection[TupleRow]"]:
    """Open one session for the block, in autocommit mode, that blocks. Arguments as for `open_blocking`."""
    with open_blocking(
        conninfo,
        application_name=application_name,
        writes=writes,
        statement_timeout_s=statement_timeout_s,
        connect_timeout_s=connect_timeout_s,
    ) as session:
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
        if (given.get("target_session_attrs") or os.environ.get("PGTARGETSESSIONATTRS")) == "read-write":
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
async def _problems(doing: str, timeout_s: float) -> AsyncIterator[None]:
    """Limit the time of the block, and turn what fails in it into a PrimaryProblem."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except PrimaryProblem:
        raise
    except psycopg.Error as error:
        raise problem_of_error(doing, error.sqlstate, str(error), error.diag.source_function) from None
    except TimeoutError:
        raise problem_of_error(doing, None, f"no answer within {timeout_s:g} s") from None
