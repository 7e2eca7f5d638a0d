"""Encodes PostgreSQL's backend messages, those that a server sends.

A message is a type byte, a length that includes itself but not the type, and a body; integers are big-endian. During
the COPY of a replication connection each CopyData message contains one message of the streaming protocol, whose times
are microseconds since 2000-01-01 UTC.
Source: https://www.postgresql.org/docs/current/protocol-message-formats.html and protocol-replication.html

`xlog_data_header` and `keepalive` are called for every piece of WAL and every standby: one `struct` call each, and WAL
is not copied but written after its header. All others are called a few times per connection.

Pure: no I/O, no clock.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from safekeeper.base.errors import LocalProtocolError
from safekeeper.base.lsn import Lsn

# Microseconds between the Unix epoch and PostgreSQL's.
POSTGRES_EPOCH_US = 946_684_800_000_000

PROTOCOL_3_0 = 3 << 16

# (type's OID, its size in bytes or -1 if that varies), as pg_type has them.
BOOL = (16, 1)
TEXT = (25, -1)
BYTEA = (17, -1)
INT4 = (23, 4)
INT8 = (20, 8)
PG_LSN = (3220, 8)

_HEADER = struct.Struct(">cI")
_LENGTH = struct.Struct(">i")
_AUTHENTICATION = struct.Struct(">cII")
_COLUMN = struct.Struct(">IhIhih")  # table, attribute, type, its size, type modifier, format
_XLOG_DATA = struct.Struct(">cIcQQq")  # message header; tag, begin of the bytes, end of WAL here, our clock
_XLOG_DATA_LENGTH = _XLOG_DATA.size - 1
_KEEPALIVE = struct.Struct(">cIcQqB")
_KEEPALIVE_LENGTH = _KEEPALIVE.size - 1

_AUTHENTICATION_OK, _AUTHENTICATION_SASL, _AUTHENTICATION_SASL_CONTINUE, _AUTHENTICATION_SASL_FINAL = 0, 10, 11, 12


class ResultColumn(NamedTuple):
    """A column of a result: `ResultColumn("systemid", *TEXT)`."""

    name: str
    type_oid: int
    type_size: int


def xlog_data_header(begin_lsn: Lsn, server_end_lsn: Lsn, unix_time_us: int, payload_bytes: int) -> bytes:
    """Return the CopyData header for `payload_bytes` of WAL that begin at `begin_lsn`; the WAL is written after it."""
    length = _XLOG_DATA_LENGTH + payload_bytes
    return _XLOG_DATA.pack(b"d", length, b"w", begin_lsn, server_end_lsn, unix_time_us - POSTGRES_EPOCH_US)


def keepalive(server_end_lsn: Lsn, unix_time_us: int, reply_requested: bool) -> bytes:
    """Return a whole CopyData message: a keepalive, with the end of the WAL that was sent."""
    clock = unix_time_us - POSTGRES_EPOCH_US
    return _KEEPALIVE.pack(b"d", _KEEPALIVE_LENGTH, b"k", server_end_lsn, clock, reply_requested)


def authentication_ok() -> bytes:
    """Return the message that the client is authenticated."""
    return _AUTHENTICATION.pack(b"R", 8, _AUTHENTICATION_OK)


def authentication_sasl(mechanisms: Iterable[str]) -> bytes:
    """Return the request for a SASL exchange by one of `mechanisms`, in order of preference."""
    return _authentication(_AUTHENTICATION_SASL, b"".join(_string(name) for name in mechanisms) + b"\0")


def authentication_sasl_continue(data: bytes) -> bytes:
    """Return a challenge of the SASL exchange."""
    return _authentication(_AUTHENTICATION_SASL_CONTINUE, data)


def authentication_sasl_final(data: bytes) -> bytes:
    """Return the outcome of the SASL exchange; `authentication_ok` follows it."""
    return _authentication(_AUTHENTICATION_SASL_FINAL, data)


def negotiate_protocol_version(unknown_options: Sequence[str]) -> bytes:
    """Return the reply that only protocol 3.0 is supported, and which `_pq_.` options are not."""
    body = _LENGTH.pack(PROTOCOL_3_0) + _LENGTH.pack(len(unknown_options))
    return _message(b"v", body + b"".join(_string(name) for name in unknown_options))


def parameter_status(name: str, value: str) -> bytes:
    """Return the message with the value of a setting."""
    return _message(b"S", _string(name) + _string(value))


def ready_for_query() -> bytes:
    """Return the message that the next command may be sent; there are no transactions here."""
    return _message(b"Z", b"I")


def row_description(columns: Sequence[ResultColumn]) -> bytes:
    """Return the column descriptions of a result. All values are text."""
    fields = (_string(name) + _COLUMN.pack(0, 0, type_oid, size, -1, 0) for name, type_oid, size in columns)
    return _message(b"T", struct.pack(">h", len(columns)) + b"".join(fields))


def data_row(row: Sequence[str | bytes | None]) -> bytes:
    """Return one row of a result. bytes are sent unchanged, None is NULL."""
    parts = [struct.pack(">h", len(row))]
    for value in row:
        if value is None:
            parts.append(_LENGTH.pack(-1))
        else:
            data = value.encode() if isinstance(value, str) else value
            parts += (_LENGTH.pack(len(data)), data)
    return _message(b"D", b"".join(parts))


def command_complete(tag: str) -> bytes:
    """Return the end of a command's reply."""
    return _message(b"C", _string(tag))


def empty_query_response() -> bytes:
    """Return the reply to an empty command, instead of `command_complete`."""
    return _message(b"I", b"")


def error_response(severity: str, sqlstate: str, message: str, detail: str = "", hint: str = "") -> bytes:
    """Return an error. `severity` is ERROR, or FATAL if the connection ends with it."""
    # S may be translated, V never is; here they are equal.
    fields = [("S", severity), ("V", severity), ("C", sqlstate), ("M", message), ("D", detail), ("H", hint)]
    return _message(b"E", b"".join(code.encode() + _string(text) for code, text in fields if text) + b"\0")


def copy_both_response() -> bytes:
    """Return the start of streaming in both directions, without a format and columns."""
    return _message(b"W", struct.pack(">bh", 0, 0))


def copy_done() -> bytes:
    """Return the end of the server's direction of a COPY."""
    return _message(b"c", b"")


def _message(kind: bytes, body: bytes) -> bytes:
    return _HEADER.pack(kind, 4 + len(body)) + body


def _authentication(code: int, data: bytes) -> bytes:
    return _AUTHENTICATION.pack(b"R", 8 + len(data), code) + data


def _string(text: str) -> bytes:
    """Return `text` in the protocol's encoding of strings, which a NUL ends.

    Raises:
        LocalProtocolError: it contains a NUL.
    """
    if "\0" in text:
        raise LocalProtocolError(f"a string with a NUL cannot be sent: {text[:80]!r}")
    return text.encode() + b"\0"
