"""Messages of pgoutput as a server writes them, built by hand from PostgreSQL's description of the format."""

import struct
from collections.abc import Sequence

UNSENT = object()
"""A value that lies out of line and did not change."""

Cell = object  # str, None, UNSENT, or bytes for a value in binary form


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def row(*cells: Cell) -> bytes:
    """TupleData."""
    return struct.pack(">H", len(cells)) + b"".join(_cell(cell) for cell in cells)


def _cell(cell: Cell) -> bytes:
    if cell is None:
        return b"n"
    if cell is UNSENT:
        return b"u"
    if isinstance(cell, bytes):
        return b"b" + struct.pack(">I", len(cell)) + cell
    content = str(cell).encode()
    return b"t" + struct.pack(">I", len(content)) + content


def _xid(xid: int) -> bytes:
    return struct.pack(">I", xid) if xid else b""


def begin(commit_lsn: int, xid: int, time_us: int = 5) -> bytes:
    return b"B" + struct.pack(">QqI", commit_lsn, time_us, xid)


def commit(commit_lsn: int, end_lsn: int, time_us: int = 5) -> bytes:
    return b"C" + struct.pack(">BQQq", 0, commit_lsn, end_lsn, time_us)


def origin(commit_lsn: int, name: str) -> bytes:
    return b"O" + struct.pack(">Q", commit_lsn) + text(name)


def relation(
    oid: int,
    name: str,
    columns: Sequence[tuple[str, int]],
    *,
    key: Sequence[str] = (),
    schema: str = "public",
    identity: str = "d",
    xid: int = 0,
) -> bytes:
    """`columns` are names and OIDs of types, all without a modifier."""
    described = b"".join(
        bytes([column in key]) + text(column) + struct.pack(">Ii", type_oid, -1) for column, type_oid in columns
    )
    head = b"R" + _xid(xid) + struct.pack(">I", oid) + text(schema) + text(name) + identity.encode()
    return head + struct.pack(">H", len(columns)) + described


def type_name(oid: int, schema: str, name: str, xid: int = 0) -> bytes:
    return b"Y" + _xid(xid) + struct.pack(">I", oid) + text(schema) + text(name)


def insert(oid: int, *cells: Cell, xid: int = 0) -> bytes:
    return b"I" + _xid(xid) + struct.pack(">I", oid) + b"N" + row(*cells)


def update(
    oid: int, after: Sequence[Cell], *, key: Sequence[Cell] = (), before: Sequence[Cell] = (), xid: int = 0
) -> bytes:
    old = b"K" + row(*key) if key else b"O" + row(*before) if before else b""
    return b"U" + _xid(xid) + struct.pack(">I", oid) + old + b"N" + row(*after)


def delete(oid: int, *, key: Sequence[Cell] = (), before: Sequence[Cell] = (), xid: int = 0) -> bytes:
    return b"D" + _xid(xid) + struct.pack(">I", oid) + (b"K" + row(*key) if key else b"O" + row(*before))


def truncate(oids: Sequence[int], options: int = 0, xid: int = 0) -> bytes:
    return b"T" + _xid(xid) + struct.pack(">IB", len(oids), options) + b"".join(struct.pack(">I", oid) for oid in oids)


def message(prefix: str, content: bytes, *, lsn: int = 9, transactional: bool = True, xid: int = 0) -> bytes:
    head = b"M" + _xid(xid) + struct.pack(">BQ", transactional, lsn)
    return head + text(prefix) + struct.pack(">I", len(content)) + content


def stream_start(xid: int, first: bool) -> bytes:
    return b"S" + struct.pack(">IB", xid, first)


STREAM_STOP = b"E"


def stream_commit(xid: int, commit_lsn: int, end_lsn: int, time_us: int = 5) -> bytes:
    return b"c" + struct.pack(">IBQQq", xid, 0, commit_lsn, end_lsn, time_us)


def stream_abort(xid: int, subxid: int) -> bytes:
    return b"A" + struct.pack(">II", xid, subxid)


def stream_abort_where(xid: int, subxid: int, lsn: int, time_us: int) -> bytes:
    return stream_abort(xid, subxid) + struct.pack(">Qq", lsn, time_us)


def begin_prepare(lsn: int, end_lsn: int, xid: int, gid: str, time_us: int = 5) -> bytes:
    return b"b" + struct.pack(">QQqI", lsn, end_lsn, time_us, xid) + text(gid)


def prepare(lsn: int, end_lsn: int, xid: int, gid: str, time_us: int = 5) -> bytes:
    return b"P\0" + struct.pack(">QQqI", lsn, end_lsn, time_us, xid) + text(gid)


def stream_prepare(lsn: int, end_lsn: int, xid: int, gid: str, time_us: int = 5) -> bytes:
    return b"p\0" + struct.pack(">QQqI", lsn, end_lsn, time_us, xid) + text(gid)


def commit_prepared(lsn: int, end_lsn: int, xid: int, gid: str, time_us: int = 5) -> bytes:
    return b"K\0" + struct.pack(">QQqI", lsn, end_lsn, time_us, xid) + text(gid)


def rollback_prepared(prepare_end_lsn: int, end_lsn: int, xid: int, gid: str) -> bytes:
    return b"r\0" + struct.pack(">QQqqI", prepare_end_lsn, end_lsn, 5, 6, xid) + text(gid)
