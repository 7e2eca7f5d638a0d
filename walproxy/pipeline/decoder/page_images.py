"""Full-page images of records: the page as it was right after the record, its hole filled with zeros again.

An image is stored without the hole between line pointers and tuples, and perhaps compressed: with pglz, which is
PostgreSQL's own, by every version, and with LZ4 or Zstandard since 15.

The rules are those of RestoreBlockImage in src/backend/access/transam/xlogreader.c, and of pglz_decompress in
src/common/pg_lzcompress.c.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa

from safekeeper.base.lsn import format_lsn
from safekeeper.waldecode.format import PAGE_SIZE, WalFormatError
from walproxy.pipeline.decoder.decode import Decoded
from walproxy.pipeline.decoder.jit import compiled

# Bits of bimg_info.
_PGLZ_14: Final = 0x02
_PGLZ, _LZ4, _ZSTD = 0x04, 0x08, 0x10

_LINE_POINTERS: Final = 24
_LOWER_OFFSET: Final = 12
_NORMAL: Final = 1


def page_image(decoded: Decoded, reference: int) -> bytes:
    """Return the page of a block reference that has an image.

    Raises:
        WalFormatError: the image cannot be decompressed.
    """
    begin = int(decoded.image_offset[reference])
    stored = decoded.stripped[begin : begin + int(decoded.block_image_bytes[reference])]
    hole_offset, hole_bytes = int(decoded.hole_offset[reference]), int(decoded.hole_bytes[reference])
    content = _decompressed(decoded, reference, stored, PAGE_SIZE - hole_bytes)
    return content[:hole_offset] + bytes(hole_bytes) + content[hole_offset:]


def items_of(page: bytes) -> dict[int, bytes]:
    """Return what the normal line pointers of a page lead to, by their number, from 1 on."""
    lower = int.from_bytes(page[_LOWER_OFFSET : _LOWER_OFFSET + 2], "little")
    found = {}
    for line, place in enumerate(range(_LINE_POINTERS, min(lower, PAGE_SIZE) - 3, 4), start=1):
        pointer = int.from_bytes(page[place : place + 4], "little")
        if pointer >> 15 & 3 == _NORMAL:
            offset = pointer & 0x7FFF
            found[line] = page[offset : offset + (pointer >> 17)]
    return found


def _decompressed(decoded: Decoded, reference: int, stored: Any, size: int) -> bytes:
    info = int(decoded.image_info[reference])
    if decoded.major >= 15:
        codec = "pglz" if info & _PGLZ else "lz4_raw" if info & _LZ4 else "zstd" if info & _ZSTD else ""
    else:
        codec = "pglz" if info & _PGLZ_14 else ""
    if not codec:
        return bytes(stored)
    if codec == "pglz":
        page = np.zeros(PAGE_SIZE, np.uint8)
        if decompress_pglz(stored, page, size) == size:
            return page[:size].tobytes()
        reason = "it is damaged"
    else:
        try:
            return pa.decompress(stored, size, codec, asbytes=True)
        except (pa.ArrowException, OSError) as error:
            reason = str(error)
    lsn = format_lsn(int(decoded.lsn[decoded.block_record[reference]]))
    raise WalFormatError(f"the full-page image of the record at {lsn} cannot be decompressed: {reason}")


@compiled
def decompress_pglz(stored: Any, page: Any, size: int) -> int:
    """Decompress `size` bytes into `page`, and return how many there are; -1 if what is stored leads out of it."""
    at = 0
    made = 0
    end = len(stored)
    while at < end and made < size:
        control = np.int64(stored[at])
        at += 1
        for bit in range(8):
            if at >= end or made >= size:
                break
            if control >> bit & 1 == 0:
                page[made] = stored[at]
                made += 1
                at += 1
                continue
            if end - at < 2:
                return -1
            length: Any = (np.int64(stored[at]) & 0x0F) + 3
            distance = (np.int64(stored[at]) & 0xF0) << 4 | np.int64(stored[at + 1])
            at += 2
            if length == 18:
                if at >= end:
                    return -1
                length += np.int64(stored[at])
                at += 1
            if distance == 0 or distance > made:
                return -1
            stop = min(made + length, size)
            while made < stop:  # byte for byte: the source can overlap
                page[made] = page[made - distance]
                made += 1
    return made if at == end else -1
