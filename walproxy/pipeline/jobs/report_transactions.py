"""The report's queries about transactions, in DuckDB's SQL: the biggest, their relations and durations; commit gaps."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from duckdb import DuckDBPyConnection

from safekeeper.base.lsn import Lsn
from walproxy.pipeline.jobs.report_queries import COMMITS, LABEL, NAMES, BinOfCommits, ask
from walproxy.pipeline.jobs.time_axis import Knot

# Before its first record a transaction is looked for between commits so far back: more would read too much.
_BEFORE_BYTES: Final = 64 << 20
NO_TRANSACTIONS: Final = """(
    SELECT 0 AS lsn, 0 AS end_lsn, 0 AS xid, '' AS outcome, now() AS time, 0 AS database, []::BIGINT[] AS subxids
    LIMIT 0
)"""
"""Stands for the table `transactions` where there is none."""


class CommitPause(NamedTuple):
    """A pause between two commits."""

    begin: Knot
    end: Knot

    @property
    def duration_us(self) -> int:
        return self.end.time_us - self.begin.time_us


def commit_gaps(
    connection: DuckDBPyConnection, transactions: str, by_bin: Sequence[BinOfCommits], width_us: int, count: int
) -> list[CommitPause]:
    """Return the longest pauses between commits, the longest first.

    Each bin's commits are ordered by themselves, so that not all of them are sorted at once; the pauses that lead from
    one bin to another come from the bins' ends.
    """
    query = f"""
        WITH commits AS (
            SELECT epoch_us(time) AS at_us, lsn,
                   lead((epoch_us(time), lsn)) OVER (
                       PARTITION BY epoch_us(time) // $width ORDER BY time, lsn
                   ) AS next
            FROM {{transactions}} WHERE outcome IN {COMMITS}
        )
        SELECT at_us, lsn, next FROM commits WHERE next IS NOT NULL ORDER BY next[1] - at_us DESC, at_us LIMIT {count}
    """
    rows = ask(connection, query, {"width": width_us}, transactions=transactions)
    gaps = [CommitPause(Knot(row.at_us, row.lsn), Knot(*row.next)) for row in rows]
    ends = [(each.first_commit, each.last_commit) for each in by_bin if each.first_commit and each.last_commit]
    gaps += [CommitPause(last, first) for (_, last), (first, _) in pairwise(ends) if last and first]
    return sorted(gaps, key=lambda gap: (-gap.duration_us, gap.begin))[:count]


def biggest_transactions(
    connection: DuckDBPyConnection, volume: str, transactions: str, count: int
) -> tuple[int, int, list[Any]]:
    """Return how many transactions wrote, how many of them have no end here, and the biggest ones.

    A transaction counts with its subtransactions, as far as the WAL has their top-level transaction: their first record
    does, and the record that ends the transaction.

    Returns:
        rows (xid, records, wal_bytes, image_bytes, first_lsn, last_lsn, outcome, time_us, commit_lsn, database, ...);
        outcome and what follows it are null where the end is not here.
    """
    query = f"""
        WITH parts AS (
                 SELECT xid, max(top_xid) AS top_xid, sum(records) AS records, sum(wal_bytes) AS wal_bytes,
                        sum(image_bytes) AS image_bytes, min(first_lsn) AS first_lsn, max(last_lsn) AS last_lsn
                 FROM {{volume}} GROUP BY xid
             ),
             parents AS (SELECT unnest(subxids) AS xid, xid AS parent FROM {{transactions}} WHERE len(subxids) > 0),
             sums AS (
                 SELECT coalesce(parent, top_xid, parts.xid) AS xid, sum(records)::BIGINT AS records,
                        sum(wal_bytes)::BIGINT AS wal_bytes, sum(image_bytes)::BIGINT AS image_bytes,
                        min(first_lsn) AS first_lsn, max(last_lsn) AS last_lsn
                 FROM parts LEFT JOIN parents USING (xid) GROUP BY 1
             ),
             last_ends AS (
                 SELECT xid, max(struct_pack(
                     lsn := lsn, outcome := outcome, time_us := epoch_us(time), end_lsn := end_lsn, database := database
                 )) AS at_end
                 FROM {{transactions}} GROUP BY xid
             )
        SELECT sums.*, at_end.outcome AS outcome, at_end.time_us AS time_us, at_end.end_lsn AS commit_lsn,
               at_end.database AS database, count(*) OVER () AS number,
               count_if(at_end IS NULL) OVER () AS without_end
        FROM sums LEFT JOIN last_ends USING (xid) ORDER BY wal_bytes DESC, xid LIMIT {count}
    """
    rows = ask(connection, query, volume=volume, transactions=transactions)
    return (rows[0].number, rows[0].without_end, rows) if rows else (0, 0, [])


def times_before(connection: DuckDBPyConnection, transactions: str, lsns: Sequence[Lsn]) -> dict[Lsn, int]:
    """Return for each LSN the time of the last transaction that ended before it; an LSN far after it is missing."""
    if not lsns:
        return {}
    near = " OR ".join(f"(lsn < {lsn} AND lsn >= {lsn - _BEFORE_BYTES})" for lsn in sorted(set(lsns)))
    query = f"""
        WITH wanted AS (SELECT unnest($lsns::BIGINT[]) AS wanted_lsn),
             near AS (SELECT lsn, epoch_us(time) AS at_us FROM {{transactions}} WHERE {near})
        SELECT wanted_lsn, at_us FROM wanted ASOF JOIN near ON wanted_lsn > near.lsn
    """
    rows = ask(connection, query, {"lsns": sorted(set(lsns))}, transactions=transactions)
    return {row.wanted_lsn: row.at_us for row in rows}


def relations_of_transactions(
    connection: DuckDBPyConnection, blocks: str, transactions: str, biggest: Sequence[Any], count: int
) -> dict[int, list[tuple[str, int]]]:
    """Return for each of the biggest transactions the relations that it wrote most to, with the bytes."""
    if not biggest:
        return {}
    within = " OR ".join(f"(lsn BETWEEN {row.first_lsn} AND {row.last_lsn})" for row in biggest)
    query = f"""
        WITH tops AS (SELECT unnest($xids::BIGINT[]) AS xid),
             members AS (
                 SELECT xid AS member, xid AS top FROM tops
                 UNION
                 SELECT unnest(subxids) AS member, xid AS top FROM {{transactions}} WHERE xid IN (SELECT xid FROM tops)
             ),
             sums AS (
                 SELECT top, tablespace, database, relation, sum(wal_bytes) AS wal_bytes
                 FROM {{blocks}} AS blocks JOIN members ON blocks.xid = members.member
                 WHERE {within} GROUP BY ALL
             ),
             labelled AS (
                 SELECT top, {LABEL} AS name, sum(wal_bytes)::BIGINT AS wal_bytes
                 FROM sums LEFT JOIN {NAMES} USING (tablespace, database, relation) GROUP BY ALL
             ),
             ranked AS (
                 SELECT *, row_number() OVER (PARTITION BY top ORDER BY wal_bytes DESC, name) AS rank FROM labelled
             )
        SELECT top, name, wal_bytes FROM ranked WHERE rank <= {count} ORDER BY top, rank
    """
    found: dict[int, list[tuple[str, int]]] = {}
    xids = [row.xid for row in biggest]
    for row in ask(connection, query, {"xids": xids}, blocks=blocks, transactions=transactions):
        found.setdefault(row.top, []).append((row.name, row.wal_bytes))
    return found
