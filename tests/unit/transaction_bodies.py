"""Writes the main data of records that end a transaction. Knows nothing of what reads it.

The layouts are those of src/include/access/xact.h: xl_xact_commit, xl_xact_abort and xl_xact_prepare.
"""

import struct
from collections.abc import Sequence

HAS_XINFO = 0x80
COMMIT, PREPARE, ABORT, COMMIT_PREPARED, ABORT_PREPARED = 0x00, 0x10, 0x20, 0x30, 0x40


def transaction_end(
    time: int,
    *,
    major: int = 18,
    database: int | None = None,
    subxids: Sequence[int] | None = None,
    relfiles: int = 0,
    dropped_stats: int = 0,
    invalidations: int = 0,
    twophase_xid: int | None = None,
    gid: bytes | None = None,
    origin: tuple[int, int] | None = None,
    more_xinfo: int = 0,
) -> bytes:
    """Return the main data of a commit or an abort with an xinfo; `time` in microseconds since 2000.

    Args:
        relfiles, dropped_stats, invalidations: so many of them.
        origin: LSN and time there.
        more_xinfo: bits to set besides those of the sections.
    """
    xinfo = more_xinfo
    sections = b""
    if database is not None:
        xinfo |= 1 << 0
        sections += struct.pack("<II", database, 1663)
    if subxids is not None:
        xinfo |= 1 << 1
        sections += struct.pack(f"<I{len(subxids)}I", len(subxids), *subxids)
    for bit, count, size in ((2, relfiles, 12), (8, dropped_stats, 16 if major >= 18 else 12), (3, invalidations, 16)):
        if count:
            xinfo |= 1 << bit
            sections += struct.pack("<I", count) + b"\xee" * (count * size)
    if twophase_xid is not None:
        xinfo |= 1 << 4
        sections += struct.pack("<I", twophase_xid)
    if gid is not None:
        xinfo |= 1 << 7
        sections += gid + b"\0"
    if origin is not None:
        xinfo |= 1 << 5
        sections += struct.pack("<qq", *origin)
    return struct.pack("<qI", time, xinfo) + sections


def prepare(
    time: int,
    xid: int,
    gid: bytes,
    *,
    major: int = 18,
    database: int = 5,
    subxids: Sequence[int] = (),
    origin: tuple[int, int] = (0, 0),
    gid_bytes: int | None = None,
    subxid_count: int | None = None,
) -> bytes:
    """Return the main data of a PREPARE TRANSACTION; of what follows the subtransactions, nothing.

    Args:
        gid_bytes, subxid_count: what its header says of them, if that shall be wrong.
    """
    count = len(subxids) if subxid_count is None else subxid_count
    header = struct.pack("<IIIIqIIii", 0x57F94534, 0, xid, database, time, 10, count, 0, 0)
    if major >= 15:
        header += struct.pack("<ii", 0, 0)
    header += struct.pack("<iBxHqq", 0, 0, len(gid) + 1 if gid_bytes is None else gid_bytes, *origin)
    name = gid + b"\0"
    return header + name + bytes(-len(name) % 8) + struct.pack(f"<{len(subxids)}I", *subxids)
