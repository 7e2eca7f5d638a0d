"""Finds the records in a stream of WAL: their start, end and resource manager, and whether they are intact.

The decoder is a state machine: bytes in, records out, in chunks of any size, without reading ahead. It guarantees:
- A `Record` is returned as soon as its last byte was passed in, and only if its page headers, its link to the previous
  record and its checksum are right. Otherwise a `WalFormatError` is raised, and no other exception.
- Memory is bounded by one record, and by one record header if its body is not requested.
- `end_lsn` is PostgreSQL's EndRecPtr, the position for which a commit waits: rounded up to 8 bytes; if that is a page's
  end, exactly there (the next page's header is not added); a switch record ends where its segment ends.
  (pg_switch_wal() returns the end of that record's header instead.)

Source: src/backend/access/transam/xlogreader.c. Pure: no I/O, no clock.
"""

from collections.abc import Container, Iterator
from typing import NamedTuple, Self

import google_crc32c

from safekeeper.base.errors import LocalProtocolError
from safekeeper.base.lsn import SEGMENT_SIZE_MAX, SEGMENT_SIZE_MIN, Lsn, format_lsn, segment_start
from safekeeper.waldecode.format import (
    ALIGNMENT,
    ALL_PAGE_FLAGS,
    FIRST_IS_CONTRECORD,
    FIRST_IS_OVERWRITE_CONTRECORD,
    LONG_HEADER,
    LONG_PAGE_HEADER_TAIL,
    MAJOR_OF_MAGIC,
    PAGE_HEADER,
    PAGE_HEADER_SIZE,
    PAGE_SIZE,
    RECORD_CRC_OFFSET,
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
    RECORD_LENGTH_MAX,
    RM_XLOG,
    RMGR_INFO_MASK,
    XLOG_SWITCH,
    WalFormatError,
    align,
    is_valid_rmid,
    page_header_size,
)


class Record(NamedTuple):
    """One complete, verified WAL record."""

    start_lsn: Lsn  # of its header; after the page header when it is the first on its page
    end_lsn: Lsn  # EndRecPtr, see the module's docstring
    previous_lsn: Lsn  # start_lsn of the record before it; 0 for the first one of a cluster
    total_length: int  # bytes of header and body, page headers and padding not counted
    xid: int  # 0 when it belongs to no transaction
    rmid: int
    info: int
    body: bytes  # empty unless requested for its resource manager


class LogTail(NamedTuple):
    """The end of a log on a segment's border, as needed to decide whether other WAL continues it."""

    end_lsn: Lsn
    previous_lsn: Lsn  # start of the last complete record
    record_lsn: Lsn | None  # start of the record that end_lsn cuts in two; None when a record ends there
    record_head: bytes  # the header of that record, as far as it is below end_lsn
    record_received: int  # bytes of that record below end_lsn, header included
    record_crc: int  # CRC-32C of those of its body


class RecordDecoder:
    """Decodes WAL from `begin_lsn` on.

    Args:
        begin_lsn: a page's start, commonly a segment's (a record that began earlier is skipped), or the exact
            start of a record.
        segment_size: in bytes.
        body_rmids: the resource managers whose records are returned with their bodies; `range(256)` means all.

    Raises:
        WalFormatError: no record can begin at `begin_lsn`, or the segment size is not valid.
    """

    def __init__(self, begin_lsn: Lsn, segment_size: int, body_rmids: Container[int] = ()) -> None:
        _check_record_boundary(begin_lsn, segment_size)
        self._segment_size = segment_size
        self._body_rmids = body_rmids
        self._position = begin_lsn
        self._failure: str | None = None

        # Of the stream, according to its page headers.
        self._magic: int | None = None
        self._tli = 0
        self._system_id: int | None = None

        # Of the position in the page. Bytes before _ignore_until are ignored: padding, the tail of a record whose start
        # was not read, the filler after a switch record.
        self._page_header = b""  # its bytes so far; empty outside of page headers
        self._ignore_until = begin_lsn
        self._may_skip = begin_lsn % PAGE_SIZE == 0
        self._skip_missing = 0  # bytes of the skipped record that are beyond this page
        self._skipped_until: Lsn | None = None
        self._switch_may_end_at: Lsn | None = None

        # Of the record.
        self._previous: Lsn | None = None  # start of the last complete record
        self._start: Lsn | None = None
        self._head = b""  # its header's bytes so far
        self._total_length = 0
        self._missing = 0  # bytes of its body still missing
        self._crc = 0
        self._body: list[bytes] | None = None

    @classmethod
    def after(cls, tail: LogTail, segment_size: int) -> Self:
        """Return a decoder that continues after the log that ends with `tail`."""
        decoder = cls(tail.end_lsn, segment_size)
        decoder._may_skip = False
        decoder._previous = tail.previous_lsn
        decoder._start = tail.record_lsn
        decoder._head = tail.record_head
        decoder._crc = tail.record_crc
        if len(tail.record_head) == RECORD_HEADER_SIZE:
            decoder._total_length = RECORD_HEADER.unpack(tail.record_head)[0]
            decoder._missing = decoder._total_length - tail.record_received
        return decoder

    @property
    def position(self) -> Lsn:
        """The next byte expected. Undefined after an error."""
        return self._position

    @property
    def pending(self) -> Lsn | None:
        """The start of the incomplete record, or None."""
        return self._start

    @property
    def last_record_lsn(self) -> Lsn | None:
        """The start of the last complete record, or None if neither a record nor a link to it was read."""
        return self._previous

    @property
    def skipped_until(self) -> Lsn | None:
        """The end of the record that was incomplete at `begin_lsn`; None if there was none, or if it still is."""
        return self._skipped_until

    @property
    def major(self) -> int | None:
        """The major version of the PostgreSQL that wrote the WAL; None before the first page header."""
        return None if self._magic is None else MAJOR_OF_MAGIC[self._magic]

    @property
    def tli(self) -> int | None:
        """The TLI of the last page header; None before the first one."""
        return self._tli or None

    @property
    def system_id(self) -> int | None:
        """The system id in the last long page header; None before the first one."""
        return self._system_id

    def tail(self) -> LogTail | None:
        """Return the tail needed to continue from here, or None if no record was read to link to.

        Raises:
            LocalProtocolError: the position is not on a segment's border.
        """
        if self._position % self._segment_size:
            raise LocalProtocolError(f"{format_lsn(self._position)} is not the end of a segment")
        if self._previous is None:
            return None
        return LogTail(self._position, self._previous, self._start, self._head, self._received(), self._crc)

    def feed(self, data: bytes | bytearray | memoryview) -> list[Record]:
        """Decode the bytes from `position` on and return the records that they complete.

        Raises:
            WalFormatError: the bytes are not valid WAL. Every later call raises it again.
        """
        return list(self.walk(data))

    def walk(self, data: bytes | bytearray | memoryview) -> Iterator[Record]:
        """Decode as `feed`, record by record, so that the records before an error are returned.

        The bytes are consumed only when the iteration has ended: finish it before the next call.
        """
        if self._failure is not None:
            raise WalFormatError(self._failure)
        data = bytes(data)
        offset = 0
        while offset < len(data):
            try:
                size, record = self._take(data, offset)
            except WalFormatError as error:
                self._failure = str(error)
                raise
            offset += size
            self._position += size
            if record is not None:
                self._ignore_until = record.end_lsn
                yield record

    def _take(self, data: bytes, offset: int) -> tuple[int, Record | None]:
        """Decode one piece: up to the end of its part of a record, of its page, or of `data`.

        Returns:
            Its size, and the record that it completes.
        """
        position = self._position
        if position < self._ignore_until:
            return min(self._ignore_until - position, len(data) - offset), None
        in_page = position % PAGE_SIZE
        if in_page == 0 or self._page_header:
            return self._take_page_header(data, offset), None
        room = PAGE_SIZE - in_page
        if self._start is None:
            self._start = position
        if len(self._head) < RECORD_HEADER_SIZE:
            piece = data[offset : offset + min(RECORD_HEADER_SIZE - len(self._head), room)]
            self._head += piece
            if len(self._head) < RECORD_HEADER_SIZE:
                return len(piece), None
            if self._start == self._switch_may_end_at and not any(self._head):
                self._skip_filler(self._start)
                return len(piece), None
            self._check_record_header(self._start)
        else:
            piece = data[offset : offset + min(self._missing, room)]
            self._crc = google_crc32c.extend(self._crc, piece)
            self._missing -= len(piece)
            if self._body is not None:
                self._body.append(piece)
        if self._missing:
            return len(piece), None
        return len(piece), self._complete(self._start, position + len(piece))

    # Pages.

    def _take_page_header(self, data: bytes, offset: int) -> int:
        page_lsn = self._position - len(self._page_header)
        size = page_header_size(page_lsn, self._segment_size)
        piece = data[offset : offset + size - len(self._page_header)]
        header = self._page_header + piece
        if len(header) < size:
            self._page_header = header
        else:
            flags, rest_of_record = self._check_page_header(header, page_lsn)
            self._page_header = b""
            self._enter_page(page_lsn, page_lsn + size, flags, rest_of_record)
        return len(piece)

    def _check_page_header(self, header: bytes, page_lsn: Lsn) -> tuple[int, int]:
        """Return the page's flags and the number of missing bytes of a record that began earlier."""
        magic, flags, tli, address, rest_of_record = PAGE_HEADER.unpack_from(header)
        if magic not in MAJOR_OF_MAGIC:
            raise _refuse(page_lsn, f"page magic {magic:04X} is not that of PostgreSQL 13 to 18")
        if self._magic not in (None, magic):
            raise _refuse(page_lsn, f"page magic {magic:04X} follows {self._magic:04X}: two versions in one log")
        if address != page_lsn:
            raise _refuse(
                page_lsn, f"the page claims to be at {format_lsn(address)}, as in a recycled or misnamed file"
            )
        if flags & ~ALL_PAGE_FLAGS or bool(flags & LONG_HEADER) != (page_lsn % self._segment_size == 0):
            raise _refuse(page_lsn, f"page flags {flags:04X} do not fit segments of {self._segment_size} bytes")
        if tli == 0 or tli < self._tli:
            raise _refuse(page_lsn, f"a page of TLI {tli} follows one of TLI {self._tli}")
        if flags & LONG_HEADER:
            system_id, segment_size, page_size = LONG_PAGE_HEADER_TAIL.unpack_from(header, PAGE_HEADER_SIZE)
            if (segment_size, page_size) != (self._segment_size, PAGE_SIZE):
                raise _refuse(
                    page_lsn,
                    f"segments of {segment_size} and pages of {page_size} bytes,"
                    f" where {self._segment_size} and {PAGE_SIZE} are expected",
                )
            if self._system_id not in (None, system_id):
                raise _refuse(page_lsn, f"system id {system_id} follows {self._system_id}")
            self._system_id = system_id
        self._magic = magic
        self._tli = tli
        return flags, rest_of_record

    def _enter_page(self, page_lsn: Lsn, content_lsn: Lsn, flags: int, rest_of_record: int) -> None:
        """Decide how the page's content begins: with the rest of a record, known or not, or with a new one."""
        may_skip, self._may_skip = self._may_skip, False
        if flags & FIRST_IS_OVERWRITE_CONTRECORD:
            if self._skip_missing:
                self._skipped_until = page_lsn
            self._skip_missing = 0
            self._drop_pending()
        elif self._start is not None:
            self._check_continuation(self._start, page_lsn, flags, rest_of_record)
        elif flags & FIRST_IS_CONTRECORD:
            if rest_of_record == 0 or not (may_skip or rest_of_record == self._skip_missing):
                raise _refuse(page_lsn, f"{rest_of_record} bytes of a record continue here, but none is incomplete")
            self._skip(content_lsn, rest_of_record)
        elif self._skip_missing:
            raise _refuse(page_lsn, f"{self._skip_missing} more bytes of a record must continue here")

    def _check_continuation(self, start_lsn: Lsn, page_lsn: Lsn, flags: int, rest_of_record: int) -> None:
        # Even a split header has its length on the first page, because records begin at multiples of 8 bytes.
        total_length = int.from_bytes(self._head[:4], "little")
        expected = total_length - self._received()
        if not flags & FIRST_IS_CONTRECORD:
            raise _refuse(
                page_lsn, f"no record continues here, but the record at {format_lsn(start_lsn)} lacks {expected} bytes"
            )
        if rest_of_record != expected:
            raise _refuse(
                page_lsn,
                f"{rest_of_record} bytes of a record continue here, but"
                f" the record at {format_lsn(start_lsn)} lacks {expected}",
            )

    def _skip(self, content_lsn: Lsn, rest_of_record: int) -> None:
        """Skip the part, on this page, of a record whose start was not read."""
        here = min(rest_of_record, PAGE_SIZE - content_lsn % PAGE_SIZE)
        self._ignore_until = align(content_lsn + here)
        # This may be the end of a split header of a switch record: then zeros fill the rest of the segment, which is
        # therefore not the one in which that record began.
        page_lsn = content_lsn - content_lsn % PAGE_SIZE
        if rest_of_record < RECORD_HEADER_SIZE and page_lsn % self._segment_size == 0:
            self._switch_may_end_at = self._ignore_until
        self._skip_missing = rest_of_record - here
        if self._skip_missing == 0:
            self._skipped_until = self._ignore_until

    # Records.

    def _skip_filler(self, start_lsn: Lsn) -> None:
        """Skip the zeros after a switch record that began in the segment before, unread."""
        self._ignore_until = self._skipped_until = self._segment_end(start_lsn)
        self._drop_pending()

    def _check_record_header(self, start_lsn: Lsn) -> None:
        total_length, _, previous_lsn, _, rmid, _ = RECORD_HEADER.unpack(self._head)
        if not RECORD_HEADER_SIZE <= total_length <= RECORD_LENGTH_MAX:
            raise _refuse(start_lsn, f"{total_length} bytes is not the length of a record")
        if not is_valid_rmid(rmid):
            raise _refuse(start_lsn, f"{rmid} is not a resource manager")
        if self._previous is None and previous_lsn < start_lsn:
            self._previous = previous_lsn
        if previous_lsn != self._previous:
            expected = "an earlier one" if self._previous is None else format_lsn(self._previous)
            raise _refuse(start_lsn, f"the record links to {format_lsn(previous_lsn)} instead of {expected}")
        self._total_length = total_length
        self._missing = total_length - RECORD_HEADER_SIZE
        self._body = [] if rmid in self._body_rmids else None

    def _complete(self, start_lsn: Lsn, last_byte_end_lsn: Lsn) -> Record:
        total_length, xid, previous_lsn, info, rmid, crc = RECORD_HEADER.unpack(self._head)
        if google_crc32c.extend(self._crc, self._head[:RECORD_CRC_OFFSET]) != crc:
            raise _refuse(start_lsn, f"the checksum of the record of {total_length} bytes is wrong")
        end_lsn = align(last_byte_end_lsn)
        if rmid == RM_XLOG and info & RMGR_INFO_MASK == XLOG_SWITCH:
            end_lsn = self._segment_end(end_lsn - 1)
        body = b"".join(self._body or ())
        self._previous = start_lsn
        self._drop_pending()
        return Record(start_lsn, end_lsn, previous_lsn, total_length, xid, rmid, info, body)

    def _drop_pending(self) -> None:
        self._start = None
        self._head = b""
        self._missing = 0
        self._crc = 0
        self._body = None

    def _received(self) -> int:
        """Return the number of bytes of the pending record that were received."""
        if len(self._head) < RECORD_HEADER_SIZE:
            return len(self._head)
        return self._total_length - self._missing

    def _segment_end(self, lsn: Lsn) -> Lsn:
        return segment_start(lsn, self._segment_size) + self._segment_size


def _check_record_boundary(lsn: Lsn, segment_size: int) -> None:
    """Check that a record can end, and the next one begin, at `lsn`.

    Raises:
        WalFormatError: it cannot, or no WAL has segments of `segment_size` bytes.
    """
    if segment_size & (segment_size - 1) or not SEGMENT_SIZE_MIN <= segment_size <= SEGMENT_SIZE_MAX:
        raise WalFormatError(f"{segment_size} is not a segment size: a power of two from 1 MiB to 1 GiB is")
    in_page = lsn % PAGE_SIZE
    if lsn % ALIGNMENT or 0 < in_page < page_header_size(lsn - in_page, segment_size):
        raise WalFormatError(f"no WAL record can begin at {format_lsn(lsn)}: check where this LSN comes from")


def _refuse(lsn: Lsn, text: str) -> WalFormatError:
    return WalFormatError(f"WAL at {format_lsn(lsn)}: {text}")
