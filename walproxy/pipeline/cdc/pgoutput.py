"""Messages of `pgoutput`, PostgreSQL's own output plugin, versions 1 to 4 of its protocol. Pure: bytes in, values out.

    B ... C                    a transaction, when it is committed
    S ... E  S ... E  c or A   a piece of one that is in progress (version 2), in the end committed or aborted
    b ... P  K or r            a prepared one (version 3): K commits, r rolls back; p prepares one that came in pieces
    R Y                        a relation or a type, before the first change that needs it
    I U D T M                  changes; O names the origin of a transaction

Between S and E every change, relation and type begins with the xid of its (sub)transaction. In version 4 an A may end
with position and time. Integers are big-endian, times are microseconds since 2000-01-01 UTC here too.
Source: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html

What is not understood raises RemoteProtocolError with the LSN at which the server sent it (S11).
"""

import struct
from collections.abc import Callable
from typing import Final, NoReturn

from safekeeper.base.lsn import Lsn, format_lsn
from walproxy.pipeline.cdc.messages import (
    UNCHANGED,
    Begin,
    BeginPrepare,
    Binary,
    Column,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    NotUnderstood,
    Origin,
    Prepare,
    Relation,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    Tuple,
    Type,
    Update,
    Value,
)

VERSIONS: Final = (1, 2, 3, 4)

_BEGIN = struct.Struct(">QqI")
_COMMIT = struct.Struct(">BQQq")
_STREAM_COMMIT = struct.Struct(">IBQQq")
_STREAM_ABORT = struct.Struct(">II")
_STREAM_ABORT_WHERE = struct.Struct(">Qq")
_PREPARED = struct.Struct(">QQqI")
_ROLLED_BACK = struct.Struct(">QQqqI")
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_COLUMN_TYPE = struct.Struct(">Ii")
_NULL, _UNCHANGED_KIND, _TEXT, _BINARY = b"nutb"
_NEW, _KEY, _OLD = b"NKO"
_CASCADE, _RESTART_IDENTITY = 1, 2


class _Reader:
    """The body of one message. Whatever does not fit raises IndexError, struct.error or ValueError."""

    __slots__ = ("data", "position")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 1  # after the kind

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        values = layout.unpack_from(self.data, self.position)
        self.position += layout.size
        return values

    def byte(self) -> int:
        value = self.data[self.position]
        self.position += 1
        return value

    def u16(self) -> int:
        return self.unpack(_U16)[0]

    def u32(self) -> int:
        return self.unpack(_U32)[0]

    def u64(self) -> int:
        return self.unpack(_U64)[0]

    def string(self) -> str:
        end = self.data.index(0, self.position)
        value = self.data[self.position : end].decode()
        self.position = end + 1
        return value

    def bytes(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self.data):
            raise ValueError("cut short")
        value = self.data[self.position : end]
        self.position = end
        return value

    def no_flags(self) -> None:
        """Read a byte of flags that PostgreSQL reserves in several messages; its bits have no meaning yet."""
        if self.byte() != 0:
            raise ValueError("flags that are not known")

    def tuple(self) -> Tuple:
        """The hot path: one call for each row, no call for each value."""
        data, position = self.data, self.position
        count = data[position] << 8 | data[position + 1]
        position += 2
        values: list[Value] = []
        for _ in range(count):
            kind = data[position]
            if kind == _TEXT:
                begin = position + 5
                position = begin + int.from_bytes(data[position + 1 : begin])
                values.append(data[begin:position])
            elif kind == _NULL:
                values.append(None)
                position += 1
            elif kind == _UNCHANGED_KIND:
                values.append(UNCHANGED)
                position += 1
            elif kind == _BINARY:
                begin = position + 5
                position = begin + int.from_bytes(data[position + 1 : begin])
                values.append(Binary(data[begin:position]))
            else:
                raise ValueError(f"a value of the unknown kind {kind}")
        self.position = position  # beyond the end if a length lied, which `decode` sees
        return tuple(values)


def decode(data: bytes, *, lsn: Lsn, version: int, in_piece: bool = False) -> Message:
    """Return the message that `data` is.

    Args:
        lsn: where the server sent it, for errors.
        version: that of the requested protocol.
        in_piece: it stands between Stream Start and Stream Stop.

    Raises:
        RemoteProtocolError: it is unknown, cut short, too long, or not of this version or place.
    """
    kind = data[:1]
    known = _KINDS.get(kind)
    if known is None:
        _refuse(data, lsn, "its kind is unknown")
    least_version, has_xid, read = known
    if version < least_version:
        _refuse(data, lsn, f"version {version} of the protocol has no such message")
    reader = _Reader(data)
    try:
        xid = reader.u32() if in_piece and has_xid else 0
        message = read(reader, xid, version)
    except (IndexError, struct.error, ValueError) as error:
        _refuse(data, lsn, "it is cut short" if isinstance(error, IndexError | struct.error) else str(error))
    if reader.position > len(data):
        _refuse(data, lsn, "it is cut short")
    if reader.position < len(data):
        _refuse(data, lsn, f"it has {len(data) - reader.position} bytes too many")
    return message


def begin_of(data: bytes) -> Begin | None:
    """Return a message that is a Begin; None if it is not, or may not be understood."""
    return Begin(*_BEGIN.unpack_from(data, 1)) if data[:1] == b"B" and len(data) == 1 + _BEGIN.size else None


def commit_of(data: bytes) -> Commit | None:
    """Return a message that is a Commit; None if it is not, or may not be understood."""
    if data[:2] != b"C\0" or len(data) != 1 + _COMMIT.size:
        return None
    return Commit(*_COMMIT.unpack_from(data, 1)[1:])


def _refuse(data: bytes, lsn: Lsn, reason: str) -> NoReturn:
    raise NotUnderstood(
        f"the message of pgoutput at {format_lsn(lsn)} is not understood: {reason} ({len(data)} bytes, "
        f"{data[:16].hex()}): this version of walproxy may be too old for the server"
    )


def _begin(reader: _Reader, xid: int, version: int) -> Begin:
    return Begin(*reader.unpack(_BEGIN))


def _commit(reader: _Reader, xid: int, version: int) -> Commit:
    flags, *rest = reader.unpack(_COMMIT)
    if flags:
        raise ValueError("flags that are not known")
    return Commit(*rest)


def _origin(reader: _Reader, xid: int, version: int) -> Origin:
    return Origin(reader.u64(), reader.string())


def _relation(reader: _Reader, xid: int, version: int) -> Relation:
    oid, schema, name, identity = reader.u32(), reader.string(), reader.string(), chr(reader.byte())
    if identity not in "dnfi":
        raise ValueError(f"the unknown replica identity {identity!r}")
    columns = []
    for _ in range(reader.u16()):
        flags, column = reader.byte(), reader.string()
        columns.append(Column(column, flags & 1 == 1, *reader.unpack(_COLUMN_TYPE)))
    return Relation(xid, oid, schema or "pg_catalog", name, identity, tuple(columns))


def _type(reader: _Reader, xid: int, version: int) -> Type:
    return Type(xid, reader.u32(), reader.string() or "pg_catalog", reader.string())


def _insert(reader: _Reader, xid: int, version: int) -> Insert:
    relation = reader.u32()
    if reader.byte() != _NEW:
        raise ValueError("an insert without its row")
    return Insert(xid, relation, reader.tuple())


def _update(reader: _Reader, xid: int, version: int) -> Update:
    relation, kind = reader.u32(), reader.byte()
    key = before = None
    if kind == _KEY:
        key, kind = reader.tuple(), reader.byte()
    elif kind == _OLD:
        before, kind = reader.tuple(), reader.byte()
    if kind != _NEW:
        raise ValueError("an update without its row")
    return Update(xid, relation, key, before, reader.tuple())


def _delete(reader: _Reader, xid: int, version: int) -> Delete:
    relation, kind = reader.u32(), reader.byte()
    if kind not in (_KEY, _OLD):
        raise ValueError("a delete without its row")
    row = reader.tuple()
    return Delete(xid, relation, row, None) if kind == _KEY else Delete(xid, relation, None, row)


def _truncate(reader: _Reader, xid: int, version: int) -> Truncate:
    count, options = reader.u32(), reader.byte()
    if options & ~(_CASCADE | _RESTART_IDENTITY):
        raise ValueError("options of a truncate that are not known")
    if count * _U32.size != len(reader.data) - reader.position:
        raise ValueError("a truncate whose number of relations contradicts its length")
    relations = tuple(reader.u32() for _ in range(count))
    return Truncate(xid, relations, options & _CASCADE != 0, options & _RESTART_IDENTITY != 0)


def _message(reader: _Reader, xid: int, version: int) -> LogicalMessage:
    flags = reader.byte()
    if flags > 1:
        raise ValueError("flags that are not known")
    lsn, prefix = reader.u64(), reader.string()
    return LogicalMessage(xid, flags == 1, lsn, prefix, reader.bytes(reader.u32()))


def _stream_start(reader: _Reader, xid: int, version: int) -> StreamStart:
    top, first = reader.u32(), reader.byte()
    if first > 1:
        raise ValueError("flags that are not known")
    return StreamStart(top, first == 1)


def _stream_stop(reader: _Reader, xid: int, version: int) -> StreamStop:
    return StreamStop()


def _stream_commit(reader: _Reader, xid: int, version: int) -> StreamCommit:
    top, flags, *rest = reader.unpack(_STREAM_COMMIT)
    if flags:
        raise ValueError("flags that are not known")
    return StreamCommit(top, *rest)


def _stream_abort(reader: _Reader, xid: int, version: int) -> StreamAbort:
    top, sub = reader.unpack(_STREAM_ABORT)
    says_where = version >= 4 and reader.position < len(reader.data)
    lsn, time_us = reader.unpack(_STREAM_ABORT_WHERE) if says_where else (0, 0)
    return StreamAbort(top, sub, lsn, time_us)


def _begin_prepare(reader: _Reader, xid: int, version: int) -> BeginPrepare:
    lsn, end_lsn, time_us, prepared = reader.unpack(_PREPARED)
    return BeginPrepare(lsn, end_lsn, time_us, prepared, reader.string())


def _prepare(reader: _Reader, xid: int, version: int) -> Prepare:
    reader.no_flags()
    lsn, end_lsn, time_us, prepared = reader.unpack(_PREPARED)
    return Prepare(lsn, end_lsn, time_us, prepared, reader.string())


def _stream_prepare(reader: _Reader, xid: int, version: int) -> StreamPrepare:
    reader.no_flags()
    lsn, end_lsn, time_us, prepared = reader.unpack(_PREPARED)
    return StreamPrepare(lsn, end_lsn, time_us, prepared, reader.string())


def _commit_prepared(reader: _Reader, xid: int, version: int) -> CommitPrepared:
    reader.no_flags()
    lsn, end_lsn, time_us, prepared = reader.unpack(_PREPARED)
    return CommitPrepared(lsn, end_lsn, time_us, prepared, reader.string())


def _rollback_prepared(reader: _Reader, xid: int, version: int) -> RollbackPrepared:
    reader.no_flags()
    prepare_end_lsn, end_lsn, prepare_us, rollback_us, prepared = reader.unpack(_ROLLED_BACK)
    return RollbackPrepared(prepare_end_lsn, end_lsn, prepare_us, rollback_us, prepared, reader.string())


_KINDS: Final[dict[bytes, tuple[int, bool, Callable[[_Reader, int, int], Message]]]] = {
    b"B": (1, False, _begin),
    b"C": (1, False, _commit),
    b"O": (1, False, _origin),
    b"R": (1, True, _relation),
    b"Y": (1, True, _type),
    b"I": (1, True, _insert),
    b"U": (1, True, _update),
    b"D": (1, True, _delete),
    b"T": (1, True, _truncate),
    b"M": (1, True, _message),
    b"S": (2, False, _stream_start),
    b"E": (2, False, _stream_stop),
    b"c": (2, False, _stream_commit),
    b"A": (2, False, _stream_abort),
    b"b": (3, False, _begin_prepare),
    b"P": (3, False, _prepare),
    b"K": (3, False, _commit_prepared),
    b"r": (3, False, _rollback_prepared),
    b"p": (3, False, _stream_prepare),
}
"""For each kind: the first version that has it, whether it begins with an xid in a piece, how it is read."""
