"""The records that end a transaction, or prepare one.

The main data of a commit or an abort begins with its time. If the highest bit of the record's info is set, an `xinfo`
follows, whose bits show which sections come next, always in the same order. A PREPARE TRANSACTION has a fixed header,
then the name, then the subtransactions, then what its commit and its abort will do. Nothing in it is trusted beyond the
record's checksum. The pipeline has the same in compiled code (walproxy/pipeline/decoder/transaction_bodies.py). Pure.

Source: src/include/access/xact.h, src/backend/access/rmgrdesc/xactdesc.c and twophase.c of each major version.
"""

import struct
from typing import Final, NamedTuple

from safekeeper.waldecode.format import (
    INVALIDATION_BYTES,
    PREPARE_DROPPED,
    PREPARE_SUBXIDS,
    PREPARE_XID,
    RM_XACT,
    XACT_HAS_XINFO,
    XINFO_DBINFO,
    XINFO_GID,
    XINFO_INVALS,
    XINFO_RELFILES,
    XINFO_STATS,
    XINFO_SUBXACTS,
    XINFO_TWOPHASE,
    align,
    xact_layout,
)
from safekeeper.waldecode.record_body import RelationLocator, malformed
from safekeeper.waldecode.records import Record

OPERATION_MASK: Final = 0x70
COMMIT, PREPARE, ABORT, COMMIT_PREPARED, ABORT_PREPARED, ASSIGNMENT = 0x00, 0x10, 0x20, 0x30, 0x40, 0x50

_U16, _U32, _I32, _I64 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<q")
_RELATION = struct.Struct("<III")
_PREPARE_BEGIN = struct.Struct("<IIq")


class TransactionEnd(NamedTuple):
    """The content of such a record.

    Attributes:
        operation: one of COMMIT, PREPARE, ABORT, COMMIT_PREPARED and ABORT_PREPARED.
        xid: of the transaction; of a subtransaction that is rolled back, its own.
        time_us: in microseconds since 2000-01-01 UTC: of the end, or of the PREPARE TRANSACTION.
        subxids: the subtransactions that end with it.
        dropped: the files of relations that are removed with it.
        changes_catalogs: the transaction has changed system catalogs: DDL, or statistics of tables.
        gid: the name of a prepared transaction; empty if the record does not contain it.
    """

    operation: int
    xid: int
    time_us: int
    subxids: tuple[int, ...]
    dropped: tuple[RelationLocator, ...]
    changes_catalogs: bool
    gid: bytes


def parse_transaction_end(record: Record, main: bytes, major: int) -> TransactionEnd | None:
    """Return the content of a record with this main data; None if it does not end or prepare a transaction.

    Raises:
        WalFormatError: PostgreSQL does not write such a record.
    """
    operation = record.info & OPERATION_MASK
    if record.rmid != RM_XACT or operation > ABORT_PREPARED:
        return None
    try:
        if operation == PREPARE:
            return _parse_prepare(main, major)
        return _parse_end(record, main, major)
    except (struct.error, ValueError):
        raise malformed(record, major) from None


def parse_assignment(record: Record, main: bytes, major: int) -> tuple[int, tuple[int, ...]]:
    """Return the top-level transaction of an ASSIGNMENT record, and the subtransactions that it names.

    Raises:
        WalFormatError: PostgreSQL does not write such a record.
    """
    try:
        (top_xid,) = _U32.unpack_from(main, 0)
        return top_xid, _numbers(main, 8, _count(main, 4, _U32.size))
    except (struct.error, ValueError):
        raise malformed(record, major) from None


def _parse_end(record: Record, main: bytes, major: int) -> TransactionEnd:
    (time_us,) = _I64.unpack_from(main, 0)
    at, xinfo = _I64.size, 0
    if record.info & XACT_HAS_XINFO:
        (xinfo,) = _U32.unpack_from(main, at)
        at += _U32.size
    layout = xact_layout(major)
    if xinfo & ~layout.known_xinfo:
        raise ValueError("an unknown section")
    subxids: tuple[int, ...] = ()
    dropped: tuple[RelationLocator, ...] = ()
    xid, gid = record.xid, b""
    if xinfo & XINFO_DBINFO:
        at += 8
    if xinfo & XINFO_SUBXACTS:
        count = _count(main, at, _U32.size)
        subxids = _numbers(main, at + 4, count)
        at += 4 + count * _U32.size
    if xinfo & XINFO_RELFILES:
        count = _count(main, at, _RELATION.size)
        dropped = _relations(main, at + 4, count)
        at += 4 + count * _RELATION.size
    if xinfo & XINFO_STATS:
        at += 4 + _count(main, at, layout.stats_bytes) * layout.stats_bytes
    if xinfo & XINFO_INVALS:
        at += 4 + _count(main, at, INVALIDATION_BYTES) * INVALIDATION_BYTES
    if xinfo & XINFO_TWOPHASE:
        (xid,) = _U32.unpack_from(main, at)
        at += _U32.size
        if xinfo & XINFO_GID:
            gid = main[at : main.index(b"\0", at)]
    return TransactionEnd(record.info & OPERATION_MASK, xid, time_us, subxids, dropped, bool(xinfo & XINFO_INVALS), gid)


def _parse_prepare(main: bytes, major: int) -> TransactionEnd:
    layout = xact_layout(major)
    if len(main) < layout.header_bytes:
        raise ValueError("a header that is cut")
    xid, _, time_us = _PREPARE_BEGIN.unpack_from(main, PREPARE_XID)
    (subxid_count,), (dropped_count,) = (_I32.unpack_from(main, at) for at in (PREPARE_SUBXIDS, PREPARE_DROPPED))
    (invalidations,) = _I32.unpack_from(main, layout.invalidations)
    (gid_bytes,) = _U16.unpack_from(main, layout.gid_length)
    at = layout.header_bytes
    gid = main[at : at + gid_bytes].partition(b"\0")[0]
    at += align(gid_bytes)
    subxids = _numbers(main, at, subxid_count)
    at += align(subxid_count * _U32.size)
    dropped = _relations(main, at, dropped_count)
    return TransactionEnd(PREPARE, xid, time_us, subxids, dropped, invalidations > 0, gid)


def _count(main: bytes, at: int, item_bytes: int) -> int:
    """Return the number of items at the beginning of a section, all of which are in `main`."""
    (count,) = _U32.unpack_from(main, at)
    if count * item_bytes > len(main) - at - _U32.size:
        raise ValueError("a section leads out of the record")
    return int(count)


def _numbers(main: bytes, at: int, count: int) -> tuple[int, ...]:
    if not 0 <= count <= len(main) // _U32.size:
        raise ValueError("more numbers than the record has bytes")
    return struct.unpack_from(f"<{count}I", main, at)


def _relations(main: bytes, at: int, count: int) -> tuple[RelationLocator, ...]:
    if not count:
        return ()  # What precedes them need not be padded.
    end = at + count * _RELATION.size
    if count < 0 or end > len(main):
        raise ValueError("more relations than the record has bytes")
    return tuple(map(RelationLocator._make, _RELATION.iter_unpack(main[at:end])))
