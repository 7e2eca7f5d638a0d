"""The views `transaction_sizes` and `transaction_changes` in DuckDB's SQL: the rows of all pieces, put together.

Ends of transactions and rows of pieces are laid in one order for each transaction number; each row of a piece then
belongs to the next end. A commit is the last record of its transaction, so that at one LSN the piece's row comes first.
"""

from typing import Final

# `source` has a row for each piece and xid, with the columns named here.
_OWNED: Final = """
    finished AS (SELECT * FROM transactions WHERE outcome <> 'prepare'),
    members AS (
        SELECT unnest(list_prepend(xid, subxids)) AS member_xid, lsn AS finish_lsn, lsn AS place, 1 AS step
        FROM finished
    ),
    events AS (
        SELECT * FROM members
        UNION ALL BY NAME
        SELECT xid AS member_xid, last_lsn AS place, 0 AS step, * FROM source WHERE xid <> 0
    ),
    owned AS (
        SELECT * EXCLUDE (finish_lsn), first_value(finish_lsn IGNORE NULLS) OVER (
            PARTITION BY member_xid ORDER BY place, step ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING
        ) AS finish_lsn FROM events
    )
"""

TRANSACTION_SIZES_QUERY: Final = f"""
    WITH source AS (SELECT xid, first_lsn, last_lsn, records, wal_bytes, image_bytes FROM transaction_volume),
    {_OWNED},
    sizes AS (
        SELECT finish_lsn, coalesce(sum(records), 0)::BIGINT AS records,
            coalesce(sum(wal_bytes), 0)::BIGINT AS wal_bytes, coalesce(sum(image_bytes), 0)::BIGINT AS image_bytes,
            min(first_lsn) AS first_lsn
        FROM owned WHERE finish_lsn IS NOT NULL GROUP BY finish_lsn
    )
    SELECT finished.*, sizes.first_lsn, sizes.records, sizes.wal_bytes, sizes.image_bytes
    FROM finished JOIN sizes ON sizes.finish_lsn = finished.lsn
"""
"""Needs the tables `transactions` and `transaction_volume`."""

_SUMS: Final = (
    "inserts",
    "updates",
    "hot_updates",
    "deletes",
    "records",
    "wal_bytes",
    "image_count",
    "image_bytes",
    "pages",
)

TRANSACTION_CHANGES_QUERY: Final = f"""
    WITH source AS (
        SELECT xid, last_lsn, tablespace, relation, database AS relation_database, {", ".join(_SUMS)}
        FROM transaction_relations
    ),
    {_OWNED},
    sums AS (
        SELECT finish_lsn, tablespace, relation_database, relation,
            {", ".join(f"sum({name})::BIGINT AS {name}" for name in _SUMS)}
        FROM owned WHERE finish_lsn IS NOT NULL AND records IS NOT NULL GROUP BY ALL
    )
    SELECT finished.lsn, finished.end_lsn, finished.xid, finished.outcome, finished.time, sums.tablespace,
        sums.relation_database AS database, sums.relation, {", ".join(f"sums.{name}" for name in _SUMS)}
    FROM finished JOIN sums ON sums.finish_lsn = finished.lsn
"""
"""Needs the tables `transactions` and `transaction_relations`."""
