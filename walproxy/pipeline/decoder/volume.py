"""The amounts of WAL of relations and transactions: the views `relation_volume` and `transaction_volume`.

Every byte of every record counts once in `relation_volume`: what a record holds for a block, its image and its data,
counts for the block's relation, the rest for the relation of its first block, and a record without blocks for none. So
the bytes of all rows add up to the lengths of all records of the piece.

`transaction_volume` has the records that carry an xid; those without one, as most of vacuum's, count for none.
"""

from typing import Any

import numpy as np

from walproxy.pipeline.decoder.arrow import Columns, integers, nullable_integers, repeated_time
from walproxy.pipeline.decoder.decode import Decoded
from walproxy.pipeline.decoder.grouping import FIRST_MASK, mask_for, new_table, row_of
from walproxy.pipeline.decoder.jit import compiled
from walproxy.pipeline.decoder.opcodes import rmgr_table
from walproxy.pipeline.decoder.transactions import piece_times

# A key of `relation_volume`: the tablespace and the database; the relation's number, whether there is a relation at
# all, and the number of the resource manager.
_HAS_RELATION = 1 << 8
_RELATION_SHIFT = 16
_RMGRS = 256


@compiled
def _sum_relations(
    count: int,
    total_length: Any,
    rmid: Any,
    first_block: Any,
    tablespace: Any,
    database: Any,
    relation: Any,
    has_image: Any,
    image_bytes: Any,
    data_bytes: Any,
    slots: Any,
    rows: Any,
) -> int:
    """Add up (records, references, bytes, images, bytes of images) of each key; return the number of keys."""
    known = 0
    mask = FIRST_MASK
    for index in range(count):
        begin, end = first_block[index], first_block[index + 1]
        rest = np.int64(total_length[index])
        manager = np.int64(rmid[index])
        first_row = -1
        for block in range(begin, end):
            high = np.int64(tablespace[block]) << 32 | np.int64(database[block])
            low = np.int64(relation[block]) << _RELATION_SHIFT | _HAS_RELATION | manager
            row = row_of(slots, mask, rows, known, high, low)
            if row == known:
                known += 1
                mask = mask_for(slots, mask, rows, known)
            if block == begin:
                first_row = row
            payload = np.int64(image_bytes[block]) + np.int64(data_bytes[block])
            rest -= payload
            rows[row, 3] += 1
            rows[row, 4] += payload
            if has_image[block]:
                rows[row, 5] += 1
                rows[row, 6] += image_bytes[block]
        if first_row < 0:
            first_row = row_of(slots, mask, rows, known, 0, manager)
            if first_row == known:
                known += 1
                mask = mask_for(slots, mask, rows, known)
        rows[first_row, 2] += 1
        rows[first_row, 4] += rest
    return known


def relation_volume(decoded: Decoded) -> Columns:
    """Return the columns of the view `relation_volume` but for the piece's bounds, a row for each relation and manager.

    Raises:
        WalFormatError: the first or the last commit has no time.
    """
    first_time, last_time = piece_times(decoded)
    slots, rows = new_table(decoded.block_count + _RMGRS)
    known = _sum_relations(
        decoded.count,
        decoded.total_length,
        decoded.rmid,
        decoded.first_block,
        decoded.tablespace,
        decoded.database,
        decoded.relation,
        decoded.has_image,
        decoded.block_image_bytes,
        decoded.data_bytes,
        slots,
        rows,
    )
    high, low, records, references, wal_bytes, images, image_bytes, _ = rows[:known].T
    of_relation = (low & _HAS_RELATION) != 0
    return {
        "first_time": lambda: repeated_time(first_time, known),
        "last_time": lambda: repeated_time(last_time, known),
        "rmgr": lambda: rmgr_table().take(integers(low % _RMGRS)),
        "tablespace": lambda: nullable_integers(high >> 32 & 0xFFFFFFFF, of_relation),
        "database": lambda: nullable_integers(high & 0xFFFFFFFF, of_relation),
        "relation": lambda: nullable_integers(low >> _RELATION_SHIFT, of_relation),
        "records": lambda: integers(records),
        "block_references": lambda: integers(references),
        "wal_bytes": lambda: integers(wal_bytes),
        "image_count": lambda: integers(images),
        "image_bytes": lambda: integers(image_bytes),
    }


@compiled
def _sum_transactions(
    count: int, lsn: Any, xid: Any, top_xid: Any, total_length: Any, image_bytes: Any, slots: Any, rows: Any
) -> int:
    """Gather (first, last, records, bytes, bytes of images, top xid) by xid; return how many xids there are."""
    known = 0
    mask = FIRST_MASK
    for index in range(count):
        if xid[index] == 0:
            continue
        row = row_of(slots, mask, rows, known, np.int64(xid[index]), 0)
        if row == known:
            known += 1
            mask = mask_for(slots, mask, rows, known)
            rows[row, 2] = lsn[index]
        rows[row, 3] = lsn[index]
        rows[row, 4] += 1
        rows[row, 5] += total_length[index]
        rows[row, 6] += image_bytes[index]
        if top_xid[index] != 0:
            rows[row, 7] = top_xid[index]
    return known


def transaction_volume(decoded: Decoded) -> Columns:
    """Return the columns of the view `transaction_volume` but for the piece's bounds, a row for each xid."""
    slots, rows = new_table(decoded.count)
    known = _sum_transactions(
        decoded.count,
        decoded.lsn,
        decoded.xid,
        decoded.top_xid,
        decoded.total_length,
        decoded.image_bytes,
        slots,
        rows,
    )
    xid, _, first_lsn, last_lsn, records, wal_bytes, image_bytes, top_xid = rows[:known].T
    return {
        "xid": lambda: integers(xid),
        "top_xid": lambda: nullable_integers(top_xid, top_xid != 0),
        "records": lambda: integers(records),
        "wal_bytes": lambda: integers(wal_bytes),
        "image_bytes": lambda: integers(image_bytes),
        "first_lsn": lambda: integers(first_lsn),
        "last_lsn": lambda: integers(last_lsn),
    }
