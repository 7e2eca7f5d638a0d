"""The listener of the decoder: raw WAL in, arrays of records and block references out.

WAL is decoded in pieces that know nothing of each other. A record belongs to the piece that holds its first byte: a
piece begins by passing over what was under way, and ends with the record that straddles its end, for which it must
have been given a look-ahead. So the pieces of a log can be decoded in any order, and together give each record once.

Bad bytes raise no exception here. `End` has how far the WAL is valid, and why not further; whether that is damage or
just the end of an open log is for the caller to decide.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from safekeeper.base.errors import LocalProtocolError
from safekeeper.base.lsn import SEGMENT_SIZE_MAX, SEGMENT_SIZE_MIN, Lsn, format_lsn
from safekeeper.waldecode.format import (
    ALIGNMENT,
    FIRST_IS_CONTRECORD,
    FIRST_IS_OVERWRITE_CONTRECORD,
    MAJOR_OF_MAGIC,
    PAGE_HEADER,
    PAGE_SIZE,
    align,
    page_header_size,
)
from walproxy.pipeline.decoder import stops
from walproxy.pipeline.decoder.arrays import BLOCK_TYPES, RECORD_TYPES, BlockArrays, RecordArrays
from walproxy.pipeline.decoder.pages import (
    HEADER_WORDS,
    content_position,
    end_lsn_of_content,
    page_headers,
    strip,
)
from walproxy.pipeline.decoder.record_body import BLOCKS_PER_RECORD_MAX
from walproxy.pipeline.decoder.walker import BEGIN, Span, WalkState, walk

# Typical WAL has a record in 100 to 200 bytes and as many block references; the arrays grow where it has more.
_BYTES_PER_RECORD: Final = 128
_RECORDS_MIN: Final = 1024
_UNSIGNED: Final = (1 << 64) - 1


class End(NamedTuple):
    """The end of decoding.

    Attributes:
        kind: "complete": every record that begins before the requested end is here. "incomplete": the record (or page)
            that begins at `lsn` needs bytes after the buffer. "invalid": there is no valid record or page at `lsn`.
        lsn: of that record or page; the requested end if complete.
        message: one line, empty if complete.
        needed_until_lsn: how far a buffer must reach at least to get on; 0 unless incomplete.
        zeros_until_lsn: "invalid" at the first page, and all bytes from there up to here are zeros: the rest of a
            segment after a switch record, or WAL that is not written yet. The segment's end or that of what was given,
            whichever comes first; else 0. If the WAL up to there was certainly written, a caller may skip it.
    """

    kind: Literal["complete", "incomplete", "invalid"]
    lsn: Lsn
    message: str = ""
    needed_until_lsn: Lsn = 0
    zeros_until_lsn: Lsn = 0


@dataclass(frozen=True, slots=True)
class Decoded:
    """The records of a piece of WAL, one element each. Valid until the workspace is used again.

    Offsets are positions in `stripped`. Block references of record i are [first_block[i], first_block[i + 1]).

    Attributes:
        count: number of records; the arrays from lsn to image_bytes are as long, first_block by one longer.
        lsn, end_lsn, previous_lsn: int64. end_lsn is what a commit waits for (see safekeeper/waldecode/records.py).
        total_length: int32, header and body.
        xid, rmid, info: uint32, uint8, uint8.
        tli: int32, of the page that holds the record's first byte.
        main_offset, main_bytes: int64, int32: the main data.
        top_xid: uint32, the transaction of a subtransaction, 0 if not stated.
        origin: uint16, the replication origin, 0 if none.
        image_count, image_bytes: int16, int32: the full-page images of the record.
        block_count: number of block references; the arrays from block_record on are as long.
        block_record: int64, index of the record.
        block_id, fork: uint8.
        tablespace, database, relation, block: uint32.
        has_image, image_applied, will_init: bool.
        image_offset, block_image_bytes: int64, int32: the image as stored, without its hole.
        image_info: uint8, BKPIMAGE_*; what its bits mean depends on `major`.
        hole_offset, hole_bytes: int32, the hole in the page.
        data_offset, data_bytes: int64, int32.
        stripped: the WAL without page headers, up to the end of the buffer.
        begin_lsn, segment_size: of what was decoded.
        major: 13 to 18; 0 if no page header was seen.
        system_id: 0 if no long page header was seen.
        end: where decoding ended, and why.
    """

    count: int
    lsn: NDArray[np.int64]
    end_lsn: NDArray[np.int64]
    previous_lsn: NDArray[np.int64]
    total_length: NDArray[np.int32]
    xid: NDArray[np.uint32]
    rmid: NDArray[np.uint8]
    info: NDArray[np.uint8]
    tli: NDArray[np.int32]
    main_offset: NDArray[np.int64]
    main_bytes: NDArray[np.int32]
    top_xid: NDArray[np.uint32]
    origin: NDArray[np.uint16]
    first_block: NDArray[np.int64]
    image_count: NDArray[np.int16]
    image_bytes: NDArray[np.int32]
    block_count: int
    block_record: NDArray[np.int64]
    block_id: NDArray[np.uint8]
    tablespace: NDArray[np.uint32]
    database: NDArray[np.uint32]
    relation: NDArray[np.uint32]
    fork: NDArray[np.uint8]
    block: NDArray[np.uint32]
    has_image: NDArray[np.bool_]
    image_applied: NDArray[np.bool_]
    will_init: NDArray[np.bool_]
    block_image_bytes: NDArray[np.int32]
    image_offset: NDArray[np.int64]
    image_info: NDArray[np.uint8]
    hole_offset: NDArray[np.int32]
    hole_bytes: NDArray[np.int32]
    data_bytes: NDArray[np.int32]
    data_offset: NDArray[np.int64]
    stripped: NDArray[np.uint8]
    begin_lsn: Lsn
    segment_size: int
    major: int
    system_id: int
    end: End


class Workspace:
    """Memory that decoding uses again and again: memory that is new to the process costs more than the decoding.

    One for each thread. It grows to what its largest piece needed, about twice that piece's size, and keeps it.
    """

    def __init__(self) -> None:
        self._content = np.empty(0, np.uint8)
        self._headers = np.empty((0, HEADER_WORDS), np.uint64)
        self.records = RecordArrays(*(np.empty(0, kind) for kind in RECORD_TYPES))
        self.blocks = BlockArrays(*(np.empty(0, kind) for kind in BLOCK_TYPES))

    def buffers(self, wal_bytes: int) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
        """Return buffers for the content and the headers of `wal_bytes` of WAL, and make some for its records."""
        if len(self._content) < wal_bytes:
            self._content = np.empty(wal_bytes, np.uint8)
            self._headers = np.empty((wal_bytes // PAGE_SIZE + 2, HEADER_WORDS), np.uint64)
        room = max(_RECORDS_MIN, wal_bytes // _BYTES_PER_RECORD)
        if len(self.records.lsn) < room:
            self.enlarge(0, 0, room)
        return self._content, self._headers

    def enlarge(self, records: int, blocks: int, room: int = 0) -> None:
        """Make the arrays twice as large, or for `room` records; keep `records` and `blocks` of their elements."""
        record_room = max(room, 2 * len(self.records.lsn))
        block_room = max(room, 2 * len(self.blocks.block)) + BLOCKS_PER_RECORD_MAX
        self.records = RecordArrays(
            *(
                _enlarged(array, records, record_room + (name == "first_block"))
                for name, array in zip(RecordArrays._fields, self.records, strict=True)
            )
        )
        self.blocks = BlockArrays(*(_enlarged(array, blocks, block_room) for array in self.blocks))


def _enlarged(array: NDArray[Any], kept: int, room: int) -> NDArray[Any]:
    enlarged = np.empty(room, array.dtype)
    enlarged[:kept] = array[:kept]
    return enlarged


def decode(
    wal: NDArray[np.uint8] | bytes | bytearray | memoryview,
    begin_lsn: Lsn,
    end_lsn: Lsn,
    segment_size: int,
    *,
    check_crc: bool = True,
    workspace: Workspace | None = None,
) -> Decoded:
    """Decode the records whose first byte is in [begin_lsn, end_lsn).

    Args:
        wal: the raw bytes of the log from `begin_lsn`, a page's start, on. They may reach beyond `end_lsn`, and must
            where a record straddles it.
        segment_size: in bytes, 1 MiB to 1 GiB.
        check_crc: compare each record's checksum. Without it records are still checked for their form.
        workspace: memory to use; what was decoded with it before is overwritten.

    Raises:
        LocalProtocolError: there is no such piece of WAL. Bad bytes raise nothing: see `Decoded.end`.
    """
    if segment_size & (segment_size - 1) or not SEGMENT_SIZE_MIN <= segment_size <= SEGMENT_SIZE_MAX:
        raise LocalProtocolError(f"{segment_size} is not a segment size: it must be a power of two from 1 MiB to 1 GiB")
    if begin_lsn % PAGE_SIZE or not 0 <= begin_lsn <= end_lsn < 1 << 63:
        raise LocalProtocolError(f"{format_lsn(begin_lsn)} to {format_lsn(end_lsn)} is not a valid range of WAL")
    raw = np.frombuffer(wal, np.uint8)
    workspace = workspace or Workspace()
    content, headers = workspace.buffers(len(raw))
    content = content[: strip(raw, begin_lsn, segment_size, content)]
    headers = headers[: page_headers(raw, begin_lsn, segment_size, headers)]
    span = Span(begin_lsn, end_lsn, segment_size, int(check_crc))
    state = BEGIN
    while True:
        state = walk(content, headers, span, state, workspace.records, workspace.blocks)
        if state.stop != stops.FULL:
            break
        workspace.enlarge(state.records, state.blocks)
    return _decoded(workspace, content, span, state, _end(state, span, raw))


def _decoded(workspace: Workspace, content: NDArray[np.uint8], span: Span, state: WalkState, end: End) -> Decoded:
    records = RecordArrays(*(array[: state.records] for array in workspace.records))
    blocks = BlockArrays(*(array[: state.blocks] for array in workspace.blocks))._asdict()
    records = records._replace(first_block=workspace.records.first_block[: state.records + 1])
    return Decoded(
        count=state.records,
        **records._asdict(),
        block_count=state.blocks,
        block_image_bytes=blocks.pop("image_bytes"),
        **blocks,
        stripped=content,
        begin_lsn=span.begin_lsn,
        segment_size=span.segment_size,
        major=MAJOR_OF_MAGIC.get(state.page.magic, 0),
        system_id=state.page.system_id & _UNSIGNED,
        end=end,
    )


def _end(state: WalkState, span: Span, raw: NDArray[np.uint8]) -> End:
    if state.stop == stops.COMPLETE:
        return End("complete", span.end_lsn)
    lsn = state.at_lsn
    if state.stop == stops.CUT_PAGE:
        needed = lsn + page_header_size(lsn, span.segment_size) + ALIGNMENT
        message = f"WAL at {format_lsn(lsn)}: the page is missing"
        return End("incomplete", lsn, message, needed)
    if state.stop == stops.CUT_RECORD:
        needed = record_end_lsn(lsn, state.expected or ALIGNMENT, span.segment_size)
        length = f" of {state.expected} bytes" if state.expected else ""
        message = f"WAL at {format_lsn(lsn)}: the record{length} continues after the given WAL"
        return End("incomplete", lsn, f"{message}; the WAL up to {format_lsn(needed)} is needed", needed)
    message = stops.describe(state.stop, lsn, state.expected, state.found, span.segment_size)
    return End("invalid", lsn, message, zeros_until_lsn=_zeros_until(state, span, raw))


def _zeros_until(state: WalkState, span: Span, raw: NDArray[np.uint8]) -> Lsn:
    """Return up to where all is zeros from the first page on, in this segment; 0 unless that page stopped the walk."""
    if state.stop != stops.PAGE_MAGIC or state.at_lsn != span.begin_lsn or state.found != 0:
        return 0
    size = min(len(raw), span.segment_size - span.begin_lsn % span.segment_size)
    return 0 if raw[:size].any() else span.begin_lsn + size


def record_end_lsn(lsn: Lsn, total_length: int, segment_size: int) -> Lsn:
    """Return where a record ends that begins at `lsn`: page headers counted in, rounded up to 8 bytes.

    A switch record ends later, where its segment does.
    """
    return end_lsn_of_content(align(content_position(lsn, segment_size) + total_length), segment_size)


def straddler_end(header: bytes, page_lsn: Lsn, segment_size: int) -> Lsn:
    """Return where the record ends that goes on at a page's start, page headers counted in; page_lsn if none does.

    The WAL up to there is needed to decode the records that begin before the page. Where a crash lost the record, and
    the page begins afresh, that is the page's header, which has a flag for it. A record that goes on here may be lost
    on a later page: then `decode` is content with less. A header that is not this page's is ignored.

    Args:
        header: the first 24 bytes of the page, or more.
    """
    magic, flags, _, address, rest = PAGE_HEADER.unpack_from(header)
    if magic not in MAJOR_OF_MAGIC or address != page_lsn:
        return page_lsn
    content_lsn = page_lsn + page_header_size(page_lsn, segment_size)
    if flags & FIRST_IS_OVERWRITE_CONTRECORD:
        return content_lsn
    if not flags & FIRST_IS_CONTRECORD or rest == 0:
        return page_lsn
    return record_end_lsn(content_lsn, rest, segment_size)
