"""The numbers of tuples that each table's WAL inserts, updates and deletes: the view `tuple_stats`.

Counted are the operations of the resource managers Heap and Heap2, by the relation of the record's first block: the
page of the new tuple, or of a delete, of the old one. What aborts is counted too, as in pg_stat_user_tables. What
rewrites a table (VACUUM FULL, CLUSTER, some ALTER TABLE) writes pages, not tuples, and is not counted.
"""

from typing import Any

import numpy as np

from safekeeper.base.lsn import format_lsn
from safekeeper.waldecode.format import WalFormatError
from walproxy.pipeline.decoder.arrow import Columns, integers, repeated_time
from walproxy.pipeline.decoder.decode import Decoded
from walproxy.pipeline.decoder.grouping import FIRST_MASK, mask_for, new_table, row_of
from walproxy.pipeline.decoder.jit import compiled, load_u16, part
from walproxy.pipeline.decoder.opcodes import RM_HEAP, RM_HEAP2
from walproxy.pipeline.decoder.transactions import piece_times

# xl_info & XLOG_HEAP_OPMASK, shifted down.
_INSERT, _DELETE, _UPDATE, _HOT_UPDATE = 0, 1, 2, 4
_MULTI_INSERT = 5
# xl_heap_multi_insert, the same in all versions: flags (1), padding (1), ntuples (2).
_NTUPLES_OFFSET = 2
_MULTI_INSERT_BYTES = 4

MALFORMED = -1


@part
def changed_tuples(manager: int, info: int, wal: Any, main_offset: int, main_bytes: int) -> Any:
    """Return which tuples a record changes, and how many: 2 inserts, 3 updates, 4 HOT updates, 5 deletes; 0 for none.

    MALFORMED if it lacks its number of tuples.
    """
    operation = info >> 4 & 7
    if manager == RM_HEAP:
        if operation == _INSERT:
            return 2, 1
        if operation == _UPDATE:
            return 3, 1
        if operation == _HOT_UPDATE:
            return 4, 1
        if operation == _DELETE:
            return 5, 1
    elif manager == RM_HEAP2 and operation == _MULTI_INSERT:
        if main_bytes < _MULTI_INSERT_BYTES:
            return MALFORMED, 0
        return 2, load_u16(wal, main_offset + _NTUPLES_OFFSET)
    return 0, 0


@compiled
def _count_tuples(
    count: int,
    rmid: Any,
    info: Any,
    first_block: Any,
    wal: Any,
    main_offset: Any,
    main_bytes: Any,
    tablespace: Any,
    database: Any,
    relation: Any,
    fork: Any,
    slots: Any,
    rows: Any,
) -> int:
    """Count (inserts, updates, hot updates, deletes) by relation; return how many relations there are.

    -1 - index of a record that lacks its number of tuples.
    """
    known = 0
    mask = FIRST_MASK
    for index in range(count):
        manager = rmid[index]
        if manager != RM_HEAP and manager != RM_HEAP2:
            continue
        column, tuples = changed_tuples(manager, info[index], wal, main_offset[index], main_bytes[index])
        if column == MALFORMED:
            return -1 - index
        if column == 0:
            continue
        block = first_block[index]
        if block == first_block[index + 1] or fork[block] != 0:
            continue
        high = np.int64(tablespace[block]) << 32 | np.int64(database[block])
        row = row_of(slots, mask, rows, known, high, np.int64(relation[block]))
        if row == known:
            known += 1
            mask = mask_for(slots, mask, rows, known)
        rows[row, column] += tuples
    return known


def lacks_its_number(decoded: Decoded, record: int) -> WalFormatError:
    """Return the error for an insert of many tuples that does not have their number."""
    lsn = format_lsn(int(decoded.lsn[record]))
    return WalFormatError(f"the MULTI_INSERT record at {lsn} lacks its number of tuples: look at it with pg_waldump")


def tuple_stats(decoded: Decoded) -> Columns:
    """Return the columns of the view `tuple_stats` but for the piece's bounds, a row for each relation with a change.

    Raises:
        WalFormatError: the first or the last commit has no time, or an insert of many tuples no number of them.
    """
    first_time, last_time = piece_times(decoded)
    slots, rows = new_table(decoded.block_count)
    known = _count_tuples(
        decoded.count,
        decoded.rmid,
        decoded.info,
        decoded.first_block,
        decoded.stripped,
        decoded.main_offset,
        decoded.main_bytes,
        decoded.tablespace,
        decoded.database,
        decoded.relation,
        decoded.fork,
        slots,
        rows,
    )
    if known < 0:
        raise lacks_its_number(decoded, -1 - known)
    high, relation, inserts, updates, hot_updates, deletes, _, _ = rows[:known].T
    return {
        "first_time": lambda: repeated_time(first_time, known),
        "last_time": lambda: repeated_time(last_time, known),
        "tablespace": lambda: integers(high >> 32 & 0xFFFFFFFF),
        "database": lambda: integers(high & 0xFFFFFFFF),
        "relation": lambda: integers(relation),
        "inserts": lambda: integers(inserts),
        "updates": lambda: integers(updates),
        "hot_updates": lambda: integers(hot_updates),
        "deletes": lambda: integers(deletes),
    }
