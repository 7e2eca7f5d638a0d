"""The sessions that wait for synchronous replication, as pg_stat_activity shows them; ends their waits; the fence.

The sessions that wait are read every second while commits hang: over the pool that the proxy has for its primary, so
also while clients use all connections. The other calls are rare, and are one short connection each. A role without
pg_read_all_stats (which pg_monitor has) sees no other sessions; then the WAL alone is shown.

A session in COMMIT PREPARED has no transaction id of its own: it is found by the name in its query. PREPARE TRANSACTION
and COMMIT wait before the transaction id is given up.
Source: https://www.postgresql.org/docs/current/monitoring-stats.html#MONITORING-PG-STAT-ACTIVITY-VIEW
"""

from collections.abc import Callable, Iterable
from typing import Final

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Loader

from walproxy.limbo.facts import WaitingSession
from walproxy.postgres.problems import PrimaryProblem, ProblemKind
from walproxy.postgres.sessions import SqlSessions, one_session

_WAITING: Final = """
SELECT a.pid, coalesce(a.backend_xid, p.transaction)::text, coalesce(a.usename, '')::text,
  coalesce(a.application_name, ''), coalesce(host(a.client_addr), a.client_hostname, ''), coalesce(a.query, ''),
  coalesce(p.gid, '')
FROM pg_stat_activity a
LEFT JOIN pg_prepared_xacts p ON a.backend_xid IS NULL AND a.query ~* '(commit|rollback)\\s+prepared'
  AND position(quote_literal(p.gid) IN a.query) > 0
WHERE a.wait_event = 'SyncRep' ORDER BY a.pid
"""
# In one statement: only a session that still waits for this very transaction.
_END_WAIT: Final = """
SELECT {function}(pid) FROM pg_stat_activity WHERE pid = %s AND wait_event = 'SyncRep'
  AND (backend_xid::text = %s OR (backend_xid IS NULL AND query = %s))
"""
READ_ONLY: Final = "default_transaction_read_only"


class _AnyText(Loader):
    """Decodes the text of sessions in databases of any encoding: PostgreSQL shows their queries as they are."""

    def load(self, data: Buffer) -> str:
        return bytes(data).decode(errors="replace")


async def read_waiting_sessions(
    conninfo: str, pool: SqlSessions | None = None, *, timeout_s: float
) -> list[WaitingSession]:
    """Return the sessions that wait for synchronous replication.

    Args:
        pool: what lends a session, if it is for `conninfo`; otherwise one is opened.

    Raises:
        PrimaryProblem: no connection, no answer, or a role that may not see other sessions.
    """
    doing = "read the sessions that wait"
    if pool is not None and pool.conninfo == conninfo:
        session = pool.session(doing, timeout_s)
    else:
        session = one_session(conninfo, doing, timeout_s)
    async with session as connection:
        cursor = await connection.execute("SELECT current_user, pg_has_role('pg_read_all_stats', 'USAGE')")
        row = await cursor.fetchone()
        assert row is not None  # a query without FROM has one row
        role, may_see = row
        if not may_see:
            raise PrimaryProblem(
                ProblemKind.OTHER, f"role {role} may not see the sessions that wait: GRANT pg_monitor TO {role}"
            )
        cursor = connection.cursor()
        cursor.adapters.register_loader("text", _AnyText)
        await cursor.execute(_WAITING)
        return [WaitingSession(pid, int(xid or 0), *texts) for pid, xid, *texts in await cursor.fetchall()]


async def end_waits(
    conninfo: str,
    sessions: Iterable[WaitingSession],
    still_waits: Callable[[WaitingSession], bool],
    *,
    terminate: bool,
    timeout_s: float,
) -> tuple[list[WaitingSession], str]:
    """Terminate the sessions, or cancel their waits; those that no longer wait for the same transaction are left.

    Args:
        still_waits: called directly before a wait is ended; False leaves the session.

    Returns:
        Those that were ended, and why others could not be; empty if there are none.

    Raises:
        PrimaryProblem: no connection or no answer.
    """
    function = "pg_terminate_backend" if terminate else "pg_cancel_backend"
    ended, problem = [], ""
    async with one_session(conninfo, "end the waits of sessions", timeout_s) as connection:
        for session in sessions:
            if not still_waits(session):
                continue
            try:
                cursor = await connection.execute(
                    _END_WAIT.format(function=function).encode(), (session.pid, str(session.xid), session.query)
                )
            except psycopg.errors.InsufficientPrivilege:
                problem = (
                    f"the role may not end session {session.pid} of {session.user}: GRANT pg_signal_backend to it; "
                    "for the sessions of superusers it must be a superuser"
                )
                continue
            row = await cursor.fetchone()
            if row is not None and row[0]:
                ended.append(session)
    return ended, problem


async def set_fence(conninfo: str, on: bool, *, timeout_s: float) -> None:
    """Let new transactions be read-only, or end that.

    Raises:
        PrimaryProblem: no connection, no answer, or a role that may not change the setting.
    """
    doing = f"change {READ_ONLY}"
    async with one_session(conninfo, doing, timeout_s) as connection:
        await connection.execute(f"ALTER SYSTEM {'SET' if on else 'RESET'} {READ_ONLY}{' = on' if on else ''}".encode())
        await connection.execute("SELECT pg_reload_conf()")


async def is_fenced(conninfo: str, *, timeout_s: float) -> bool:
    """Return whether the server's configuration makes new transactions read-only.

    Raises:
        PrimaryProblem: no connection or no answer.
    """
    # A read-only session has a value of its own.
    async with one_session(conninfo, f"read {READ_ONLY}", timeout_s, writes=True) as connection:
        cursor = await connection.execute(
            "SELECT 1 FROM pg_settings WHERE name = %s AND reset_val = 'on' AND source = 'configuration file'",
            (READ_ONLY,),
        )
        return await cursor.fetchone() is not None
