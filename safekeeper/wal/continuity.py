"""Does this WAL continue that log, and what would a cut cost? Two questions of the consensus about records.

`RecordEndFinder`: which is the first complete record that a cut of a log at a fork would lose, and where does it
end? If that is at or below what may have been committed, the primary that forked there is refused (S9).
`LinkCheck`: does a primary's WAL continue ours, when it has recycled the WAL before that, so that a comparison
of bytes is not possible (S10)? `find_log_tail` says about our log what that check must know.

Pure: no I/O, no clock.
"""

from collections.abc import Iterable

from safekeeper.errors import LocalProtocolError
from safekeeper.lsn import Lsn, format_lsn
from safekeeper.wal.format import WalFormatError
from safekeeper.wal.records import LogTail, RecordDecoder, check_record_boundary


class RecordEndFinder:
    """Finds the end of the first complete record that a cut of a log at `fork_lsn` would lose (S9).

    That is the record which begins at the fork, a fork on a page's start meaning the record behind the page's
    header. When that one was never completed, but overwritten after a crash, it is the one that replaced it.

    Args:
        fork_lsn: the end of the last record that the other side keeps.
        begin_lsn: where the bytes will begin: the fork's segment start, as a rule. With the fork itself, a fork
            that is not a record's start can pass for that of an incomplete record.
        segment_size: in bytes.

    Raises:
        WalFormatError: no record can begin at `fork_lsn` or at `begin_lsn`.
        LocalProtocolError: `begin_lsn` is beyond the fork.
    """

    def __init__(self, fork_lsn: Lsn, begin_lsn: Lsn, segment_size: int) -> None:
        check_record_boundary(fork_lsn, segment_size)
        if begin_lsn > fork_lsn:
            raise LocalProtocolError(f"no way to find {format_lsn(fork_lsn)} from {format_lsn(begin_lsn)} on")
        self._fork_lsn = fork_lsn
        self._decoder = RecordDecoder(begin_lsn, segment_size)
        self._end_lsn: Lsn | None = None

    @property
    def end_lsn(self) -> Lsn | None:
        """The end (EndRecPtr) of that record; None if the bytes up to the log's end do not complete it."""
        return self._end_lsn

    def feed(self, data: bytes) -> Lsn | None:
        """Take the log's next bytes, never any beyond its end, and return `end_lsn`.

        Raises:
            WalFormatError: the bytes are no WAL, or the fork lies inside a complete record of this log: then
                the other side has something else there.
        """
        if self._end_lsn is not None:
            return self._end_lsn
        for record in self._decoder.walk(data):
            # Whatever was under way at begin_lsn is over when the first record is complete.
            self._check_skipped()
            if record.start_lsn >= self._fork_lsn:
                self._end_lsn = record.end_lsn
                return self._end_lsn
            if record.end_lsn > self._fork_lsn:
                raise self._inside(f"the record at {format_lsn(record.start_lsn)}", record.end_lsn)
        self._check_skipped()
        return None

    def _check_skipped(self) -> None:
        skipped_until = self._decoder.skipped_until
        if skipped_until is not None and skipped_until > self._fork_lsn:
            raise self._inside("one that began in an earlier segment", skipped_until)

    def _inside(self, record: str, end_lsn: Lsn) -> WalFormatError:
        return WalFormatError(
            f"WAL at {format_lsn(self._fork_lsn)}: no record begins at this fork, {record} goes on to"
            f" {format_lsn(end_lsn)}: the primary did not fork from this log"
        )


def find_log_tail(chunks: Iterable[bytes], begin_lsn: Lsn, segment_size: int) -> LogTail | None:
    """Return the tail of the log whose last segments are `chunks`, for a `LinkCheck`.

    Args:
        chunks: our own WAL from `begin_lsn`, a segment's start, up to the log's end, a segment's start too.
        begin_lsn: where they begin. One segment does unless a single record takes all of it.
        segment_size: in bytes.

    Returns:
        None if no record begins in these bytes: give another segment before them.

    Raises:
        WalFormatError: these bytes are no WAL.
        LocalProtocolError: they do not end where a segment ends.
    """
    decoder = RecordDecoder(begin_lsn, segment_size)
    for chunk in chunks:
        decoder.feed(chunk)
    return decoder.tail()


class LinkCheck:
    """Decides whether a primary's WAL continues ours, which ends with `tail` on a segment's border (S10).

    It does if the first record behind the border links to our last one or, when our log ends inside a
    record, if the primary's bytes complete that very record: right length and right checksum. (Or if the
    primary has overwritten that record after a crash, and the one in its place links to our last complete
    one.) The answer comes with the first complete record, so that a checksum stands behind it. What comes
    after that one is not looked at, whatever the chunks.
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
        """Why, in one line with LSNs."""
        if self._linked is not None:
            return self._reason
        if self._decoder.pending is None:
            return f"no record behind {format_lsn(self._tail.end_lsn)} yet that could link to ours"
        return f"the record at {format_lsn(self._decoder.pending)} is not complete yet"

    def feed(self, data: bytes) -> bool | None:
        """Take the primary's next bytes, the first ones being those at the border, and return `linked`."""
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
            self._reason = f"the record at {at}, which our log ends in, is completed with the right checksum"
        else:
            self._reason = f"the record at {at} links to ours at {format_lsn(record.previous_lsn)}"
        self._linked = True
        return True
