"""The names that pg_waldump prints: resource managers and their operations, of PostgreSQL 13 to 18.

A record's operation is the upper half of its info byte, read by its resource manager. For a few managers the meaning
of a number depends on the major version. Names are those that the managers' rm_identify functions return; a number
without a name, for which pg_waldump prints `UNKNOWN (70)`, is `0x70`.

Two tables serve the vectorised code: `rmgr_table()` is indexed by the manager's number, `operation_table(major)` by
`operation_code(rmid, info)`, which takes arrays as well as numbers. `operation_numbers(major)` has each name once, for
dictionaries of Arrow.

Source: src/include/access/rmgrlist.h and src/backend/access/rmgrdesc/*.c of each version.
"""

import functools
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from safekeeper.base.errors import ConfigurationError
from safekeeper.waldecode.format import RM_XACT

MAJORS: Final = (13, 14, 15, 16, 17, 18)

# Numbers of the managers whose records the views look into.
RM_SMGR: Final = 2
RM_RELMAP: Final = 7
RM_HEAP2: Final = 9
RM_HEAP: Final = 10
RM_BTREE: Final = 11

_RMGRS: Final = (
    "XLOG",
    "Transaction",
    "Storage",
    "CLOG",
    "Database",
    "Tablespace",
    "MultiXact",
    "RelMap",
    "Standby",
    "Heap2",
    "Heap",
    "Btree",
    "Hash",
    "Gin",
    "Gist",
    "Sequence",
    "SPGist",
    "BRIN",
    "CommitTs",
    "ReplicationOrigin",
    "Generic",
    "LogicalMessage",
)
_FIRST_CUSTOM: Final = 128

# By number of the manager and upper half of the info byte; a "?" has no name. What is the same in all versions:
_OPERATIONS: Final[dict[int, str]] = {
    0: "CHECKPOINT_SHUTDOWN CHECKPOINT_ONLINE NOOP NEXTOID SWITCH BACKUP_END PARAMETER_CHANGE RESTORE_POINT FPW_CHANGE"
    " END_OF_RECOVERY FPI_FOR_HINT FPI ? OVERWRITE_CONTRECORD",
    1: "COMMIT PREPARE ABORT COMMIT_PREPARED ABORT_PREPARED ASSIGNMENT",
    2: "? CREATE TRUNCATE",
    3: "ZEROPAGE TRUNCATE",
    4: "CREATE DROP",
    5: "CREATE DROP",
    6: "ZERO_OFF_PAGE ZERO_MEM_PAGE CREATE_ID TRUNCATE_ID",
    7: "UPDATE",
    8: "LOCK RUNNING_XACTS INVALIDATIONS",
    9: "REWRITE CLEAN FREEZE_PAGE CLEANUP_INFO VISIBLE MULTI_INSERT LOCK_UPDATED NEW_CID ? ? ? ? ? MULTI_INSERT+INIT",
    10: "INSERT DELETE UPDATE TRUNCATE HOT_UPDATE HEAP_CONFIRM LOCK INPLACE"
    " INSERT+INIT ? UPDATE+INIT ? HOT_UPDATE+INIT",
    11: "INSERT_LEAF INSERT_UPPER INSERT_META SPLIT_L SPLIT_R INSERT_POST DEDUP DELETE UNLINK_PAGE UNLINK_PAGE_META"
    " NEWROOT MARK_PAGE_HALFDEAD VACUUM REUSE_PAGE META_CLEANUP",
    12: "INIT_META_PAGE INIT_BITMAP_PAGE INSERT ADD_OVFL_PAGE SPLIT_ALLOCATE_PAGE SPLIT_PAGE SPLIT_COMPLETE"
    " MOVE_PAGE_CONTENTS SQUEEZE_PAGE DELETE SPLIT_CLEANUP UPDATE_META_PAGE VACUUM_ONE_PAGE",
    13: "? CREATE_PTREE INSERT SPLIT VACUUM_PAGE DELETE_PAGE UPDATE_META_PAGE INSERT_LISTPAGE DELETE_LISTPAGE"
    " VACUUM_DATA_LEAF_PAGE",
    14: "PAGE_UPDATE DELETE PAGE_REUSE PAGE_SPLIT ? ? PAGE_DELETE ASSIGN_LSN",
    15: "LOG",
    16: "? ADD_LEAF MOVE_LEAFS ADD_NODE SPLIT_TUPLE PICKSPLIT VACUUM_LEAF VACUUM_ROOT VACUUM_REDIRECT",
    17: "CREATE_INDEX INSERT UPDATE SAMEPAGE_UPDATE REVMAP_EXTEND DESUMMARIZE ? ? ? INSERT+INIT UPDATE+INIT",
    18: "ZEROPAGE TRUNCATE SETTS",
    19: "SET DROP",
    20: " ".join(["Generic"] * 16),
    21: "MESSAGE",
}

# What a version changed: (first major, number of the manager, upper half of the info byte, new name).
_CHANGES: Final[tuple[tuple[int, int, int, str], ...]] = (
    (14, 1, 6, "INVALIDATION"),
    (14, 9, 1, "PRUNE"),
    (14, 9, 2, "VACUUM"),
    (14, 9, 3, "FREEZE_PAGE"),
    (14, 18, 2, "?"),
    (15, 4, 0, "CREATE_FILE_COPY"),
    (15, 4, 1, "CREATE_WAL_LOG"),
    (15, 4, 2, "DROP"),
    (17, 0, 14, "CHECKPOINT_REDO"),
    (17, 9, 1, "PRUNE_ON_ACCESS"),
    (17, 9, 2, "PRUNE_VACUUM_SCAN"),
    (17, 9, 3, "PRUNE_VACUUM_CLEANUP"),
)


def operation_code(rmid: Any, info: Any) -> Any:
    """Return the index into `operation_table` of a record, or of an array of records (of int32 or wider numbers)."""
    return rmid * 16 + (info >> 4)


@functools.cache
def rmgr_table() -> pa.StringArray:
    """Return the 256 names of resource managers, by number."""
    names = [*_RMGRS]
    names += [f"unknown{rmid:03d}" for rmid in range(len(names), _FIRST_CUSTOM)]
    names += [f"custom{rmid:03d}" for rmid in range(_FIRST_CUSTOM, 256)]
    return pa.array(names, pa.string())


@functools.cache
def operation_table(major: int) -> pa.StringArray:
    """Return the 4096 names of operations of a major version, by `operation_code`.

    Raises:
        ConfigurationError: it is none of the versions that are known here.
    """
    if major not in MAJORS:
        raise ConfigurationError(f"WAL of PostgreSQL {major} is not known: 13 to 18 are")
    rows = [["?"] * 16 for _ in range(256)]
    for rmid, words in _OPERATIONS.items():
        names = words.split()
        rows[rmid][: len(names)] = names
    for first_major, rmid, number, name in _CHANGES:
        if major >= first_major:
            rows[rmid][number] = name
    # Of a transaction's records the highest bit means that xinfo follows: it is not part of the operation.
    rows[RM_XACT][8:] = rows[RM_XACT][:8]
    for rmid, row in enumerate(rows):
        for number, name in enumerate(row):
            if name == "?":
                row[number] = f"0x{(number & 7 if rmid == RM_XACT else number) << 4:x}"
    return pa.array([name for row in rows for name in row], pa.string())


@functools.cache
def operation_numbers(major: int) -> tuple[NDArray[np.int16], pa.StringArray]:
    """Return the number of each of `operation_table`'s names, by `operation_code`, and the names by this number.

    Raises:
        ConfigurationError: it is none of the versions that are known here.
    """
    encoded = operation_table(major).dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int16), encoded.dictionary


def rmgr_name(rmid: int) -> str:
    """Return the name of a resource manager, such as `Heap`; of one that an extension brings, `custom128`."""
    return str(rmgr_table()[rmid])


def operation_name(major: int, rmid: int, info: int) -> str:
    """Return the name of what a record does, such as `HOT_UPDATE`; `0x..` if the version has none."""
    return str(operation_table(major)[operation_code(rmid, info)])
