"""The arrays that the walker fills: their names, types and meaning. No numba."""

from typing import Any, Final, NamedTuple

import numpy as np


class RecordArrays(NamedTuple):
    """One element a record; first_block has one more. Positions are in the content."""

    lsn: Any
    end_lsn: Any
    previous_lsn: Any
    total_length: Any
    xid: Any
    rmid: Any
    info: Any
    tli: Any
    main_offset: Any
    main_bytes: Any
    top_xid: Any
    origin: Any
    first_block: Any
    image_count: Any
    image_bytes: Any


RECORD_TYPES: Final = RecordArrays(
    lsn=np.int64,
    end_lsn=np.int64,
    previous_lsn=np.int64,
    total_length=np.int32,
    xid=np.uint32,
    rmid=np.uint8,
    info=np.uint8,
    tli=np.int32,
    main_offset=np.int64,
    main_bytes=np.int32,
    top_xid=np.uint32,
    origin=np.uint16,
    first_block=np.int64,
    image_count=np.int16,
    image_bytes=np.int32,
)


class BlockArrays(NamedTuple):
    """One element a block reference. Positions are in the content."""

    block_record: Any
    block_id: Any
    tablespace: Any
    database: Any
    relation: Any
    fork: Any
    block: Any
    has_image: Any
    image_applied: Any
    will_init: Any
    image_bytes: Any
    image_offset: Any
    image_info: Any
    hole_offset: Any
    hole_bytes: Any
    data_bytes: Any
    data_offset: Any


BLOCK_TYPES: Final = BlockArrays(
    block_record=np.int64,
    block_id=np.uint8,
    tablespace=np.uint32,
    database=np.uint32,
    relation=np.uint32,
    fork=np.uint8,
    block=np.uint32,
    has_image=np.bool_,
    image_applied=np.bool_,
    will_init=np.bool_,
    image_bytes=np.int32,
    image_offset=np.int64,
    image_info=np.uint8,
    hole_offset=np.int32,
    hole_bytes=np.int32,
    data_bytes=np.int32,
    data_offset=np.int64,
)
