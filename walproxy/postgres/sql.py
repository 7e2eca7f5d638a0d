"""Read from a primary, or change, what takes SQL: each call is one short ordinary connection.

The same connection string and role as for replication; the database is the one that it names, or `postgres`. The
WAL streams without any of this, so a role that may connect to no database still works.
"""

from dataclasses import dataclass

import psycopg

from safekeeper.base.lsn import Lsn, parse_lsn
from walproxy.postgres.logical_replication import WAITING_READER
from walproxy.postgres.problems import LogicalSubscribers, PrimaryProblem, ProblemKind
from walproxy.postgres.sessions import one_session


@dataclass(frozen=True)
class SlotState:
    """A row of pg_replication_slots.

    `wal_status` is "lost" once the WAL that the slot promised is gone; `restart_lsn` is None while it holds nothing.
    Source: https://www.postgresql.org/docs/current/view-pg-replication-slots.html
    """

    slot_type: str
    active_pid: int | None
    restart_lsn: Lsn | None
    wal_status: str | None


async def read_slot(conninfo: str, name: str, *, timeout_s: float = 10.0) -> SlotState | None:
    """Return the slot `name`, or None if there is none.

    Raises:
        PrimaryProblem: no connection or no answer.
    """
    async with one_session(conninfo, f'look at slot "{name}"', timeout_s) as connection:
        return await _read_slot(connection, name)


async def count_waiting_sessions(conninfo: str, *, timeout_s: float = 10.0) -> int:
    """Return how many sessions wait for synchronous replication.

    Raises:
        PrimaryProblem: no connection, no answer, or a role that may not see what other sessions wait for.
    """
    async with one_session(conninfo, "count the sessions that wait", timeout_s) as connection:
        cursor = await connection.execute(
            "SELECT count(*) FILTER (WHERE wait_event = 'SyncRep'), current_user, "
            "pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') FROM pg_stat_activity"
        )
        row = await cursor.fetchone()
        assert row is not None  # an aggregate without GROUP BY has one row
        count, role, may_see = row
        if not may_see:
            raise PrimaryProblem(
                ProblemKind.OTHER,
                f"role {role} may not see what other sessions wait for: GRANT pg_read_all_stats TO {role}",
            )
        return int(count)


async def read_logical_subscribers(conninfo: str, *, timeout_s: float = 10.0) -> LogicalSubscribers:
    """Return the permanent logical slots from which walsenders stream now, but for readers that wait for the quorum.

    Raises:
        PrimaryProblem: no connection or no answer.
    """
    async with one_session(conninfo, "read the slots of logical subscribers", timeout_s) as connection:
        # Column and setting exist from PostgreSQL 17 on. Any role sees the pid and the name of a walsender.
        cursor = await connection.execute(
            "SELECT slot_name, coalesce((to_jsonb(s) ->> 'failover')::boolean, false) FROM pg_replication_slots s "
            "WHERE slot_type = 'logical' AND NOT temporary AND active_pid IN (SELECT pid FROM pg_stat_replication "
            "WHERE application_name IS DISTINCT FROM %s) ORDER BY slot_name",
            (WAITING_READER,),
        )
        slots = await cursor.fetchall()
        cursor = await connection.execute("SELECT current_setting('synchronized_standby_slots', true)")
        row = await cursor.fetchone()
        return LogicalSubscribers(dict(slots), row[0] if row is not None else None)


async def _read_slot(connection: psycopg.AsyncConnection, name: str) -> SlotState | None:
    cursor = await connection.execute(
        "SELECT slot_type, active_pid, restart_lsn::text, wal_status FROM pg_replication_slots WHERE slot_name = %s",
        (name,),
    )
    row = await cursor.fetchone()
    if row is None:
        return None
    slot_type, active_pid, restart_lsn, wal_status = row
    return SlotState(slot_type, active_pid, parse_lsn(restart_lsn) if restart_lsn else None, wal_status)
