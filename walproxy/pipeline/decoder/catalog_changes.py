"""What WAL contains of definitions: tuples of system catalogs, files of relations: the view `catalog_changes`.

A row is decoded from one record alone; a record can have several. Changes of transactions that abort are there, too,
and nothing is put together: queries do that, for the rows of committed transactions
(walproxy/pipeline/view_queries.py).

Only the records of interest are looked at one by one, in Python: those that refer to a catalog's file or an index of
it, that create, truncate or drop files, or that end a transaction and list the relations that it has changed.
"""

import struct
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from safekeeper.base.lsn import format_lsn
from safekeeper.waldecode.format import RM_XACT, WalFormatError
from walproxy.pipeline.decoder.arrow import Columns
from walproxy.pipeline.decoder.catalog_layouts import INDEXES, MAPPED, catalogs_of
from walproxy.pipeline.decoder.catalog_tuples import Row, rows_of_reference
from walproxy.pipeline.decoder.decode import Decoded
from walproxy.pipeline.decoder.opcodes import RM_HEAP, RM_RELMAP, RM_SMGR, operation_name, rmgr_name
from walproxy.pipeline.decoder.transaction_bodies import PREPARE, dropped_files_and_messages
from walproxy.pipeline.schemas import columns_of

_VIEW: Final = "catalog_changes"

# xl_info >> 4.
_CREATE_FILE, _TRUNCATE_FILE = 1, 2
_TRUNCATE_TABLES: Final = 3  # of a heap
# xl_smgr_create: file and fork; xl_smgr_truncate: blocks, file, flags.
_FILE_CREATED: Final = struct.Struct("<IIIi")
_FILE_TRUNCATED: Final = struct.Struct("<IIII")
_TRUNCATES_HEAP: Final = 1
# xl_heap_truncate: database, number of relations, flags; then their OIDs.
_TABLES_TRUNCATED: Final = struct.Struct("<IIB3x")
# xl_relmap_update: database, tablespace, size; then the map: magic, number of mappings, and each OID with its file.
_MAP_HEADER: Final = struct.Struct("<IIiii")

# In the end of a transaction that has an xinfo, after its time: XACT_XINFO_HAS_RELFILELOCATORS and _HAS_INVALS.
_XINFO_OFFSET: Final = 8
_SAYS_MORE: Final = 0x04 | 0x08
_FILE: Final = struct.Struct("<III")
_MESSAGE: Final = struct.Struct("<b3xII4x")
_RELCACHE: Final = -2  # SHAREDINVALRELCACHE_ID


def catalog_changes(decoded: Decoded) -> Columns:
    """Return the columns of the view `catalog_changes`.

    Raises:
        WalFormatError: a record is not as its version writes it.
    """
    rows = list(_rows(decoded))
    return {
        column.name: lambda column=column: pa.array([row.get(column.name) for row in rows], column.type)  # type: ignore[misc]
        for column in columns_of(_VIEW)
    }


def _rows(decoded: Decoded) -> Iterator[Row]:
    references = _catalog_references(decoded)
    by_record: dict[int, list[int]] = {}
    for record, reference in zip(decoded.block_record[references].tolist(), references.tolist(), strict=True):
        by_record.setdefault(record, []).append(reference)
    others = _other_records(decoded)
    for record in sorted({*by_record, *others.tolist()}):
        lsn, xid = int(decoded.lsn[record]), int(decoded.xid[record])
        try:
            found = list(_rows_of(decoded, record, by_record.get(record, [])))
        except (struct.error, IndexError, KeyError, ValueError) as error:
            raise _malformed(decoded, record) from error
        for sequence, row in enumerate(found):
            yield {"lsn": lsn, "sequence": sequence, "xid": xid, **row}


def _catalog_references(decoded: Decoded) -> Any:
    """Return the indices of the block references of catalogs and of their indexes, ascending."""
    files = [*catalogs_of(decoded.major), *INDEXES]
    # OIDs of users' objects begin at 16384, so nothing else has these numbers; but files of other forks are no tuples.
    low = np.flatnonzero((decoded.relation <= max(files)) & (decoded.database != 0) & (decoded.fork == 0))
    return low[np.isin(decoded.relation[low], files)]


def _other_records(decoded: Decoded) -> Any:
    """Return the indices of the records of files, of TRUNCATE, of maps, and of ends of transactions that say more."""
    rmid, operation = decoded.rmid, decoded.info >> 4
    wanted = (rmid == RM_SMGR) | (rmid == RM_RELMAP) | ((rmid == RM_HEAP) & (operation & 7 == _TRUNCATE_TABLES))
    ends = np.flatnonzero((rmid == RM_XACT) & (operation & 8 != 0) & (decoded.main_bytes > _XINFO_OFFSET))
    ends = ends[decoded.stripped[decoded.main_offset[ends] + _XINFO_OFFSET] & _SAYS_MORE != 0]
    return np.concatenate([np.flatnonzero(wanted), ends])


def _rows_of(decoded: Decoded, record: int, references: list[int]) -> Iterator[Row]:
    rmid, operation = int(decoded.rmid[record]), int(decoded.info[record]) >> 4
    begin = int(decoded.main_offset[record])
    main = decoded.stripped[begin : begin + int(decoded.main_bytes[record])].tobytes()
    if rmid == RM_SMGR and operation == _CREATE_FILE:
        *file, fork = _FILE_CREATED.unpack_from(main)
        yield {"action": "create_file", **_file(*file), "fork": fork}
    elif rmid == RM_SMGR and operation == _TRUNCATE_FILE:
        blocks, *file = _FILE_TRUNCATED.unpack_from(main)
        (flags,) = struct.unpack_from("<i", main, _FILE_TRUNCATED.size)
        if flags & _TRUNCATES_HEAP:
            yield {"action": "truncate_file", **_file(*file), "fork": 0, "blocks": blocks}
    elif rmid == RM_RELMAP:
        yield from _mapped(main)
    elif rmid == RM_HEAP and operation & 7 == _TRUNCATE_TABLES:
        database, count, _ = _TABLES_TRUNCATED.unpack_from(main)
        for oid in struct.unpack_from(f"<{count}I", main, _TABLES_TRUNCATED.size):
            yield {"action": "truncate", "database": database, "relation": oid}
    elif rmid == RM_XACT:
        yield from _ended(decoded, record)
    catalogs = catalogs_of(decoded.major)
    for reference in references:
        tablespace, database = int(decoded.tablespace[reference]), int(decoded.database[reference])
        for row in rows_of_reference(decoded, record, reference, catalogs):
            # pg_class is in the default tablespace of its database, which it writes as 0.
            if row.get("tablespace") == 0:
                row["tablespace"] = tablespace
            if row.get("file") == 0:
                row["file"] = None
            yield {"database": database, **row}


def _file(tablespace: int, database: int, file: int) -> Row:
    return {"tablespace": tablespace, "database": database, "file": file}


def _mapped(main: bytes) -> Iterator[Row]:
    """Yield the new file of each catalog or index that is looked into here and has another than at first."""
    database, tablespace, _, _, count = _MAP_HEADER.unpack_from(main)
    for number in range(count):
        oid, file = struct.unpack_from("<II", main, _MAP_HEADER.size + 8 * number)
        if oid in MAPPED and file != oid:
            yield {"action": "map", **_file(tablespace, database, file), "relation": oid, "name": MAPPED[oid]}


def _ended(decoded: Decoded, record: int) -> Iterator[Row]:
    """Yield the files that a transaction's end drops, and the relations of which it invalidates what is cached."""
    if int(decoded.info[record]) >> 4 & 7 == PREPARE:
        return
    found = dropped_files_and_messages(decoded, record)
    if found is None:
        raise IndexError("the body is malformed")
    xid, files, messages = found
    for file in _FILE.iter_unpack(files):
        yield {"action": "drop_file", "xid": xid, **_file(*file)}
    relations = {
        (database, oid): None for kind, database, oid in _MESSAGE.iter_unpack(messages) if kind == _RELCACHE and oid
    }
    for database, oid in relations:
        yield {"action": "invalidate", "xid": xid, "database": database, "relation": oid}


def _malformed(decoded: Decoded, record: int) -> WalFormatError:
    rmid = int(decoded.rmid[record])
    operation = operation_name(decoded.major, rmid, int(decoded.info[record]))
    return WalFormatError(
        f"the {rmgr_name(rmid)} {operation} record at {format_lsn(int(decoded.lsn[record]))} is not in the format of"
        f" PostgreSQL {decoded.major}: look at it with pg_waldump"
    )
