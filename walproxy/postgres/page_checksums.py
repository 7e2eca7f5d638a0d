"""Checksums of the WAL that a primary has streamed, back to a record with a time (S10).

A `PageChecksums` follows the stream: at any time it has the CRC-32C of each 8 KiB page from the start of the segment of
the last record known to have a time up to the last byte. It is what a primary that comes back is compared with. It is
begun with the bytes that a primary sends for the comparison, and goes on from there.

Checksums are computed for 64 KiB at a time, or when they are asked for. Between two commits the processor's caches lose
the code and its data: a checksum for each message took 6 % of the proxy's processor time with eight clients. The CRC
itself runs at more than 10 GB/s.
"""

from array import array

from google_crc32c import extend

from safekeeper.base.lsn import Lsn, segment_start
from safekeeper.consensus.messages import DIGEST_PAGE_SIZE
from safekeeper.waldecode.timed_records import TimedRecords

# 16 MiB of checksums, for 32 GiB of WAL without a record with a time: beyond that nothing is known (S14).
PAGES_MAX = 1 << 22
# Bytes wait until there are as many as this.
BATCH_BYTES = 64 << 10


class PageChecksums:
    """The page checksums of the WAL [begin_lsn, end_lsn), where begin_lsn is a segment's start.

    Args:
        begin_lsn: where the stream begins. If that is no segment's start, nothing is known before a later segment.
        keeps_all: keep all checksums until `let_go`, as a comparison needs them.

    Attributes:
        end_lsn: the next byte expected.
        slot_lsn: returns the flush position that PostgreSQL may receive: see `TimedRecords.slot_lsn`.
    """

    def __init__(self, segment_size: int, begin_lsn: Lsn, *, keeps_all: bool = False) -> None:
        self._timed = TimedRecords(begin_lsn, segment_size)
        self._segment_size = segment_size
        self._keeps_all = keeps_all
        self.end_lsn = begin_lsn
        self._begin_lsn = self._whole_from_lsn = -(-begin_lsn // segment_size) * segment_size
        self._full_pages = array("I")
        self._crc = 0
        self._waiting: list[bytes | memoryview] = []
        self._waiting_bytes = 0
        self.slot_lsn = self._timed.slot_lsn

    @property
    def begin_lsn(self) -> Lsn:
        """Where the checksums begin."""
        self._take_waiting()
        return self._begin_lsn

    def feed(self, data: bytes | memoryview) -> None:
        """Take the next bytes."""
        timed, size = self._timed, len(data)
        if timed.end_lsn + size < timed.wake_lsn:
            timed.end_lsn += size  # No record is read.
        else:
            timed.feed(data)
        self.end_lsn += size
        self._waiting.append(data)
        self._waiting_bytes += size
        if self._waiting_bytes >= BATCH_BYTES:
            self._take_waiting()

    def _take_waiting(self) -> None:
        """Compute the checksums of the bytes that wait."""
        data = memoryview(b"".join(self._waiting))
        lsn = self.end_lsn - len(data)
        self._waiting.clear()
        self._waiting_bytes = 0
        while data:
            room = DIGEST_PAGE_SIZE - lsn % DIGEST_PAGE_SIZE
            piece, data = data[:room], data[room:]
            # The library takes nothing but bytes.
            self._crc = extend(self._crc, bytes(piece))
            lsn += len(piece)
            if len(piece) == room:
                if lsn > self._begin_lsn:
                    self._full_pages.append(self._crc)
                self._crc = 0
        if not self._keeps_all:
            self._drop_surplus()

    def let_go(self) -> None:
        """Keep from now on only what a primary that comes back is compared with."""
        self._keeps_all = False
        self._take_waiting()

    def _drop_surplus(self) -> None:
        surplus = self._timed.segment_lsn - self._begin_lsn
        if surplus > 0:
            del self._full_pages[: surplus // DIGEST_PAGE_SIZE]
            self._begin_lsn += surplus
        if len(self._full_pages) > PAGES_MAX:
            self._begin_lsn = self._whole_from_lsn = (
                segment_start(self.end_lsn, self._segment_size) + self._segment_size
            )
            del self._full_pages[:]

    def page_crcs(self) -> tuple[int, ...]:
        """Return the checksums from `begin_lsn` on; empty if some are unknown."""
        self._take_waiting()
        if self._timed.segment_lsn < self._whole_from_lsn:
            return ()
        if self.end_lsn % DIGEST_PAGE_SIZE:
            return (*self._full_pages, self._crc)
        return tuple(self._full_pages)
