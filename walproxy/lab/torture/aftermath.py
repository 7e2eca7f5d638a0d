"""The checks after the faults: tables, bytes, standbys, logs."""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import asyncpg
import psycopg

from safekeeper.base.lsn import Lsn, format_lsn, parse_lsn
from walproxy.lab.load.clients import asyncpg_options
from walproxy.lab.testing import WalproxyCluster
from walproxy.lab.torture.clients import APPLICATION_NAME
from walproxy.lab.torture.record import Violation
from walproxy.lab.torture.wal_check import LEFT_BEHIND, check_safekeepers, wait_until_reached
from walproxy.lab.torture.workloads import WORKLOADS, Try, Workload

FELL_OVER: Final = "FellOver"

_SESSIONS_END_WITHIN_S: Final = 60.0
_POLL_S: Final = 0.1
_ALL_LINES: Final = 1_000_000
_FALLEN: Final = ("Traceback (most recent call last)", "PANIC:")
_COMMITTING: Final = """
    SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND state IS DISTINCT FROM 'idle'
"""
_END_OF_LOG: Final = """
    SELECT pg_current_wal_flush_lsn()::text, (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_segment_size')
"""


async def check_tables(
    conninfo: str, tries: Sequence[Try], workloads: Sequence[Workload] = WORKLOADS
) -> list[Violation]:
    """Compare the tables of a server with what clients have tried. No client may still commit."""
    connection = await asyncpg.connect(**asyncpg_options(conninfo, APPLICATION_NAME))
    try:
        return [
            violation
            for workload in workloads
            for violation in workload.check(
                await workload.read(connection), (each for each in tries if each.operation.workload == workload.name)
            )
        ]
    finally:
        await connection.close()


def wait_for_sessions(conninfo: str) -> None:
    """Wait until no session of a client that has disconnected can still commit, or a timeout."""
    deadline = time.monotonic() + _SESSIONS_END_WITHIN_S
    with psycopg.connect(conninfo, autocommit=True) as connection:
        while time.monotonic() < deadline:
            row = connection.execute(_COMMITTING, [APPLICATION_NAME]).fetchone()
            if row is not None and row[0] == 0:
                return
            time.sleep(_POLL_S)


def check_copies(
    cluster: WalproxyCluster, safekeepers: Sequence[str], standbys: Sequence[str], tries: Sequence[Try]
) -> list[Violation]:
    """Compare safekeepers with the primary; and with the tries, what standbys show that have replayed everything."""
    with psycopg.connect(cluster.conninfo, autocommit=True) as connection:
        row = connection.execute(_END_OF_LOG).fetchone()
    assert row is not None  # It has no FROM.
    end_lsn, segment_size = parse_lsn(row[0]), int(row[1])
    violations = check_safekeepers(cluster, safekeepers, end_lsn, segment_size)
    for standby in standbys:
        replayed_lsn = wait_until_reached(partial(_replayed_lsn, cluster, standby), end_lsn)
        if replayed_lsn < end_lsn:
            violations.append(
                Violation(
                    LEFT_BEHIND,
                    f"{standby} has replayed WAL up to {format_lsn(replayed_lsn)}, not to {format_lsn(end_lsn)}; "
                    f"its log ends with: {' | '.join(cluster.logs(standby, 5).splitlines())}",
                )
            )
            continue
        found = asyncio.run(check_tables(cluster.conninfo_of(standby), tries))
        violations += [Violation(each.rule, f"{standby}: {each.message}") for each in found]
    return violations


def check_logs(cluster: WalproxyCluster) -> list[Violation]:
    """Check that no member's log has a traceback."""
    violations = []
    for member in cluster.members:
        lines = cluster.logs(member, _ALL_LINES).splitlines()
        fallen = [number for number, line in enumerate(lines) if any(word in line for word in _FALLEN)]
        if fallen:
            first = next((line for line in lines[fallen[0] + 1 :] if line and not line[0].isspace()), lines[fallen[0]])
            violations.append(
                Violation(FELL_OVER, f"{member} fell over {len(fallen)} times, first with: {first}; see its log")
            )
    return violations


def keep_logs(cluster: WalproxyCluster, directory: Path) -> None:
    """Write the logs of all members into a folder: containers take theirs with them when they go."""
    for member in cluster.members:
        (directory / f"{member}.log").write_text(cluster.logs(member, _ALL_LINES))


def _replayed_lsn(cluster: WalproxyCluster, standby: str) -> Lsn:
    """Return up to where a standby has replayed, by the proxy's status; 0 if that does not list it."""
    status = cluster.status()
    rows = status["standbys"] if status is not None else []
    return max((parse_lsn(row["apply_lsn"]) for row in rows if row["name"] == standby), default=0)
