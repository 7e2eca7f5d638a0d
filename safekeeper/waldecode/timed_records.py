"""Finds the timed records in WAL quickly: they prove that two WALs are the same, and not only similar (S10).

A primary restored from a backup can write the bytes of lost WAL once more, as long as the records contain no time: an
insert of the same length, a switch, a logical message. It cannot repeat a commit, an abort or a checkpoint. So WAL is
compared back to a timed record, and retained back to it.

`TimedRecords` follows a stream of WAL. It reads only page and record headers, checks each record's link to the previous
one, and reads only the parts that can change its result: from a segment's start up to its first timed record, and the
last 64 KiB, to find out whether the record that crosses the border is timed. After WAL that it cannot decode it
continues at the next segment. `find_timed_record` searches the newest such record of a log. Pure.

Cost of 16 MiB of records of 64 bytes: 0.8 s in `RecordDecoder`, 0.1 s here, 1 ms where they begin with a commit.
"""

import struct
from collections import deque
from collections.abc import Callable

from safekeeper.base.lsn import Lsn, segment_start
from safekeeper.waldecode.format import (
    FIRST_IS_CONTRECORD,
    FIRST_IS_OVERWRITE_CONTRECORD,
    MAJOR_OF_MAGIC,
    PAGE_HEADER,
    PAGE_SIZE,
    RECORD_HEADER_SIZE,
    RM_XACT,
    RM_XLOG,
    RMGR_INFO_MASK,
    XLOG_SWITCH,
    WalFormatError,
    align,
    page_header_size,
)
from safekeeper.waldecode.records import RecordDecoder

# CHECKPOINT_SHUTDOWN, CHECKPOINT_ONLINE, RESTORE_POINT, END_OF_RECOVERY, OVERWRITE_CONTRECORD
# (src/include/catalog/pg_control.h): a checkpoint's time is in whole seconds, the others' in microseconds.
_TIMED_XLOG = frozenset({0x00, 0x10, 0x70, 0x90, 0xD0})
# COMMIT, PREPARE, ABORT, COMMIT_PREPARED, ABORT_PREPARED (src/include/access/xact.h). They include every record for
# which a backend waits until a quorum has it.
_TIMED_XACT = frozenset({0x00, 0x10, 0x20, 0x30, 0x40})
_XACT_OPERATION_MASK = 0x70
_TAIL_BYTES = 64 << 10
_READ_BYTES = 1 << 20
# Total length, previous record, info, resource manager: see RECORD_HEADER.
_HEADER = struct.Struct("<I4xQBB")

Read = Callable[[Lsn, Lsn], bytes]


def bears_time(rmid: int, info: int) -> bool:
    """Return whether such a record contains the time at which it was written."""
    if rmid == RM_XACT:
        return info & _XACT_OPERATION_MASK in _TIMED_XACT
    return rmid == RM_XLOG and info & RMGR_INFO_MASK in _TIMED_XLOG


class _NotUnderstood(Exception):
    """The bytes are not a valid page or record: the records up to the next segment are unknown."""


class TimedRecords:
    """Follows a stream of WAL from `begin_lsn`, a segment's start, on.

    Attributes:
        begin_lsn: the start of the stream.
        end_lsn: the next byte expected.
        timed_lsn: the start of the newest known timed record that is complete, 0 before the first one. Only the first
            such record of each segment is searched.
        wake_lsn: below this nothing is read. To skip bytes that end below it is to add their number to `end_lsn`.
    """

    def __init__(self, begin_lsn: Lsn, segment_size: int) -> None:
        self.begin_lsn = self.end_lsn = begin_lsn
        self.timed_lsn: Lsn = 0
        self._segment_size = segment_size
        # A stream that begins within a segment is decoded from the next segment on.
        self.wake_lsn = -(-begin_lsn // segment_size) * segment_size
        self._border_lsn = self.wake_lsn  # of the next segment to enter
        self._page = bytearray()  # the received part of the page that contains end_lsn
        self._position = 0  # in the page
        self._previous_lsn: Lsn | None = None  # of the last complete record, None if unknown
        self._start_lsn: Lsn = 0  # of the incomplete record, that is, the one that crosses a page's border
        self._head = b""  # the received part of its header
        self._left = 0  # number of its bytes still missing; 0 if no record is incomplete
        self._is_timed: bool | None = None  # None if that is not known
        # For `slot_lsn`: the ranges (cap, until) in which no timed record ends; of the last one the end may be unknown.
        self._gaps: deque[tuple[Lsn, Lsn]] = deque()
        self._cap_lsn: Lsn | None = None
        self._last_timed_end_lsn: Lsn = 0
        self._border_is_known = False  # the end of the previous segment was read completely
        if begin_lsn == self._border_lsn:
            self._enter_segment()

    @property
    def segment_lsn(self) -> Lsn:
        """The start of the segment from which WAL has to be compared; `begin_lsn` before the first timed record."""
        return segment_start(self.timed_lsn, self._segment_size) if self.timed_lsn else self.begin_lsn

    def slot_lsn(self, commit_lsn: Lsn) -> Lsn:
        """Return the flush position to report to PostgreSQL when `commit_lsn` is committed.

        That is `commit_lsn`; but while no timed record ends in its segment, it is a position in the segment of the last
        one, so that PostgreSQL's slot retains that segment. No backend waits longer for it, since each waits for the
        end of a timed record.

        Args:
            commit_lsn: at most `end_lsn`, and not below that of an earlier call.
        """
        gaps = self._gaps
        while gaps and gaps[0][1] <= commit_lsn:
            gaps.popleft()
        cap_lsn = gaps[0][0] if gaps else self._cap_lsn
        return commit_lsn if cap_lsn is None else min(commit_lsn, cap_lsn)

    def may_find_one_below(self, border_lsn: Lsn) -> bool:
        """Return whether more bytes could contain a timed record that begins below the end of the present segment."""
        is_crossed = self._left > 0 and 0 < self._start_lsn < border_lsn
        return is_crossed or (self.end_lsn < border_lsn and self.wake_lsn < border_lsn)

    def feed(self, data: bytes | memoryview) -> None:
        """Read the next bytes."""
        while data:
            if self.end_lsn < self.wake_lsn:
                size = min(len(data), self.wake_lsn - self.end_lsn)
            else:
                size = min(len(data), PAGE_SIZE - self.end_lsn % PAGE_SIZE)
                self._page += data[:size]
            self.end_lsn += size
            if self._page:
                try:
                    self._walk()
                except _NotUnderstood:
                    self._lose_sight()
                if self.end_lsn % PAGE_SIZE == 0:
                    self._page.clear()
                    self._position = 0
            if self.end_lsn == self._border_lsn:
                self._enter_segment()
            if size == len(data):
                return
            data = memoryview(data)[size:]

    def _enter_segment(self) -> None:
        border_lsn = self._border_lsn
        self._border_lsn += self._segment_size
        is_crossed = self._left > 0
        if self._border_is_known and self._cap_lsn is None and not (is_crossed and self._is_timed is not False):
            # The cap must not hide a timed record that ends exactly at the border.
            self._cap_lsn = max(border_lsn - 1, self._last_timed_end_lsn)
        self._border_is_known = True

    def _found(self, start_lsn: Lsn, end_lsn: Lsn) -> None:
        self.timed_lsn, self._last_timed_end_lsn = start_lsn, end_lsn
        if self._cap_lsn is not None:
            self._gaps.append((self._cap_lsn, end_lsn))
            self._cap_lsn = None

    def _sleep_until(self, lsn: Lsn) -> None:
        """Skip the rest of this page, and continue at `lsn`, a page's start, without knowledge of earlier records."""
        self.wake_lsn = lsn
        self._page.clear()
        self._position = self._left = 0
        self._previous_lsn = None

    def _lose_sight(self) -> None:
        if self._cap_lsn is not None:
            # There may be timed records from here on.
            self._gaps.append((self._cap_lsn, self.end_lsn - len(self._page)))
            self._cap_lsn = None
        self._border_is_known = False
        self._sleep_until(self._border_lsn)

    def _walk(self) -> None:
        """Read the received records of the page."""
        page, end = self._page, len(self._page)
        page_lsn = self.end_lsn - end
        if self._position == 0:
            size = page_header_size(page_lsn, self._segment_size)
            if end < size:
                return
            if not self._enter_page(page_lsn, size):
                return
        if self._left and not self._continue_record(page_lsn, end):
            return
        position, previous_lsn = self._position, self._previous_lsn
        while position + RECORD_HEADER_SIZE <= end:
            length, link_lsn, info, rmid = _HEADER.unpack_from(page, position)
            start_lsn = page_lsn + position
            if length < RECORD_HEADER_SIZE or (
                link_lsn != previous_lsn if previous_lsn is not None else link_lsn >= start_lsn
            ):
                raise _NotUnderstood
            record_end = position + length
            if record_end > end:
                break
            previous_lsn = start_lsn
            position = align(record_end)
            if rmid <= RM_XACT:
                self._position, self._previous_lsn = position, previous_lsn
                if self._complete(start_lsn, page_lsn + position, rmid, info):
                    return
        self._position, self._previous_lsn = position, previous_lsn
        if end == PAGE_SIZE and position < PAGE_SIZE:
            self._begin_record(page_lsn + position, bytes(page[position:]))

    def _enter_page(self, page_lsn: Lsn, size: int) -> bool:
        """Read a page's header; return whether records follow it."""
        if not any(self._page[:size]) and not self._left:
            # Only zeros are left of a segment after a switch record.
            self._sleep_until(self._border_lsn)
            return False
        magic, flags, _, address, rest = PAGE_HEADER.unpack_from(self._page)
        if magic not in MAJOR_OF_MAGIC or address != page_lsn:
            raise _NotUnderstood
        self._position = size
        if flags & FIRST_IS_CONTRECORD:
            if self._left not in (0, rest) or (not self._left and self._previous_lsn is not None) or not rest:
                raise _NotUnderstood
            if not self._left:
                self._left, self._head, self._is_timed, self._start_lsn = rest, b"", None, 0
        elif self._left:
            if not flags & FIRST_IS_OVERWRITE_CONTRECORD:
                raise _NotUnderstood
            self._left = 0  # A crash has cut it; it is never completed.
        return True

    def _begin_record(self, start_lsn: Lsn, data: bytes) -> None:
        """Note a record that continues on the next page; `data` is its part on this one, which includes its length."""
        length = int.from_bytes(data[:4], "little")
        if length < RECORD_HEADER_SIZE:
            raise _NotUnderstood
        self._start_lsn, self._head, self._left = start_lsn, data[:RECORD_HEADER_SIZE], length - len(data)
        self._is_timed = None
        self._position = PAGE_SIZE
        self._look_at_head()

    def _continue_record(self, page_lsn: Lsn, end: int) -> bool:
        """Continue a record from an earlier page; return whether it is complete, so that others may follow."""
        position = self._position
        is_known = bool(self._start_lsn)
        if is_known and len(self._head) < RECORD_HEADER_SIZE:
            needed = RECORD_HEADER_SIZE - len(self._head)
            if end < position + needed:
                return False
            self._head += bytes(self._page[position : position + needed])
            self._left -= needed
            self._position = position = position + needed
            self._look_at_head()
        record_end = position + self._left
        if record_end > PAGE_SIZE:
            if end == PAGE_SIZE:
                self._left -= PAGE_SIZE - position
                self._position = PAGE_SIZE
            return False
        if record_end > end:
            return False
        self._left, self._position = 0, align(record_end)
        if not is_known:
            self._border_is_known = page_lsn + self._position != self._border_lsn
            return True
        self._previous_lsn = self._start_lsn
        _, _, info, rmid = _HEADER.unpack_from(self._head)
        return not (rmid <= RM_XACT and self._complete(self._start_lsn, page_lsn + self._position, rmid, info))

    def _look_at_head(self) -> None:
        if len(self._head) == RECORD_HEADER_SIZE:
            _, link_lsn, info, rmid = _HEADER.unpack_from(self._head)
            known = self._previous_lsn
            if link_lsn != known if known is not None else link_lsn >= self._start_lsn:
                raise _NotUnderstood
            self._is_timed = bears_time(rmid, info)

    def _complete(self, start_lsn: Lsn, end_lsn: Lsn, rmid: int, info: int) -> bool:
        """Note a record of the transaction or WAL manager; return whether nothing is read after it for now."""
        if rmid == RM_XLOG and info & RMGR_INFO_MASK == XLOG_SWITCH:
            if end_lsn < self._border_lsn:
                self._sleep_until(self._border_lsn)
            return True
        if bears_time(rmid, info):
            self._found(start_lsn, end_lsn)
            tail_lsn = self._border_lsn - _TAIL_BYTES
            if tail_lsn >= self.end_lsn and start_lsn >= self._border_lsn - self._segment_size:
                self._sleep_until(tail_lsn)
                return True
        return False


def find_timed_record(read: Read, begin_lsn: Lsn, end_lsn: Lsn, segment_size: int) -> Lsn:
    """Return the start of a timed record in the newest segment in which one begins; 0 if there is none.

    Args:
        read: returns the log's bytes [begin, end).
        begin_lsn, end_lsn: the log, or a part of it; begin_lsn is a segment's start. The record is within.
    """
    segment_lsn = max(segment_start(end_lsn - 1, segment_size), begin_lsn)
    while begin_lsn <= segment_lsn < end_lsn:
        timed_lsn = _first_timed_record(read, segment_lsn, end_lsn, segment_size)
        if timed_lsn:
            return timed_lsn
        segment_lsn -= segment_size
    return 0


def _first_timed_record(read: Read, segment_lsn: Lsn, end_lsn: Lsn, segment_size: int) -> Lsn:
    """Return the first timed record that begins in a segment, 0 if none is found."""
    scan = TimedRecords(segment_lsn, segment_size)
    for lsn in range(segment_lsn, end_lsn, _READ_BYTES):
        scan.feed(read(lsn, min(lsn + _READ_BYTES, end_lsn)))
        if scan.timed_lsn or not scan.may_find_one_below(segment_lsn + segment_size):
            break
    if not segment_lsn <= scan.timed_lsn < segment_lsn + segment_size:
        return 0
    try:
        # Only headers were read so far; now the record's checksum is verified.
        decoder = RecordDecoder(scan.timed_lsn, segment_size)
        for lsn in range(scan.timed_lsn, end_lsn, PAGE_SIZE):
            if decoder.feed(read(lsn, min(lsn + PAGE_SIZE, end_lsn))):
                return scan.timed_lsn
    except WalFormatError:
        return 0
    return 0
