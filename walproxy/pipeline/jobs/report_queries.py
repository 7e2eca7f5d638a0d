"""The report's queries to the tables, in Spark SQL. Spark reads and adds up; a few thousand rows at most come here.

All sums of bytes come from `volume`: rows (begin_lsn, end_lsn, rmgr, relation, sums). That is the table
`relation_volume`, whose ranges are the pieces of the WAL, or, where these are too coarse for a chart, the table
`records` in ranges as small as needed. The bytes of a range that is in several bins are spread over them evenly.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from safekeeper.base.lsn import LSN_MAX, Lsn
from walproxy.pipeline.jobs.catalog import RelationNames
from walproxy.pipeline.jobs.report_data import NO_RELATION, OTHER, Extent
from walproxy.pipeline.jobs.time_axis import Axis, Knot

COMMITS: Final = "('commit', 'commit_prepared')"
_ABORTS: Final = "('abort', 'abort_prepared')"
_LSN_COLUMNS: Final = {"records": "lsn", "transactions": "lsn"}
_RANGES_MAX: Final = 4096
_HOLES_MAX: Final = 10
# Of a row joined with the names: what it is called when they do not know it, and what it is called.
NUMBERS: Final = (
    f"CASE WHEN relation IS NULL THEN '{NO_RELATION}' ELSE concat('?', tablespace, '/', database, '/', relation) END"
)
LABEL: Final = f"coalesce(name, {NUMBERS})"

Frames = Mapping[str, DataFrame]


def ask(spark: SparkSession, query: str, arguments: Mapping[str, Any] | None = None, **frames: DataFrame) -> list[Any]:
    """Return the rows of a query; `{name}` in it is one of `frames`, `:name` one of `arguments`."""
    return list(frame(spark, query, arguments, **frames).collect())


def frame(
    spark: SparkSession, query: str, arguments: Mapping[str, Any] | None = None, **frames: DataFrame
) -> DataFrame:
    """Return a query that is not run yet."""
    return spark.sql(query, args=dict(arguments or {}), **frames)


# Which WAL.


def restrict(frames: Frames, begin_lsn: Lsn, end_lsn: Lsn) -> dict[str, DataFrame]:
    """Return the tables without what is outside of [begin_lsn, end_lsn); pieces that reach into it stay whole."""
    restricted = {}
    for name, table in frames.items():
        column = _LSN_COLUMNS.get(name)
        restricted[name] = table.where(
            f"{column} >= {begin_lsn} AND {column} < {end_lsn}"
            if column is not None
            else f"end_lsn > {begin_lsn} AND begin_lsn < {end_lsn}"
        )
    return restricted


def extent(spark: SparkSession, frames: Frames) -> Extent | None:
    """Return the WAL of which the tables have rows, None if they have none."""
    for name in ("relation_volume", "transaction_volume", "page_versions", "tuple_stats"):
        if name in frames and (found := _extent_of_pieces(spark, frames[name])) is not None:
            return found
    for name in ("records", "transactions"):
        if name in frames:
            [row] = ask(spark, "SELECT min(lsn) AS begin_lsn, max(end_lsn) AS end_lsn FROM {rows}", rows=frames[name])
            if row.begin_lsn is not None:
                return Extent(row.begin_lsn, row.end_lsn, 0, [])
    return None


def _extent_of_pieces(spark: SparkSession, table: DataFrame) -> Extent | None:
    query = f"""
        WITH pieces AS (SELECT DISTINCT begin_lsn, end_lsn FROM {{rows}}),
             reached AS (
                 SELECT begin_lsn, end_lsn, max(end_lsn) OVER (
                     ORDER BY begin_lsn ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
                 ) AS before_lsn
                 FROM pieces
             )
        SELECT min(begin_lsn) AS begin_lsn, max(end_lsn) AS end_lsn, count(*) AS pieces,
               slice(array_sort(collect_list(
                   CASE WHEN before_lsn < begin_lsn THEN struct(before_lsn, begin_lsn) END
               )), 1, {_HOLES_MAX}) AS holes
        FROM reached
    """
    [row] = ask(spark, query, rows=table)
    if row.begin_lsn is None:
        return None
    return Extent(row.begin_lsn, row.end_lsn, row.pieces, [tuple(hole) for hole in row.holes])


def lsn_before(spark: SparkSession, frames: Frames, time_us: int) -> Lsn:
    """Return an LSN before which nothing is of `time_us` or later: the end of the last commit before it, else 0."""
    if "transactions" in frames:
        query = "SELECT max(end_lsn) FROM {rows} WHERE unix_micros(time) < :time"
        [row] = ask(spark, query, {"time": time_us}, rows=frames["transactions"])
    elif "relation_volume" in frames:
        query = "SELECT max(begin_lsn) FROM {rows} WHERE unix_micros(first_time) < :time"
        [row] = ask(spark, query, {"time": time_us}, rows=frames["relation_volume"])
    else:
        return 0
    return row[0] or 0


def lsn_after(spark: SparkSession, frames: Frames, time_us: int) -> Lsn:
    """Return an LSN after which nothing belongs to `time_us` or earlier: the first commit's after it."""
    if "transactions" in frames:
        query = "SELECT min(lsn) FROM {rows} WHERE unix_micros(time) > :time"
        [row] = ask(spark, query, {"time": time_us}, rows=frames["transactions"])
    elif "relation_volume" in frames:
        query = "SELECT min(end_lsn) FROM {rows} WHERE unix_micros(last_time) > :time"
        [row] = ask(spark, query, {"time": time_us}, rows=frames["relation_volume"])
    else:
        return LSN_MAX >> 1
    return LSN_MAX >> 1 if row[0] is None else row[0]


# Times.


class BinOfCommits(NamedTuple):
    """The transactions that ended in a bin of time: their numbers, the first and the last."""

    bin: int
    commits: int
    aborts: int
    first: Knot
    last: Knot
    first_commit: Knot | None
    last_commit: Knot | None


def time_range(spark: SparkSession, frames: Frames) -> tuple[int, int] | None:
    """Return the first and the last time at which a transaction ended, in microseconds since 1970; None without any."""
    name, first, last = "transactions", "time", "time"
    if name not in frames:
        name, first, last = "relation_volume", "first_time", "last_time"
    if name not in frames:
        return None
    query = f"SELECT unix_micros(min({first})), unix_micros(max({last})) FROM {{rows}}"
    [row] = ask(spark, query, rows=frames[name])
    return (row[0], row[1]) if row[0] is not None else None


def commits_by_bin(spark: SparkSession, transactions: DataFrame, width_us: int) -> list[BinOfCommits]:
    """Return what ended in each bin of time in which something did."""
    query = f"""
        WITH ends AS (SELECT unix_micros(time) AS at, lsn, outcome IN {COMMITS} AS is_commit,
                             outcome IN {_ABORTS} AS is_abort FROM {{transactions}})
        SELECT at div :width AS bin, count_if(is_commit), count_if(is_abort), min(at), min(lsn), max(at), max(lsn),
               min(struct(at, lsn)) FILTER (WHERE is_commit), max(struct(at, lsn)) FILTER (WHERE is_commit)
        FROM ends GROUP BY bin ORDER BY bin
    """
    found = []
    for row in ask(spark, query, {"width": width_us}, transactions=transactions):
        number, commits, aborts, first_us, first_lsn, last_us, last_lsn, first, last = row
        knots = (Knot(first_us, first_lsn), Knot(last_us, last_lsn))
        found.append(
            BinOfCommits(
                number, commits, aborts, *knots, Knot(*first) if first else None, Knot(*last) if last else None
            )
        )
    return found


def knots_of_pieces(spark: SparkSession, pieces: DataFrame, width_us: int) -> list[Knot]:
    """Return times of pieces, if there are no `transactions`: not more than two for each bin."""
    query = """
        SELECT min(struct(unix_micros(first_time), begin_lsn)), max(struct(unix_micros(last_time), end_lsn))
        FROM {rows} WHERE first_time IS NOT NULL GROUP BY unix_micros(first_time) div :width
    """
    return [Knot(*each) for row in ask(spark, query, {"width": width_us}, rows=pieces) for each in row]


# Volume.


def names_frame(spark: SparkSession, names: RelationNames) -> DataFrame:
    """Return the names as a table that joins with the others."""
    columns = list(zip(*names.rows(), strict=True)) or [()] * 6
    fields = {name: pa.int64() for name in ("tablespace", "database", "relation")}
    fields |= {name: pa.string() for name in ("name", "kind", "table_name")}
    arrays = [pa.array(column, data_type) for column, data_type in zip(columns, fields.values(), strict=True)]
    return spark.createDataFrame(pa.table(arrays, names=list(fields)))


def volume_of_records(spark: SparkSession, records: DataFrame, begin_lsn: Lsn, end_lsn: Lsn) -> DataFrame:
    """Return `volume` out of the table `records`: a block's image and data count for its relation."""
    width = max((end_lsn - begin_lsn) // _RANGES_MAX, 1)
    query = """
        WITH spread AS (
            SELECT lsn, rmgr, position, block,
                   CASE WHEN coalesce(position, 0) = 0
                        THEN total_length - aggregate(
                            blocks, 0L, (sum, each) -> sum + each.image_bytes + each.data_bytes)
                        ELSE 0 END AS rest
            FROM {records} LATERAL VIEW OUTER posexplode(blocks) exploded AS position, block
        )
        SELECT lsn div :width * :width AS begin_lsn, (lsn div :width + 1) * :width AS end_lsn,
               rmgr, block.tablespace AS tablespace, block.database AS database, block.relation AS relation,
               count_if(coalesce(position, 0) = 0) AS records,
               sum(rest + coalesce(block.image_bytes + block.data_bytes, 0)) AS wal_bytes,
               count_if(block.has_image) AS image_count, sum(coalesce(block.image_bytes, 0)) AS image_bytes
        FROM spread GROUP BY ALL
    """
    return frame(spark, query, {"width": width}, records=records)


class Sums(NamedTuple):
    """The WAL, added up by manager, by relation and by table.

    Attributes:
        rmgrs: all of them, the largest first; rows (name, kind, records, wal_bytes, image_count, image_bytes).
        relations, tables: the largest ones.
        relations_count, unnamed_count, unnamed_bytes: of all relations, and of those without a name.
    """

    rmgrs: list[Any]
    relations: list[Any]
    tables: list[Any]
    relations_count: int
    unnamed_count: int
    unnamed_bytes: int


def sums_of(spark: SparkSession, volume: DataFrame, names: DataFrame, count: int) -> Sums:
    """Return the sums of `volume`; a relation whose file has changed is one relation."""
    query = f"""
        WITH files AS (
            SELECT rmgr, tablespace, database, relation, sum(records) AS records, sum(wal_bytes) AS wal_bytes,
                   sum(image_count) AS image_count, sum(image_bytes) AS image_bytes
            FROM {{volume}} GROUP BY ALL
        ),
        named AS (
            SELECT rmgr, {LABEL} AS label, coalesce(table_name, {NUMBERS}) AS table_label, kind, records, wal_bytes,
                   image_count, image_bytes
            FROM files LEFT JOIN {{names}} USING (tablespace, database, relation)
        ),
        sums AS (
            SELECT CASE WHEN grouping(rmgr) = 0 THEN 'rmgr' WHEN grouping(label) = 0 THEN 'relation' ELSE 'table' END
                       AS level,
                   coalesce(rmgr, label, table_label) AS name,
                   CASE WHEN grouping(label) = 0 THEN coalesce(max(kind), '') ELSE '' END AS kind,
                   sum(records) AS records, sum(wal_bytes) AS wal_bytes, sum(image_count) AS image_count,
                   sum(image_bytes) AS image_bytes
            FROM named GROUP BY GROUPING SETS ((rmgr), (label), (table_label))
        ),
        ranked AS (
            SELECT *, row_number() OVER (PARTITION BY level ORDER BY wal_bytes DESC, name) AS rank,
                   count_if(name <> '{NO_RELATION}') OVER (PARTITION BY level) AS names,
                   count_if(name LIKE '?%') OVER (PARTITION BY level) AS unnamed,
                   sum(CASE WHEN name LIKE '?%' THEN wal_bytes ELSE 0 END) OVER (PARTITION BY level) AS unnamed_bytes
            FROM sums
        )
        SELECT * FROM ranked WHERE rank <= {count} OR level = 'rmgr' ORDER BY level, rank
    """
    rows = ask(spark, query, volume=volume, names=names)
    by_level = {level: [row for row in rows if row.level == level] for level in ("rmgr", "relation", "table")}
    of_all = by_level["relation"][0] if by_level["relation"] else None
    counts = (of_all.names, of_all.unnamed, of_all.unnamed_bytes) if of_all is not None else (0, 0, 0)
    return Sums(by_level["rmgr"], by_level["relation"], by_level["table"], *counts)


def series(spark: SparkSession, volume: DataFrame, names: DataFrame, axis: Axis, relations: Sequence[str]) -> list[Any]:
    """Return rows (bin, rmgr, name, wal_bytes, image_bytes): a bin's number, and `other` for all but `relations`."""
    bins = [(number, each.begin_lsn, each.end_lsn) for number, each in enumerate(axis.bins)]
    columns = zip(*bins, strict=True)
    bins_frame = spark.createDataFrame(
        pa.table([pa.array(column, pa.int64()) for column in columns], names=["bin", "bin_begin", "bin_end"])
    )
    query = f"""
        WITH pieces AS (SELECT DISTINCT begin_lsn, end_lsn FROM {{volume}}),
             shares AS (
                 SELECT begin_lsn, end_lsn, bin,
                        (least(end_lsn, bin_end) - greatest(begin_lsn, bin_begin)) / (end_lsn - begin_lsn) AS share
                 FROM pieces JOIN {{bins}} ON bin_begin < end_lsn AND bin_end > begin_lsn AND bin_begin < bin_end
             ),
             binned AS (
                 SELECT bin, rmgr, tablespace, database, relation, sum(wal_bytes * share) AS wal_bytes,
                        sum(image_bytes * share) AS image_bytes
                 FROM {{volume}} JOIN shares USING (begin_lsn, end_lsn) GROUP BY ALL
             ),
             labelled AS (
                 SELECT bin, rmgr, {LABEL} AS name, wal_bytes, image_bytes
                 FROM binned LEFT JOIN {{names}} USING (tablespace, database, relation)
             )
        SELECT bin, rmgr, CASE WHEN array_contains(:relations, name) THEN name ELSE '{OTHER}' END AS name,
               sum(wal_bytes) AS wal_bytes, sum(image_bytes) AS image_bytes
        FROM labelled GROUP BY ALL
    """
    arguments = {"relations": list(relations) or [""]}
    return ask(spark, query, arguments, volume=volume, names=names, bins=bins_frame)


def tuples(spark: SparkSession, tuple_stats: DataFrame, names: DataFrame, relations: Sequence[str]) -> list[Any]:
    """Return rows (name, inserts, updates, hot_updates, deletes) of these relations."""
    query = f"""
        WITH sums AS (
            SELECT tablespace, database, relation, sum(inserts) AS inserts, sum(updates) AS updates,
                   sum(hot_updates) AS hot_updates, sum(deletes) AS deletes
            FROM {{rows}} GROUP BY ALL
        ),
        labelled AS (
            SELECT {LABEL} AS label, inserts, updates, hot_updates, deletes
            FROM sums LEFT JOIN {{names}} USING (tablespace, database, relation)
        )
        SELECT label AS name, sum(inserts) AS inserts, sum(updates) AS updates, sum(hot_updates) AS hot_updates,
               sum(deletes) AS deletes
        FROM labelled WHERE array_contains(:relations, label) GROUP BY label
    """
    return ask(spark, query, {"relations": list(relations) or [""]}, rows=tuple_stats, names=names)


def checkpoints(spark: SparkSession, records: DataFrame, count: int) -> list[Lsn]:
    """Return where the first `count` checkpoints ended."""
    query = f"""
        SELECT lsn FROM {{records}} WHERE rmgr = 'XLOG' AND operation IN ('CHECKPOINT_ONLINE', 'CHECKPOINT_SHUTDOWN')
        ORDER BY lsn LIMIT {count}
    """
    return [row.lsn for row in ask(spark, query, records=records)]


def hot_pages(spark: SparkSession, page_versions: DataFrame, count: int) -> tuple[int, list[Any]]:
    """Return how many pages were changed, and those changed most often.

    Returns:
        rows (records, tablespace, database, relation, fork, block), the first the one changed most.
    """
    query = f"""
        WITH pages AS (
            SELECT tablespace, database, relation, fork, block, sum(records) AS records FROM {{rows}} GROUP BY ALL
        )
        SELECT count(*) AS pages,
               max_by(struct(records, tablespace, database, relation, fork, block),
                      struct(records, -relation, -fork, -block), {count}) AS most
        FROM pages
    """
    [row] = ask(spark, query, rows=page_versions)
    return row.pages, row.most or []
