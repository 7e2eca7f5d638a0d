"""What each transaction did to each relation, and what that cost: the view `transaction_relations`.

Rows are counted as in `tuple_stats`, bytes as in `relation_volume`: a block's image and data count for its relation,
the rest of a record for the relation of its first block. A record without blocks, such as the commit, counts for no
relation. So the bytes of a transaction's rows add up to those that `transaction_volume` has.

Records without an xid, as most of vacuum's, count for no transaction.
"""

from typing import Any

import numpy as np

from walproxy.pipeline.decoder.arrow import Columns, integers, nullable_integers
from walproxy.pipeline.decoder.decode import Decoded
from walproxy.pipeline.decoder.grouping import FIRST_MASK, mask_for, new_table, row_of
from walproxy.pipeline.decoder.jit import compiled
from walproxy.pipeline.decoder.tuple_stats import MALFORMED, changed_tuples, lacks_its_number

# A key is the tablespace and the database; the relation's number, 0 for none, and the xid.
_HALF = 32
_FORK_BITS = 8
_SUMS = 4  # beside the six of a row of the table: images, bytes of images, pages, last record


@compiled
def _sum_changes(
    count: int,
    lsn: Any,
    xid: Any,
    rmid: Any,
    info: Any,
    total_length: Any,
    first_block: Any,
    wal: Any,
    main_offset: Any,
    main_bytes: Any,
    tablespace: Any,
    database: Any,
    relation: Any,
    fork: Any,
    block: Any,
    has_image: Any,
    image_bytes: Any,
    data_bytes: Any,
    slots: Any,
    rows: Any,
    sums: Any,
    page_slots: Any,
    pages: Any,
) -> int:
    """Add up (inserts, updates, hot updates, deletes, records, bytes) and `sums` by key; return the number of keys.

    -1 - index of a record that lacks its number of tuples.
    """
    known = known_pages = 0
    mask = page_mask = FIRST_MASK
    for index in range(count):
        if xid[index] == 0:
            continue
        begin, end = first_block[index], first_block[index + 1]
        rest = np.int64(total_length[index])
        first_row = -1
        for reference in range(begin, end):
            high = np.int64(tablespace[reference]) << _HALF | np.int64(database[reference])
            low = np.int64(relation[reference]) << _HALF | np.int64(xid[index])
            row = row_of(slots, mask, rows, known, high, low)
            if row == known:
                known += 1
                mask = mask_for(slots, mask, rows, known)
            if reference == begin:
                first_row = row
            payload = np.int64(image_bytes[reference]) + np.int64(data_bytes[reference])
            rest -= payload
            rows[row, 7] += payload
            if has_image[reference]:
                sums[row, 0] += 1
                sums[row, 1] += image_bytes[reference]
            owner = np.int64(row) << _FORK_BITS | np.int64(fork[reference])
            page = row_of(page_slots, page_mask, pages, known_pages, owner, np.int64(block[reference]))
            if page == known_pages:
                known_pages += 1
                page_mask = mask_for(page_slots, page_mask, pages, known_pages)
                sums[row, 2] += 1
            sums[row, 3] = lsn[index]
        if first_row < 0:
            first_row = row_of(slots, mask, rows, known, 0, np.int64(xid[index]))
            if first_row == known:
                known += 1
                mask = mask_for(slots, mask, rows, known)
            sums[first_row, 3] = lsn[index]
        elif fork[begin] == 0:
            column, tuples = changed_tuples(rmid[index], info[index], wal, main_offset[index], main_bytes[index])
            if column == MALFORMED:
                return -1 - index
            if column > 0:
                rows[first_row, column] += tuples
        rows[first_row, 6] += 1
        rows[first_row, 7] += rest
    return known


def transaction_relations(decoded: Decoded) -> Columns:
    """Return the columns of the view `transaction_relations` but for the piece's bounds: by xid and relation.

    Raises:
        WalFormatError: an insert of many tuples has no number of them.
    """
    slots, rows = new_table(decoded.block_count + decoded.count)
    page_slots, pages = new_table(decoded.block_count)
    sums = np.zeros((len(rows), _SUMS), np.int64)
    known = _sum_changes(
        decoded.count,
        decoded.lsn,
        decoded.xid,
        decoded.rmid,
        decoded.info,
        decoded.total_length,
        decoded.first_block,
        decoded.stripped,
        decoded.main_offset,
        decoded.main_bytes,
        decoded.tablespace,
        decoded.database,
        decoded.relation,
        decoded.fork,
        decoded.block,
        decoded.has_image,
        decoded.block_image_bytes,
        decoded.data_bytes,
        slots,
        rows,
        sums,
        page_slots,
        pages,
    )
    if known < 0:
        raise lacks_its_number(decoded, -1 - known)
    high, low, inserts, updates, hot_updates, deletes, records, wal_bytes = rows[:known].T
    image_count, image_bytes, page_count, last_lsn = sums[:known].T
    relation = low >> _HALF & 0xFFFFFFFF
    of_relation = relation != 0
    return {
        "xid": lambda: integers(low & 0xFFFFFFFF),
        "tablespace": lambda: nullable_integers(high >> _HALF & 0xFFFFFFFF, of_relation),
        "database": lambda: nullable_integers(high & 0xFFFFFFFF, of_relation),
        "relation": lambda: nullable_integers(relation, of_relation),
        "inserts": lambda: integers(inserts),
        "updates": lambda: integers(updates),
        "hot_updates": lambda: integers(hot_updates),
        "deletes": lambda: integers(deletes),
        "records": lambda: integers(records),
        "wal_bytes": lambda: integers(wal_bytes),
        "image_count": lambda: integers(image_count),
        "image_bytes": lambda: integers(image_bytes),
        "pages": lambda: integers(page_count),
        "last_lsn": lambda: integers(last_lsn),
    }
