"""The words of PostgreSQL's streaming replication protocol, as its client needs them: messages and rows.

Pure: bytes in, values out and back. Inside a replication connection's COPY the server sends 'w' (WAL) and 'k'
(keepalive); the client sends 'r' (status update) and 'h' (hot standby feedback). Integers are big-endian, times are
microseconds since 2000-01-01 UTC.
Source: https://www.postgresql.org/docs/current/protocol-replication.html

A message that cannot be parsed raises RemoteProtocolError (S11).
"""

import re
import struct
from dataclasses import dataclass

import msgspec

from safekeeper.base.errors import ConfigurationError, RemoteProtocolError
from safekeeper.base.lsn import LSN_MAX, SEGMENT_SIZE_MAX, SEGMENT_SIZE_MIN, Lsn, format_lsn, parse_lsn
from safekeeper.base.timelines import TLI_MAX, Lineage
from safekeeper.pgwire.backend import POSTGRES_EPOCH_US

XLOG_DATA = struct.Struct(">BQQq")  # tag, begin of the bytes, end of WAL on the server, its clock
_KEEPALIVE = struct.Struct(">cQqB")
_STATUS_UPDATE = struct.Struct(">cQQQqB")
_HOT_STANDBY_FEEDBACK = struct.Struct(">cqIIII")
XLOG_DATA_SIZE = XLOG_DATA.size
TAG_XLOG_DATA = ord("w")
_TAG_KEEPALIVE = ord("k")
# Of what is not understood, in an error.
_QUOTED_CHARACTERS_MAX = 200

_SIZE = re.compile(r"(\d{1,10})\s*(kB|MB|GB|B)?")
_SIZE_UNITS = {None: 1, "B": 1, "kB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}


class XLogData(msgspec.Struct, frozen=True, gc=False):
    """WAL bytes. `payload` begins at `begin_lsn` and is a view into the message, not a copy.

    `server_end_lsn` is how far the server's own WAL reached when it sent them.
    """

    begin_lsn: Lsn
    server_end_lsn: Lsn
    payload: memoryview


class Keepalive(msgspec.Struct, frozen=True, gc=False):
    """The server is alive and has sent everything up to `server_end_lsn`; it may request a status update now."""

    server_end_lsn: Lsn
    reply_requested: bool


def parse_copy_message(message: memoryview) -> XLogData | Keepalive:
    """Return what the server sent in one CopyData message.

    Raises:
        RemoteProtocolError: it is neither WAL nor a keepalive, or cut short, or it runs beyond the last LSN.
    """
    size = len(message)
    tag = message[0] if size else 0
    if tag == TAG_XLOG_DATA and size > XLOG_DATA_SIZE:
        _, begin_lsn, server_end_lsn, _ = XLOG_DATA.unpack_from(message)
        if begin_lsn + size - XLOG_DATA_SIZE > LSN_MAX:
            raise RemoteProtocolError(f"PostgreSQL sent WAL beyond the last LSN, from {format_lsn(begin_lsn)}")
        return XLogData(begin_lsn, server_end_lsn, message[XLOG_DATA_SIZE:])
    if tag == _TAG_KEEPALIVE and size == _KEEPALIVE.size:
        _, server_end_lsn, _, reply_requested = _KEEPALIVE.unpack(message)
        return Keepalive(server_end_lsn, reply_requested != 0)
    raise RemoteProtocolError(
        f"PostgreSQL sent a replication message that is not understood: {size} bytes, {bytes(message[:16]).hex()}"
    )


def build_status_update(
    write_lsn: Lsn, flush_lsn: Lsn, apply_lsn: Lsn, unix_time_us: int, reply_requested: bool = False
) -> bytes:
    """Return the message that reports up to where WAL is written, durable and replayed (0: not reported)."""
    clock = unix_time_us - POSTGRES_EPOCH_US
    return _STATUS_UPDATE.pack(b"r", write_lsn, flush_lsn, apply_lsn, clock, reply_requested)


def build_hot_standby_feedback(
    unix_time_us: int, xmin: int, xmin_epoch: int, catalog_xmin: int = 0, catalog_xmin_epoch: int = 0
) -> bytes:
    """Return the message that holds back vacuum for the standbys' oldest snapshot (xmin 0: no longer)."""
    clock = unix_time_us - POSTGRES_EPOCH_US
    return _HOT_STANDBY_FEEDBACK.pack(b"h", clock, xmin, xmin_epoch, catalog_xmin, catalog_xmin_epoch)


@dataclass(frozen=True)
class PrimaryFacts:
    """Which PostgreSQL this is and how it is set up, as its replication connection reports it.

    `server_version` is as libpq writes it (180001 is 18.1); `segment_size` is in bytes; `flush_lsn` is the end of its
    durable WAL when it was asked. `timeline_history` is the content of TLI's history file, empty for TLI 1.
    """

    system_id: int
    tli: int
    flush_lsn: Lsn
    segment_size: int
    server_version: int
    in_recovery: bool
    timeline_history: bytes
    lineage: Lineage
    wal_level: str
    fsync: bool


def parse_identify_system(row: list[str | None]) -> tuple[int, int, Lsn]:
    """Return (system id, TLI, flush LSN) from the row (systemid, timeline, xlogpos, dbname) of IDENTIFY_SYSTEM."""
    try:
        system_id, tli, flush_lsn = int(row[0] or ""), int(row[1] or ""), parse_lsn(row[2] or "")
    except (ValueError, IndexError, ConfigurationError):
        raise RemoteProtocolError(f"PostgreSQL answered IDENTIFY_SYSTEM with {_quoted(row)}") from None
    if not 0 < system_id <= LSN_MAX or not 0 < tli <= TLI_MAX:
        raise RemoteProtocolError(f"PostgreSQL answered IDENTIFY_SYSTEM with {_quoted(row)}")
    return system_id, tli, flush_lsn


def _quoted(row: list[str | None]) -> str:
    return str(row)[:_QUOTED_CHARACTERS_MAX]


def parse_segment_size(setting: str) -> int:
    """Return wal_segment_size in bytes from the text that SHOW gives, e.g. "16MB"."""
    match = _SIZE.fullmatch(setting)
    size = int(match[1]) * _SIZE_UNITS[match[2]] if match else 0
    if not SEGMENT_SIZE_MIN <= size <= SEGMENT_SIZE_MAX or size & (size - 1):
        raise RemoteProtocolError(f"PostgreSQL reports the wal_segment_size {setting[:_QUOTED_CHARACTERS_MAX]!r}")
    return size


def parse_timeline_end(row: list[str | None]) -> tuple[int, Lsn]:
    """Return (the next TLI, the LSN at which it begins) from the row that ends the stream of a TLI."""
    try:
        next_tli, begin_lsn = int(row[0] or ""), parse_lsn(row[1] or "")
    except (ValueError, IndexError, ConfigurationError):
        raise RemoteProtocolError(f"PostgreSQL ended a timeline with {_quoted(row)}") from None
    if not 1 < next_tli <= TLI_MAX:
        raise RemoteProtocolError(f"PostgreSQL ended a timeline with {_quoted(row)}")
    return next_tli, begin_lsn
