"""The report's queries about transactions, in Spark SQL: the biggest, their relations and durations; commit gaps."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from safekeeper.base.lsn import Lsn
from walproxy.pipeline.jobs.report_queries import COMMITS, LABEL, BinOfCommits, ask
from walproxy.pipeline.jobs.time_axis import Knot

# Before its first record a transaction is looked for between commits so far back: more would read too much.
_BEFORE_BYTES: Final = 64 << 20


class Gap(NamedTuple):
    """A pause between two commits."""

    begin: Knot
    end: Knot

    @property
    def duration_us(self) -> int:
        return self.end.time_us - self.begin.time_us


def commit_gaps(
    spark: SparkSession, transactions: DataFrame, by_bin: Sequence[BinOfCommits], width_us: int, count: int
) -> list[Gap]:
    """Return the longest pauses between commits, the longest first.

    Each bin's commits are ordered by themselves, so that no one task sorts all of them; the pauses that lead from one
    bin to another come from the bins' ends.
    """
    query = f"""
        WITH commits AS (
            SELECT unix_micros(time) AS at, lsn,
                   lead(struct(unix_micros(time) AS at, lsn)) OVER (
                       PARTITION BY unix_micros(time) div :width ORDER BY time, lsn
                   ) AS next
            FROM {{transactions}} WHERE outcome IN {COMMITS}
        )
        SELECT at, lsn, next FROM commits WHERE next IS NOT NULL ORDER BY next.at - at DESC, at LIMIT {count}
    """
    rows = ask(spark, query, {"width": width_us}, transactions=transactions)
    gaps = [Gap(Knot(row.at, row.lsn), Knot(*row.next)) for row in rows]
    ends = [(each.first_commit, each.last_commit) for each in by_bin if each.first_commit and each.last_commit]
    gaps += [Gap(last, first) for (_, last), (first, _) in pairwise(ends) if last and first]
    return sorted(gaps, key=lambda gap: (-gap.duration_us, gap.begin))[:count]


def biggest_transactions(
    spark: SparkSession, volume: DataFrame, transactions: DataFrame, count: int
) -> tuple[int, int, list[Any]]:
    """Return how many transactions wrote, how many of them have no end here, and the biggest ones.

    A transaction counts with its subtransactions, as far as the WAL has their top-level transaction: their first record
    does, and the record that ends the transaction.

    Returns:
        rows (xid, records, wal_bytes, image_bytes, first_lsn, last_lsn, outcome, time_us, commit_lsn, database); the
        last four are null where the end is not here.
    """
    query = """
        WITH parts AS (
                 SELECT xid, max(top_xid) AS top_xid, sum(records) AS records, sum(wal_bytes) AS wal_bytes,
                        sum(image_bytes) AS image_bytes, min(first_lsn) AS first_lsn, max(last_lsn) AS last_lsn
                 FROM {volume} GROUP BY xid
             ),
             parents AS (SELECT explode(subxids) AS xid, xid AS parent FROM {transactions} WHERE size(subxids) > 0),
             sums AS (
                 SELECT coalesce(parent, top_xid, parts.xid) AS xid, sum(records) AS records,
                        sum(wal_bytes) AS wal_bytes, sum(image_bytes) AS image_bytes, min(first_lsn) AS first_lsn,
                        max(last_lsn) AS last_lsn
                 FROM parts LEFT JOIN parents USING (xid) GROUP BY 1
             ),
             last_ends AS (
                 SELECT xid, max(struct(lsn, outcome, unix_micros(time) AS time_us, end_lsn, database)) AS at_end
                 FROM {transactions} GROUP BY xid
             ),
             written AS (
                 SELECT xid, records, wal_bytes, image_bytes, first_lsn, last_lsn, at_end.outcome, at_end.time_us,
                        at_end.end_lsn AS commit_lsn, at_end.database
                 FROM sums LEFT JOIN last_ends USING (xid)
             )
        SELECT count(*) AS number, count_if(outcome IS NULL) AS without_end,
               max_by(struct(written.*), struct(wal_bytes, -xid), :count) AS biggest
        FROM written
    """
    [row] = ask(spark, query, {"count": count}, volume=volume, transactions=transactions)
    return row.number, row.without_end, row.biggest or []


def times_before(spark: SparkSession, transactions: DataFrame, lsns: Sequence[Lsn]) -> dict[Lsn, int]:
    """Return for each LSN the time of the last transaction that ended before it; an LSN far after it is missing."""
    if not lsns:
        return {}
    near = " OR ".join(f"(lsn < {lsn} AND lsn >= {lsn - _BEFORE_BYTES})" for lsn in sorted(set(lsns)))
    query = f"""
        WITH wanted AS (SELECT explode(:lsns) AS wanted_lsn),
             near AS (SELECT lsn, unix_micros(time) AS at FROM {{transactions}} WHERE {near})
        SELECT wanted_lsn, max(struct(lsn, at)).at AS at FROM wanted JOIN near ON near.lsn < wanted_lsn
        GROUP BY wanted_lsn
    """
    rows = ask(spark, query, {"lsns": sorted(set(lsns))}, transactions=transactions)
    return {row.wanted_lsn: row.at for row in rows}


def relations_of_transactions(
    spark: SparkSession,
    records: DataFrame,
    transactions: DataFrame,
    names: DataFrame,
    biggest: Sequence[Any],
    count: int,
) -> dict[int, list[tuple[str, int]]]:
    """Return for each of the biggest transactions the relations that it wrote most to, with the bytes."""
    if not biggest:
        return {}
    xids = [row.xid for row in biggest]
    within = " OR ".join(f"(lsn BETWEEN {row.first_lsn} AND {row.last_lsn})" for row in biggest)
    query = f"""
        WITH members AS (
                 SELECT xid AS member, xid AS top FROM (SELECT explode(:xids) AS xid)
                 UNION
                 SELECT explode(subxids) AS member, xid AS top FROM {{transactions}}
                 WHERE array_contains(:xids, xid) AND size(subxids) > 0
             ),
             written AS (
                 SELECT top, total_length, blocks
                 FROM {{records}} AS records JOIN members ON records.xid = members.member WHERE {within}
             ),
             spread AS (
                 SELECT top, block.tablespace, block.database, block.relation,
                        block.image_bytes + block.data_bytes + CASE WHEN position = 0
                            THEN total_length - aggregate(
                                blocks, 0L, (sum, each) -> sum + each.image_bytes + each.data_bytes)
                            ELSE 0 END AS wal_bytes
                 FROM written LATERAL VIEW posexplode(blocks) exploded AS position, block
             ),
             sums AS (SELECT top, tablespace, database, relation, sum(wal_bytes) AS wal_bytes FROM spread GROUP BY ALL),
             labelled AS (
                 SELECT top, {LABEL} AS name, sum(wal_bytes) AS wal_bytes
                 FROM sums LEFT JOIN {{names}} USING (tablespace, database, relation) GROUP BY ALL
             ),
             ranked AS (
                 SELECT *, row_number() OVER (PARTITION BY top ORDER BY wal_bytes DESC, name) AS rank FROM labelled
             )
        SELECT top, name, wal_bytes FROM ranked WHERE rank <= {count} ORDER BY top, rank
    """
    frames = {"records": records, "names": names, "transactions": transactions}
    found: dict[int, list[tuple[str, int]]] = {}
    for row in ask(spark, query, {"xids": xids}, **frames):
        found.setdefault(row.top, []).append((row.name, row.wal_bytes))
    return found
