"""Find where valid WAL ends in a segment that is still being written.

Such a file has its full size from the beginning: after the last record it has zeros, or what a recycled file had there
before. So its records are read, up to the first that is not there, incomplete or wrong. What was found is remembered,
and the next look begins on the page of the last record.
"""

from collections.abc import Callable

import numpy as np

from safekeeper.base.lsn import Lsn
from safekeeper.waldecode.format import PAGE_HEADER_SIZE, PAGE_SIZE

_CHUNK_BYTES = 1 << 20


class DecodedEnd:
    """Of one segment, or of the part of it that a file has. See segment_folder.ValidEnd.

    Attributes:
        lsn: up to there the WAL is valid, as far as was last looked.
    """

    def __init__(self, begin_lsn: Lsn, segment_size: int) -> None:
        self.lsn = begin_lsn
        self._begin_lsn = begin_lsn
        self._segment_size = segment_size

    def look(self, read: Callable[[Lsn, Lsn], memoryview], end_lsn: Lsn) -> Lsn:
        """See segment_folder.ValidEnd."""
        from walproxy.pipeline.decoder.decode import decode, straddler_end

        begin_lsn = max(self._begin_lsn, self.lsn - 1 & -PAGE_SIZE)
        size, limit_lsn = _CHUNK_BYTES, end_lsn
        while begin_lsn < limit_lsn:
            wanted_lsn = min(begin_lsn + size, limit_lsn)
            wal = np.frombuffer(read(begin_lsn, wanted_lsn), dtype=np.uint8)
            reach_lsn = begin_lsn + wal.nbytes
            if reach_lsn < wanted_lsn:
                limit_lsn = reach_lsn
            decoded = decode(wal, begin_lsn, reach_lsn, self._segment_size)
            if decoded.count:
                self.lsn = max(self.lsn, int(decoded.end_lsn[-1]))
            elif wal.nbytes >= PAGE_HEADER_SIZE:
                # What began earlier ends here, if anywhere; the page that breaks off may come before that.
                under_way_lsn = straddler_end(wal[:PAGE_HEADER_SIZE].tobytes(), begin_lsn, self._segment_size)
                self.lsn = max(self.lsn, min(under_way_lsn, decoded.end.lsn))
            if decoded.end.kind == "complete":
                begin_lsn = reach_lsn
            elif decoded.end.kind == "incomplete" and reach_lsn < decoded.end.needed_until_lsn <= limit_lsn:
                begin_lsn = max(self._begin_lsn, decoded.end.lsn & -PAGE_SIZE)
                size = (decoded.end.needed_until_lsn - begin_lsn & -PAGE_SIZE) + _CHUNK_BYTES  # whole pages
            else:
                break
        return min(self.lsn, end_lsn)
