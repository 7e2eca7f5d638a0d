"""Walks from record to record through stripped WAL and writes down what it finds. Compiled; knows no Python object.

The walk is one loop with one position. Records are contiguous (`pages.py`), so reading them needs no care for pages;
but a page's header is looked at exactly when the walk first needs a byte behind it, and must say what it should: that a
record goes on, and for how many bytes, or that none does. So pages are judged in the order in which PostgreSQL's own
reader judges them, and a page that nothing points to, such as the filler behind a switch record, is not judged at all.

What stops a walk is a code (`stops.py`). It stops before it writes where there is
no room, to be called again with larger arrays and the state that it returned: `State` is all that it remembers.

Measured on one core of a Xeon, with records of 187 bytes and 0.9 block references on average: 31 ns a record, 42 with
its checksum, that is, 4.4 GB of WAL a second. `np.uint64` around an index tells numba that it is not negative, which it
would look at in each of the 33 arrays: 52 ns without.

The rules are those of src/backend/access/transam/xlogreader.c: XLogReaderValidatePageHeader, ValidXLogRecordHeader,
ValidXLogRecord and DecodeXLogRecord; the same as in safekeeper/wal/records.py, but for the inside of a record's body,
which that one does not look at.
"""

from typing import Any, Final, NamedTuple

import numpy as np

from safekeeper.wal import format as wal_format
from safekeeper.wal.format import (
    ALL_PAGE_FLAGS,
    FIRST_IS_CONTRECORD,
    FIRST_IS_OVERWRITE_CONTRECORD,
    LONG_HEADER,
    LONG_PAGE_HEADER_SIZE,
    MAJOR_OF_MAGIC,
    PAGE_HEADER_SIZE,
    PAGE_SIZE,
    RECORD_CRC_OFFSET,
    RECORD_HEADER_SIZE,
    RECORD_LENGTH_MAX,
    RM_XLOG,
    RMGR_INFO_MASK,
    XLOG_SWITCH,
)
from walproxy.pipeline.decoder import pages, stops
from walproxy.pipeline.decoder.crc import REGISTER_BEGIN, crc32c
from walproxy.pipeline.decoder.jit import compiled, inlined, load_i64, load_u8, load_u16, load_u32, part

BLOCKS_PER_RECORD_MAX: Final = 33  # XLR_MAX_BLOCK_ID + 1

# Of fields in a record's header.
_XID_OFFSET: Final = 4
_LINK_OFFSET: Final = 8
_INFO_OFFSET: Final = 16
_RMID_OFFSET: Final = 17

# What a block reference's fork_flags and an image's bimg_info say (src/include/access/xlogrecord.h).
_FORK_MASK: Final = 0x0F
_HAS_IMAGE: Final = 0x10
_HAS_DATA: Final = 0x20
_WILL_INIT: Final = 0x40
_SAME_RELATION: Final = 0x80
_IMAGE_HAS_HOLE: Final = 0x01
# 13 and 14 have one bit for "compressed", and "apply" behind it; 15 and later one bit for each way to compress.
_IMAGE_COMPRESSED_14, _IMAGE_APPLY_14 = 0x02, 0x04
_IMAGE_COMPRESSED, _IMAGE_APPLY = 0x1C, 0x02

# The ids of what is no block reference.
_BLOCK_ID_MAX: Final = 32
_TOP_LEVEL_XID: Final = 252  # 14 and later
_ORIGIN: Final = 253
_MAIN_DATA_LONG: Final = 254
_MAIN_DATA_SHORT: Final = 255

UNKNOWN: Final = -1


class Span(NamedTuple):
    """What is walked.

    Attributes:
        begin_lsn: a page's start, where the bytes begin.
        end_lsn: records that begin below it are wanted.
        check_crc: 0 or 1.
    """

    begin_lsn: int
    end_lsn: int
    segment_size: int
    check_crc: int


class Page(NamedTuple):
    """The page that the walk is on, and what the pages so far said.

    Attributes:
        number: counted from begin_lsn; -1 before the first page.
        begin, end: its content. Behind a switch record `end` is the segment's, and `begin` means nothing.
        magic, tli: of its header; 0 before the first page.
        system_id, system_id_known: of the last long header; the id as a signed number.
    """

    number: int
    begin: int
    end: int
    magic: int
    tli: int
    system_id: int
    system_id_known: int


class State(NamedTuple):
    """Where a walk is, and what stopped it.

    Attributes:
        stop, at_lsn, expected, found: see stops.py.
        position: of the next record, in the content.
        previous_lsn: of the last record, UNKNOWN before the first.
        records, blocks: how many were written.
    """

    stop: int
    at_lsn: int
    expected: int
    found: int
    position: int
    previous_lsn: int
    records: int
    blocks: int
    page: Page


BEGIN: Final = State(stops.COMPLETE, 0, 0, 0, 0, UNKNOWN, 0, 0, Page(-1, 0, 0, 0, 0, 0, 0))


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

_MAJORS = np.zeros(1 << 16, np.int64)
for _magic, _major in MAJOR_OF_MAGIC.items():
    _MAJORS[_magic] = _major
_VALID_RMIDS = np.array([wal_format.is_valid_rmid(rmid) for rmid in range(256)])

_content_position = part(pages.content_position)


@part
def _enter_page(headers: Any, span: Any, before: Any, rest: int) -> Any:
    """Go to the next page.

    Args:
        rest: bytes of the record under way that lie on it and behind; 0 if none is under way; UNKNOWN: take its word.

    Returns:
        stop, expected, found, the new Page (the old one if the page will not do). If all is well, `found` is the
        number of bytes that go on here.
    """
    number = before.number + 1
    page_lsn = span.begin_lsn + number * PAGE_SIZE
    if number >= len(headers):
        return stops.CUT_PAGE, 0, 0, before
    is_long = page_lsn & (span.segment_size - 1) == 0
    word: Any = np.int64(headers[number, 0])
    magic = word & 0xFFFF
    flags = word >> 16 & 0xFFFF
    tli = word >> 32 & 0xFFFFFFFF
    address: Any = np.int64(headers[number, 1])
    found_rest: Any = np.int64(headers[number, 2]) & 0xFFFFFFFF
    system_id = before.system_id
    system_id_known = before.system_id_known
    if _MAJORS[magic] == 0:
        return stops.PAGE_MAGIC, 0, magic, before
    if magic != before.magic and before.magic != 0:
        return stops.PAGE_MAGIC_CHANGED, before.magic, magic, before
    if address != page_lsn:
        return stops.PAGE_ADDRESS, page_lsn, address, before
    if flags & ~ALL_PAGE_FLAGS != 0 or (flags & LONG_HEADER != 0) != is_long:
        return stops.PAGE_FLAGS, 0, flags, before
    if tli == 0 or tli < before.tli:
        return stops.PAGE_TLI, before.tli, tli, before
    if is_long:
        sizes: Any = np.int64(headers[number, 4])
        if sizes & 0xFFFFFFFF != span.segment_size or sizes >> 32 & 0xFFFFFFFF != PAGE_SIZE:
            return stops.PAGE_SIZES, 0, sizes, before
        system_id = np.int64(headers[number, 3])
        if system_id_known != 0 and system_id != before.system_id:
            return stops.PAGE_SYSTEM_ID, before.system_id, system_id, before
        system_id_known = 1
    header_size = LONG_PAGE_HEADER_SIZE if is_long else PAGE_HEADER_SIZE
    end = before.end + PAGE_SIZE - header_size
    entered = Page(number, before.end, end, magic, tli, system_id, system_id_known)
    if flags & FIRST_IS_OVERWRITE_CONTRECORD != 0:
        return stops.OVERWRITTEN, 0, 0, entered
    goes_on = flags & FIRST_IS_CONTRECORD != 0
    if not goes_on:
        found_rest = 0
    if (rest != UNKNOWN and found_rest != rest) or (goes_on and found_rest == 0):
        return stops.PAGE_REST, max(rest, 0), found_rest, before
    return stops.COMPLETE, 0, found_rest, entered


@inlined
def _is_wanted(span: Any, number: int) -> Any:
    """Return whether a record that begins on page `number` can be wanted."""
    page_lsn = span.begin_lsn + number * PAGE_SIZE
    is_long = page_lsn & (span.segment_size - 1) == 0
    return page_lsn + (LONG_PAGE_HEADER_SIZE if is_long else PAGE_HEADER_SIZE) < span.end_lsn


@part
def _cross_pages(headers: Any, span: Any, page: Any, record_end: int, until: int) -> Any:
    """Follow a record that ends at `record_end` through the pages up to `until`; both are positions in the content.

    Returns:
        As _enter_page.
    """
    while page.end < until:
        stop, expected, found, page = _enter_page(headers, span, page, record_end - page.end)
        if stop != stops.COMPLETE:
            return stop, expected, found, page
    return stops.COMPLETE, 0, 0, page


@part
def _leave_segment(span: Any, page: Any, lsn: int) -> Any:
    """Return the last Page of the segment that holds `lsn`: the walk goes on behind it."""
    segment_end_lsn = (lsn | (span.segment_size - 1)) + 1
    number = (segment_end_lsn - span.begin_lsn) // PAGE_SIZE - 1
    end = _content_position(segment_end_lsn, span.segment_size) - _content_position(span.begin_lsn, span.segment_size)
    return Page(number, end, end, page.magic, page.tli, page.system_id, page.system_id_known)


@part
def _first_page(content: Any, headers: Any, span: Any, before: Any) -> Any:
    """Enter the first page and pass over the record that was under way there.

    Returns:
        As _enter_page, and the position in the content from which to look for the next record.
    """
    stop, expected, found, page = _enter_page(headers, span, before, UNKNOWN)
    if stop == stops.OVERWRITTEN:
        return stops.COMPLETE, 0, 0, page, 0
    if stop != stops.COMPLETE or found == 0:
        return stop, expected, found, page, 0
    end = found
    while page.end < end:
        if not _is_wanted(span, page.number + 1):
            return stops.COMPLETE, 0, 0, page, page.end
        stop, expected, found, page = _enter_page(headers, span, page, end - page.end)
        if stop == stops.OVERWRITTEN:
            return stops.COMPLETE, 0, 0, page, page.begin
        if stop != stops.COMPLETE:
            return stop, expected, found, page, page.end
    position = (end + 7) & ~7
    # A switch record's header can be cut in two. Its end has the bytes that tell what it is, and behind it is nothing.
    if end < RECORD_HEADER_SIZE and position + 4 <= len(content):
        info_at = end - RECORD_HEADER_SIZE + _INFO_OFFSET
        is_switch = (
            info_at >= 0
            and load_u8(content, info_at + 1) == RM_XLOG
            and load_u8(content, info_at) & RMGR_INFO_MASK == XLOG_SWITCH
        )
        if is_switch and load_u32(content, position) == 0:
            page = _leave_segment(span, page, span.begin_lsn)
            position = page.end
    return stops.COMPLETE, 0, 0, page, position


@inlined
def _check_header(content: Any, position: int, lsn: int, previous_lsn: int) -> Any:
    """Return stop, expected, found for a record's header, which is there, but for its length."""
    rmid = load_u8(content, position + _RMID_OFFSET)
    if not _VALID_RMIDS[rmid]:
        return stops.RMID, 0, rmid
    link = load_i64(content, position + _LINK_OFFSET)
    if previous_lsn == UNKNOWN:
        if link < 0 or link >= lsn:
            return stops.LINK, 0, link
    elif link != previous_lsn:
        return stops.LINK, previous_lsn, link
    return stops.COMPLETE, 0, 0


@inlined
def _read_body(
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
    data_bytes = 0  # of what the headers announce, behind them
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
        if block_id <= _BLOCK_ID_MAX:
            if left < 3:
                return stops.BODY_LENGTH, 0, 0
            if block_id <= last_id:
                return stops.BLOCK_ORDER, block_id, 0
            last_id = block_id
            flags = load_u8(content, at)
            block_data = load_u16(content, at + 1)
            at += 3
            if (flags & _HAS_DATA != 0) != (block_data != 0):
                return stops.BLOCK_DATA, block_id, 0
            data_bytes += block_data
            image_bytes = 0
            hole_offset = 0
            hole_bytes = 0
            image_info = 0
            applied = False
            if flags & _HAS_IMAGE != 0:
                if end - at < 5:
                    return stops.BODY_LENGTH, 0, 0
                image_bytes = load_u16(content, at)
                hole_offset = load_u16(content, at + 2)
                image_info = load_u8(content, at + 4)
                at += 5
                has_hole = image_info & _IMAGE_HAS_HOLE != 0
                if major >= 15:
                    compressed = image_info & _IMAGE_COMPRESSED != 0
                    applied = image_info & _IMAGE_APPLY != 0
                else:
                    compressed = image_info & _IMAGE_COMPRESSED_14 != 0
                    applied = image_info & _IMAGE_APPLY_14 != 0
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
            if flags & _SAME_RELATION == 0:
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
            blocks.fork[index] = flags & _FORK_MASK
            blocks.block[index] = block
            blocks.has_image[index] = flags & _HAS_IMAGE != 0
            blocks.image_applied[index] = applied
            blocks.will_init[index] = flags & _WILL_INIT != 0
            blocks.image_bytes[index] = image_bytes
            blocks.image_info[index] = image_info
            blocks.hole_offset[index] = hole_offset
            blocks.hole_bytes[index] = hole_bytes
            blocks.data_bytes[index] = block_data
            count += 1
        elif block_id == _MAIN_DATA_SHORT:
            if left < 1:
                return stops.BODY_LENGTH, 0, 0
            main_bytes = load_u8(content, at)
            at += 1
            data_bytes += main_bytes
            break  # the main data comes last
        elif block_id == _MAIN_DATA_LONG:
            if left < 4:
                return stops.BODY_LENGTH, 0, 0
            main_bytes = load_u32(content, at)
            at += 4
            data_bytes += main_bytes
            break
        elif block_id == _ORIGIN:
            if left < 2:
                return stops.BODY_LENGTH, 0, 0
            origin = load_u16(content, at)
            at += 2
        elif block_id == _TOP_LEVEL_XID and major >= 14:
            if left < 4:
                return stops.BODY_LENGTH, 0, 0
            top_xid = load_u32(content, at)
            at += 4
        else:
            return stops.BLOCK_ID, block_id, 0
    if end - at != data_bytes:
        return stops.BODY_LENGTH, 0, 0
    # Behind the headers: of each block the image, then the data; then the main data.
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


@compiled
def walk(content: Any, headers: Any, span: Any, state: Any, records: Any, blocks: Any) -> Any:
    """Walk until something stops the walk.

    Args:
        content, headers: as `pages.strip` and `pages.page_headers` made them.
        span: a Span.
        state: BEGIN, or what the walk before returned when it was FULL.
        records, blocks: RecordArrays and BlockArrays to write to.

    Returns:
        The State at the stop.
    """
    available = len(content)
    position = state.position
    previous_lsn = state.previous_lsn
    count = state.records
    block_count = state.blocks
    page = state.page
    lsn = span.begin_lsn
    stop = stops.COMPLETE
    expected = 0
    found = 0
    if page.number < 0 and _is_wanted(span, 0):
        stop, expected, found, page, position = _first_page(content, headers, span, page)
    while stop == stops.COMPLETE:
        if position >= page.end:
            if not _is_wanted(span, page.number + 1):
                break
            stop, expected, found, page = _enter_page(headers, span, page, 0)
            if stop == stops.OVERWRITTEN:
                stop = stops.COMPLETE
            elif stop != stops.COMPLETE:
                break
        # A page's content ends where the next page begins.
        lsn = position + span.begin_lsn + (page.number + 1) * PAGE_SIZE - page.end
        if lsn >= span.end_lsn:
            break
        if count >= len(records.lsn) or block_count + BLOCKS_PER_RECORD_MAX > len(blocks.block):
            stop = stops.FULL
            break
        if position + 4 > available:
            stop, expected = stops.CUT_RECORD, 0
            break
        total_length = load_u32(content, position)
        if total_length < RECORD_HEADER_SIZE or total_length > RECORD_LENGTH_MAX:
            stop, found = stops.LENGTH, total_length
            break
        body = position + RECORD_HEADER_SIZE
        end = position + total_length
        tli = page.tli
        if page.end < body:
            stop, expected, found, page = _cross_pages(headers, span, page, end, body)
        if stop == stops.COMPLETE:
            if body > available:
                stop = stops.CUT_PAGE
            else:
                stop, expected, found = _check_header(content, position, lsn, previous_lsn)
        if stop == stops.COMPLETE:
            previous_lsn = load_i64(content, position + _LINK_OFFSET)
            if page.end < end:
                stop, expected, found, page = _cross_pages(headers, span, page, end, end)
        if stop == stops.OVERWRITTEN:
            stop, position = stops.COMPLETE, page.begin
            continue
        if stop == stops.CUT_PAGE or (stop == stops.COMPLETE and end > available):
            stop, expected = stops.CUT_RECORD, total_length
        if stop != stops.COMPLETE:
            break
        if span.check_crc != 0:
            register = crc32c(content, body, end, REGISTER_BEGIN)
            found = crc32c(content, position, position + RECORD_CRC_OFFSET, register) ^ REGISTER_BEGIN
            expected = load_u32(content, position + RECORD_CRC_OFFSET)
            if found != expected:
                stop = stops.CRC
                break
        major = _MAJORS[page.magic]
        stop, found, added = _read_body(content, body, end, major, count, block_count, records, blocks)
        if stop != stops.COMPLETE:
            break

        row: Any = np.uint64(count)
        info = load_u8(content, position + _INFO_OFFSET)
        rmid = load_u8(content, position + _RMID_OFFSET)
        records.previous_lsn[row] = previous_lsn
        records.lsn[row] = lsn
        records.total_length[row] = total_length
        records.xid[row] = load_u32(content, position + _XID_OFFSET)
        records.rmid[row] = rmid
        records.info[row] = info
        records.tli[row] = tli
        records.first_block[row] = block_count
        block_count += added
        previous_lsn = lsn
        position = (end + 7) & ~7
        end_lsn = position + span.begin_lsn + (page.number + 1) * PAGE_SIZE - page.end
        if rmid == RM_XLOG and info & RMGR_INFO_MASK == XLOG_SWITCH:
            page = _leave_segment(span, page, end_lsn - 1)
            position = page.end
            end_lsn = span.begin_lsn + (page.number + 1) * PAGE_SIZE
        records.end_lsn[row] = end_lsn
        count += 1

    at_lsn = lsn
    if stop == stops.COMPLETE:
        at_lsn = span.end_lsn
    elif stop >= stops.CUT_PAGE and stop <= stops.PAGE_REST:
        at_lsn = span.begin_lsn + (page.number + 1) * PAGE_SIZE
    records.first_block[count] = block_count
    return State(stop, at_lsn, expected, found, position, previous_lsn, count, block_count, page)
