"""A load of single-row commits, and how long each took: what a client of PostgreSQL feels.

pgbench measures throughput; this keeps every time, so that the slowest commits can be told from the usual ones.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from typing import NamedTuple

import asyncpg

from walproxy.postgres.local_server import LocalPostgres

# A kilobyte a row: at a few hundred commits a second that is more WAL than the slow reader takes.
_PAYLOAD = "x" * 1000
# WAL from before the load, for readers that are behind: some 50 MiB.
_TABLE = f"""
    CREATE TABLE commit_load (payload text);
    INSERT INTO commit_load SELECT '{_PAYLOAD}' FROM generate_series(1, 40000)
"""


class CommitTimes(NamedTuple):
    """How many commits a second there were, and the time that half of them and 99 of 100 did not exceed."""

    tps: float
    p50_ms: float
    p99_ms: float


def prepare(postgres: LocalPostgres) -> None:
    """Make the table of the load, with enough in it that there is WAL to be behind with."""
    postgres.execute(_TABLE)


def measure(postgres: LocalPostgres, clients: int, seconds: float) -> CommitTimes:
    """Let `clients` connections insert a row and commit it, again and again."""
    times_s = asyncio.run(_load(postgres.port, clients, seconds))
    return CommitTimes(len(times_s) / seconds, percentile(times_s, 50) * 1000, percentile(times_s, 99) * 1000)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest of `values` that `percent` per cent of them do not exceed (the nearest rank)."""
    return sorted(values)[max(math.ceil(len(values) * percent / 100), 1) - 1]


async def _load(port: int, clients: int, seconds: float) -> list[float]:
    connections = [
        await asyncpg.connect(host="127.0.0.1", port=port, user="postgres", database="postgres", ssl=False)
        for _ in range(clients)
    ]
    try:
        inserts = [await connection.prepare("INSERT INTO commit_load VALUES ($1)") for connection in connections]
        lists = await asyncio.gather(*(_commit_until(time.perf_counter() + seconds, insert) for insert in inserts))
        return [time_s for times_s in lists for time_s in times_s]
    finally:
        for connection in connections:
            connection.terminate()


async def _commit_until(end: float, insert: "asyncpg.prepared_stmt.PreparedStatement") -> list[float]:
    times_s = []
    now = time.perf_counter()
    while now < end:
        began_at = now
        await insert.fetch(_PAYLOAD)
        now = time.perf_counter()
        times_s.append(now - began_at)
    return times_s
