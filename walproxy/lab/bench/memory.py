"""Measure the memory of the proxy and the safekeepers in RAM while a member is down and much WAL is written.

Each turn: the processes are restarted, one safekeeper of three is killed, a COPY streams its WAL to the other two,
and the dead one comes back and is fed what it lacks. WAL that a member lacks is on the others' disks, and the proxy
keeps a window of the newest only, so none of them may grow with it.
"""

from collections.abc import Sequence
from statistics import median
from time import monotonic
from typing import NamedTuple

import msgspec
import psycopg

from safekeeper.base.lsn import parse_lsn
from walproxy.lab.bench.members import wait_until_caught_up
from walproxy.lab.cluster.local_cluster import LocalCluster
from walproxy.lab.process_resources import highest_peak, memory_of
from walproxy.postgres.local_server import LocalPostgres

PROXY = "proxy"
GOAL_BYTES = 150_000_000
SCALE_BYTES = 50_000_000
"""Of rows, for each unit of --scale."""
_MEMBER = 3
_ROW = b"x" * 1000 + b"\n"
_ROWS_AT_ONCE = 1000
_TABLE = "CREATE TABLE bulk_load (payload text)"
_INSERT_LSN = b"SELECT pg_current_wal_insert_lsn()::text"


class MemoryCell(NamedTuple):
    """The only cell, which is measured once a round."""

    case: str = "memory with one dead"


class MemoryTurn(msgspec.Struct, frozen=True):
    """The measurements of one turn at one process.

    Attributes:
        process: "proxy", or "safekeeper 1".
        wal_bytes, seconds: of the COPY.
        before_bytes, after_bytes: in RAM before and after it.
        peak_bytes: the most that was in RAM by then.
        fed_peak_bytes: the same when the dead member was back and had everything.
    """

    round: int
    process: str
    wal_bytes: int
    seconds: float
    before_bytes: int
    after_bytes: int
    peak_bytes: int
    fed_peak_bytes: int


class MemoryResult(msgspec.Struct, frozen=True):
    """The medians of one process; `most_bytes` is the most that it had in any round."""

    process: str
    wal_bytes: float
    before_bytes: float
    after_bytes: float
    peak_bytes: float
    fed_peak_bytes: float
    most_bytes: int


def prepare(postgres: LocalPostgres) -> None:
    """Make the table that rows are copied into."""
    postgres.execute(_TABLE)


def take_turn(cluster: LocalCluster, number: int, row_bytes: int) -> list[MemoryTurn]:
    """Copy about `row_bytes` of rows into the table of prepare() while a safekeeper is dead, and bring that back.

    Raises:
        WalproxyError: a process has failed.
    """
    processes = {PROXY: cluster.proxy, **{each.name: each for i, each in cluster.safekeepers.items() if i != _MEMBER}}
    for process in [*cluster.proxies, *cluster.safekeepers.values()]:
        process.kill9()
    for process in cluster.safekeepers.values():
        process.start()
    cluster.start_proxy()
    wait_until_caught_up(cluster, *cluster.safekeepers)
    cluster.safekeepers[_MEMBER].kill9()
    pids = {name: process.pid or 0 for name, process in processes.items()}
    before = {name: memory_of(pid) for name, pid in pids.items()}
    wal_bytes, seconds = _copy(cluster.postgres, row_bytes)
    after = {name: memory_of(pid) for name, pid in pids.items()}
    cluster.safekeepers[_MEMBER].start()
    wait_until_caught_up(cluster, *cluster.safekeepers)
    fed = {name: memory_of(pid) for name, pid in pids.items()}
    return [
        MemoryTurn(
            number,
            name,
            wal_bytes,
            seconds,
            before[name].resident_bytes,
            after[name].resident_bytes,
            highest_peak(before[name], after[name]),
            highest_peak(before[name], after[name], fed[name]),
        )
        for name in processes
    ]


def _copy(postgres: LocalPostgres, row_bytes: int) -> tuple[int, float]:
    """Copy rows in one transaction; return the bytes of WAL, and the seconds until its commit is acknowledged."""
    chunk = _ROW * _ROWS_AT_ONCE
    with psycopg.connect(postgres.conninfo(), autocommit=True) as connection:
        begin_lsn = _insert_lsn(connection)
        began_at = monotonic()
        with connection.cursor().copy("COPY bulk_load FROM STDIN") as copy:
            for _ in range(max(1, row_bytes // len(chunk))):
                copy.write(chunk)
        seconds = monotonic() - began_at
        wal_bytes = _insert_lsn(connection) - begin_lsn
        connection.execute("TRUNCATE bulk_load")
    return wal_bytes, seconds


def _insert_lsn(connection: "psycopg.Connection[tuple[str, ...]]") -> int:
    [(lsn,)] = connection.execute(_INSERT_LSN).fetchall()
    return parse_lsn(lsn)


def compare_memory(turns: Sequence[MemoryTurn]) -> list[MemoryResult]:
    """Return the medians of each process, in the order of the first round."""
    results = []
    for name in dict.fromkeys(turn.process for turn in turns):
        mine = [turn for turn in turns if turn.process == name]
        results.append(
            MemoryResult(
                name,
                median(turn.wal_bytes for turn in mine),
                median(turn.before_bytes for turn in mine),
                median(turn.after_bytes for turn in mine),
                median(turn.peak_bytes for turn in mine),
                median(turn.fed_peak_bytes for turn in mine),
                max(turn.fed_peak_bytes for turn in mine),
            )
        )
    return results
