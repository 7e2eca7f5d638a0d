"""Finds the record that a cut of the log would remove, and the one that would then be the last (S9, S10).

Records cannot be searched backward, so the search reads forward from the start of the segment that contains the byte
before the position, and from an earlier segment if no record begins in that one: a record can span several.
"""

from collections.abc import Callable
from typing import NamedTuple

from safekeeper.base.lsn import Lsn, segment_start
from safekeeper.waldecode.format import WalFormatError
from safekeeper.waldecode.records import LogTail, RecordDecoder

_READ_BYTES = 1 << 20

Read = Callable[[Lsn, Lsn], bytes]


class RecordsAround(NamedTuple):
    """The records around a position.

    Attributes:
        record_end_lsn: the end of the first complete record that ends above it, which is the first one that a cut there
            would destroy: the record that begins there or, if none does, the one that contains the position. 0 if the
            log does not contain all of it. If the WAL up to there cannot be decoded, it is the position itself, because
            undecodable WAL must count as a complete record when a cut is decided.
        last_record_lsn: the start of the last record that begins below it, complete or not; 0 if there is none.
        log_tail: of the log cut at the position, for a `LinkCheck`; None unless it is a segment's start.
    """

    record_end_lsn: Lsn
    last_record_lsn: Lsn
    log_tail: LogTail | None


def find_records(read: Read, lsn: Lsn, begin_lsn: Lsn, end_lsn: Lsn, segment_size: int) -> RecordsAround:
    """Find the records around `lsn`.

    Args:
        read: returns the log's bytes [begin, end).
        lsn: the position of the possible cut.
        begin_lsn, end_lsn: the log; begin_lsn is a segment start, `lsn` is within.
    """
    start_lsn = segment_start(max(lsn - 1, begin_lsn), segment_size)
    while True:
        found = _search(read, lsn, start_lsn, end_lsn, segment_size)
        enough = found.last_record_lsn and (found.log_tail is not None or lsn % segment_size)
        if enough or start_lsn <= begin_lsn:
            return found
        start_lsn -= segment_size


class RecordEndSearch:
    """Searches the first complete record after a fork while the log grows, without reading WAL twice.

    Otherwise a record of a gigabyte that arrives in small pieces would be read a thousand times.

    Attributes:
        lsn: the fork, where a record ends and the next one begins; or a segment's start, where one may continue.
    """

    def __init__(self, lsn: Lsn, segment_size: int) -> None:
        self.lsn = lsn
        self._segment_size = segment_size
        self._decoder: RecordDecoder | None = None
        self._read_lsn = lsn
        self._record_end_lsn: Lsn = 0

    def find(self, read: Read, end_lsn: Lsn) -> Lsn:
        """Return the end of the record, as `find_records` does, without reading WAL before the fork.

        Args:
            read: returns the log's bytes [begin, end).
            end_lsn: the log's end. Below that of the last call, no byte may have changed since.
        """
        try:
            if self._decoder is None:
                self._decoder = RecordDecoder(self.lsn, self._segment_size)
            while not self._record_end_lsn and self._read_lsn < end_lsn:
                begin_lsn, self._read_lsn = self._read_lsn, min(self._read_lsn + _READ_BYTES, end_lsn)
                for record in self._decoder.walk(read(begin_lsn, self._read_lsn)):
                    self._record_end_lsn = self._record_end_lsn or record.end_lsn
        except WalFormatError:
            self._record_end_lsn = self._record_end_lsn or self.lsn
        skipped_until = (self._decoder.skipped_until if self._decoder is not None else None) or 0
        return skipped_until if self.lsn < skipped_until <= end_lsn else self._record_end_lsn


def _search(read: Read, lsn: Lsn, start_lsn: Lsn, end_lsn: Lsn, segment_size: int) -> RecordsAround:
    decoder = RecordDecoder(start_lsn, segment_size)
    last_record_lsn = 0
    try:
        for begin in range(start_lsn, lsn, _READ_BYTES):
            for record in decoder.walk(read(begin, min(begin + _READ_BYTES, lsn))):
                last_record_lsn = record.start_lsn
                if record.end_lsn > lsn:  # A switch record, which fills its segment.
                    return RecordsAround(record.end_lsn, last_record_lsn, None)
    except WalFormatError:
        return RecordsAround(lsn, last_record_lsn, None)
    log_tail = decoder.tail() if lsn % segment_size == 0 and lsn > start_lsn else None
    if decoder.pending is not None and decoder.pending < lsn:
        last_record_lsn = decoder.pending
    record_end_lsn = 0
    try:
        for begin in range(lsn, end_lsn, _READ_BYTES):
            for record in decoder.walk(read(begin, min(begin + _READ_BYTES, end_lsn))):
                record_end_lsn = record_end_lsn or record.end_lsn
            if record_end_lsn:
                break
    except WalFormatError:
        record_end_lsn = record_end_lsn or lsn
    skipped_until = decoder.skipped_until or 0
    if skipped_until > lsn:
        # lsn is within a record that began before the search.
        record_end_lsn = skipped_until
    return RecordsAround(record_end_lsn, last_record_lsn, log_tail)
