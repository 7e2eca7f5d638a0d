"""Checksums of the WAL that a primary has streamed, back to a record with a time (S10).

A `PageChecksums` follows the stream: at any time it has the CRC-32C of each 8 KiB page from the start of the segment of
the last record known to have a time up to the last byte. It is what a primary that comes back is compared with. It is
begun with the bytes that a primary sends for the comparison, and goes on from there.

Cost: about 0.3 us for a message within a page; the CRC itself runs at more than 10 GB/s.
"""

from array import array

from google_crc32c import extend

from safekeeper.base.lsn import Lsn, segment_start
from safekeeper.consensus.messages import DIGEST_PAGE_SIZE
from safekeeper.waldecode.timed_records import TimedRecords

# 16 MiB of checksums, for 32 GiB of WAL without a record with a time: beyond that nothing is known (S14).
PAGES_MAX = 1 << 22


class PageChecksums:
    """The page checksums of the WAL [begin_lsn, end_lsn), where begin_lsn is a segment's start.

    Args:
        begin_lsn: where the stream begins. If that is no segment's start, nothing is known before a later segment.
        keeps_all: keep all checksums until `let_go`, as a comparison needs them.

    Attributes:
        begin_lsn: where the checksums begin.
        end_lsn: the next byte expected.
        slot_lsn: returns the flush position that PostgreSQL may receive: see `TimedRecords.slot_lsn`.
    """

    def __init__(self, segment_size: int, begin_lsn: Lsn, *, keeps_all: bool = False) -> None:
        self._timed = TimedRecords(begin_lsn, segment_size)
        self._segment_size = segment_size
        self._keeps_all = keeps_all
        self.end_lsn = begin_lsn
        self.begin_lsn = self._whole_from_lsn = -(-begin_lsn // segment_size) * segment_size
        self._full_pages = array("I")
        self._crc = 0
        self.slot_lsn = self._timed.slot_lsn

    def feed(self, data: bytes | memoryview) -> None:
        """Take the next bytes."""
        timed, size = self._timed, len(data)
        if timed.end_lsn + size < timed.wake_lsn and self.end_lsn % DIGEST_PAGE_SIZE + size < DIGEST_PAGE_SIZE:
            # The usual case: no record is read, and no page completed.
            self._crc = extend(self._crc, bytes(data))
            timed.end_lsn += size
            self.end_lsn += size
            return
        timed.feed(data)
        while data:
            room = DIGEST_PAGE_SIZE - self.end_lsn % DIGEST_PAGE_SIZE
            piece = data if len(data) <= room else memoryview(data)[:room]
            # The library takes nothing but bytes; a page at most is copied.
            self._crc = extend(self._crc, bytes(piece))
            self.end_lsn += len(piece)
            if len(piece) == room:
                if self.end_lsn > self.begin_lsn:
                    self._full_pages.append(self._crc)
                self._crc = 0
            if piece is data:
                break
            data = memoryview(data)[room:]
        if not self._keeps_all:
            self._drop_surplus()

    def let_go(self) -> None:
        """Keep from now on only what a primary that comes back is compared with."""
        self._keeps_all = False
        self._drop_surplus()

    def _drop_surplus(self) -> None:
        surplus = self._timed.segment_lsn - self.begin_lsn
        if surplus > 0:
            del self._full_pages[: surplus // DIGEST_PAGE_SIZE]
            self.begin_lsn += surplus
        if len(self._full_pages) > PAGES_MAX:
            self.begin_lsn = self._whole_from_lsn = segment_start(self.end_lsn, self._segment_size) + self._segment_size
            del self._full_pages[:]

    def page_crcs(self) -> tuple[int, ...]:
        """Return the checksums from `begin_lsn` on; empty if some are unknown."""
        if self._timed.segment_lsn < self._whole_from_lsn:
            return ()
        if self.end_lsn % DIGEST_PAGE_SIZE:
            return (*self._full_pages, self._crc)
        return tuple(self._full_pages)
