"""Writes the bodies of WAL records: block references, images, data, origin, transaction. Knows nothing of the decoder.

The layout is that of XLogRecordAssemble in src/backend/access/transam/xloginsert.c.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

PAGE: Final = 8192


@dataclass(frozen=True)
class Image:
    """A full-page image: `size` bytes as stored; `compressed` with pglz."""

    size: int = PAGE
    hole_offset: int = 0
    hole_bytes: int = 0
    compressed: bool = False
    apply: bool = True

    def info(self, major: int) -> int:
        """BKPIMAGE_* of a major version."""
        compressed, apply = (2, 4) if major <= 14 else (4, 2)
        return bool(self.hole_bytes) | compressed * self.compressed | apply * self.apply


@dataclass(frozen=True)
class Block:
    """A block reference."""

    block_id: int = 0
    relation: tuple[int, int, int] = (1663, 5, 16384)
    fork: int = 0
    block: int = 0
    image: Image | None = None
    data: bytes = b""
    same_relation: bool = False
    will_init: bool = False

    def header(self, major: int) -> bytes:
        """What stands of it before all data."""
        flags = (
            self.fork
            | 0x10 * (self.image is not None)
            | 0x20 * bool(self.data)
            | 0x40 * self.will_init
            | 0x80 * self.same_relation
        )
        header = struct.pack("<BBH", self.block_id, flags, len(self.data))
        if self.image is not None:
            header += struct.pack("<HHB", self.image.size, self.image.hole_offset, self.image.info(major))
            if self.image.compressed and self.image.hole_bytes:
                header += struct.pack("<H", self.image.hole_bytes)
        if not self.same_relation:
            header += struct.pack("<III", *self.relation)
        return header + struct.pack("<I", self.block)


def body(
    main: bytes = b"",
    blocks: Sequence[Block] = (),
    *,
    major: int = 18,
    origin: int = 0,
    top_xid: int = 0,
) -> bytes:
    """Return a record's body. Without main data it says nothing of any."""
    headers = b"".join(block.header(major) for block in blocks)
    headers += b"\xfd" + origin.to_bytes(2, "little") if origin else b""
    headers += b"\xfc" + top_xid.to_bytes(4, "little") if top_xid else b""
    if main:
        short = len(main) < 256
        headers += bytes([255, len(main)]) if short else b"\xfe" + len(main).to_bytes(4, "little")
    data = b"".join(b"i" * (block.image.size if block.image else 0) + block.data for block in blocks)
    return headers + data + main


def of_length(length: int) -> bytes:
    """Return a body of so many bytes, which is none or at least 3: main data, and what says how long it is.

    There are two ways to say so, and none for a body of 258 to 260 bytes: those have an origin, too.
    """
    if length == 0:
        return b""
    if length <= 257:
        return body(b"m" * (length - 2))
    if length <= 260:
        return body(b"m" * (length - 5), origin=1)
    return body(b"m" * (length - 5))
