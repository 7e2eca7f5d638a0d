"""The body of a record: references to blocks, with images and data, and the main data.

First come the headers of all of these, then their bytes, in the same order; by convention, the main data is the last.
The rules are those of DecodeXLogRecord in src/backend/access/transam/xlogreader.c.
"""

from typing import Any, Final

import numpy as np

from safekeeper.waldecode.format import (
    BLOCK_ID_MAX,
    FORK_MASK,
    HAS_DATA,
    HAS_IMAGE,
    IMAGE_APPLY,
    IMAGE_APPLY_14,
    IMAGE_COMPRESSED,
    IMAGE_COMPRESSED_14,
    IMAGE_HAS_HOLE,
    MAIN_DATA_LONG,
    MAIN_DATA_SHORT,
    ORIGIN,
    PAGE_SIZE,
    SAME_RELATION,
    TOP_LEVEL_XID,
    WILL_INIT,
)
from walproxy.pipeline.decoder import stops
from walproxy.pipeline.decoder.jit import inlined, load_u8, load_u16, load_u32

BLOCKS_PER_RECORD_MAX: Final = BLOCK_ID_MAX + 1


@inlined
def read_body(
    content: Any, begin: int, end: int, major: int, number: int, first: int, records: Any, blocks: Any
) -> Any:
    """Take a record's body apart and write down its block references and where its main data is.

    Args:
        begin, end: the body in the content.
        number, first: of the record, and of its first block reference.

    Returns:
        stop, found, the number of block references.
    """
    at = begin
    count = 0
    data_bytes = 0  # of the data that the headers announce, after them
    main_bytes = 0
    top_xid = 0
    origin = 0
    image_count = 0
    all_image_bytes = 0
    has_relation = False
    tablespace = 0
    database = 0
    relation = 0
    last_id = -1
    while end - at > data_bytes:
        block_id = load_u8(content, at)
        at += 1
        left = end - at
        if block_id <= BLOCK_ID_MAX:
            if left < 3:
                return stops.BODY_LENGTH, 0, 0
            if block_id <= last_id:
                return stops.BLOCK_ORDER, block_id, 0
            last_id = block_id
            flags = load_u8(content, at)
            block_data = load_u16(content, at + 1)
            at += 3
            if (flags & HAS_DATA != 0) != (block_data != 0):
                return stops.BLOCK_DATA, block_id, 0
            data_bytes += block_data
            image_bytes = 0
            hole_offset = 0
            hole_bytes = 0
            image_info = 0
            applied = False
            if flags & HAS_IMAGE != 0:
                if end - at < 5:
                    return stops.BODY_LENGTH, 0, 0
                image_bytes = load_u16(content, at)
                hole_offset = load_u16(content, at + 2)
                image_info = load_u8(content, at + 4)
                at += 5
                has_hole = image_info & IMAGE_HAS_HOLE != 0
                if major >= 15:
                    compressed = image_info & IMAGE_COMPRESSED != 0
                    applied = image_info & IMAGE_APPLY != 0
                else:
                    compressed = image_info & IMAGE_COMPRESSED_14 != 0
                    applied = image_info & IMAGE_APPLY_14 != 0
                if not compressed:
                    hole_bytes = PAGE_SIZE - image_bytes & 0xFFFF  # a 16 bit number in PostgreSQL, too
                elif has_hole:
                    if end - at < 2:
                        return stops.BODY_LENGTH, 0, 0
                    hole_bytes = load_u16(content, at)
                    at += 2
                if has_hole:
                    if hole_offset == 0 or hole_bytes == 0 or image_bytes == PAGE_SIZE:
                        return stops.IMAGE, image_bytes, 0
                elif hole_offset != 0 or hole_bytes != 0:
                    return stops.IMAGE, image_bytes, 0
                if compressed:
                    if image_bytes == PAGE_SIZE:
                        return stops.IMAGE, image_bytes, 0
                elif not has_hole and image_bytes != PAGE_SIZE:
                    return stops.IMAGE, image_bytes, 0
                data_bytes += image_bytes
                image_count += 1
                all_image_bytes += image_bytes
            if flags & SAME_RELATION == 0:
                if end - at < 12:
                    return stops.BODY_LENGTH, 0, 0
                tablespace = load_u32(content, at)
                database = load_u32(content, at + 4)
                relation = load_u32(content, at + 8)
                at += 12
                has_relation = True
            elif not has_relation:
                return stops.NO_RELATION, block_id, 0
            if end - at < 4:
                return stops.BODY_LENGTH, 0, 0
            block = load_u32(content, at)
            at += 4
            index: Any = np.uint64(first + count)
            blocks.block_record[index] = number
            blocks.block_id[index] = block_id
            blocks.tablespace[index] = tablespace
            blocks.database[index] = database
            blocks.relation[index] = relation
            blocks.fork[index] = flags & FORK_MASK
            blocks.block[index] = block
            blocks.has_image[index] = flags & HAS_IMAGE != 0
            blocks.image_applied[index] = applied
            blocks.will_init[index] = flags & WILL_INIT != 0
            blocks.image_bytes[index] = image_bytes
            blocks.image_info[index] = image_info
            blocks.hole_offset[index] = hole_offset
            blocks.hole_bytes[index] = hole_bytes
            blocks.data_bytes[index] = block_data
            count += 1
        elif block_id == MAIN_DATA_SHORT:
            if left < 1:
                return stops.BODY_LENGTH, 0, 0
            main_bytes = load_u8(content, at)
            at += 1
            data_bytes += main_bytes
            break  # the main data comes last
        elif block_id == MAIN_DATA_LONG:
            if left < 4:
                return stops.BODY_LENGTH, 0, 0
            main_bytes = load_u32(content, at)
            at += 4
            data_bytes += main_bytes
            break
        elif block_id == ORIGIN:
            if left < 2:
                return stops.BODY_LENGTH, 0, 0
            origin = load_u16(content, at)
            at += 2
        elif block_id == TOP_LEVEL_XID and major >= 14:
            if left < 4:
                return stops.BODY_LENGTH, 0, 0
            top_xid = load_u32(content, at)
            at += 4
        else:
            return stops.BLOCK_ID, block_id, 0
    if end - at != data_bytes:
        return stops.BODY_LENGTH, 0, 0
    # After the headers: of each block the image, then the data; then the main data.
    for index in range(np.uint64(first), np.uint64(first + count)):
        blocks.image_offset[index] = at
        at += blocks.image_bytes[index]
        blocks.data_offset[index] = at
        at += blocks.data_bytes[index]
    row: Any = np.uint64(number)
    records.main_offset[row] = at
    records.main_bytes[row] = main_bytes
    records.top_xid[row] = top_xid
    records.origin[row] = origin
    records.image_count[row] = image_count
    records.image_bytes[row] = all_image_bytes
    return stops.COMPLETE, 0, count
