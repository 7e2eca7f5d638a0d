"""SQL that must be possible while clients use all connections of the server.

A connection with `replication=database` is a walsender that executes SQL, too, by simple queries. It counts against
max_wal_senders, not against max_connections, and needs the pg_hba.conf line of the database, as a session does.
Measured on 13, 15, 17 and 18 with all connections used, those reserved for superusers, too: it opens in 8 to 14 ms. A
session is for the case that no walsender is free (docs/design/adr/0089-sql-over-a-walsender.md).
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeAlias

import psycopg

from walproxy.postgres.command_connection import CommandConnection
from walproxy.postgres.problems import PrimaryProblem, ProblemKind, problem_of_error
from walproxy.postgres.sessions import SETTINGS, STATEMENT_TIMEOUT_S, later_settings, one_session, sql_conninfo

# A limit that a site sets for everybody must not end a takeover; ours is above each wait for an answer.
_SETTINGS = {**SETTINGS, "statement_timeout": f"{STATEMENT_TIMEOUT_S:.0f}s"}

Value: TypeAlias = Callable[[str], Awaitable[str | None]]
"""Executes a statement, and returns the only value of its only row, as text."""


@asynccontextmanager
async def urgent_sql(
    conninfo: str, doing: str, timeout_s: float, *, server_version: int | None = None
) -> AsyncIterator[Value]:
    """Yield a function that executes SQL in the database of sessions, each statement in a transaction of its own.

    Args:
        doing: what it is for, to follow "cannot" in an error.
        timeout_s: for connecting, and for each statement; for all of it if no walsender is free.
        server_version: see `CommandConnection.connect`.

    Raises:
        PrimaryProblem: no connection of either kind, or a statement has failed.
    """
    async with AsyncExitStack() as stack:
        try:
            connection = await _SqlWalsender.connect(
                sql_conninfo(conninfo),
                timeout_s=timeout_s,
                settings=_SETTINGS,
                runs_sql=True,
                server_version=server_version,
            )
        except PrimaryProblem as problem:
            if problem.kind is not ProblemKind.NO_FREE_WALSENDER:
                raise
            session = await _session(stack, conninfo, doing, timeout_s, problem)
        else:
            stack.callback(connection.close)
            await connection.complete_settings()
            yield lambda sql: connection.value(sql, doing)
            return

        async def value(sql: str) -> str | None:
            try:
                row = await (await session.execute(sql.encode())).fetchone()
            except psycopg.Error as error:
                raise problem_of_error(doing, error.sqlstate, str(error), error.diag.source_function) from None
            assert row is not None  # by the contract of `Value`
            return str(row[0]) if row[0] is not None else None

        yield value


async def _session(
    stack: AsyncExitStack, conninfo: str, doing: str, timeout_s: float, no_walsender: PrimaryProblem
) -> psycopg.AsyncConnection:
    try:
        return await stack.enter_async_context(one_session(conninfo, doing, timeout_s))
    except PrimaryProblem as problem:
        if problem.kind is not ProblemKind.NO_FREE_WALSENDER:
            raise
        raise PrimaryProblem(problem.kind, f"{no_walsender}; {problem}", problem.sqlstate) from None


class _SqlWalsender(CommandConnection):
    """A connection with `replication=database`."""

    async def complete_settings(self) -> None:
        """Set those that older servers do not have."""
        statement = later_settings(self._pgconn.server_version)
        if statement is not None:
            await self._row(statement.decode(), "set up the session")

    async def value(self, sql: str, doing: str) -> str | None:
        """Return the only value of the only row."""
        return (await self._row(sql, doing))[0]
