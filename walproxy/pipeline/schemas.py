"""The columns of every view and table: name, type, unit, meaning. Docs and code are made from these lists.

Spark has no unsigned types, so LSNs, OIDs, xids and block numbers are 64-bit integers (an LSN never sets the highest
bit). Times are UTC. A *piece* is the WAL that one row of an aggregated view summarizes: at most one segment, cut where
a stream was cut. Sums over pieces are exact, because a record belongs to the piece that holds its first byte.

Imports pyarrow, not pyspark: `spark_ddl` writes Spark's words for a schema.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from safekeeper.base.errors import ConfigurationError

_TIME: Final = pa.timestamp("us", tz="UTC")


class SchemaColumn(NamedTuple):
    """One column.

    Attributes:
        type: as Arrow calls it.
        nullable: it can be null; `meaning` describes when.
        meaning: what stands in it, with its unit.
        source: the field of WAL that it comes from, in PostgreSQL's words.
    """

    name: str
    type: pa.DataType
    nullable: bool
    meaning: str
    source: str


def _column(name: str, data_type: pa.DataType, meaning: str, source: str) -> SchemaColumn:
    return SchemaColumn(name, data_type, False, meaning, source)


def _nullable(name: str, data_type: pa.DataType, meaning: str, source: str) -> SchemaColumn:
    return SchemaColumn(name, data_type, True, meaning, source)


_RELATION: Final = (
    _column("tablespace", pa.int64(), "OID of the tablespace", "RelFileLocator.spcOid"),
    _column("database", pa.int64(), "OID of the database; 0 for a shared relation", "RelFileLocator.dbOid"),
    _column(
        "relation", pa.int64(), "number of the relation's file: pg_relation_filenode()", "RelFileLocator.relNumber"
    ),
)
_FORK: Final = _column("fork", pa.int16(), "0 main, 1 free space map, 2 visibility map, 3 init", "fork_flags & 0x0F")
_BLOCK: Final = _column("block", pa.int64(), "number of the 8 KiB block", "BlockNumber")

_BLOCK_REFERENCE: Final = (
    _column("block_id", pa.int16(), "number of the reference within the record, 0 to 32", "XLogRecordBlockHeader.id"),
    *_RELATION,
    _FORK,
    _BLOCK,
    _column("has_image", pa.bool_(), "the record contains a full-page image of it", "BKPBLOCK_HAS_IMAGE"),
    _column("image_applied", pa.bool_(), "redo restores that image", "BKPIMAGE_APPLY"),
    _column(
        "image_bytes", pa.int32(), "bytes of the image as stored, without its hole", "XLogRecordBlockImageHeader.length"
    ),
    _column("data_bytes", pa.int32(), "bytes of data for this block", "XLogRecordBlockHeader.data_length"),
    _column("will_init", pa.bool_(), "redo initializes the page", "BKPBLOCK_WILL_INIT"),
)

_RECORD: Final = (
    _column("lsn", pa.int64(), "beginning of the record", "ReadRecPtr"),
    _column("end_lsn", pa.int64(), "end of the record; a commit waits for this LSN", "EndRecPtr"),
)
_RMGR: Final = _column("rmgr", pa.string(), "resource manager, as pg_waldump names it", "rmgrlist.h, by xl_rmid")
_OPERATION: Final = _column(
    "operation", pa.string(), "operation, as pg_waldump names it; `0x..` if unknown", "rm_identify(), by xl_info"
)
_XID: Final = _column("xid", pa.int64(), "transaction (or subtransaction); 0 for none", "XLogRecord.xl_xid")
_TLI: Final = _column("tli", pa.int32(), "timeline of its first byte", "XLogPageHeader.xlp_tli")

_PIECE: Final = (
    _column("begin_lsn", pa.int64(), "beginning of the piece", "a page's boundary"),
    _column("end_lsn", pa.int64(), "end of the piece; records that begin before it belong to it", "a page's boundary"),
)
_PIECE_TIMES: Final = (
    _nullable("first_time", _TIME, "time of the first commit or abort in the piece; null if it has none", "xact_time"),
    _nullable("last_time", _TIME, "time of the last one", "xact_time"),
)

_TEXTS: Final = pa.list_(pa.field("element", pa.string(), True))
_NUMBERS: Final = pa.list_(pa.field("element", pa.int64(), True))

COLUMNS: Final[dict[str, tuple[SchemaColumn, ...]]] = {
    "records": (
        *_RECORD,
        _column("previous_lsn", pa.int64(), "beginning of the previous record", "XLogRecord.xl_prev"),
        _TLI,
        _RMGR,
        _OPERATION,
        _column("rmid", pa.int16(), "number of the resource manager", "XLogRecord.xl_rmid"),
        _column("info", pa.int16(), "flags of the resource manager and of the record", "XLogRecord.xl_info"),
        _XID,
        _nullable(
            "top_xid", pa.int64(), "transaction of a subtransaction; null if not stated", "XLR_BLOCK_ID_TOPLEVEL_XID"
        ),
        _nullable("origin", pa.int32(), "replication origin; null if none", "XLR_BLOCK_ID_ORIGIN"),
        _column(
            "total_length",
            pa.int32(),
            "bytes, with its header, without page headers and padding",
            "XLogRecord.xl_tot_len",
        ),
        _column("main_bytes", pa.int32(), "bytes of main data", "XLR_BLOCK_ID_DATA_SHORT, _LONG"),
        _column("image_count", pa.int16(), "number of full-page images in it", "BKPBLOCK_HAS_IMAGE"),
        _column("image_bytes", pa.int32(), "bytes of these images as stored", "XLogRecordBlockImageHeader.length"),
        _column(
            "blocks",
            pa.list_(
                pa.field("element", pa.struct([pa.field(c.name, c.type, c.nullable) for c in _BLOCK_REFERENCE]), True)
            ),
            "its block references: the columns of the view `blocks` from block_id on",
            "XLogRecordBlockHeader",
        ),
    ),
    "blocks": (
        *_RECORD,
        _RMGR,
        _OPERATION,
        _XID,
        *_BLOCK_REFERENCE,
        _column("is_first", pa.bool_(), "it is the record's first block reference", "XLogRecordBlockHeader"),
        _column(
            "wal_bytes",
            pa.int32(),
            "bytes of WAL: its image and data; of the first reference also the rest of the record without the others'",
            "xl_tot_len",
        ),
    ),
    "transactions": (
        _column("lsn", pa.int64(), "beginning of the record that ends the transaction", "ReadRecPtr"),
        _column("end_lsn", pa.int64(), "end of that record: a commit's LSN", "EndRecPtr"),
        _TLI,
        _column("xid", pa.int64(), "the transaction; of a prepared one, its own", "xl_xid, xl_xact_twophase"),
        _column(
            "outcome",
            pa.string(),
            "commit, abort, prepare, commit_prepared or abort_prepared",
            "xl_info & XLOG_XACT_OPMASK",
        ),
        _column("time", _TIME, "time of the record, by the clock of the primary", "xact_time"),
        _nullable("database", pa.int64(), "OID of the database; null if not stated", "xl_xact_dbinfo"),
        _column("subxids", pa.list_(pa.field("element", pa.int64(), True)), "its subtransactions", "xl_xact_subxacts"),
        _nullable("gid", pa.string(), "name of the prepared transaction; null if not stated", "twophase_gid"),
        _nullable("origin", pa.int32(), "replication origin that it was replayed from", "XLR_BLOCK_ID_ORIGIN"),
        _nullable("origin_lsn", pa.int64(), "its LSN at that origin", "xl_xact_origin.origin_lsn"),
        _nullable("origin_time", _TIME, "its time at that origin", "xl_xact_origin.origin_timestamp"),
        _column(
            "remote_apply", pa.bool_(), "its client waited for standbys to replay it", "XACT_COMPLETION_APPLY_FEEDBACK"
        ),
    ),
    "transaction_volume": (
        *_PIECE,
        _column("xid", pa.int64(), "transaction or subtransaction", "xl_xid"),
        _nullable(
            "top_xid",
            pa.int64(),
            "transaction of a subtransaction, if stated in the piece",
            "XLR_BLOCK_ID_TOPLEVEL_XID",
        ),
        _column("records", pa.int64(), "its records in the piece", "xl_xid"),
        _column("wal_bytes", pa.int64(), "their bytes", "xl_tot_len"),
        _column("image_bytes", pa.int64(), "of these, in full-page images", "XLogRecordBlockImageHeader.length"),
        _column("first_lsn", pa.int64(), "the first of them", "ReadRecPtr"),
        _column("last_lsn", pa.int64(), "the last of them", "ReadRecPtr"),
    ),
    "relation_volume": (
        *_PIECE,
        *_PIECE_TIMES,
        _RMGR,
        *(
            column._replace(nullable=True, meaning=f"{column.meaning}; null if a record has none")
            for column in _RELATION
        ),
        _column("records", pa.int64(), "records whose first block is of this relation", "XLogRecord"),
        _column("block_references", pa.int64(), "references to its blocks", "XLogRecordBlockHeader"),
        _column(
            "wal_bytes",
            pa.int64(),
            "bytes: a block's image and data count for its relation, the rest of a record for its first block's",
            "xl_tot_len",
        ),
        _column("image_count", pa.int64(), "full-page images of its blocks", "BKPBLOCK_HAS_IMAGE"),
        _column("image_bytes", pa.int64(), "bytes of these images", "XLogRecordBlockImageHeader.length"),
    ),
    "page_versions": (
        *_PIECE,
        *_RELATION,
        _FORK,
        _BLOCK,
        _column("records", pa.int64(), "records of the piece that change the page", "XLogRecordBlockHeader"),
        _column("first_lsn", pa.int64(), "the first of them", "ReadRecPtr"),
        _column("last_lsn", pa.int64(), "the last of them", "ReadRecPtr"),
        _column(
            "last_end_lsn",
            pa.int64(),
            "end of the last one: the LSN in the page's header after its replay",
            "EndRecPtr",
        ),
        _nullable(
            "image_lsn",
            pa.int64(),
            "the last record that restores the page without its older version; null if none does",
            "BKPIMAGE_APPLY, BKPBLOCK_WILL_INIT",
        ),
        _column("records_since_image", pa.int64(), "records after that one; all if there is none", "ReadRecPtr"),
    ),
    "tuple_stats": (
        *_PIECE,
        *_PIECE_TIMES,
        *_RELATION,
        _column(
            "inserts",
            pa.int64(),
            "tuples inserted, also by transactions that abort",
            "XLOG_HEAP_INSERT, XLOG_HEAP2_MULTI_INSERT",
        ),
        _column("updates", pa.int64(), "tuples updated, without HOT updates", "XLOG_HEAP_UPDATE"),
        _column("hot_updates", pa.int64(), "tuples updated by HOT updates", "XLOG_HEAP_HOT_UPDATE"),
        _column("deletes", pa.int64(), "tuples deleted", "XLOG_HEAP_DELETE"),
    ),
    "transaction_relations": (
        *_PIECE,
        _column("xid", pa.int64(), "transaction or subtransaction", "xl_xid"),
        *(
            column._replace(nullable=True, meaning=f"{column.meaning}; null of records without blocks")
            for column in _RELATION
        ),
        _column("inserts", pa.int64(), "tuples inserted", "XLOG_HEAP_INSERT, XLOG_HEAP2_MULTI_INSERT"),
        _column("updates", pa.int64(), "tuples updated, without HOT updates", "XLOG_HEAP_UPDATE"),
        _column("hot_updates", pa.int64(), "tuples updated by HOT updates", "XLOG_HEAP_HOT_UPDATE"),
        _column("deletes", pa.int64(), "tuples deleted", "XLOG_HEAP_DELETE"),
        _column("records", pa.int64(), "records whose first block is of this relation", "XLogRecord"),
        _column("wal_bytes", pa.int64(), "bytes, counted as in relation_volume", "xl_tot_len"),
        _column("image_count", pa.int64(), "full-page images of its blocks", "BKPBLOCK_HAS_IMAGE"),
        _column("image_bytes", pa.int64(), "bytes of these images", "XLogRecordBlockImageHeader.length"),
        _column("pages", pa.int64(), "different pages that the records of the piece refer to", "BlockNumber"),
        _column("last_lsn", pa.int64(), "the last of the records that refer to the relation", "ReadRecPtr"),
    ),
    "catalog_changes": (
        _column("lsn", pa.int64(), "beginning of the record", "ReadRecPtr"),
        _column("sequence", pa.int32(), "number of the row within the record, from 0 on", "its order in the record"),
        _column(
            "xid",
            pa.int64(),
            "transaction or subtransaction, also one that aborts; 0 for none; of a prepared one that ends, its own",
            "xl_xid, xl_xact_twophase",
        ),
        _column(
            "action",
            pa.string(),
            "insert, update, delete: a tuple of a catalog; image: a tuple in a full-page image; entry: a new entry of"
            " an index of a catalog; create_file, truncate_file, drop_file; truncate: TRUNCATE of a table; invalidate:"
            " a relation whose definition or statistics changed; map: a catalog that has another file",
            "rm_identify(), by xl_info",
        ),
        _nullable("database", pa.int64(), "OID of the database; 0 for a shared relation", "RelFileLocator.dbOid"),
        _nullable("catalog", pa.string(), "pg_class, pg_attribute, pg_type, pg_index or pg_constraint", "relNumber"),
        _nullable("block", pa.int64(), "block of the catalog that has the tuple", "BlockNumber"),
        _nullable("line", pa.int32(), "line pointer of the tuple, from 1 on", "offnum"),
        _nullable("old_block", pa.int64(), "of an update or a delete, the block of the old tuple", "BlockNumber"),
        _nullable("old_line", pa.int32(), "and its line pointer", "old_offnum"),
        _nullable("tuple_bytes", pa.int32(), "bytes of the tuple without its header", "t_len"),
        _nullable(
            "kept",
            _TEXTS,
            "columns below that the record leaves out, as they are in the old tuple; null if it has all",
            "XLH_UPDATE_PREFIX_FROM_OLD",
        ),
        _nullable(
            "kept_at_end",
            _TEXTS,
            "the same, if the old tuple has as many tuple_bytes",
            "XLH_UPDATE_SUFFIX_FROM_OLD",
        ),
        _nullable(
            "partly",
            _TEXTS,
            "numbers of which the record has some bytes; the others are as in the old tuple, under the same condition",
            "both flags",
        ),
        _nullable("partly_mask", _NUMBERS, "for each of these numbers the bits that the record has", "both flags"),
        _nullable("partly_bits", _NUMBERS, "and their values, the other bits being 0", "both flags"),
        _nullable("object", pa.int64(), "OID of the catalog's row", "oid, indexrelid"),
        _nullable(
            "relation",
            pa.int64(),
            "OID of the relation that it is about",
            "pg_class.oid, attrelid, indrelid, conrelid, typrelid",
        ),
        _nullable("name", pa.string(), "name of the object, or of the column", "relname, attname, typname, conname"),
        _nullable("namespace", pa.int64(), "OID of its schema", "relnamespace"),
        _nullable("object_kind", pa.string(), "kind of the object, a letter", "relkind, typtype, contype"),
        _nullable("rewrite_of", pa.int64(), "the relation that this one is made to rewrite; 0 for none", "relrewrite"),
        _nullable("tablespace", pa.int64(), "tablespace of the file", "RelFileLocator.spcOid, reltablespace"),
        _nullable("file", pa.int64(), "number of the relation's file", "RelFileLocator.relNumber, relfilenode"),
        _nullable("fork", pa.int16(), "fork of a file that is created or truncated", "ForkNumber"),
        _nullable("blocks", pa.int64(), "blocks that are left of a truncated file", "xl_smgr_truncate.blkno"),
        _nullable("column_number", pa.int32(), "number of the column", "attnum"),
        _nullable("column_type", pa.int64(), "OID of its type", "atttypid"),
        _nullable("type_modifier", pa.int32(), "modifier of its type", "atttypmod"),
        _nullable("is_dropped", pa.bool_(), "the column was dropped", "attisdropped"),
    ),
}
"""The columns of each view, in order."""

VIEWS: Final = tuple(COLUMNS)


def optional_columns(view: str) -> frozenset[str]:
    """Return the columns that a table of the view may lack: `records` if a table `blocks` has its block references."""
    return frozenset({"blocks"}) if view == "records" else frozenset()


def columns_of(view: str, names: Sequence[str] | None = None) -> tuple[SchemaColumn, ...]:
    """Return the columns of a view, or those of them that are named, in the order of the view.

    Raises:
        ConfigurationError: there is no such view or column.
    """
    if view not in COLUMNS:
        raise ConfigurationError(f"unknown view {view!r}: use one of {', '.join(VIEWS)}")
    columns = COLUMNS[view]
    if names is None:
        return columns
    known = {column.name for column in columns}
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        what = f"no column {unknown[0]!r}" if unknown else "no view without columns"
        raise ConfigurationError(f"there is {what} in the view {view}: it has {', '.join(c.name for c in columns)}")
    return tuple(column for column in columns if column.name in names)


def arrow_schema(view: str, names: Sequence[str] | None = None) -> pa.Schema:
    """Return the Arrow schema of a view, of all its columns or of those that are named.

    Raises:
        ConfigurationError: there is no such view or column.
    """
    return pa.schema([pa.field(c.name, c.type, c.nullable) for c in columns_of(view, names)])


def spark_ddl(schema: pa.Schema) -> str:
    """Return a schema in Spark's words, such as `lsn BIGINT NOT NULL, ...`.

    Raises:
        ConfigurationError: Spark has no word for a column's type.
    """
    return ", ".join(
        f"`{field.name}` {_spark_type(field.type)}{'' if field.nullable else ' NOT NULL'}" for field in schema
    )


_SPARK_TYPES: Final = {
    pa.bool_(): "BOOLEAN",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    _TIME: "TIMESTAMP",
}


def _spark_type(data_type: pa.DataType) -> str:
    if pa.types.is_list(data_type):
        return f"ARRAY<{_spark_type(data_type.value_type)}>"
    if pa.types.is_struct(data_type):
        fields = [data_type.field(index) for index in range(data_type.num_fields)]
        inner = ", ".join(
            f"`{field.name}`: {_spark_type(field.type)}{'' if field.nullable else ' NOT NULL'}" for field in fields
        )
        return f"STRUCT<{inner}>"
    if data_type not in _SPARK_TYPES:
        raise ConfigurationError(f"Spark has no type for {data_type}")
    return _SPARK_TYPES[data_type]
