"""Ranges of a table's blocks, which several sessions read, and whether one of them is the same in a later snapshot.

A range has the row versions of some blocks of one relation: the table, or a partition. Together the ranges of a table
have each of its row versions once, as of one snapshot.

**A range is the same in two snapshots A and B, B being later, if in B**

1. it has no row version whose xmin is at or above the oldest transaction that was not over for A (the *horizon*), and
2. it has as many row versions as in A.

By 1, each version that B shows was written by a transaction that had ended before A, so A shows it, too: the
transaction that removes it is not over for B, so it was not for A. So B shows a subset of what A shows, and by 2 the
same. A version never changes while it exists, its values out of line included. With a row filter both hold for the
versions that satisfy it, as it depends on the row alone. What rewrites a relation gives it another file, which the
caller must exclude, as it must changes of the definition (Fingerprint).

The system column xmin has 32 bits, and freezing keeps it. `age` compares it with the next transaction, so the horizon
must be less than 2^31 transactions old; an older xmin may count as new, which costs a copy of the range.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from psycopg import sql

from walproxy.pipeline.cdc.published_tables import PublishedTable
from walproxy.pipeline.cdc.server import Connection, one_line_errors, one_value, server_major

RANGES_MAX: Final = 4096
"""The most ranges of one relation, however large: the state of a copy has all of them."""

_FIRST_WITH_RANGE_SCANS: Final = 14
_HORIZON_AGE_MAX: Final = 1 << 31
_XIDS: Final = 1 << 32
_RELATIONS: Final = """
    SELECT c.oid::bigint, n.nspname, c.relname, pg_relation_size(c.oid), pg_table_size(c.oid),
           c.relkind = 'r' AND a.amname = 'heap' AND has_table_privilege(c.oid, 'SELECT') AND NOT c.relrowsecurity
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_am a ON a.oid = c.relam
     WHERE c.oid = ANY (%(oids)s) ORDER BY c.oid
"""
_BLOCK_BYTES: Final = "SELECT current_setting('block_size')::bigint"
_HORIZON: Final = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
_NEXT: Final = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"


class CopyRange(msgspec.Struct, frozen=True, array_like=True):
    """Blocks [begin, end) of a relation, up to its end if `end` is None.

    Attributes:
        only: without the rows of its children; those of a partitioned table are in its partitions.
    """

    schema: str
    relation: str
    begin: int = 0
    end: int | None = None
    only: bool = True

    @property
    def is_whole(self) -> bool:
        """Whether it has all blocks of the relation."""
        return not self.begin and self.end is None

    def source(self) -> sql.Composed:
        """Return what a query reads it from."""
        only = sql.SQL("ONLY " if self.only else "")
        return sql.SQL("{}{}").format(only, sql.Identifier(self.schema, self.relation))

    def condition(self, row_filter: str | None) -> sql.Composed | None:
        """Return which rows of the relation it has, None for all."""
        conditions = [sql.SQL("({})").format(sql.SQL(row_filter))] if row_filter else []
        if self.begin:
            conditions.append(sql.SQL("ctid >= {}::tid").format(f"({self.begin},0)"))
        if self.end is not None:
            conditions.append(sql.SQL("ctid < {}::tid").format(f"({self.end},0)"))
        return sql.SQL(" AND ").join(conditions) if conditions else None


def whole_of(table: PublishedTable) -> CopyRange:
    """Return all rows of a table as one range: a child's rows are its own, a partition's are those of the whole."""
    return CopyRange(*table.table, only=not table.is_partitioned)


def ranges_of(connection: Connection, table: PublishedTable, range_bytes: int) -> list[CopyRange]:
    """Return the ranges of a table; a single one if it is to be read as a whole.

    That is so if it is small, if a partition is not to be read by itself (no right to it, row-level security), and if
    its rows are not in heaps. Before PostgreSQL 14 a range of blocks would be a scan of all: each partition is one.

    Args:
        connection: in the transaction that has the snapshot, and a lock on the table.
        range_bytes: of a table that a range has, about, values out of line included.

    Raises:
        SourceUnavailable, SourceRefused.
    """
    with one_line_errors(f"look at the size of {table.table}"):
        rows = connection.execute(_RELATIONS, {"oids": list(table.fingerprint.heaps)}).fetchall()
    if not all(row[-1] for row in rows):
        return [whole_of(table)]
    has_range_scans = server_major(connection) >= _FIRST_WITH_RANGE_SCANS
    block_bytes = one_value(connection, _BLOCK_BYTES, doing="ask for the size of blocks")
    ranges = []
    for _, schema, name, heap_bytes, table_bytes, _ in rows:
        blocks = heap_bytes // block_bytes
        count = min(-(-table_bytes // range_bytes), blocks, RANGES_MAX) if has_range_scans else 1
        edges = [blocks * number // count for number in range(count)] if count > 1 else [0]
        ends: Sequence[int | None] = [*edges[1:], None]
        ranges += [CopyRange(schema, name, begin, end) for begin, end in zip(edges, ends, strict=True)]
    return ranges if len(ranges) > 1 else [whole_of(table)]


def horizon(connection: Connection) -> int:
    """Return the oldest transaction that is not over for the snapshot of a transaction, with its epoch.

    Raises:
        SourceUnavailable, SourceRefused.
    """
    return int(one_value(connection, _HORIZON, doing="look at the snapshot"))


def is_comparable(connection: Connection, horizon_xid: int) -> bool:
    """Return whether a horizon is recent enough for `is_same`. Raises SourceUnavailable, SourceRefused."""
    following_xid = int(one_value(connection, _NEXT, doing="look at the snapshot"))
    return 0 <= following_xid - horizon_xid < _HORIZON_AGE_MAX


def is_same(connection: Connection, each: CopyRange, row_filter: str | None, horizon_xid: int, rows: int) -> bool:
    """Return whether a range has the rows that it had in an earlier snapshot.

    Args:
        connection: in a transaction with the later snapshot.
        horizon_xid: of the earlier one, for which `is_comparable` is true.
        rows: how many it had.

    Raises:
        SourceUnavailable, SourceRefused.
    """
    condition = each.condition(row_filter)
    query = sql.SQL(
        "SELECT count(*), count(*) FILTER (WHERE age(xmin) <= age({horizon}::xid)) FROM {source}{condition}"
    ).format(
        horizon=str(horizon_xid % _XIDS),
        source=each.source(),
        condition=sql.SQL("") if condition is None else sql.SQL(" WHERE {}").format(condition),
    )
    with one_line_errors(f"compare blocks of {each.schema}.{each.relation}"):
        row = connection.execute(query).fetchone()
    return row is not None and tuple(row) == (rows, 0)
