"""The views that are made of tables, in DuckDB's SQL: transaction_sizes, transaction_changes, definition_changes.

**transaction_sizes and transaction_changes** put the rows of all pieces together. Ends of transactions and rows of
pieces are laid in one order for each transaction number; each row of a piece then belongs to the next end. A commit is
the last record of its transaction, so that at one LSN the piece's row comes first.

**definition_changes** has the rows of `catalog_changes` put together, of what committed.

    catalog_changes: tuples + entries of their indexes --> versions --old line pointer--> chains --> what changed
    transactions:    which xid, and each subtransaction, committed where

A **version** of a tuple has the columns that its record has. If an update left some out (`kept`), they come from two
places: from the entries that the same transaction then added to the catalog's indexes for the same line pointer; and
from the version that was there before, which is the last one in the log at the line pointer that the update names. An
old version without a record in these tables, as of a tuple that is older than them, is known from the full-page image
that the first change of its page after a checkpoint has. What is not known from one of these is null.

A column is taken from the version before only if all its bytes were left out: at the beginning (`kept`), or at the end
(`kept_at_end`) where both versions have the same length.

The WAL must have no gaps: in a gap a line pointer could have been used again.
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


_TUPLE: Final = (
    "object",
    "relation",
    "name",
    "namespace",
    "object_kind",
    "rewrite_of",
    "tablespace",
    "file",
    "column_number",
    "column_type",
    "type_modifier",
    "is_dropped",
)
IN_ENTRIES: Final = ("object", "relation", "name", "namespace", "tablespace", "file", "column_number")
"""Those of them that are in the entries of indexes."""


_NUMBERS: Final = ("rewrite_of", "file", "column_type", "type_modifier")
"""Those that an update can change, so that its record may have only some of their bytes."""


def _inherited(column: str) -> str:
    """Return the expression of a column of the version `c`, whose version before is `p`."""
    partly = ""
    if column in _NUMBERS:
        at = f"list_position(c.partly, '{column}')"
        merged = f"(p.{column} & 4294967295 & ~c.partly_mask[{at}] | c.partly_bits[{at}])"
        if column == "type_modifier":  # the one that has a sign
            merged = f"{merged} - if({merged} > 2147483647, 4294967296, 0)"
        partly = f"WHEN c.tuple_bytes = p.tuple_bytes AND list_contains(c.partly, '{column}') THEN {merged}"
    return f"""coalesce(c.{column}, CASE WHEN c.action = 'delete' OR list_contains(c.kept, '{column}')
        OR (c.tuple_bytes = p.tuple_bytes AND list_contains(c.kept_at_end, '{column}')) THEN p.{column} {partly} END
    ) AS {column}"""


_OF_END: Final = ("xid", "top_xid", "commit_lsn", "commit_end_lsn", "time", "is_committed")
_END: Final = ", ".join(f"c.{column}" for column in _OF_END)
# A file can be created before its transaction has a number; then it is that of the relation which has the file.
_CREATED_END: Final = ", ".join(f"if(c.xid <> 0, c.{column}, t.{column}) AS {column}" for column in _OF_END)
_COLUMNS: Final = ", ".join(_TUPLE)
_ENTRIES: Final = ", ".join(f"any_value({column}) AS {column}" for column in IN_ENTRIES)
_MERGED: Final = ", ".join(
    f"coalesce(c.{column}, e.{column}) AS {column}" if column in IN_ENTRIES else f"c.{column}" for column in _TUPLE
)

DEFINITION_CHANGES_QUERY: Final = f"""
    WITH RECURSIVE finished AS (SELECT * FROM transactions WHERE outcome <> 'prepare'),
    members AS (
        SELECT unnest(list_prepend(xid, subxids)) AS member_xid, xid AS top_xid, lsn AS commit_lsn,
            end_lsn AS commit_end_lsn, time, outcome IN ('commit', 'commit_prepared') AS is_committed
        FROM finished
    ),
    located AS MATERIALIZED (
        SELECT * FROM catalog_changes c ASOF LEFT JOIN members m ON c.xid = m.member_xid AND c.lsn <= m.commit_lsn
    ),
    entries AS (
        SELECT database, catalog, commit_lsn, xid, block, line, {_ENTRIES}
        FROM located WHERE action = 'entry' AND block IS NOT NULL
        GROUP BY database, catalog, commit_lsn, xid, block, line
    ),
    versions AS MATERIALIZED (
        SELECT c.lsn, c.sequence, 2 * c.lsn + (c.action <> 'image')::BIGINT AS place, c.action, c.database,
            c.catalog, c.block, c.line, c.old_block, c.old_line, c.tuple_bytes, c.kept, c.kept_at_end, c.partly,
            c.partly_mask, c.partly_bits, {_END}, {_MERGED}
        FROM located c LEFT JOIN entries e ON c.action IN ('insert', 'update') AND c.database = e.database
            AND c.catalog = e.catalog AND c.commit_lsn = e.commit_lsn AND c.xid = e.xid AND c.block = e.block
            AND c.line = e.line
        WHERE c.action IN ('insert', 'update', 'delete', 'image')
    ),
    linked AS MATERIALIZED (
        SELECT v.*, p.lsn AS parent_lsn, p.sequence AS parent_sequence
        FROM versions v ASOF LEFT JOIN (FROM versions WHERE block IS NOT NULL) p
            ON v.database = p.database AND v.catalog = p.catalog AND v.old_block = p.block AND v.old_line = p.line
            AND v.place > p.place
    ),
    resolved AS (
        SELECT lsn, sequence, tuple_bytes, {_COLUMNS} FROM linked
        WHERE parent_lsn IS NULL OR (action <> 'delete' AND kept IS NULL)
        UNION ALL
        SELECT c.lsn, c.sequence, c.tuple_bytes, {", ".join(_inherited(column) for column in _TUPLE)}
        FROM resolved p JOIN linked c ON c.parent_lsn = p.lsn AND c.parent_sequence = p.sequence
        WHERE c.action = 'delete' OR c.kept IS NOT NULL
    ),
    files AS (
        SELECT DISTINCT tablespace, database, file, commit_lsn FROM located WHERE action = 'create_file' AND fork = 0
    ),
    tuples AS (
        SELECT l.lsn, l.sequence, {_END.replace("c.", "l.")}, l.action, l.database, l.catalog,
            coalesce(l.block, l.old_block) AS block, coalesce(l.line, l.old_line) AS line,
            r.* EXCLUDE (lsn, sequence, tuple_bytes),
            l.is_dropped AND l.kept IS NOT NULL AS drops, o.name AS old_name, o.tablespace AS old_tablespace,
            o.file AS old_file, o.column_type AS old_column_type, o.type_modifier AS old_type_modifier,
            o.is_dropped AS was_dropped, row_number() OVER (
                PARTITION BY l.commit_lsn, l.database, l.catalog, r.relation, r.tablespace, r.file
                ORDER BY l.lsn, l.sequence
            ) = 1 AS is_first
        FROM linked l JOIN resolved r ON r.lsn = l.lsn AND r.sequence = l.sequence
        LEFT JOIN resolved o ON o.lsn = l.parent_lsn AND o.sequence = l.parent_sequence
        WHERE l.action <> 'image'
    ),
    changes AS (
        SELECT t.* EXCLUDE (action, is_first, was_dropped, drops, is_dropped), NULL::BIGINT AS blocks, CASE
            WHEN t.catalog = 'pg_attribute' THEN CASE
                WHEN t.action = 'insert' THEN 'add_column'
                WHEN t.action = 'delete' OR t.drops OR (t.is_dropped AND NOT t.was_dropped) THEN 'drop_column'
                WHEN t.name <> t.old_name THEN 'rename_column'
                ELSE 'alter_column' END
            WHEN t.action = 'insert' THEN 'create'
            WHEN t.action = 'delete' THEN 'drop'
            WHEN t.catalog = 'pg_class' AND coalesce(t.rewrite_of, 0) = 0 AND (
                t.file <> t.old_file OR t.tablespace <> t.old_tablespace
                OR (t.old_file IS NULL AND t.is_first AND f.file IS NOT NULL)) THEN 'rewrite'
            WHEN t.name <> t.old_name THEN 'rename'
            ELSE 'alter' END AS change
        FROM tuples t LEFT JOIN files f ON t.catalog = 'pg_class' AND f.tablespace = t.tablespace
            AND f.database = t.database AND f.file = t.file AND f.commit_lsn = t.commit_lsn
        WHERE t.catalog <> 'pg_attribute' OR (coalesce(t.column_number > 0, true)
            AND NOT CASE WHEN t.action = 'insert' THEN t.is_dropped ELSE coalesce(t.was_dropped, false) END)
        UNION ALL BY NAME
        SELECT c.lsn, c.sequence, {_END}, c.database, c.relation, c.name, c.tablespace, c.file, c.blocks,
            if(action = 'map', 'rewrite', action) AS change
        FROM located c WHERE action IN ('truncate', 'drop_file', 'map', 'invalidate')
        UNION ALL BY NAME
        SELECT c.lsn, c.sequence, {_CREATED_END}, c.database, c.tablespace, c.file, 'create_file' AS change
        FROM located c ASOF LEFT JOIN (FROM tuples WHERE catalog = 'pg_class' AND file IS NOT NULL) t
            ON t.tablespace = c.tablespace AND t.database = c.database AND t.file = c.file AND c.lsn < t.lsn
        WHERE c.action = 'create_file' AND c.fork = 0
    ),
    committed AS (SELECT * FROM changes WHERE is_committed),
    named AS (SELECT DISTINCT commit_lsn, database, relation FROM committed WHERE change <> 'invalidate')
    SELECT lsn, sequence, top_xid AS xid, commit_lsn, commit_end_lsn, time, database,
        if(change = 'invalidate', 'changed', change) AS change, catalog, object, relation, name, old_name, namespace,
        object_kind, nullif(rewrite_of, 0) AS rewrite_of, tablespace, file, old_tablespace, old_file, column_number,
        column_type, old_column_type, type_modifier, old_type_modifier, blocks, block, line
    FROM committed c
    WHERE change <> 'invalidate' OR NOT EXISTS (
        FROM named n WHERE n.commit_lsn = c.commit_lsn AND n.database = c.database AND n.relation = c.relation)
    UNION ALL BY NAME
    SELECT lsn, sequence, nullif(xid, 0) AS xid, database, 'truncate_file' AS change, tablespace, file, blocks
    FROM catalog_changes WHERE action = 'truncate_file'
"""
"""Needs the tables `catalog_changes` and `transactions`."""
