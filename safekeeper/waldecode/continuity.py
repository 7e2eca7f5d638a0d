"""Decides whether a primary's WAL continues a log.

`LinkCheck` is used if a primary has recycled the WAL before the log's end, so that bytes cannot be compared (S10). Of
the log it needs the tail, which safekeeper/waldecode/record_search.py finds.

Pure: no I/O, no clock.
"""

from safekeeper.base.lsn import format_lsn
from safekeeper.waldecode.format import WalFormatError
from safekeeper.waldecode.records import LogTail, RecordDecoder


class LinkCheck:
    """Decides whether a primary's WAL continues this log, which ends with `tail` on a segment's border (S10).

    It does if the first record after the border links to the log's last one or, if the log ends inside a record, if the
    primary's bytes complete that record with the right length and checksum. (It also does if the primary has
    overwritten that record after a crash, and the one in its place links to the log's last complete one.) The result is
    known with the first complete record, so that a checksum confirms it. Later records are not checked.
    """

    def __init__(self, tail: LogTail, segment_size: int) -> None:
        self._tail = tail
        self._decoder = RecordDecoder.after(tail, segment_size)
        self._linked: bool | None = None
        self._reason = ""

    @property
    def linked(self) -> bool | None:
        """None while it is undecided."""
        return self._linked

    @property
    def reason(self) -> str:
        """The reason of the result, in one line with LSNs."""
        if self._linked is not None:
            return self._reason
        if self._decoder.pending is None:
            return f"no complete record after {format_lsn(self._tail.end_lsn)} yet that links to this log"
        return f"the record at {format_lsn(self._decoder.pending)} is not complete yet"

    def feed(self, data: bytes) -> bool | None:
        """Decode the primary's next bytes, which begin at the border, and return `linked`."""
        if self._linked is not None:
            return self._linked
        try:
            record = next(self._decoder.walk(data), None)
        except WalFormatError as error:
            self._linked, self._reason = False, str(error)
            return False
        if record is None:
            return None
        at = format_lsn(record.start_lsn)
        if record.start_lsn == self._tail.record_lsn:
            self._reason = f"the record at {at}, in which this log ends, is completed with the right checksum"
        else:
            self._reason = f"the record at {at} links to this log's record at {format_lsn(record.previous_lsn)}"
        self._linked = True
        return True
