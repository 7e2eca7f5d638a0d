"""The report's queries to the tables, in DuckDB's SQL. DuckDB reads and adds up; a few thousand rows at most come here.

All sums of bytes come from `volume`: rows (begin_lsn, end_lsn, rmgr, relation, sums). That is the table
`relation_volume`, whose ranges are the pieces of the WAL, or, where these are too coarse for a chart, the tables
`records` and `blocks` in ranges as small as needed. The bytes of a range that is in several bins are spread over them
evenly.
"""

from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from duckdb import DuckDBPyConnection

from safekeeper.base.lsn import LSN_MAX, Lsn
from walproxy.pipeline.jobs.catalog import RelationNames
from walproxy.pipeline.jobs.report_data import NO_RELATION, OTHER, ReportedRange
from walproxy.pipeline.jobs.time_axis import Axis, Knot

COMMITS: Final = "('commit', 'commit_prepared')"
_ABORTS: Final = "('abort', 'abort_prepared')"
_LSN_COLUMNS: Final = {"records": "lsn", "blocks": "lsn", "transactions": "lsn"}
_RANGES_MAX: Final = 4096
_HOLES_MAX: Final = 10
_INDEX_RMGRS: Final = "('Btree', 'Hash', 'Gin', 'Gist', 'SPGist', 'BRIN')"
# Of a row joined with the names: what it is called when they do not know it, and what it is called.
NUMBERS: Final = (
    f"CASE WHEN relation IS NULL THEN '{NO_RELATION}' ELSE concat('?', tablespace, '/', database, '/', relation) END"
)
LABEL: Final = f"coalesce(name, {NUMBERS})"
NAMES: Final = "relation_names"
"""The table of `add_names`."""

Frames = Mapping[str, str]
"""Tables by name: each is what stands after FROM."""


def ask(
    connection: DuckDBPyConnection, query: str, arguments: Mapping[str, Any] | None = None, **frames: str
) -> list[Any]:
    """Return the rows of a query; `{name}` in it is one of `frames`, `$name` one of `arguments`."""
    connection.execute(query.format(**frames), dict(arguments or {}))
    row_type = namedtuple("Row", [each[0] for each in connection.description or []], rename=True)  # type: ignore[misc]
    return [row_type(*row) for row in connection.fetchall()]


def keep(
    connection: DuckDBPyConnection, name: str, query: str, arguments: Mapping[str, Any] | None = None, **frames: str
) -> str:
    """Compute a query once, as a table of this name; return the name."""
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {query.format(**frames)}", dict(arguments or {}))
    return name


# Which WAL.


def restrict(frames: Frames, begin_lsn: Lsn, end_lsn: Lsn) -> dict[str, str]:
    """Return the tables without what is outside of [begin_lsn, end_lsn); pieces that reach into it stay whole."""
    restricted = {}
    for name, table in frames.items():
        column = _LSN_COLUMNS.get(name)
        within = (
            f"{column} >= {begin_lsn} AND {column} < {end_lsn}"
            if column is not None
            else f"end_lsn > {begin_lsn} AND begin_lsn < {end_lsn}"
        )
        restricted[name] = f"(SELECT * FROM {table} WHERE {within})"
    return restricted


def extent(connection: DuckDBPyConnection, frames: Frames) -> ReportedRange | None:
    """Return the WAL of which the tables have rows, None if they have none."""
    for name in ("relation_volume", "transaction_volume", "page_versions", "tuple_stats"):
        if name in frames and (found := _extent_of_pieces(connection, frames[name])) is not None:
            return found
    for name in ("records", "transactions"):
        if name in frames:
            query = "SELECT min(lsn) AS begin_lsn, max(end_lsn) AS end_lsn FROM {rows}"
            [row] = ask(connection, query, rows=frames[name])
            if row.begin_lsn is not None:
                return ReportedRange(row.begin_lsn, row.end_lsn, 0, [])
    return None


def _extent_of_pieces(connection: DuckDBPyConnection, table: str) -> ReportedRange | None:
    query = """
        WITH pieces AS (SELECT DISTINCT begin_lsn, end_lsn FROM {rows}),
             reached AS (
                 SELECT begin_lsn, end_lsn, max(end_lsn) OVER (
                     ORDER BY begin_lsn ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
                 ) AS before_lsn
                 FROM pieces
             )
        SELECT min(begin_lsn) AS begin_lsn, max(end_lsn) AS end_lsn, count(*) AS pieces,
               list((before_lsn, begin_lsn) ORDER BY begin_lsn) FILTER (WHERE before_lsn < begin_lsn) AS holes
        FROM reached
    """
    [row] = ask(connection, query, rows=table)
    if row.begin_lsn is None:
        return None
    return ReportedRange(
        row.begin_lsn, row.end_lsn, row.pieces, [tuple(hole) for hole in (row.holes or [])[:_HOLES_MAX]]
    )


def lsn_before(connection: DuckDBPyConnection, frames: Frames, time_us: int) -> Lsn:
    """Return an LSN before which nothing is of `time_us` or later: the end of the last commit before it, else 0."""
    if "transactions" in frames:
        query = "SELECT max(end_lsn) FROM {rows} WHERE epoch_us(time) < $time"
        [row] = ask(connection, query, {"time": time_us}, rows=frames["transactions"])
    elif "relation_volume" in frames:
        query = "SELECT max(begin_lsn) FROM {rows} WHERE epoch_us(first_time) < $time"
        [row] = ask(connection, query, {"time": time_us}, rows=frames["relation_volume"])
    else:
        return 0
    return row[0] or 0


def lsn_after(connection: DuckDBPyConnection, frames: Frames, time_us: int) -> Lsn:
    """Return an LSN after which nothing belongs to `time_us` or earlier: the first commit's after it."""
    if "transactions" in frames:
        query = "SELECT min(lsn) FROM {rows} WHERE epoch_us(time) > $time"
        [row] = ask(connection, query, {"time": time_us}, rows=frames["transactions"])
    elif "relation_volume" in frames:
        query = "SELECT min(end_lsn) FROM {rows} WHERE epoch_us(last_time) > $time"
        [row] = ask(connection, query, {"time": time_us}, rows=frames["relation_volume"])
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


def time_range(connection: DuckDBPyConnection, frames: Frames) -> tuple[int, int] | None:
    """Return the first and the last time at which a transaction ended, in microseconds since 1970; None without any."""
    name, first, last = "transactions", "time", "time"
    if name not in frames:
        name, first, last = "relation_volume", "first_time", "last_time"
    if name not in frames:
        return None
    query = f"SELECT epoch_us(min({first})), epoch_us(max({last})) FROM {{rows}}"
    [row] = ask(connection, query, rows=frames[name])
    return (row[0], row[1]) if row[0] is not None else None


def commits_by_bin(connection: DuckDBPyConnection, transactions: str, width_us: int) -> list[BinOfCommits]:
    """Return what ended in each bin of time in which something did."""
    query = f"""
        WITH ends AS (SELECT epoch_us(time) AS at_us, lsn, outcome IN {COMMITS} AS is_commit,
                             outcome IN {_ABORTS} AS is_abort FROM {{transactions}})
        SELECT at_us // $width AS bin, count_if(is_commit), count_if(is_abort),
               min(at_us), min(lsn), max(at_us), max(lsn),
               min((at_us, lsn)) FILTER (WHERE is_commit), max((at_us, lsn)) FILTER (WHERE is_commit)
        FROM ends GROUP BY bin ORDER BY bin
    """
    found = []
    for row in ask(connection, query, {"width": width_us}, transactions=transactions):
        number, commits, aborts, first_us, first_lsn, last_us, last_lsn, first, last = row
        knots = (Knot(first_us, first_lsn), Knot(last_us, last_lsn))
        found.append(
            BinOfCommits(
                number, commits, aborts, *knots, Knot(*first) if first else None, Knot(*last) if last else None
            )
        )
    return found


def knots_of_pieces(connection: DuckDBPyConnection, pieces: str, width_us: int) -> list[Knot]:
    """Return times of pieces, if there are no `transactions`: not more than two for each bin."""
    query = """
        SELECT min((epoch_us(first_time), begin_lsn)), max((epoch_us(last_time), end_lsn))
        FROM {rows} WHERE first_time IS NOT NULL GROUP BY epoch_us(first_time) // $width
    """
    return [Knot(*each) for row in ask(connection, query, {"width": width_us}, rows=pieces) for each in row]


# Volume.


def add_names(connection: DuckDBPyConnection, names: RelationNames) -> str:
    """Make a table of the names, which joins with the others; return its name."""
    columns = list(zip(*names.rows(), strict=True)) or [()] * 6
    types = dict.fromkeys(("tablespace", "database", "relation"), "BIGINT")
    types |= dict.fromkeys(("name", "kind", "table_name"), "VARCHAR")
    select = ", ".join(f"unnest(${name}::{data_type}[]) AS {name}" for name, data_type in types.items())
    return keep(connection, NAMES, f"SELECT {select}", dict(zip(types, map(list, columns), strict=True)))


def volume_of_records(connection: DuckDBPyConnection, records: str, blocks: str, begin_lsn: Lsn, end_lsn: Lsn) -> str:
    """Return `volume` out of `records` and `blocks`: what no block reference counts for belongs to no relation."""
    query = """
        WITH of_blocks AS (
                 SELECT lsn // $width * $width AS begin_lsn, rmgr, tablespace, database, relation,
                        count_if(is_first) AS records, sum(wal_bytes) AS wal_bytes, count_if(has_image) AS image_count,
                        sum(image_bytes) AS image_bytes
                 FROM {blocks} GROUP BY ALL
             ),
             without_blocks AS (
                 SELECT begin_lsn, rmgr, sum(records) AS records, sum(wal_bytes) AS wal_bytes
                 FROM (
                     SELECT lsn // $width * $width AS begin_lsn, rmgr, count(*) AS records,
                            sum(total_length) AS wal_bytes
                     FROM {records} GROUP BY ALL
                     UNION ALL
                     SELECT begin_lsn, rmgr, -records, -wal_bytes FROM of_blocks
                 )
                 GROUP BY ALL HAVING sum(records) > 0
             )
        SELECT begin_lsn, begin_lsn + $width AS end_lsn, rmgr, tablespace, database, relation,
               records::BIGINT AS records, wal_bytes::BIGINT AS wal_bytes, image_count::BIGINT AS image_count,
               image_bytes::BIGINT AS image_bytes
        FROM (FROM of_blocks UNION ALL BY NAME SELECT *, 0 AS image_count, 0 AS image_bytes FROM without_blocks)
    """
    arguments = {"width": max((end_lsn - begin_lsn) // _RANGES_MAX, 1)}
    return keep(connection, "volume", query, arguments, records=records, blocks=blocks)


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


def sums_of(connection: DuckDBPyConnection, volume: str, count: int) -> Sums:
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
            FROM files LEFT JOIN {NAMES} USING (tablespace, database, relation)
        ),
        sums AS (
            SELECT CASE WHEN grouping(rmgr) = 0 THEN 'rmgr' WHEN grouping(label) = 0 THEN 'relation' ELSE 'table' END
                       AS level,
                   coalesce(rmgr, label, table_label) AS name,
                   CASE WHEN grouping(label) = 0 THEN coalesce(max(kind), '') ELSE '' END AS kind,
                   sum(records)::BIGINT AS records, sum(wal_bytes)::BIGINT AS wal_bytes,
                   sum(image_count)::BIGINT AS image_count, sum(image_bytes)::BIGINT AS image_bytes
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
    rows = ask(connection, query, volume=volume)
    by_level = {level: [row for row in rows if row.level == level] for level in ("rmgr", "relation", "table")}
    of_all = by_level["relation"][0] if by_level["relation"] else None
    counts = (of_all.names, of_all.unnamed, of_all.unnamed_bytes) if of_all is not None else (0, 0, 0)
    return Sums(by_level["rmgr"], by_level["relation"], by_level["table"], *counts)


def series(connection: DuckDBPyConnection, volume: str, axis: Axis, relations: Sequence[str]) -> list[Any]:
    """Return rows (bin, rmgr, name, wal_bytes, image_bytes): a bin's number, and `other` for all but `relations`."""
    query = f"""
        WITH bins AS (
                 SELECT unnest($bins::BIGINT[]) AS bin, unnest($begins::BIGINT[]) AS bin_begin,
                        unnest($ends::BIGINT[]) AS bin_end
             ),
             pieces AS (SELECT DISTINCT begin_lsn, end_lsn FROM {{volume}}),
             shares AS (
                 SELECT begin_lsn, end_lsn, bin,
                        (least(end_lsn, bin_end) - greatest(begin_lsn, bin_begin)) / (end_lsn - begin_lsn) AS share
                 FROM pieces JOIN bins ON bin_begin < end_lsn AND bin_end > begin_lsn AND bin_begin < bin_end
             ),
             binned AS (
                 SELECT bin, rmgr, tablespace, database, relation, sum(wal_bytes * share) AS wal_bytes,
                        sum(image_bytes * share) AS image_bytes
                 FROM {{volume}} JOIN shares USING (begin_lsn, end_lsn) GROUP BY ALL
             ),
             labelled AS (
                 SELECT bin, rmgr, {LABEL} AS name, wal_bytes, image_bytes
                 FROM binned LEFT JOIN {NAMES} USING (tablespace, database, relation)
             )
        SELECT bin, rmgr, CASE WHEN list_contains($relations::VARCHAR[], name) THEN name ELSE '{OTHER}' END AS name,
               sum(wal_bytes) AS wal_bytes, sum(image_bytes) AS image_bytes
        FROM labelled GROUP BY ALL
    """
    arguments = {
        "bins": list(range(len(axis.bins))),
        "begins": [each.begin_lsn for each in axis.bins],
        "ends": [each.end_lsn for each in axis.bins],
        "relations": list(relations),
    }
    return ask(connection, query, arguments, volume=volume)


def tuples(connection: DuckDBPyConnection, tuple_stats: str, relations: Sequence[str]) -> list[Any]:
    """Return rows (name, inserts, updates, hot_updates, deletes) of these relations."""
    query = f"""
        WITH sums AS (
            SELECT tablespace, database, relation, sum(inserts) AS inserts, sum(updates) AS updates,
                   sum(hot_updates) AS hot_updates, sum(deletes) AS deletes
            FROM {{rows}} GROUP BY ALL
        ),
        labelled AS (
            SELECT {LABEL} AS label, inserts, updates, hot_updates, deletes
            FROM sums LEFT JOIN {NAMES} USING (tablespace, database, relation)
        )
        SELECT label AS name, sum(inserts)::BIGINT AS inserts, sum(updates)::BIGINT AS updates,
               sum(hot_updates)::BIGINT AS hot_updates, sum(deletes)::BIGINT AS deletes
        FROM labelled WHERE list_contains($relations::VARCHAR[], label) GROUP BY label
    """
    return ask(connection, query, {"relations": list(relations)}, rows=tuple_stats)


def checkpoints(connection: DuckDBPyConnection, records: str, count: int) -> list[Lsn]:
    """Return where the first `count` checkpoints ended."""
    query = f"""
        SELECT lsn FROM {{records}} WHERE rmgr = 'XLOG' AND operation IN ('CHECKPOINT_ONLINE', 'CHECKPOINT_SHUTDOWN')
        ORDER BY lsn LIMIT {count}
    """
    return [row.lsn for row in ask(connection, query, records=records)]


def hot_pages(connection: DuckDBPyConnection, page_versions: str, count: int) -> tuple[int, list[Any]]:
    """Return how many pages were changed, and those changed most often.

    Returns:
        rows (records, tablespace, database, relation, fork, block), the first the one changed most.
    """
    query = f"""
        SELECT sum(records)::BIGINT AS records, tablespace, database, relation, fork, block, count(*) OVER () AS pages
        FROM {{rows}} GROUP BY tablespace, database, relation, fork, block
        ORDER BY records DESC, relation, fork, block LIMIT {count}
    """
    rows = ask(connection, query, rows=page_versions)
    return (rows[0].pages if rows else 0), [row[:6] for row in rows]


# Causes.


def imaged_pages(connection: DuckDBPyConnection, blocks: str | None, page_versions: str | None) -> int | None:
    """Return how many pages have a full-page image, or an upper bound of that; None if no table has it.

    Args:
        page_versions: its pages also have an image LSN if a record initializes them, so it gives an upper bound.
    """
    if blocks is not None:
        rows, is_imaged = blocks, "has_image"
    elif page_versions is not None:
        rows, is_imaged = page_versions, "image_lsn IS NOT NULL"
    else:
        return None
    query = f"""
        WITH pages AS (
            SELECT DISTINCT tablespace, database, relation, fork, block FROM {{rows}} WHERE {is_imaged}
        )
        SELECT count(*) FROM pages
    """
    [row] = ask(connection, query, rows=rows)
    return int(row[0])


def indexes(connection: DuckDBPyConnection, volume: str, blocks: str | None, count: int) -> list[Any]:
    """Return the indexes that wrote most WAL, by the resource managers of their records.

    Returns:
        rows (name, table_name, wal_bytes, image_bytes, records, splits); the table is null if it has no name here, and
        splits, the number of split pages of a B-tree, is 0 without `blocks`.
    """
    splits = (
        "SELECT NULL::BIGINT AS tablespace, NULL::BIGINT AS database, NULL::BIGINT AS relation, 0 AS splits LIMIT 0"
    )
    if blocks is not None:
        splits = f"""
            SELECT tablespace, database, relation, count(*) AS splits
            FROM {blocks} WHERE rmgr = 'Btree' AND operation LIKE 'SPLIT%' AND is_first GROUP BY ALL
        """
    query = f"""
        WITH sums AS (
                 SELECT tablespace, database, relation, sum(wal_bytes) AS wal_bytes, sum(image_bytes) AS image_bytes,
                        sum(records) AS records
                 FROM {{volume}} WHERE rmgr IN {_INDEX_RMGRS} AND relation IS NOT NULL GROUP BY ALL
             ),
             splits AS ({{splits}})
        SELECT {LABEL} AS name, any_value(table_name) AS table_name, sum(wal_bytes)::BIGINT AS wal_bytes,
               sum(image_bytes)::BIGINT AS image_bytes, sum(records)::BIGINT AS records,
               coalesce(sum(splits), 0)::BIGINT AS splits
        FROM sums LEFT JOIN splits USING (tablespace, database, relation)
        LEFT JOIN {NAMES} USING (tablespace, database, relation)
        GROUP BY 1 ORDER BY wal_bytes DESC, name LIMIT {count}
    """
    return ask(connection, query, volume=volume, splits=splits)
