"""The body of a record: the relation of its first block, and where its main data begins.

First come the headers of block references, origin, parent transaction and main data, then the images and data of the
blocks, then the main data. Images are skipped, since only their headers are needed for that. The pipeline's decoder
reads bodies in full (walproxy/pipeline/decoder/record_body.py). Pure.

Source: DecodeXLogRecord in src/backend/access/transam/xlogreader.c of each major version.
"""

import struct
from typing import NamedTuple

from safekeeper.base.lsn import format_lsn
from safekeeper.waldecode.format import (
    BLOCK_ID_MAX,
    FORK_MASK,
    HAS_IMAGE,
    IMAGE_COMPRESSED,
    IMAGE_COMPRESSED_14,
    IMAGE_HAS_HOLE,
    MAIN_DATA_LONG,
    MAIN_DATA_SHORT,
    ORIGIN,
    PAGE_SIZE,
    SAME_RELATION,
    TOP_LEVEL_XID,
    WalFormatError,
)
from safekeeper.waldecode.records import Record

_U16, _U32, _RELATION = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<III")


class RelationLocator(NamedTuple):
    """A file of a table or index, as WAL names it. `tablespace` and `database` are oids; database 0 is shared."""

    tablespace: int
    database: int
    relfilenode: int


class RecordBody(NamedTuple):
    """The used part of a body.

    Attributes:
        relation: of the first block reference; None without one.
        fork: of that block: 0 for the rows themselves.
        top_xid: the parent of the subtransaction that wrote the record, 0 if the record does not contain it.
        main: the main data.
    """

    relation: RelationLocator | None
    fork: int
    top_xid: int
    main: bytes


def parse_body(record: Record, major: int) -> RecordBody:
    """Return the content of a record that was decoded with its body.

    Raises:
        WalFormatError: PostgreSQL does not write such a body.
    """
    try:
        return _parse(record.body, major)
    except (struct.error, IndexError, ValueError):
        raise malformed(record, major) from None


def malformed(record: Record, major: int) -> WalFormatError:
    """Return the error for a record whose checksum is right and whose content is not."""
    return WalFormatError(
        f"WAL at {format_lsn(record.start_lsn)}: the record of {record.total_length} bytes is not in the format of "
        f"PostgreSQL {major}: look at it with pg_waldump"
    )


def _parse(body: bytes, major: int) -> RecordBody:
    at, end = 0, len(body)
    data_bytes = main_bytes = 0  # of all data after the headers, and of the main data
    relation: RelationLocator | None = None
    fork = top_xid = 0
    while end - at > data_bytes:
        block_id = body[at]
        at += 1
        if block_id <= BLOCK_ID_MAX:
            flags = body[at]
            data_bytes += _U16.unpack_from(body, at + 1)[0]
            at += 3
            if flags & HAS_IMAGE:
                image_bytes, image_info = _U16.unpack_from(body, at)[0], body[at + 4]
                at += 5
                if image_info & (IMAGE_COMPRESSED if major >= 15 else IMAGE_COMPRESSED_14):
                    at += 2 * (image_info & IMAGE_HAS_HOLE)
                data_bytes += min(image_bytes, PAGE_SIZE)
            if not flags & SAME_RELATION:
                if relation is None:
                    relation, fork = RelationLocator._make(_RELATION.unpack_from(body, at)), flags & FORK_MASK
                at += _RELATION.size
            elif relation is None:
                raise ValueError("a block of the same relation without one before it")
            at += _U32.size
        elif block_id == MAIN_DATA_SHORT:
            main_bytes = body[at]
            at += 1
            data_bytes += main_bytes
            break  # The main data is the last.
        elif block_id == MAIN_DATA_LONG:
            main_bytes = _U32.unpack_from(body, at)[0]
            at += _U32.size
            data_bytes += main_bytes
            break
        elif block_id == ORIGIN:
            at += 2
        elif block_id == TOP_LEVEL_XID and major >= 14:
            top_xid = _U32.unpack_from(body, at)[0]
            at += _U32.size
        else:
            raise ValueError(f"{block_id} is not the id of a block")
    if end - at != data_bytes:
        raise ValueError("the headers state another length")
    return RecordBody(relation, fork, top_xid, body[end - main_bytes :])
