"""Read from a primary what `PrimaryWatch` checks: settings, walsenders, logical slots, sessions that wait.

Any role sees the settings, and the pid and name of each walsender. Without pg_read_all_stats, which pg_monitor has, it
does not see the state of walsenders, nor sessions that wait.
"""

import json
from dataclasses import dataclass
from typing import Final

from walproxy.postgres.logical_replication import WAITING_READER
from walproxy.postgres.problems import LogicalSubscribers, PrimaryProblem, ProblemKind
from walproxy.postgres.sessions import SqlSessions
from walproxy.proxy.gate import Exemption, GateFacts, Walsender

# A setting of the asking role or database hides that of the server. `failover` and synchronized_standby_slots exist
# from PostgreSQL 17 on. A walsender that has reported no flush position has none here.
_QUERY: Final = """
WITH rights AS (SELECT pg_has_role('pg_read_all_stats', 'USAGE') AS may_see)
SELECT json_build_object(
  'role', current_user::text,
  'may_see', may_see,
  'standby_names', current_setting('synchronous_standby_names'),
  'synchronous_commit', (
    SELECT setting FROM pg_settings WHERE name = 'synchronous_commit'
      AND source IN ('default', 'environment variable', 'configuration file', 'command line')),
  'walsenders', (
    SELECT json_agg(json_build_array(
        application_name,
        EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = %(slot)s AND active_pid = pid),
        CASE WHEN may_see THEN state IN ('streaming', 'stopping') AND flush_lsn IS NOT NULL END,
        COALESCE(sync_state IN ('sync', 'quorum'), false)) ORDER BY pid)
      FROM pg_stat_replication),
  'exemptions', (
    SELECT json_agg(json_build_array(
        COALESCE(rolname::text, ''), COALESCE(datname::text, ''), split_part(setting, '=', 2))
        ORDER BY rolname, datname)
      FROM pg_db_role_setting CROSS JOIN unnest(setconfig) AS setting
      LEFT JOIN pg_roles r ON r.oid = setrole LEFT JOIN pg_database d ON d.oid = setdatabase
      WHERE setting LIKE 'synchronous\\_commit=%%'),
  'subscribers', (
    SELECT json_object_agg(
        slot_name, COALESCE((to_jsonb(s) ->> 'failover')::boolean, false) ORDER BY slot_name)
      FROM pg_replication_slots s
      WHERE slot_type = 'logical' AND NOT temporary AND active_pid IN (
        SELECT pid FROM pg_stat_replication WHERE application_name IS DISTINCT FROM %(reader)s)),
  'standby_slots', current_setting('synchronized_standby_slots', true),
  'waiting', (SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep')
)::text FROM rights
"""


@dataclass(frozen=True, slots=True)
class PrimaryAnswer:
    """What the primary has returned.

    Attributes:
        gate: settings and walsenders.
        subscribers: the permanent logical slots from which walsenders stream, but for readers that wait for the quorum.
        waiting_sessions: how many sessions wait for synchronous replication; None: the role may not see that.
    """

    gate: GateFacts
    subscribers: LogicalSubscribers
    waiting_sessions: int | None


async def read_primary(sessions: SqlSessions, slot: str, *, timeout_s: float = 10.0) -> PrimaryAnswer:
    """Read them.

    Args:
        slot: the proxy's own slot: the walsender that uses it is the proxy's.

    Raises:
        PrimaryProblem: no connection or no answer.
    """
    async with sessions.session("read settings and walsenders", timeout_s) as connection:
        cursor = await connection.execute(_QUERY.encode(), {"slot": slot, "reader": WAITING_READER})
        row = await cursor.fetchone()
    if row is None:
        raise PrimaryProblem(ProblemKind.OTHER, "cannot read settings and walsenders: the primary returned no row")
    found = json.loads(row[0])
    facts = GateFacts(
        found["standby_names"],
        found["synchronous_commit"],
        tuple(Walsender(*each) for each in found["walsenders"] or ()),
        tuple(Exemption(*each) for each in found["exemptions"] or ()),
        found["role"],
    )
    subscribers = LogicalSubscribers(found["subscribers"] or {}, found["standby_slots"])
    return PrimaryAnswer(facts, subscribers, found["waiting"] if found["may_see"] else None)
