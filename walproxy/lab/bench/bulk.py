"""Measure the speed of a durable COPY: megabytes of WAL a second, from its first byte until the commit is acknowledged.

One client loads rows of a kilobyte into an empty table of one of the arms, alternately. The WAL of each turn is what
the server has written meanwhile; a megabyte is 10**6 bytes.
"""

from collections.abc import Iterable
from time import monotonic
from typing import NamedTuple

import msgspec
import psycopg

from walproxy.lab.bench.arms import Arm
from walproxy.lab.bench.rounds import median, ratio
from walproxy.postgres.local_server import LocalPostgres

_ROW = b"x" * 1000 + b"\n"
_ROWS_AT_ONCE = 1000
_TABLE = "CREATE TABLE bulk_load (payload text)"


class BulkCell(NamedTuple):
    """A case that is measured once a round."""

    arm: str


class BulkTurn(msgspec.Struct, frozen=True):
    """The measurements of one COPY."""

    round: int
    arm: str
    wal_bytes: int
    seconds: float


class BulkResult(msgspec.Struct, frozen=True):
    """The medians of one arm: `to_native` is that of the rounds' ratios of `mb_s`, between `low` and `high`."""

    arm: str
    mb_s: float
    to_native: float | None
    low: float | None
    high: float | None


def prepare(postgres: LocalPostgres) -> None:
    """Make the table."""
    postgres.execute(_TABLE)


def take_turn(arm: Arm, number: int, row_bytes: int) -> BulkTurn:
    """Load about `row_bytes` of rows in one transaction, and empty the table."""
    chunk = _ROW * _ROWS_AT_ONCE
    with psycopg.connect(arm.postgres.conninfo(), autocommit=True) as connection:
        [begin] = _fetch(connection, "SELECT pg_current_wal_insert_lsn()::text")
        began_at = monotonic()
        with connection.cursor().copy("COPY bulk_load FROM STDIN") as copy:
            for _ in range(max(1, row_bytes // len(chunk))):
                copy.write(chunk)
        seconds = monotonic() - began_at
        [wal_bytes] = _fetch(
            connection, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), %s::pg_lsn)::bigint", begin
        )
        connection.execute("TRUNCATE bulk_load")
    return BulkTurn(number, arm.name, int(wal_bytes), seconds)


def compare_bulk(turns: Iterable[BulkTurn], cells: Iterable[BulkCell]) -> list[BulkResult]:
    """Return the medians of cells, in their order. Each has had a turn."""
    speeds = {(turn.round, BulkCell(turn.arm)): turn.wal_bytes / 1e6 / turn.seconds for turn in turns}
    results = []
    for cell in cells:
        to_native = ratio(speeds, cell, BulkCell("native-quorum"))
        results.append(
            BulkResult(
                cell.arm,
                median(speeds, cell),
                to_native and to_native.median,
                to_native and to_native.low,
                to_native and to_native.high,
            )
        )
    return results


def _fetch(connection: "psycopg.Connection[tuple[object, ...]]", query: str, *parameters: object) -> list[str]:
    return [str(value) for value in connection.execute(query.encode(), parameters or None).fetchall()[0]]
