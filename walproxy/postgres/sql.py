"""Read from a primary, or change, what takes SQL: each call is one short ordinary connection.

The same connection string and role as for replication; the database is the one that it names, or `postgres`. The
WAL streams without any of this, so a role that may connect to no database still works.
"""

from dataclasses import dataclass

from safekeeper.base.lsn import Lsn, parse_lsn
from walproxy.postgres.sessions import one_session


@dataclass(frozen=True)
class SlotState:
    """A row of pg_replication_slots.

    `wal_status` is "lost" once the WAL that the slot promised is gone; `restart_lsn` is None while it holds nothing.
    Source: https://www.postgresql.org/docs/current/view-pg-replication-slots.html
    """

    restart_lsn: Lsn | None
    wal_status: str | None


async def try_session(conninfo: str, *, timeout_s: float = 10.0) -> None:
    """Open a session and close it.

    Raises:
        PrimaryProblem: why none can be opened.
    """
    async with one_session(conninfo, "open a session", timeout_s) as connection:
        await connection.execute("SELECT 1")


async def read_slot(conninfo: str, name: str, *, timeout_s: float = 10.0) -> SlotState | None:
    """Return the slot `name`, or None if there is none.

    Raises:
        PrimaryProblem: no connection or no answer.
    """
    async with one_session(conninfo, f'look at slot "{name}"', timeout_s) as connection:
        cursor = await connection.execute(
            "SELECT restart_lsn::text, wal_status FROM pg_replication_slots WHERE slot_name = %s", (name,)
        )
        row = await cursor.fetchone()
    if row is None:
        return None
    restart_lsn, wal_status = row
    return SlotState(parse_lsn(restart_lsn) if restart_lsn else None, wal_status)
