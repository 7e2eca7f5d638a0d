"""The WAL of an old primary in a folder: its records around and after a fork. Blocking.

Segments are read as far as their content is valid. Where it ends, the files of later segments may be leftovers of the
server: kept for reuse, with old addresses, which `FolderListing` leaves out.
"""

from collections.abc import Iterator
from pathlib import Path

from safekeeper.base.errors import ConfigurationError, RemoteProtocolError
from safekeeper.base.lsn import Lsn, format_lsn, segment_name, segment_start
from safekeeper.base.regular_files import open_regular, read_regular
from safekeeper.base.timelines import parse_timeline_history, timeline_history_name
from safekeeper.waldecode.format import PAGE_HEADER_SIZE, WalFormatError
from safekeeper.waldecode.records import Record, RecordDecoder
from walproxy.failover.discarded import BODY_RMIDS
from walproxy.wal_sources.segment_listing import FolderListing, ListedSegment, unreadable
from walproxy.wal_sources.source import LogPath, SourceCorrupt, WalMissing

_READ_BYTES = 1 << 20
_BLOCK_BYTES = 4 << 20


class TailWal:
    """The WAL of one timeline, with its ancestors, in a folder.

    Args:
        folder: pg_wal of the old primary, or a copy.
        from_lsn: the fork.
        tli: the timeline at the WAL's end; None: the one that a history file in the folder leaves at the fork, else the
            highest that has WAL after it.

    Attributes:
        path: the timeline.
        segment_size: in bytes.
        system_id: of the server that wrote the WAL.

    Raises:
        ConfigurationError: the folder has no WAL, or the timeline is not clear.
        WalMissing: the segment with the fork, or the timeline, is missing.
        SourceUnavailable, SourceCorrupt: a file cannot be read, or is another server's.
    """

    def __init__(self, folder: Path, from_lsn: Lsn, tli: int | None = None) -> None:
        self.folder = folder
        self._listing = FolderListing(folder)
        try:
            origin = self._listing.origin()
        except ConfigurationError:
            raise ConfigurationError(f"the folder {folder} has no segments of WAL") from None
        self._listing.refresh()
        self.system_id, self.segment_size = origin.system_id, origin.segment_size
        self._tlis = sorted({each for each, _ in self._listing.files}, reverse=True)
        tli = self._choose_tli(from_lsn) if tli is None else tli
        if tli not in self._tlis:
            known = ", ".join(map(str, sorted(self._tlis)))
            raise WalMissing(f"the folder {folder} has no WAL of timeline {tli}: it has {known}")
        self._has_lineage = tli in self._listing.histories
        self.path = LogPath(tli, self._lineage(tli) if self._has_lineage else (), self.segment_size)

    def segment_name(self, lsn: Lsn) -> str:
        """Return the name of the segment with byte `lsn`."""
        return segment_name(self.path.tli_of(lsn), lsn, self.segment_size)

    def block_start(self, lsn: Lsn) -> Lsn | None:
        """Return a page's start at or below `lsn`, at most a few MiB below it, from which records can be read.

        None if the folder does not have that WAL. After a switch record a segment has zeros: then it is before these.
        """
        step = min(_BLOCK_BYTES, self.segment_size)
        begin_lsn = lsn - lsn % step
        while begin_lsn >= 0:
            file = self.file(begin_lsn)
            if file is None:
                return None
            if begin_lsn == file.begin_lsn or any(next(_pieces(file, begin_lsn, PAGE_HEADER_SIZE), b"")):
                return begin_lsn
            begin_lsn -= step
        return None

    def later_segment(self, lsn: Lsn) -> str | None:
        """Return the name of the first later segment than that of `lsn` that was written on this timeline, or None."""
        begin_lsn = segment_start(lsn, self.segment_size)
        later = [begin for tli, begin in self._listing.files if tli == self.path.tli and begin > begin_lsn]
        return segment_name(self.path.tli, min(later), self.segment_size) if later else None

    def _choose_tli(self, from_lsn: Lsn) -> int:
        left = {
            parent
            for history in self._listing.histories
            for parent, left_lsn in self._lineage(history)
            if left_lsn == from_lsn
        }
        if len(left) > 1:
            raise ConfigurationError(
                f"the timelines {', '.join(map(str, sorted(left)))} were left at {format_lsn(from_lsn)}: name one with "
                "--timeline"
            )
        if left:
            return left.pop()
        after = [tli for tli, begin_lsn in self._listing.files if begin_lsn + self.segment_size >= from_lsn]
        if not after:
            raise WalMissing(f"the folder {self.folder} has no WAL after {format_lsn(from_lsn)}: check the LSN")
        return max(after)

    def _lineage(self, tli: int) -> tuple[tuple[int, Lsn], ...]:
        path = self.folder / timeline_history_name(tli)
        try:
            return parse_timeline_history(tli, read_regular(path))
        except RemoteProtocolError as error:
            raise SourceCorrupt(f"{path}: {error}") from None
        except OSError as error:
            raise unreadable(path, error) from error

    def file(self, lsn: Lsn) -> ListedSegment | None:
        """Return the file of the segment with byte `lsn`, None if the folder has none.

        Without a history file, the WAL before the first segment of the timeline is that of a lower one.
        """
        begin_lsn = segment_start(lsn, self.segment_size)
        if self._has_lineage:
            tlis = [tli for tli, _ in self.path.names(begin_lsn)]
        else:
            tlis = [tli for tli in self._tlis if tli <= self.path.tli]
            if any(tli == self.path.tli and begin <= begin_lsn for tli, begin in self._listing.files):
                tlis = [self.path.tli]
        for tli in tlis:
            files = self._listing.files.get((tli, begin_lsn))
            if files:
                return max(files, key=lambda file: file.size)
        return None


class TailScan:
    """Reads records from `begin_lsn` on, a page's start, up to the end of valid WAL.

    Attributes:
        skipped_until: the end of the record that `begin_lsn` cuts; 0 if there is none, or if it was not found yet.
        end_lsn: that of the last record.
        end_reason: why no record follows it; empty while that is not known.
        major: of the PostgreSQL that wrote the WAL; known from the first record on.
    """

    def __init__(self, wal: TailWal, begin_lsn: Lsn) -> None:
        self._wal = wal
        self._begin_lsn = begin_lsn
        self._decoder = RecordDecoder(begin_lsn, wal.segment_size, BODY_RMIDS)
        self.end_lsn: Lsn = 0
        self.end_reason = ""

    @property
    def skipped_until(self) -> Lsn:
        return self._decoder.skipped_until or 0

    @property
    def major(self) -> int:
        assert self._decoder.major is not None  # A record was read, and before it the header of its page.
        return self._decoder.major

    def records(self) -> Iterator[Record]:
        """Yield them. Raises SourceUnavailable if a file cannot be read."""
        wal, lsn = self._wal, self._begin_lsn
        try:
            while True:
                file = wal.file(lsn)
                if file is None:
                    self.end_reason = f"{wal.segment_name(lsn)} is missing"
                    return
                for piece in _pieces(file, lsn, _READ_BYTES):
                    for record in self._decoder.walk(piece):
                        if (self._decoder.tli or 0) > wal.path.tli:
                            raise WalFormatError(f"WAL at {format_lsn(record.start_lsn)} is of a later timeline")
                        self.end_lsn = record.end_lsn
                        yield record
                    lsn += len(piece)
                if lsn < file.begin_lsn + wal.segment_size:
                    self.end_reason = f"{file.path.name} ends at {format_lsn(lsn)}"
                    return
        except WalFormatError as error:
            self.end_reason = str(error)


def _pieces(file: ListedSegment, lsn: Lsn, size: int) -> Iterator[bytes]:
    """Yield the bytes of a segment's file from `lsn` on, up to `size` of them at a time.

    Raises:
        SourceUnavailable: it cannot be read.
    """
    try:
        with open_regular(file.path) as opened:
            opened.seek(lsn - file.begin_lsn)
            while piece := opened.read(min(size, file.begin_lsn + file.size - lsn)):
                yield piece
                lsn += len(piece)
    except OSError as error:
        raise unreadable(file.path, error) from error
