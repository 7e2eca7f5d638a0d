"""Reads the bodies of the records that end a transaction. Compiled: dense WAL has such a record every 500 bytes.

The body of a commit or an abort begins with its time; if the highest bit of the record's info is set, an `xinfo`
follows whose bits show which sections come next, always in the same order. A PREPARE TRANSACTION has a body of its own:
a fixed header, then the name, then the subtransactions.

Nothing in a body is trusted beyond the record's checksum: a count that leads out of it, a name that does not end, or a
bit of xinfo that no known version sets, makes it malformed; the data of such a bit cannot be parsed.

Source: src/include/access/xact.h and src/backend/access/rmgrdesc/xactdesc.c of each version.
"""

import struct
from typing import Any, Final, NamedTuple

import numpy as np

from safekeeper.waldecode.format import (
    INVALIDATION_BYTES,
    PREPARE_DATABASE,
    PREPARE_SUBXIDS,
    PREPARE_TIME,
    PREPARE_XID,
    RELFILE_BYTES,
    RM_XACT,
    XACT_HAS_XINFO,
    XINFO_APPLY_FEEDBACK,
    XINFO_DBINFO,
    XINFO_GID,
    XINFO_INVALS,
    XINFO_ORIGIN,
    XINFO_RELFILES,
    XINFO_STATS,
    XINFO_SUBXACTS,
    XINFO_TWOPHASE,
    xact_layout,
)
from walproxy.pipeline.decoder.decode import Decoded
from walproxy.pipeline.decoder.jit import compiled, load_i64, load_u16, load_u32, part

# (xl_info & XLOG_XACT_OPMASK) >> 4.
COMMIT, PREPARE, ABORT, COMMIT_PREPARED, ABORT_PREPARED = range(5)


class Bodies(NamedTuple):
    """The content of the bodies, an element for each record that ends a transaction; int64 unless noted.

    Attributes:
        record: indices of the records.
        xid: of the transaction that ends; of a prepared one, its own.
        time: in microseconds since 2000.
        database: -1 where the record does not state it.
        has_origin: 1 where origin_lsn and origin_time are set.
        remote_apply: 1 where the client waited for standbys to replay.
        subxid_end: where its subtransactions end in `subxids` (uint32); they begin where those before them end.
        gid_begin, gid_bytes: where its name stands in the stripped WAL; -1 bytes where it has none.
        body_end: up to where its body was read, in the stripped WAL.
    """

    record: Any
    xid: Any
    time: Any
    database: Any
    has_origin: Any
    origin_lsn: Any
    origin_time: Any
    remote_apply: Any
    subxid_end: Any
    gid_begin: Any
    gid_bytes: Any
    body_end: Any
    subxids: Any


# Where each of these numbers stands in the one array that the compiled functions write, a row for each record.
_XID, _TIME, _DATABASE, _HAS_ORIGIN, _ORIGIN_LSN, _ORIGIN_TIME, _REMOTE_APPLY, _SUBXID_END = range(8)
_GID_BEGIN, _GID_BYTES, _BODY_END, _FIELDS = range(8, 12)
_MALFORMED: Final = -1


@compiled
def _find(count: int, rmid: Any, info: Any, found: Any) -> int:
    """Write the indices of the records that end a transaction to `found` and return how many they are."""
    rows = 0
    for index in range(count):
        if rmid[index] == RM_XACT and (info[index] >> 4) & 7 <= ABORT_PREPARED:
            found[rows] = index
            rows += 1
    return rows


@part
def _section_end(wal: Any, at: int, end: int, item_bytes: int) -> int:
    """Return the end of a section that is a count and its items, or MALFORMED if it leads out of the body."""
    if at < 0 or end - at < 4:
        return _MALFORMED
    count = load_u32(wal, at)
    if count * item_bytes > end - at - 4:
        return _MALFORMED
    return at + 4 + count * item_bytes


@part
def _read_end(
    wal: Any, at: int, end: int, info: int, layout: Any, fields: Any, row: int, subxids: Any, used: int
) -> int:
    """Read the body [at, end) of a commit or an abort.

    Args:
        used: how many elements of `subxids` are taken.

    Returns:
        How many are then, or MALFORMED.
    """
    if end - at < 8:
        return _MALFORMED
    fields[row, _TIME] = load_i64(wal, at)
    at += 8
    xinfo = 0
    if info & XACT_HAS_XINFO:
        if end - at < 4:
            return _MALFORMED
        xinfo = load_u32(wal, at)
        at += 4
    if xinfo & ~layout.known_xinfo:
        return _MALFORMED
    if xinfo & XINFO_APPLY_FEEDBACK:
        fields[row, _REMOTE_APPLY] = 1
    if xinfo & XINFO_DBINFO:
        if end - at < 8:
            return _MALFORMED
        fields[row, _DATABASE] = load_u32(wal, at)
        at += 8
    if xinfo & XINFO_SUBXACTS:
        first = at + 4
        at = _section_end(wal, at, end, 4)
        for position in range(first, at, 4):
            subxids[used] = load_u32(wal, position)
            used += 1
    if xinfo & XINFO_RELFILES:
        at = _section_end(wal, at, end, RELFILE_BYTES)
    if xinfo & XINFO_STATS:
        at = _section_end(wal, at, end, layout.stats_bytes)
    if xinfo & XINFO_INVALS:
        at = _section_end(wal, at, end, INVALIDATION_BYTES)
    if at < 0:
        return _MALFORMED
    if xinfo & XINFO_TWOPHASE:
        if end - at < 4:
            return _MALFORMED
        fields[row, _XID] = load_u32(wal, at)
        at += 4
        if xinfo & XINFO_GID:
            fields[row, _GID_BEGIN] = at
            while at < end and wal[at] != 0:
                at += 1
            if at == end:
                return _MALFORMED
            fields[row, _GID_BYTES] = at - fields[row, _GID_BEGIN]
            at += 1
    if xinfo & XINFO_ORIGIN:
        if end - at < 16:
            return _MALFORMED
        fields[row, _HAS_ORIGIN] = 1
        fields[row, _ORIGIN_LSN] = load_i64(wal, at)
        fields[row, _ORIGIN_TIME] = load_i64(wal, at + 8)
        at += 16
    fields[row, _BODY_END] = at
    return used


@part
def _read_prepare(
    wal: Any, at: int, end: int, has_origin: int, layout: Any, fields: Any, row: int, subxids: Any, used: int
) -> int:
    """Read the body [at, end) of a PREPARE TRANSACTION, as `_read_end` does."""
    if end - at < layout.header_bytes:
        return _MALFORMED
    fields[row, _XID] = load_u32(wal, at + PREPARE_XID)
    fields[row, _DATABASE] = load_u32(wal, at + PREPARE_DATABASE)
    fields[row, _TIME] = load_i64(wal, at + PREPARE_TIME)
    count = load_u32(wal, at + PREPARE_SUBXIDS)
    gid_bytes = load_u16(wal, at + layout.gid_length)
    if has_origin:
        fields[row, _HAS_ORIGIN] = 1
        fields[row, _ORIGIN_LSN] = load_i64(wal, at + layout.origin)
        fields[row, _ORIGIN_TIME] = load_i64(wal, at + layout.origin + 8)
    at += layout.header_bytes
    aligned_gid_bytes = (gid_bytes + 7) & ~7
    if aligned_gid_bytes + count * 4 > end - at:
        return _MALFORMED
    length = 0  # its last byte is a zero
    while length < gid_bytes and wal[at + length] != 0:
        length += 1
    fields[row, _GID_BEGIN] = at
    fields[row, _GID_BYTES] = length
    at += aligned_gid_bytes
    for position in range(at, at + count * 4, 4):
        subxids[used] = load_u32(wal, position)
        used += 1
    fields[row, _BODY_END] = at + count * 4
    return used


@compiled
def _read_all(
    wal: Any,
    record: Any,
    xid: Any,
    info: Any,
    origin: Any,
    main_offset: Any,
    main_bytes: Any,
    layout: Any,
    fields: Any,
    subxids: Any,
) -> int:
    """Read all bodies. Return the row of the first that is malformed, -1 if there is none."""
    used = 0
    for row in range(record.size):
        index = record[row]
        at = main_offset[index]
        end = at + main_bytes[index]
        fields[row, _XID] = xid[index]
        fields[row, _DATABASE] = -1
        fields[row, _GID_BYTES] = -1
        if (info[index] >> 4) & 7 == PREPARE:
            has_origin = np.int64(origin[index] != 0)
            used = _read_prepare(wal, at, end, has_origin, layout, fields, row, subxids, used)
        else:
            used = _read_end(wal, at, end, np.int64(info[index]), layout, fields, row, subxids, used)
        if used < 0:
            return row
        fields[row, _SUBXID_END] = used
    return -1


def dropped_files_and_messages(decoded: Decoded, record: int) -> tuple[int, bytes, bytes] | None:
    """Return what the end of a transaction, not a PREPARE, contains beyond the view `transactions`; None if malformed.

    Returns:
        The transaction (of a prepared one, its own xid), the files that are dropped, 12 bytes each (RelFileLocator),
        and the invalidation messages, 16 bytes each (SharedInvalidationMessage).
    """
    begin = int(decoded.main_offset[record])
    body = decoded.stripped[begin : begin + int(decoded.main_bytes[record])].tobytes()
    xid = int(decoded.xid[record])
    if not decoded.info[record] & XACT_HAS_XINFO:
        return xid, b"", b""
    layout = xact_layout(decoded.major)
    found = {}
    try:
        (xinfo,) = struct.unpack_from("<I", body, 8)
        at = 12 + (8 if xinfo & XINFO_DBINFO else 0)
        for bit, size in (
            (XINFO_SUBXACTS, 4),
            (XINFO_RELFILES, RELFILE_BYTES),
            (XINFO_STATS, layout.stats_bytes),
            (XINFO_INVALS, INVALIDATION_BYTES),
        ):
            if xinfo & bit:
                (count,) = struct.unpack_from("<I", body, at)
                at += 4
                found[bit] = body[at : at + count * size]
                at += count * size
        if xinfo & XINFO_TWOPHASE:
            (xid,) = struct.unpack_from("<I", body, at)
    except struct.error:
        return None
    if at > len(body) or xinfo & ~layout.known_xinfo:
        return None
    return xid, found.get(XINFO_RELFILES, b""), found.get(XINFO_INVALS, b"")


def read_bodies(decoded: Decoded) -> Bodies | int:
    """Return the content of the records that end a transaction, or the index of the first that is malformed."""
    found = np.empty(decoded.count, np.int64)
    record = found[: _find(decoded.count, decoded.rmid, decoded.info, found)]
    layout = xact_layout(decoded.major)
    fields = np.zeros((len(record), _FIELDS), np.int64)
    # A subtransaction takes four bytes of a body.
    subxids = np.empty(int(decoded.main_bytes[record].sum(dtype=np.int64)) // 4, np.uint32)
    malformed = _read_all(
        decoded.stripped,
        record,
        decoded.xid,
        decoded.info,
        decoded.origin,
        decoded.main_offset,
        decoded.main_bytes,
        layout,
        fields,
        subxids,
    )
    if malformed >= 0:
        return int(record[malformed])
    return Bodies._make([record, *fields.T, subxids])
