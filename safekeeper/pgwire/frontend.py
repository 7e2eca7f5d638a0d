"""Decodes what a client sends: a stream of bytes to packets and messages.

A connection begins with packets that have a length and no type: requests for encryption, a request to cancel, and
finally the startup packet. After it every message has a type byte, a length that includes itself, and a body. The bytes
do not tell which of the two is next, so the reader requests one or the other: `next_packet`, `next_message`.
Source: https://www.postgresql.org/docs/current/protocol-message-formats.html

Every length is checked before anything is buffered (S14): a decoder holds at most one message and the rest of the last
received piece. Invalid input raises only RemoteProtocolError (S11).

Pure: no I/O.
"""

import struct
from typing import NamedTuple, TypeAlias

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.pgwire.events import HotStandbyFeedback, StatusUpdate

STARTUP_BYTES_MAX = 10_000
MESSAGE_BYTES_MAX = 64 << 10

CANCEL_REQUEST = 1234 << 16 | 5678
SSL_REQUEST = 1234 << 16 | 5679
GSSENC_REQUEST = 1234 << 16 | 5680

_PACKET_HEADER = struct.Struct(">II")  # length, code
_MESSAGE_HEADER = struct.Struct(">BI")  # type, length
_STATUS_UPDATE = struct.Struct(">BQQQqB")  # tag, write, flush and apply LSN, the client's clock, reply requested
_HOT_STANDBY_FEEDBACK = struct.Struct(">BqIIII")  # tag, clock, xmin, its epoch, catalog_xmin, its epoch
_STATUS_UPDATE_SIZE = _STATUS_UPDATE.size
_TAG_STATUS_UPDATE = ord("r")
_TAG_HOT_STANDBY_FEEDBACK = ord("h")
# Query, Parse, Bind, Execute, function call, Flush, Sync, Close, Describe, copy data/done/fail, password, Terminate.
_MESSAGE_TYPES = frozenset(b"QPBEFHSCDdcfpX")


class Packet(NamedTuple):
    """A packet without a type byte: `code` is a protocol version or one of the requests, `body` the rest."""

    code: int
    body: bytes


Message: TypeAlias = tuple[int, bytes]
"""A typed message: its type byte and its body. A plain tuple, because one is made for every message of a standby."""


class FrontendDecoder:
    """Decodes a stream of bytes, received in any pieces, into packets and messages.

    After an error it is unusable, because the start of the next message is unknown.
    """

    def __init__(self) -> None:
        self._buffer = b""
        self._position = 0

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Add received bytes."""
        if self._position == len(self._buffer):
            self._buffer = bytes(data)
        else:
            self._buffer = self._buffer[self._position :] + data
        self._position = 0

    def peek(self) -> int | None:
        """Return the next byte, None if there is none yet."""
        return self._buffer[self._position] if self._position < len(self._buffer) else None

    def take_rest(self) -> bytes:
        """Return the bytes that were not decoded, and remove them."""
        rest = self._buffer[self._position :]
        self._position = len(self._buffer)
        return rest

    def next_packet(self) -> Packet | None:
        """Return the next packet at the beginning of a connection, None until it is complete.

        Raises:
            RemoteProtocolError: its length is not valid for such a packet.
        """
        available = len(self._buffer) - self._position
        if available < 4:
            return None
        length = int.from_bytes(self._buffer[self._position : self._position + 4])
        if not _PACKET_HEADER.size <= length <= STARTUP_BYTES_MAX:
            beginning = self._buffer[self._position : self._position + 8]
            raise RemoteProtocolError(f"not a PostgreSQL client, it sent {beginning!r}: no reply was sent")
        if available < length:
            return None
        begin, end = self._position, self._position + length
        _, code = _PACKET_HEADER.unpack_from(self._buffer, begin)
        self._position = end
        return Packet(code, self._buffer[begin + _PACKET_HEADER.size : end])

    def next_message(self) -> Message | None:
        """Return the next typed message, None until it is complete.

        Raises:
            RemoteProtocolError: its type is unknown, or its length out of bounds.
        """
        buffer, position = self._buffer, self._position
        available = len(buffer) - position
        if available < 5:
            # An unknown type is reported before its length is received: what follows it cannot be decoded.
            if available:
                _require_known(buffer[position])
            return None
        kind, length = _MESSAGE_HEADER.unpack_from(buffer, position)
        if kind not in _MESSAGE_TYPES:
            _require_known(kind)
        if not 4 <= length <= MESSAGE_BYTES_MAX:
            raise RemoteProtocolError(
                f"a message of type {chr(kind)!r} has the length {length}, beyond 4 to {MESSAGE_BYTES_MAX} bytes"
            )
        if available <= length:
            return None
        end = position + 1 + length
        self._position = end
        return kind, buffer[position + 5 : end]


def _require_known(kind: int) -> None:
    if kind not in _MESSAGE_TYPES:
        raise RemoteProtocolError(f"unknown message type {kind}")


def parse_string(body: bytes) -> str:
    """Return the only string in a message.

    Raises:
        RemoteProtocolError: it does not end with the message, or is not UTF-8.
    """
    if not body.endswith(b"\0") or body.count(b"\0") > 1:
        raise RemoteProtocolError("a message has a string that does not end where the message ends")
    try:
        return body[:-1].decode()
    except UnicodeDecodeError:
        raise RemoteProtocolError("a message has a string that is not UTF-8") from None


def parse_copy_data(body: bytes) -> StatusUpdate | HotStandbyFeedback:
    """Return the content of a CopyData message that the client sent while streaming.

    Raises:
        RemoteProtocolError: it is neither a status update nor hot standby feedback, or is truncated.
    """
    size = len(body)
    tag = body[0] if size else 0
    if tag == _TAG_STATUS_UPDATE and size == _STATUS_UPDATE_SIZE:
        _, write_lsn, flush_lsn, apply_lsn, _, reply_requested = _STATUS_UPDATE.unpack(body)
        return StatusUpdate(write_lsn, flush_lsn, apply_lsn, reply_requested != 0)
    if tag == _TAG_HOT_STANDBY_FEEDBACK and size == _HOT_STANDBY_FEEDBACK.size:
        _, _, xmin, epoch, catalog_xmin, catalog_epoch = _HOT_STANDBY_FEEDBACK.unpack(body)
        # An xid of 0 means none, whatever its epoch.
        return HotStandbyFeedback(
            epoch << 32 | xmin if xmin else 0, catalog_epoch << 32 | catalog_xmin if catalog_xmin else 0
        )
    raise RemoteProtocolError(f"invalid replication message: {size} bytes, {body[:16].hex()}")
