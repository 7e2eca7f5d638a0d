"""Where valid WAL ends in a segment that is still being written.

Such a file has its full size from the beginning: behind the last record stand zeros, or what a recycled file had there
before. So its records are read, up to the first that is not there, incomplete or wrong. What was found is remembered,
and the next look begins on the page of the last record.
"""

from collections.abc import Callable

from safekeeper.lsn import Lsn
from safekeeper.wal.format import PAGE_SIZE, WalFormatError
from safekeeper.wal.records import RecordDecoder

_CHUNK_BYTES = 1 << 20

Read = Callable[[Lsn, Lsn], bytes]


class ValidEnd:
    """Of one segment, or of the part of it that a file has.

    Attributes:
        lsn: up to there the WAL is valid, as far as was last looked.
    """

    def __init__(self, begin_lsn: Lsn, segment_size: int) -> None:
        self.lsn = begin_lsn
        self._begin_lsn = begin_lsn
        self._segment_size = segment_size

    def look(self, read: Read, end_lsn: Lsn) -> Lsn:
        """Return where valid WAL ends, which is never before where it ended the last time.

        Args:
            read: returns the bytes [begin, end) of the segment.
            end_lsn: the file ends there.
        """
        begin_lsn = max(self._begin_lsn, self.lsn - 1 & -PAGE_SIZE)
        try:
            decoder = RecordDecoder(begin_lsn, self._segment_size)
            for chunk_lsn in range(begin_lsn, end_lsn, _CHUNK_BYTES):
                for record in decoder.walk(read(chunk_lsn, min(chunk_lsn + _CHUNK_BYTES, end_lsn))):
                    self.lsn = max(self.lsn, record.end_lsn)
                if decoder.skipped_until is None and decoder.last_record_lsn is None:
                    self.lsn = max(self.lsn, min(decoder.position, end_lsn))  # Amid a record that began before.
        except WalFormatError:
            pass  # There it ends.
        return self.lsn
